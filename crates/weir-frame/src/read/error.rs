//! Errors of reading a file, with the position and a remedy.

use std::io;
use thiserror::Error;

/// The position and the reason. The frames before the position have been delivered and are valid.
#[derive(Debug, Error)]
#[error("byte {offset}, after frame {frames}: {reason}")]
pub struct ReadError {
    /// Position in the file at which the faulty block or record begins.
    pub offset: u64,
    /// Number of whole frames before the position.
    pub frames: u64,
    /// The cause.
    pub reason: Reason,
}

impl ReadError {
    /// Returns whether the input has no more bytes yet and failed with [`WouldBlock`](io::ErrorKind::WouldBlock).
    #[must_use]
    pub fn is_would_block(&self) -> bool {
        matches!(&self.reason, Reason::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// The reason of an error.
#[derive(Debug, Error)]
pub enum Reason {
    /// Reading the input failed.
    #[error("reading failed: {0}")]
    Io(io::Error),
    /// The file is empty.
    #[error("the file is empty; was the capture still being started?")]
    Empty,
    /// The file is neither pcap nor pcapng.
    #[error("{0:#010x} begins neither pcap nor pcapng; convert it: editcap -F pcapng IN OUT")]
    UnknownMagic(u32),
    /// A compressed file.
    #[error("the file is compressed; unpack it first: {0} -dc FILE > trace.pcap")]
    Compressed(&'static str),
    /// pcap with longer record headers, by Kuznetzov or IXIA.
    #[error("modified pcap ({0:#010x}), not read here; convert it: editcap -F pcapng IN OUT")]
    ModifiedPcap(u32),
    /// The file has a version that was never in wide use.
    #[error("version {major}.{minor} is not read here; convert it: editcap -F pcapng IN OUT")]
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// The file ends inside a record or block.
    #[error("the file is cut off here: {have} of a {what}'s {need} bytes are there")]
    CutOff {
        /// The incomplete part.
        what: &'static str,
        /// Bytes that are present.
        have: u64,
        /// Bytes that the part should have, according to its own length field or to the format.
        need: u64,
    },
    /// The byte order of a section is unknown.
    #[error("the byte-order magic is {0:#010x}: the file is damaged here")]
    ByteOrder(u32),
    /// A length that is not a multiple of 4, or shorter than the block's own fields.
    #[error("a block of type {block_type:#x} cannot have {bytes} bytes: the file is damaged here")]
    BlockLength {
        /// The block's type.
        block_type: u32,
        /// Total length in the block.
        bytes: u32,
    },
    /// The length at the end of a block differs from the one at its start.
    #[error("a block begins with length {head} and ends with {tail}: the file is damaged here")]
    LengthsDiffer {
        /// Length at the start of the block.
        head: u32,
        /// Length at the end of the block.
        tail: u32,
    },
    /// A block longer than [`Limits`](super::Limits) allow.
    #[error("a block of {bytes} bytes exceeds the limit of {limit}: damaged, or raise the limit")]
    BlockTooLong {
        /// Total length in the block.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// A frame longer than [`Limits`](super::Limits) allow.
    #[error("a frame of {caplen} bytes exceeds the limit of {limit}: damaged, or raise the limit")]
    FrameTooLong {
        /// Captured length of the frame.
        caplen: u32,
        /// The limit.
        limit: u32,
    },
    /// A frame longer than its block.
    #[error("a frame of {caplen} bytes in a block with room for {room}: the file is damaged here")]
    FrameOverruns {
        /// Captured length of the frame.
        caplen: u32,
        /// Bytes of the block that are available for the frame.
        room: u32,
    },
    /// A frame of an interface that the section does not describe.
    #[error("interface {id}, but the section describes {known}: the file is damaged here")]
    UnknownInterface {
        /// Index in the section.
        id: u32,
        /// Interfaces described so far.
        known: u32,
    },
    /// More interfaces than [`Limits`](super::Limits) allow.
    #[error("more than {0} interfaces; split the file, or raise the limit")]
    TooManyInterfaces(u32),
}
