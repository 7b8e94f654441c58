//! Reads frames from classic pcap and pcapng files, through any `std::io::Read`.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use weir_frame::read::FrameReader;
//! let mut reader = FrameReader::open(std::fs::File::open("trace.pcapng")?)?;
//! while let Some(frame) = reader.next()? {
//!     println!("{} {} of {} bytes", frame.ts_ns, frame.data.len(), frame.wire_len);
//! }
//! # Ok(()) }
//! ```
//!
//! A file is untrusted input. Every length is bounded by [`Limits`], and memory grows only with the bytes that were
//! really read. Bytes after a damaged part cannot be trusted, so reading stops at an error; the whole frames before
//! it have been delivered.
//!
//! Source: draft-ietf-opsawg-pcap; draft-ietf-opsawg-pcapng.

mod bytes;
mod error;
mod pcap;
mod pcapng;
mod time;
mod window;

pub use error::{ReadError, Reason};

use crate::pcapng::{Interface, SHB_TYPE};
use crate::record::{CAPLEN_MAX, Flags, Meta};
use std::io::Read;
use std::ops::Range;
use window::Window;

/// A frame, borrowed until the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Nanoseconds since the Unix epoch. Other resolutions are converted, fractions cut off; times before 1970 become
    /// 0, and times after 2554 become `u64::MAX`. 0 in a Simple Packet Block, which has no time.
    pub ts_ns: u64,
    /// Length of the frame on the wire, at least the length of `data` even if the file has a smaller value.
    pub wire_len: u32,
    /// Index into [`FrameReader::interfaces`]: counted in the whole file, not in a section.
    pub interface: u32,
    /// LINKTYPE number of the interface.
    pub link_type: u16,
    /// `epb_flags`, if the file contains them.
    pub flags: Option<Flags>,
    /// `epb_queue`, if the file contains it.
    pub queue: Option<u32>,
    /// The captured bytes of the frame, with an FCS if the file was recorded with one.
    pub data: &'a [u8],
}

impl Frame<'_> {
    /// Returns the metadata of this frame: all its fields except link type and bytes.
    #[must_use]
    pub const fn meta(&self) -> Meta {
        Meta {
            interface_id: self.interface,
            ts_ns: self.ts_ns,
            wire_len: self.wire_len,
            flags: self.flags,
            queue: self.queue,
        }
    }
}

/// Largest lengths that are accepted. A larger length is an error, which names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one pcapng block. Default: 16 MiB, as in libpcap.
    pub block_bytes: u32,
    /// Captured bytes of one frame. Default: the most that a record may carry; libpcap and Wireshark read 256 KiB of
    /// Ethernet.
    pub caplen: u32,
    /// Interfaces in the whole file, all sections together. Default: 65,536.
    pub interfaces: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { block_bytes: 16 << 20, caplen: CAPLEN_MAX, interfaces: 1 << 16 }
    }
}

/// Reads the frames of one file in their order.
#[derive(Debug)]
pub struct FrameReader<R> {
    window: Window<R>,
    state: State,
    /// Bytes of the block that was lent last; consumed by the next call.
    lent: usize,
    frames: u64,
    ended: bool,
}

/// The state except for the bytes, so that both can be borrowed at the same time.
#[derive(Debug)]
struct State {
    limits: Limits,
    format: Format,
    interfaces: Vec<Interface>,
}

#[derive(Debug)]
enum Format {
    Pcap(pcap::Classic),
    Pcapng(pcapng::Section),
}

impl Format {
    /// Returns the bytes before the window of a block that is being skipped.
    fn passed(&self) -> u64 {
        match self {
            Format::Pcap(_) => 0,
            Format::Pcapng(section) => section.passed(),
        }
    }
}

/// A frame found in the window; `data` is relative to the window's start.
#[derive(Debug)]
struct Found {
    ts_ns: u64,
    wire_len: u32,
    interface: u32,
    flags: Option<Flags>,
    queue: Option<u32>,
    data: Range<usize>,
    /// Bytes of the whole record or block.
    block_bytes: usize,
}

