//! Walks over the blocks of a recorded file.
//!
//! The walk ends where there is no valid block: data that a recorder has not confirmed begins with zeros.

use std::io;

use super::blocks::{self, HEAD_BYTES, Kind};
use crate::compressed::Content;
use crate::limits::NAMES_BLOCK_BYTES_MAX;

/// Bytes that are read at a time in a walk that reads frames.
const FRAMES_WINDOW: usize = 1 << 20;
/// Bytes that are read at a time in a walk that skips frames.
const HEADERS_WINDOW: usize = 16 << 10;

/// The result of a step of the walk.
pub(crate) enum Walked<'a> {
    /// A whole block.
    Block {
        kind: Kind,
        /// The whole block; empty if the walk skips its contents.
        bytes: &'a [u8],
        at: u64,
        /// Length of the block in the file.
        length: usize,
    },
    /// There is no valid block at this offset. Data after it is not used: a killed recorder may have left it there
    /// unconfirmed.
    Damage { at: u64 },
}

/// A walk from one offset of a file to another.
pub(crate) struct Walk<'a> {
    file: &'a Content,
    buffer: Vec<u8>,
    /// File offset of the buffer, and the number of valid bytes in it.
    buffer_at: u64,
    filled: usize,
    window: usize,
    at: u64,
    to: u64,
    bytes_read: u64,
    ended: bool,
}

impl<'a> Walk<'a> {
    /// Creates a walk that reads whole blocks.
    pub fn frames(file: &'a Content, from: u64, to: u64) -> Walk<'a> {
        Walk::new(file, from, to, FRAMES_WINDOW)
    }

    /// Creates a walk that skips the contents of frames and of other long blocks.
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

    /// Returns the number of bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Returns the next block, or damage; `None` at the end.
    ///
    /// # Errors
    /// Those of [`Content::read_at`], except for damaged compressed pieces, which are [`Walked::Damage`].
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
        // Padding may be as long as a piece, so its contents are not always read.
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

    /// Returns these bytes of the file; `None` if the file is too short, also because it was truncated meanwhile.
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
                    // An incomplete compressed piece is handled as the end of the file.
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
