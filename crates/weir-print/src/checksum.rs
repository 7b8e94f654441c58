//! The internet checksum. Source: RFC 1071.

/// Sum of 16-bit words in network order; an odd last byte is the high one of its word.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let sum: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    sum + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// The internet checksum of a sum of words.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
