//! The state of a write. A write is continued after a short write, copied if the kernel cannot read its memory, and
//! repeated if the kernel requests that. This module decides on the next step, and the disks carry it out.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use weir_ring::{AtomicU64, Words};

use crate::buffer::{ALIGN_BYTES, Buffer};
use crate::file::DiskFile;
use crate::limits::TRIES_MAX;
use crate::queue::{Bytes, Completed, Ticket};
use crate::shared::Shared;

/// A write in progress.
pub struct Write {
    file: Arc<DiskFile>,
    at: u64,
    bytes: Bytes,
    ticket: Ticket,
    /// A copy of the bytes, which is written if the kernel cannot read them from ring memory.
    copy: Option<Buffer>,
    /// Number of bytes written.
    done: usize,
    /// Number of consecutive steps that wrote nothing.
    fruitless: u32,
    /// Whether the last step was a direct write.
    was_direct: bool,
    /// Whether all bytes are in the page cache and are being flushed.
    is_flushing: bool,
}

/// A step of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write `bytes` bytes of memory at offset `at` of the file. The memory stays valid as long as the write exists.
    Write { from: *const u8, bytes: u32, at: u64 },
    /// Allocate `bytes` bytes of the file at offset `at`, as zeros.
    Preallocate { at: u64, bytes: u64 },
    /// Write a part of the file from the page cache to the disk, so that the page cache has only the bytes of writes in
    /// progress.
    Flush { at: u64, bytes: u32 },
}

/// The state of a write after a step.
#[derive(Debug)]
pub enum Next {
    /// Another step is needed.
    Step,
    /// The write has completed.
    Over(io::Result<()>),
}

/// Most bytes of one step: a multiple of the alignment, and less than the kernel's `MAX_RW_COUNT`.
const STEP_BYTES_MAX: usize = 1 << 30;

/// The error if the file system does not preallocate.
pub const NO_PREALLOCATION: io::ErrorKind = io::ErrorKind::Unsupported;

impl Write {
    /// # Panics
    /// If offset or length is not a multiple of [`ALIGN_BYTES`], there are no bytes, or they are not within
    /// the mapping.
    pub fn new(
        file: &Arc<DiskFile>,
        at: u64,
        bytes: Bytes,
        ticket: Ticket,
        shared: &Shared,
    ) -> Write {
        let length = check(at, &bytes);
        let mut write = Write {
            file: Arc::clone(file),
            at,
            bytes,
            ticket,
            copy: None,
            done: 0,
            fruitless: 0,
            was_direct: false,
            is_flushing: false,
        };
        if let Bytes::Ring { memory, .. } = &write.bytes {
            // A part of a mapping may begin at any word.
            let words = ring_words(&write.bytes);
            let is_aligned = words.as_ptr().addr().is_multiple_of(ALIGN_BYTES);
            if !is_aligned || shared.is_refused(memory) {
                write.copy(length, shared);
            }
        }
        write
    }

    /// Whether this is a preallocation that the file system does not support.
    pub fn is_refused(&self) -> bool {
        matches!(self.bytes, Bytes::Preallocate { .. }) && !self.file.takes_preallocation()
    }

    pub fn file(&self) -> &DiskFile {
        &self.file
    }

    /// Returns the next step to carry out.
    pub fn step(&mut self) -> Step {
        if let Bytes::Preallocate { bytes } = self.bytes {
            return Step::Preallocate { at: self.at, bytes };
        }
        let (from, length) = match (&self.copy, &self.bytes) {
            (None, Bytes::Preallocate { .. }) => unreachable!("it has no bytes"),
            (Some(own), _) | (None, Bytes::Own(own)) => (own.as_slice().as_ptr(), own.filled()),
            (None, ring @ Bytes::Ring { bytes, .. }) => (ring_words(ring).as_ptr().cast(), *bytes),
        };
        if self.is_flushing {
            // All bytes are flushed in one step. A length of 0 means up to the end of the file.
            let bytes = u32::try_from(length).unwrap_or(0);
            return Step::Flush { at: self.at, bytes };
        }
        self.was_direct = self.file.is_direct();
        let bytes = (length - self.done).min(STEP_BYTES_MAX) as u32;
        Step::Write { from: from.wrapping_add(self.done), bytes, at: self.at + self.done as u64 }
    }

