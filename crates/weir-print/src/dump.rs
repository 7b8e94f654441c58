//! Bytes in hexadecimal and as characters, in the form of `tcpdump -X`.

use std::io::Write;

use crate::text::Text;

const BYTES_A_LINE: usize = 16;
/// Two digits a byte, and a blank before each pair of bytes.
const DIGITS_A_LINE: usize = BYTES_A_LINE / 2 * 5;

/// A line for each 16 bytes of `frame` from `at` on.
pub(crate) fn write(out: &mut Vec<u8>, frame: &[u8], at: usize) {
    for (i, bytes) in frame.get(at..).unwrap_or(&[]).chunks(BYTES_A_LINE).enumerate() {
        let _ = write!(out, "\n\t0x{:04x}: ", i * BYTES_A_LINE);
        let begin = out.len();
        for (i, byte) in bytes.iter().enumerate() {
            let _ = write!(out, "{}{byte:02x}", if i % 2 == 0 { " " } else { "" });
        }
        out.resize(begin + DIGITS_A_LINE, b' ');
        out.put("  ");
        out.extend(bytes.iter().map(|byte| if byte.is_ascii_graphic() { *byte } else { b'.' }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stand_as_tcpdump_has_them() {
        let mut out = Vec::new();
        write(&mut out, b"....0123456789abcdef\x00 ~", 4);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "\n\t0x0000:  3031 3233 3435 3637 3839 6162 6364 6566  0123456789abcdef\
             \n\t0x0010:  0020 7e                                  ..~"
        );
    }
}
