//! Why a file cannot be read on, where, and what to do about it.

use std::io;
use thiserror::Error;

/// The place and the reason. The frames before it have been delivered and are good.
#[derive(Debug, Error)]
#[error("byte {offset}, after frame {frames}: {reason}")]
pub struct ReadError {
    /// Where in the file the block or record begins that is at fault.
    pub offset: u64,
    /// Number of whole frames before it.
    pub frames: u64,
    /// The cause.
    pub reason: Reason,
}

impl ReadError {
    /// Whether the input has no more bytes yet, and said so by [`WouldBlock`](io::ErrorKind::WouldBlock).
    #[must_use]
    pub fn is_would_block(&self) -> bool {
        matches!(&self.reason, Reason::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Faults of a file.
#[derive(Debug, Error)]
pub enum Reason {
    /// The input itself failed.
    #[error("reading failed: {0}")]
    Io(io::Error),
    /// Not one byte.
    #[error("the file is empty; was the capture still being started?")]
    Empty,
    /// Neither pcap nor pcapng.
    #[error("{0:#010x} begins neither pcap nor pcapng; convert it: editcap -F pcapng IN OUT")]
    UnknownMagic(u32),
    /// A compressed file.
    #[error("the file is compressed; unpack it on the way in: {0} -dc FILE | weir capture file:-")]
    Compressed(&'static str),
    /// pcap with longer record headers, by Kuznetzov or IXIA.
    #[error("modified pcap ({0:#010x}), not read here; convert it: editcap -F pcapng IN OUT")]
    ModifiedPcap(u32),
    /// A version that was never in wide use.
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
        /// Bytes that are there.
        have: u64,
        /// Bytes that it claims, or that its header has.
        need: u64,
    },
    /// A section whose byte order cannot be told.
    #[error("the byte-order magic is {0:#010x}: the file is damaged here")]
    ByteOrder(u32),
    /// Not a multiple of 4, or shorter than the block's own fields.
    #[error("a block of type {block_type:#x} cannot have {bytes} bytes: the file is damaged here")]
    BlockLength {
        /// The block's type.
        block_type: u32,
        /// Total length that it claims.
        bytes: u32,
    },
    /// The length at the end of a block differs from the one at its start.
    #[error("a block begins with length {head} and ends with {tail}: the file is damaged here")]
    LengthsDiffer {
        /// Length at its start.
        head: u32,
        /// Length at its end.
        tail: u32,
    },
    /// A block longer than [`Limits`](super::Limits) allow.
    #[error("a block of {bytes} bytes exceeds the limit of {limit}: damaged, or raise the limit")]
    BlockTooLong {
        /// Total length that it claims.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// A frame longer than [`Limits`](super::Limits) allow.
    #[error("a frame of {caplen} bytes exceeds the limit of {limit}: damaged, or raise the limit")]
    FrameTooLong {
        /// Kept length that it claims.
        caplen: u32,
        /// The limit.
        limit: u32,
    },
    /// A frame longer than the block that it is in.
    #[error("a frame of {caplen} bytes in a block with room for {room}: the file is damaged here")]
    FrameOverruns {
        /// Kept length that it claims.
        caplen: u32,
        /// Bytes of the block that could hold it.
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
