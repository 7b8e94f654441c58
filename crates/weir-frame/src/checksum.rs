//! The checksum of IP, TCP and UDP. Source: RFC 1071.

/// Returns the sum of the 16-bit words; if the number of bytes is odd, the last byte is the high byte of a word.
#[must_use]
pub fn word_sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    words + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// Returns the value of the checksum field for this sum. A UDP sender replaces 0 by 0xffff (RFC 768).
#[must_use]
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_header_has_its_known_checksum() {
        // A widely used example (Wikipedia, "Internet checksum"): its checksum is b861.
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(fold(word_sum(&header)), 0xb861);
        assert_eq!(word_sum(&[1, 2, 3]), 0x0102 + 0x0300);
    }
}
