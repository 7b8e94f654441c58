//! Splits a byte stream into lines, with a limit for the memory.

/// Received bytes that were not taken as lines yet.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// The position of the next line. Bytes before it were taken.
    begin: usize,
    /// Up to this position, the next line has no end: these bytes are not searched again.
    searched: usize,
    line_bytes_max: usize,
}

impl Lines {
    pub(crate) fn new(line_bytes_max: usize) -> Lines {
        Lines { bytes: Vec::new(), begin: 0, searched: 0, line_bytes_max }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // Moves fewer bytes than were taken since the last move, so the cost of all moves together is linear.
        if self.begin > self.bytes.len() / 2 {
            self.bytes.drain(..self.begin);
            self.searched -= self.begin;
            self.begin = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line, without its end.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let Some(at) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let end = self.searched + at;
        let line = self.bytes[self.begin..end].to_vec();
        (self.begin, self.searched) = (end + 1, end + 1);
        Some(line)
    }

    /// Tells whether the incomplete line is too long already. [`next`](Lines::next) must have searched it.
    pub(crate) fn is_too_long(&self) -> bool {
        self.searched - self.begin > self.line_bytes_max
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

    /// Moving the rest for each line, 2 MiB of short lines would be some 2 TiB of copies.
    #[test]
    fn many_lines_take_a_time_that_is_linear() {
        let mut lines = Lines::new(10);
        let bytes = [b'a', b'\n'].repeat(1 << 20);
        let start = std::time::Instant::now();
        lines.push(&bytes);
        assert_eq!(std::iter::from_fn(|| lines.next()).count(), 1 << 20);
        // A line is taken for each that comes, while many wait.
        lines.push(&bytes);
        for _ in 0..1 << 20 {
            assert!(lines.next().is_some());
            lines.push(b"a\n");
        }
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
        assert!(lines.bytes.len() <= 2 * bytes.len() + 2, "{}", lines.bytes.len());
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
