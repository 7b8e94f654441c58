//! A window that slides over an input: a reusable buffer of the bytes that were not consumed yet.

use std::io::{self, ErrorKind, Read};

/// Initial size of the buffer; each read asks for as many bytes as the buffer has space for.
const FIRST_BYTES: usize = 64 << 10;

/// Bytes of `input` from [`offset`](Self::offset) on, as far as they were read.
#[derive(Debug)]
pub(super) struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
}

impl<R: Read> Window<R> {
    pub(super) fn new(input: R) -> Window<R> {
        Window { input, buffer: Vec::new(), start: 0, end: 0, offset: 0 }
    }

    pub(super) fn input_mut(&mut self) -> &mut R {
        &mut self.input
    }

    /// Returns the offset in the input at which the window begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes in the window: at least as many as the last [`need`](Self::need) has confirmed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads until `wanted` bytes are in the window, and returns whether they are: `false` at the end of the input.
    ///
    /// The buffer doubles only once it is full, so a wrong length costs no memory: at most 64 KiB, or twice the bytes
    /// that were really read.
    pub(super) fn need(&mut self, wanted: usize) -> io::Result<bool> {
        while self.end - self.start < wanted {
            if self.end == self.buffer.len() {
                self.make_room();
            }
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(n) => self.end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Moves the window's start forward by `bytes`.
    pub(super) fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "only bytes that are there are consumed");
        self.start += bytes;
        self.offset += bytes as u64;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Consumes `bytes` without buffering all of them. Returns the number of bytes that were available.
    pub(super) fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        let mut left = bytes;
        while left > 0 && self.need(1)? {
            let step = left.min((self.end - self.start) as u64);
            self.consume(step as usize);
            left -= step;
        }
        Ok(bytes - left)
    }

    /// Moves the remaining bytes to the front; if that frees too little, doubles the buffer.
    fn make_room(&mut self) {
        let kept = self.end - self.start;
        if kept <= self.buffer.len() / 2 && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
        } else {
            let mut larger = vec![0; (self.buffer.len() * 2).max(FIRST_BYTES)];
            larger[..kept].copy_from_slice(&self.buffer[self.start..self.end]);
            self.buffer = larger;
        }
        (self.start, self.end) = (0, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives 1 to 7 bytes a read, with interruptions between.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(ErrorKind::Interrupted.into());
            }
            let n = (self.1 % 7 + 1).min(out.len()).min(self.0.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn a_length_that_the_input_does_not_keep_costs_no_memory() {
        let mut window = Window::new(&[1u8; 100][..]);
        assert!(!window.need(1 << 30).unwrap());
        assert_eq!(window.bytes().len(), 100);
        assert_eq!(window.buffer.len(), FIRST_BYTES);
    }

    proptest! {
        #[test]
        fn every_byte_comes_once_and_in_order(
            input in proptest::collection::vec(any::<u8>(), 0..3000),
            steps in proptest::collection::vec((any::<bool>(), 0usize..400), 0..40),
        ) {
            let mut window = Window::new(Trickle(&input, 0));
            let mut at = 0;
            for (skip, bytes) in steps {
                let there = bytes.min(input.len() - at);
                if skip {
                    prop_assert_eq!(window.skip(bytes as u64).unwrap(), there as u64);
                } else {
                    prop_assert_eq!(window.need(bytes).unwrap(), there == bytes);
                    prop_assert_eq!(&window.bytes()[..there], &input[at..at + there]);
                    window.consume(there);
                }
                at += there;
                prop_assert_eq!(window.offset(), at as u64);
            }
        }
    }
}