    /// Handles the result of the last step.
    pub fn advance(&mut self, answer: Result<usize, Errno>, shared: &Shared) -> Next {
        match answer {
            Ok(_) if self.is_flushing || matches!(self.bytes, Bytes::Preallocate { .. }) => {
                Next::Over(Ok(()))
            }
            // The file has no pages in the page cache that could be flushed.
            Err(Errno::INVAL | Errno::SPIPE | Errno::NOSYS | Errno::OPNOTSUPP)
                if self.is_flushing =>
            {
                Next::Over(Ok(()))
            }
            Ok(bytes) => self.wrote(bytes),
            // ECANCELED: the thread that submitted the request has ended, so the kernel has cancelled its requests.
            Err(error @ (Errno::INTR | Errno::AGAIN | Errno::CANCELED)) => self.again(error.into()),
            Err(Errno::FAULT) if self.copy.is_none() => match &self.bytes {
                Bytes::Ring { memory, bytes, .. } => {
                    shared.refuse(memory);
                    self.copy(*bytes, shared);
                    Next::Step
                }
                Bytes::Own(_) | Bytes::Preallocate { .. } => Next::Over(Err(Errno::FAULT.into())),
            },
            Err(Errno::INVAL) if self.was_direct => match self.file.give_up_direct(shared) {
                Ok(()) => Next::Step,
                Err(error) => Next::Over(Err(error)),
            },
            Err(error) => Next::Over(Err(error.into())),
        }
    }

    /// Ends the write, and returns it to its requester.
    pub fn complete(self, result: io::Result<()>, shared: &Shared) -> Completed {
        if let Some(copy) = self.copy {
            shared.give_buffer(copy);
        }
        Completed { ticket: self.ticket, result, bytes: self.bytes }
    }

    fn wrote(&mut self, bytes: usize) -> Next {
        let reached = self.done + bytes;
        if reached == length(&self.bytes) {
            self.is_flushing = !self.file.is_direct();
            return if self.is_flushing { Next::Step } else { Next::Over(Ok(())) };
        }
        // A direct write must continue at a multiple of the alignment.
        let reached = if self.was_direct { reached - reached % ALIGN_BYTES } else { reached };
        if reached <= self.done {
            return self.again(io::ErrorKind::WriteZero.into());
        }
        (self.done, self.fruitless) = (reached, 0);
        Next::Step
    }

    fn again(&mut self, error: io::Error) -> Next {
        self.fruitless += 1;
        if self.fruitless < TRIES_MAX { Next::Step } else { Next::Over(Err(error)) }
    }

    fn copy(&mut self, bytes: usize, shared: &Shared) {
        let mut copy = shared.take_buffer(bytes);
        copy.fill_from_ring(ring_words(&self.bytes));
        self.copy = Some(copy);
    }
}

/// Checks a request against the rules of [`Disk::write`](crate::Disk::write), and returns its length.
///
/// # Panics
/// The panics of [`Write::new`].
pub fn check(at: u64, bytes: &Bytes) -> usize {
    let length = length(bytes);
    assert!(
        at.is_multiple_of(ALIGN_BYTES as u64) && length.is_multiple_of(ALIGN_BYTES) && length > 0,
        "a write of {length} bytes at byte {at}"
    );
    if let Bytes::Ring { memory, at, bytes } = bytes {
        let end = at.checked_add(*bytes).filter(|end| *end <= memory.words().len() * 8);
        assert!(end.is_some() && at.is_multiple_of(8), "{bytes} bytes at byte {at} of a ring");
    }
    length
}

/// Returns the number of bytes.
pub fn length(bytes: &Bytes) -> usize {
    match bytes {
        Bytes::Own(own) => own.filled(),
        Bytes::Ring { bytes, .. } => *bytes,
        Bytes::Preallocate { bytes } => usize::try_from(*bytes).unwrap_or(usize::MAX),
    }
}

/// Returns the words of a part of a ring; none for other kinds of bytes.
pub fn ring_words(bytes: &Bytes) -> &[AtomicU64] {
    match bytes {
        Bytes::Own(_) | Bytes::Preallocate { .. } => &[],
        Bytes::Ring { memory, at, bytes } => &memory.words()[at / 8..(at + bytes) / 8],
    }
}
