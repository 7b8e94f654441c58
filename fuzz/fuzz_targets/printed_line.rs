//! Any bytes of any link type make one line, without control characters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_frame::record::Flags;
use weir_print::{Frame, Options, write_line};

/// Link types: raw IP, Ethernet, PPP, PPP in HDLC, null, loop, Linux cooked 1 and 2, IPv4, IPv6, and an unknown one.
const LINK_TYPES: [u16; 11] = [101, 1, 9, 50, 0, 108, 113, 276, 228, 229, 147];

fuzz_target!(|bytes: &[u8]| {
    let Some((&[link_type, how, more], data)) = bytes.split_first_chunk::<3>() else { return };
    let frame = Frame {
        link_type: LINK_TYPES[usize::from(link_type) % LINK_TYPES.len()],
        data,
        wire_len: data.len() as u32 + u32::from(more),
        flags: (how & 4 != 0).then_some(Flags(u32::from(how) << 6)),
    };
    let options = Options { verbose: how & 1 != 0, link: how & 2 != 0, ..Options::default() };
    let mut line = Vec::new();
    write_line(&mut line, &frame, &options);
    let text = String::from_utf8(line).expect("ASCII");
    assert!(text.chars().all(|c| !c.is_control()) && !text.is_empty());
    // A DNS message of 64 KiB makes the longest line: names of 255 bytes, four characters for each byte.
    assert!(text.len() < 200_000);
});
