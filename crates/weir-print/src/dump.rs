//! Writes bytes as hexadecimal numbers and characters, in the formats of `tcpdump -X`, `-x` and `-A`.

use crate::options::DumpForm;
use crate::text::Text;

const BYTES_A_LINE: usize = 16;
/// Width of the hexadecimal part: two digits for each byte, and a blank before each pair of bytes.
const DIGITS_A_LINE: usize = BYTES_A_LINE / 2 * 5;

/// Appends the lines with a frame's bytes. Each begins with a line break, and the last one does not end with one.
pub(crate) fn write(out: &mut Vec<u8>, bytes: &[u8], form: DumpForm) {
    match form {
        _ if bytes.is_empty() => {}
        DumpForm::Text => write_text(out, bytes),
        DumpForm::Hex => write_lines(out, bytes, false),
        DumpForm::HexAndText => write_lines(out, bytes, true),
    }
}

/// Appends a line for each 16 bytes.
fn write_lines(out: &mut Vec<u8>, bytes: &[u8], has_text: bool) {
    for (i, bytes) in bytes.chunks(BYTES_A_LINE).enumerate() {
        out.put("\n\t");
        out.hex((i * BYTES_A_LINE) as u64, 4);
        out.put(": ");
        let begin = out.len();
        for pair in bytes.chunks(2) {
            out.put(" ");
            pair.iter().for_each(|&byte| out.hex_byte(byte));
        }
        if has_text {
            out.resize(begin + DIGITS_A_LINE, b' ');
            out.put("  ");
            out.extend(bytes.iter().map(|&byte| if byte.is_ascii_graphic() { byte } else { b'.' }));
        }
    }
}

/// Appends printable characters, blanks, tabs and line feeds unchanged, and dots for the rest. CR and LF together
/// become LF.
fn write_text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put("\n");
    for (i, &byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' if matches!(bytes.get(i + 1), None | Some(b'\n')) => {}
            b' '..=b'~' | b'\t' | b'\n' => out.push(byte),
            _ => out.push(b'.'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(bytes: &[u8], form: DumpForm, text: &str) {
        let mut out = Vec::new();
        write(&mut out, bytes, form);
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn bytes_stand_as_tcpdump_has_them() {
        let bytes = b"0123456789abcdef\x00 ~";
        is(
            bytes,
            DumpForm::HexAndText,
            "\n\t0x0000:  3031 3233 3435 3637 3839 6162 6364 6566  0123456789abcdef\
             \n\t0x0010:  0020 7e                                  ..~",
        );
        is(
            bytes,
            DumpForm::Hex,
            "\n\t0x0000:  3031 3233 3435 3637 3839 6162 6364 6566\n\t0x0010:  0020 7e",
        );
        is(bytes, DumpForm::Text, "\n0123456789abcdef. ~");
    }

    #[test]
    fn text_has_line_ends_and_no_other_control_characters() {
        is(b"a\r\nb\tc\rd\r\r\x1b[2J\x7f\xe2\r", DumpForm::Text, "\na\nb\tc.d...[2J..");
        for form in [DumpForm::HexAndText, DumpForm::Hex, DumpForm::Text] {
            is(b"", form, "");
        }
    }
}
