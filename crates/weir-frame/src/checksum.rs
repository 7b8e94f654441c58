//! The checksum of IP, TCP and UDP. Source: RFC 1071.

/// The sum of the words of 16 bits; the last byte of an odd number is a high one.
pub fn word_sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    words + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// Value of a checksum field for this sum.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
