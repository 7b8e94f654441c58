//! Writes bytes, and counts bytes and frames that were written.

use std::io::{self, Write};
use std::ops::{AddAssign, SubAssign};

/// A number of frames, and of their bytes on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of frames.
    pub frames: u64,
    /// The sum of these frames' `wire_len`.
    pub wire_bytes: u64,
}

impl Count {
    /// Returns the count of one frame.
    #[must_use]
    pub fn one(wire_len: u32) -> Count {
        Count { frames: 1, wire_bytes: u64::from(wire_len) }
    }
}

impl SubAssign for Count {
    fn sub_assign(&mut self, other: Count) {
        self.frames -= other.frames;
        self.wire_bytes -= other.wire_bytes;
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, more: Count) {
        self.frames += more.frames;
        self.wire_bytes += more.wire_bytes;
    }
}

/// Does the same as [`Write::write_all`], but also returns how many bytes were written before an error.
pub fn write_counted(out: &mut (impl Write + ?Sized), bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut taken = 0;
    while taken < bytes.len() {
        match out.write(&bytes[taken..]) {
            Ok(0) => return (taken, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => taken += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (taken, Err(error)),
        }
    }
    (taken, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_was_taken_before_it() {
        let mut room = [0; 5];
        let mut full = &mut room[..];
        let (taken, result) = write_counted(&mut full, b"1234567");
        assert_eq!((taken, result.unwrap_err().kind()), (5, io::ErrorKind::WriteZero));
        assert_eq!(&room, b"12345");
    }
}
