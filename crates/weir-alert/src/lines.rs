//! Splits bytes into lines, none longer than a limit.

use crate::limits::LINE_BYTES_MAX;

/// A line, without the line break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A complete line.
    Whole(&'a [u8]),
    /// A line that is longer than [`LINE_BYTES_MAX`].
    TooLong,
}

/// Splits a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of a line whose end has not come yet.
    half: Vec<u8>,
    /// The line is already too long; its remaining bytes are skipped.
    skips: bool,
}

impl Lines {
    /// Passes each line that ends in these bytes to `take`, and keeps the incomplete line after them.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Line)) {
        let mut pieces = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            let ends = pieces.peek().is_some();
            if self.half.is_empty() && !self.skips && ends && piece.len() <= LINE_BYTES_MAX {
                take(Line::Whole(piece));
                continue;
            }
            self.keep(piece);
            if ends {
                self.end(&mut take);
            }
        }
    }

    /// Passes the incomplete line, if there is one, to `take`. To be called at the end of the input.
    pub fn end(&mut self, mut take: impl FnMut(Line)) {
        if std::mem::take(&mut self.skips) {
            take(Line::TooLong);
        } else if !self.half.is_empty() {
            take(Line::Whole(&self.half));
        }
        self.half.clear();
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.half.len() + piece.len() > LINE_BYTES_MAX {
            self.skips = true;
            self.half = Vec::new();
        }
        if !self.skips {
            self.half.extend_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lines of these pieces; `None` for a line that is too long.
    fn cut(pieces: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        let mut take = |line: Line| match line {
            Line::Whole([]) => {}
            Line::Whole(line) => all.push(Some(line.to_vec())),
            Line::TooLong => all.push(None),
        };
        pieces.iter().for_each(|piece| lines.push(piece, &mut take));
        lines.end(&mut take);
        all
    }

    fn some(text: &[u8]) -> Option<Vec<u8>> {
        Some(text.to_vec())
    }

    #[test]
    fn a_line_that_is_too_long_is_told_once_and_the_next_one_is_whole() {
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        let fits = &long[1..];
        assert_eq!(cut(&[&long, b"\nnext\n"]), [None, some(b"next")]);
        assert_eq!(cut(&[&long, &long, &long, b"\n\nnext"]), [None, some(b"next")]);
        assert_eq!(cut(&[fits, b"\nnext\n"]), [some(fits), some(b"next")]);
        assert_eq!(cut(&[&[fits, b"x\nnext\n"].concat()]), [None, some(b"next")]);
        assert_eq!(cut(&[&long]), [None]);
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_come(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            at in 0..200_usize,
        ) {
            let whole: Vec<_> =
                text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(some).collect();
            let (one, two) = text.split_at(at.min(text.len()));
            prop_assert_eq!(&cut(&[one, two]), &whole);
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            prop_assert_eq!(&cut(&bytes), &whole);
        }
    }
}
