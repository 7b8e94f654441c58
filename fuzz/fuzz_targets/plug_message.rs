//! Any bytes are messages, an end or an error; what was parsed is a message with as many descriptors after another way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_plug::{Message, framing};

fuzz_target!(|bytes: &[u8]| {
    let mut stream = bytes;
    while let Ok(Some(message)) = framing::receive(&mut stream, 1 << 16) {
        if let Ok((parsed, descriptors)) = Message::parse(&message) {
            // Not the very same: a number with a fraction is rounded.
            let again = parsed.to_value(descriptors).to_string();
            let (_, count) = Message::parse(again.as_bytes()).expect("it was one");
            assert_eq!(count, descriptors);
        }
    }
});