/// The result of reading one block or record.
enum Step {
    Frame(Found),
    /// A block without a frame, which was consumed.
    Other,
    End,
}

impl<R: Read> FrameReader<R> {
    /// Opens a file and reads up to its first interface. `input` needs no buffer of its own.
    ///
    /// # Errors
    /// [`ReadError`] if the file is neither pcap nor pcapng, with a remedy in its text.
    pub fn open(input: R) -> Result<FrameReader<R>, ReadError> {
        FrameReader::with_limits(input, Limits::default())
    }

    /// Opens a file as [`open`](Self::open) does, with other limits.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_limits(input: R, limits: Limits) -> Result<FrameReader<R>, ReadError> {
        let mut window = Window::new(input);
        let format = detect(&mut window).map_err(|reason| ReadError {
            offset: window.offset(),
            frames: 0,
            reason,
        })?;
        let state = State { limits, format, interfaces: Vec::new() };
        let mut reader = FrameReader { window, state, lent: 0, frames: 0, ended: false };
        // No frame can come before an interface: a pcapng block that refers to a missing interface is an error.
        while reader.state.interfaces.is_empty() && !reader.ended {
            reader.step()?;
        }
        Ok(reader)
    }

    /// Returns the next frame, or `None` at the end and in every call after an error. The only exception is an input
    /// that has no more bytes yet and fails with [`WouldBlock`](std::io::ErrorKind::WouldBlock): a later call
    /// continues.
    ///
    /// # Errors
    /// [`ReadError`] if the file is damaged or cut off, with the position.
    #[expect(clippy::should_implement_trait, reason = "a lending iterator: frames borrow from it")]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, ReadError> {
        loop {
            match self.step()? {
                Step::Frame(found) => return Ok(Some(self.lend(&found))),
                Step::Other => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// Returns the interfaces that were found so far: in classic pcap one, without a name.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.state.interfaces
    }

    /// Returns the input.
    pub fn get_mut(&mut self) -> &mut R {
        self.window.input_mut()
    }

    /// Returns the number of frames that were delivered so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    fn step(&mut self) -> Result<Step, ReadError> {
        if self.ended {
            return Ok(Step::End);
        }
        self.window.consume(std::mem::take(&mut self.lent));
        let offset = self.window.offset() - self.state.format.passed();
        let State { limits, format, interfaces } = &mut self.state;
        let step = match format {
            Format::Pcap(classic) => classic.step(&mut self.window, limits, interfaces),
            Format::Pcapng(section) => section.step(&mut self.window, limits, interfaces),
        };
        let step = step.map_err(|reason| ReadError { offset, frames: self.frames, reason });
        self.ended = match &step {
            Ok(step) => matches!(step, Step::End),
            Err(error) => !error.is_would_block(),
        };
        step
    }

    fn lend(&mut self, found: &Found) -> Frame<'_> {
        self.lent = found.block_bytes;
        self.frames += 1;
        let data = &self.window.bytes()[found.data.clone()];
        Frame {
            ts_ns: found.ts_ns,
            wire_len: found.wire_len.max(data.len() as u32),
            interface: found.interface,
            link_type: self.state.interfaces[found.interface as usize].link_type,
            flags: found.flags,
            queue: found.queue,
            data,
        }
    }
}

/// Determines the format from the first 4 bytes, which stay in the window.
fn detect<R: Read>(window: &mut Window<R>) -> Result<Format, Reason> {
    window.need(4).map_err(Reason::Io)?;
    let magic = match *window.bytes() {
        [] => return Err(Reason::Empty),
        [a, b, c, d, ..] => u32::from_le_bytes([a, b, c, d]),
        ref short => {
            return Err(Reason::CutOff { what: "file", have: short.len() as u64, need: 4 });
        }
    };
    if magic == SHB_TYPE {
        return Ok(Format::Pcapng(pcapng::Section::default()));
    }
    pcap::Classic::by_magic(magic).map(Format::Pcap)
}

#[cfg(test)]
mod tests;
