//! Any bytes are messages, an end or an error. A parsed message that is written and parsed again has the same
//! descriptors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_plug::{Message, framing};

fuzz_target!(|bytes: &[u8]| {
    let mut stream = bytes;
    while let Ok(Some(message)) = framing::receive(&mut stream, 1 << 16) {
        if let Ok((parsed, descriptors)) = Message::parse(&message) {
            // It may differ: numbers with a fraction are rounded.
            let again = parsed.to_value(descriptors).to_string();
            let (_, count) = Message::parse(again.as_bytes()).expect("it was one");
            assert_eq!(count, descriptors);
        }
    }
});
