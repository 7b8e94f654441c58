//! Functions that build frames for tests, one for each layer.

/// An IPv4 packet from 10.0.0.1 to 10.0.0.2, with its checksum.
pub fn v4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 7]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let words = packet.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    packet[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    packet.extend(payload);
    packet
}

/// A UDP datagram without a checksum.
pub fn udp(src: u16, dst: u16, data: &[u8]) -> Vec<u8> {
    let len = 8 + data.len() as u16;
    let words = [src, dst, len, 0].map(u16::to_be_bytes);
    [words.as_flattened(), data].concat()
}

/// An Ethernet frame with this ethertype or length.
pub fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &kind.to_be_bytes()[..], payload].concat()
}

/// The header of a TCP SYN from port 4242 to port 80, with options.
#[rustfmt::skip]
pub const SYN: [u8; 40] = [
    0x10, 0x92, 0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0xa0, 0x02, 0xff, 0xff, 0, 0, 0, 0,
    2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

/// The question section of a DNS message: example.com, type A.
pub const QUESTION: &[u8] = b"\x07example\x03com\x00\x00\x01\x00\x01";

/// A DNS message with [`QUESTION`]. `counts` are the numbers of records in the four sections; `rest` follows the
/// question.
pub fn dns(flags: u16, counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
    let head = [0x1234, flags, counts[0], counts[1], counts[2], counts[3]].map(u16::to_be_bytes);
    [head.as_flattened(), QUESTION, rest].concat()
}
