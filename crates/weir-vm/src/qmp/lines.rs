//! Bytes of a stream cut into lines, in bounded memory.

/// What has come and was not taken yet.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// Bytes in front that hold no end of a line: they are not looked through again.
    searched: usize,
    line_bytes_max: usize,
}

impl Lines {
    pub(crate) fn new(line_bytes_max: usize) -> Lines {
        Lines { bytes: Vec::new(), searched: 0, line_bytes_max }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let Some(at) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let at = self.searched + at;
        let rest = self.bytes.split_off(at + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.truncate(at);
        self.searched = 0;
        Some(line)
    }

    /// Whether the line that has begun is too long already.
    pub(crate) fn is_too_long(&self) -> bool {
        self.searched > self.line_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_without_an_end_is_too_long_at_some_time() {
        let mut lines = Lines::new(10);
        lines.push(b"0123456789");
        assert_eq!((lines.next(), lines.is_too_long()), (None, false));
        lines.push(b"0");
        assert_eq!((lines.next(), lines.is_too_long()), (None, true));
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_come(
            wanted in prop::collection::vec("[a-z]{0,12}", 0..20),
            chunk in 1usize..30,
        ) {
            let text: String = wanted.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            let (mut lines, mut found) = (Lines::new(12), Vec::new());
            for bytes in text.as_bytes().chunks(chunk) {
                lines.push(bytes);
                while let Some(line) = lines.next() {
                    found.push(String::from_utf8(line).unwrap());
                }
                prop_assert!(!lines.is_too_long());
            }
            prop_assert_eq!(found, wanted);
        }
    }
}
