//! Walks over the blocks of a recorded file.
//!
//! It ends where there is no block: unconfirmed data of a recorder begins with zeros.

use std::io;

use super::blocks::{self, HEAD_BYTES, Kind};
use crate::compressed::Content;
use crate::limits::NAMES_BLOCK_BYTES_MAX;

/// Bytes that are read at a time, of frames.
const FRAMES_WINDOW: usize = 1 << 20;
/// The same where frames are few, or none are expected.
const HEADERS_WINDOW: usize = 16 << 10;

/// A step of the walk.
pub(crate) enum Walked<'a> {
    /// A whole block.
    Block {
        kind: Kind,
        /// All of it; empty, if it is one that only takes room, or too long a one.
        bytes: &'a [u8],
        at: u64,
        /// Bytes of it in the file.
        length: usize,
    },
    /// Here is no block, and nothing behind it is believed: a recorder that was killed has left bytes there that it did
    /// not confirm.
    Damage { at: u64 },
}

/// A walk from one place of a file to another.
pub(crate) struct Walk<'a> {
    file: &'a Content,
    buffer: Vec<u8>,
    /// Where the buffer begins in the file, and how much of it is there.
    buffer_at: u64,
    filled: usize,
    window: usize,
    at: u64,
    to: u64,
    bytes_read: u64,
    ended: bool,
}

impl<'a> Walk<'a> {
    /// A walk that reads all.
    pub fn frames(file: &'a Content, from: u64, to: u64) -> Walk<'a> {
        Walk::new(file, from, to, FRAMES_WINDOW)
    }

    /// A walk that reads little of long blocks: frames come without their bytes.
    pub fn headers(file: &'a Content, from: u64, to: u64) -> Walk<'a> {
        Walk::new(file, from, to, HEADERS_WINDOW)
    }

    fn new(file: &'a Content, from: u64, to: u64, window: usize) -> Walk<'a> {
        let buffer = Vec::new();
        Walk {
            file,
            buffer,
            buffer_at: from,
            filled: 0,
            window,
            at: from,
            to,
            bytes_read: 0,
            ended: false,
        }
    }

    /// Bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The next block, or what was found instead; `None` at the end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn next(&mut self) -> io::Result<Option<Walked<'_>>> {
        if self.ended || self.at >= self.to {
            return Ok(None);
        }
        let at = self.at;
        let found = self.bytes(at, HEAD_BYTES)?.and_then(blocks::head);
        let Some((kind, length)) = found.filter(|(_, length)| *length as u64 <= self.to - at)
        else {
            return Ok(Some(self.damage()));
        };
        // Padding may be as long as a piece.
        let is_wanted = match kind {
            Kind::Frame => self.window == FRAMES_WINDOW,
            Kind::Interface | Kind::Section => true,
            Kind::Names => length <= NAMES_BLOCK_BYTES_MAX,
            Kind::ForeignFrame | Kind::Padding | Kind::Other => length <= HEADERS_WINDOW,
        };
        let is_whole = if is_wanted {
            self.bytes(at, length)?.is_some_and(blocks::is_whole)
        } else {
            let tail = self.bytes(at + length as u64 - 4, 4)?.map(<[u8]>::to_vec);
            tail.is_some_and(|tail| tail == (length as u32).to_le_bytes())
        };
        if !is_whole {
            return Ok(Some(self.damage()));
        }
        self.at += length as u64;
        let bytes = if is_wanted { self.bytes(at, length)?.unwrap_or_default() } else { &[] };
        Ok(Some(Walked::Block { kind, bytes, at, length }))
    }

    fn damage(&mut self) -> Walked<'static> {
        self.ended = true;
        Walked::Damage { at: self.at }
    }

    /// These bytes of the file; `None` if it is not so long (any more).
    fn bytes(&mut self, at: u64, length: usize) -> io::Result<Option<&[u8]>> {
        let has = |walk: &Walk<'_>| {
            at >= walk.buffer_at && at + length as u64 <= walk.buffer_at + walk.filled as u64
        };
        if !has(self) {
            let wanted = self.window.max(length).min((self.to.saturating_sub(at)) as usize);
            if self.buffer.len() < wanted {
                self.buffer.resize(wanted, 0);
            }
            (self.buffer_at, self.filled) = (at, 0);
            while self.filled < wanted {
                let place = at + self.filled as u64;
                match self.file.read_at(&mut self.buffer[self.filled..wanted], place) {
                    Ok(0) => break,
                    Ok(bytes) => self.filled += bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // A compressed piece that is not whole: as if the file ended before it.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => break,
                    Err(error) => return Err(error),
                }
            }
            self.bytes_read += self.filled as u64;
        }
        let start = (at.saturating_sub(self.buffer_at)) as usize;
        Ok(if has(self) { self.buffer.get(start..start + length) } else { None })
    }
}
