//! A frame as a pcapng Enhanced Packet Block, exactly as it is stored in a ring and in a file.
//!
//! ```text
//!  0  block type = 6              u32
//!  4  block total length          u32   multiple of 4, repeated at the end
//!  8  interface id                u32   index of the section's Interface Description Block
//! 12  timestamp, high 32 bits     u32   nanoseconds since the Unix epoch (if_tsresol = 9)
//! 16  timestamp, low 32 bits      u32
//! 20  captured length (caplen)    u32
//! 24  original length (wire_len)  u32
//! 28  frame, zero-padded to 4
//!     options                           none, or epb_flags and/or epb_queue and opt_endofopt
//!     block total length          u32
//! ```
//!
//! All words are little-endian. Source: draft-ietf-opsawg-pcapng, section 4.3.

use thiserror::Error;

/// Block type of an Enhanced Packet Block.
pub const EPB_TYPE: u32 = 6;
/// Bytes before the frame: block type to original length.
pub const HEADER_BYTES: u32 = 28;
/// Bytes of the repeated total length at the end of every block.
pub const TRAILER_BYTES: u32 = 4;
/// Most words after a padded frame: flags 2, queue 2, end of options 1, length 1.
const TAIL_MAX_WORDS: usize = 6;
pub use crate::limits::CAPLEN_MAX;
const _: () = assert!(CAPLEN_MAX >= 8 * 65_535 + 4096);

const OPT_END: u16 = 0;
const OPT_EPB_FLAGS: u16 = 2;
const OPT_EPB_QUEUE: u16 = 6;

/// The `epb_flags` word: bits that Weir writes. Source: draft-ietf-opsawg-pcapng, section 4.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u32);

impl Flags {
    /// The frame was received.
    pub const INBOUND: Flags = Flags(0b01);
    /// The frame was sent.
    pub const OUTBOUND: Flags = Flags(0b10);
    /// The checksums are not filled in yet: the sender left them to the NIC (checksum offload).
    pub const CHECKSUM_NOT_READY: Flags = Flags(1 << 9);
    /// A segmentation-offload super-frame: many wire frames in one, longer than the MTU allows.
    pub const SUPER_FRAME: Flags = Flags(1 << 11);

    /// Returns the bits of both.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns whether every bit of `other` is set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Metadata of a frame in its record: everything except the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Index of the interface in the section (and, in a daemon, unique among all interfaces).
    pub interface_id: u32,
    /// Nanoseconds since the Unix epoch.
    pub ts_ns: u64,
    /// Length of the frame on the wire, without FCS. Never below `caplen`.
    pub wire_len: u32,
    /// Direction and offload state; for `None`, no option is written.
    pub flags: Option<Flags>,
    /// RX or TX queue of the NIC; for `None`, no option is written.
    pub queue: Option<u32>,
}

impl Meta {
    const fn option_bytes(&self) -> u32 {
        let mut bytes = 0;
        if self.flags.is_some() {
            bytes += 8;
        }
        if self.queue.is_some() {
            bytes += 8;
        }
        if bytes > 0 { bytes + 4 } else { 0 }
    }
}

/// Returns `caplen` rounded up to the 32-bit boundary at which options begin.
#[must_use]
pub const fn padded(caplen: u32) -> u32 {
    caplen.next_multiple_of(4)
}

/// Returns the length of the whole record for a frame of `caplen` bytes (at most [`CAPLEN_MAX`]).
#[inline]
#[must_use]
pub const fn record_bytes(meta: &Meta, caplen: u32) -> u32 {
    HEADER_BYTES + padded(caplen) + meta.option_bytes() + TRAILER_BYTES
}

/// Returns the words before the frame.
#[inline]
#[must_use]
pub const fn header(meta: &Meta, caplen: u32) -> [u32; 7] {
    [
        EPB_TYPE,
        record_bytes(meta, caplen),
        meta.interface_id,
        (meta.ts_ns >> 32) as u32,
        meta.ts_ns as u32,
        caplen,
        meta.wire_len,
    ]
}

/// The part after the padded frame: options, if any, and the total length.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    words: [u32; TAIL_MAX_WORDS],
    len: usize,
}

impl Tail {
    /// Returns the words to write after the frame and its padding.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }

    #[inline]
    fn push(&mut self, word: u32) {
        self.words[self.len] = word;
        self.len += 1;
    }

    #[inline]
    fn push_option(&mut self, code: u16, value: u32) {
        self.push(4 << 16 | u32::from(code));
        self.push(value);
    }
}

/// Returns the part after a frame of `caplen` bytes and its padding.
#[inline]
#[must_use]
pub fn tail(meta: &Meta, caplen: u32) -> Tail {
    let mut tail = Tail { words: [0; TAIL_MAX_WORDS], len: 0 };
    if let Some(flags) = meta.flags {
        tail.push_option(OPT_EPB_FLAGS, flags.0);
    }
    if let Some(queue) = meta.queue {
        tail.push_option(OPT_EPB_QUEUE, queue);
    }
    if meta.option_bytes() > 0 {
        tail.push(u32::from(OPT_END));
    }
    tail.push(record_bytes(meta, caplen));
    tail
}

/// Appends the whole record; `frame` contains the captured bytes, at most [`CAPLEN_MAX`].
pub fn append(out: &mut Vec<u8>, meta: &Meta, frame: &[u8]) {
    let caplen = frame.len() as u32;
    out.reserve(record_bytes(meta, caplen) as usize);
    out.extend(header(meta, caplen).iter().flat_map(|word| word.to_le_bytes()));
    out.extend_from_slice(frame);
    out.resize(out.len() + (padded(caplen) - caplen) as usize, 0);
    out.extend(tail(meta, caplen).words().iter().flat_map(|word| word.to_le_bytes()));
}

/// A record in a byte slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Metadata of the frame.
    pub meta: Meta,
    /// The captured bytes of the frame; their number is `caplen`.
    pub frame: &'a [u8],
    /// The whole block, from header to trailer, which a file writer copies.
    pub block: &'a [u8],
}

/// The reason why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Fewer bytes than the length field of the block says, or than the shortest block has.
    #[error("record cut off: {have} bytes of {need}")]
    CutOff {
        /// Bytes that are present.
        have: usize,
        /// Bytes that the length field says.
        need: usize,
    },
    /// Another block type.
    #[error("block type {0:#x} is not an Enhanced Packet Block")]
    NotARecord(u32),
    /// The lengths in the block contradict each other.
    #[error("record of {block_bytes} bytes does not fit a frame of {caplen}")]
    BadLength {
        /// Total length in the block.
        block_bytes: u32,
        /// Captured length in the block.
        caplen: u32,
    },
    /// The length at the end differs from the length at the start.
    #[error("record begins with length {head} and ends with {tail}")]
    LengthsDiffer {
        /// Total length at offset 4.
        head: u32,
        /// Total length at the end.
        tail: u32,
    },
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The header of a record: enough to sort it, to count it and to skip it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Bytes of the whole block.
    pub block_bytes: u32,
    /// Index of the interface in the section.
    pub interface_id: u32,
    /// Nanoseconds since the Unix epoch.
    pub ts_ns: u64,
    /// Captured bytes of the frame.
    pub caplen: u32,
    /// Length of the frame on the wire.
    pub wire_len: u32,
}

impl Outline {
    /// Reads the outline of the record at the start of `bytes`.
    ///
    /// Every length is checked against the slice and the other lengths: if this function succeeds, [`Record::parse`]
    /// does, too.
    ///
    /// # Errors
    /// [`RecordError`], with the numbers that contradict each other.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Outline, RecordError> {
        let cut = |need: usize| RecordError::CutOff { have: bytes.len(), need };
        let fixed = (HEADER_BYTES + TRAILER_BYTES) as usize;
        let Some(head) = bytes.first_chunk::<28>() else { return Err(cut(fixed)) };
        let at = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        if at(0) != EPB_TYPE {
            return Err(RecordError::NotARecord(at(0)));
        }
        let (block_bytes, caplen) = (at(4), at(20));
        let need = u64::from(HEADER_BYTES + TRAILER_BYTES) + u64::from(caplen).next_multiple_of(4);
        if !block_bytes.is_multiple_of(4) || u64::from(block_bytes) < need {
            return Err(RecordError::BadLength { block_bytes, caplen });
        }
        let block = bytes.get(..block_bytes as usize).ok_or_else(|| cut(block_bytes as usize))?;
        let tail = word(block, block.len() - 4).unwrap_or(0);
        if tail != block_bytes {
            return Err(RecordError::LengthsDiffer { head: block_bytes, tail });
        }
        let ts_ns = u64::from(at(12)) << 32 | u64::from(at(16));
        Ok(Outline { block_bytes, interface_id: at(8), ts_ns, caplen, wire_len: at(24) })
    }
}

impl<'a> Record<'a> {
    /// Reads the record at the start of `bytes`; its length is `record.block.len()`.
    ///
    /// Unknown options are skipped. If an option is longer than the rest of the list, the list ends there, as in
    /// other readers.
    ///
    /// # Errors
    /// As [`Outline::read`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Record<'a>, RecordError> {
        let Outline { block_bytes, interface_id, ts_ns, caplen, wire_len } = Outline::read(bytes)?;
        let block = &bytes[..block_bytes as usize];
        let frame = &block[HEADER_BYTES as usize..(HEADER_BYTES + caplen) as usize];
        let options = &block[(HEADER_BYTES + padded(caplen)) as usize..block.len() - 4];
        let (flags, queue) = parse_options(options);
        let meta = Meta { interface_id, ts_ns, wire_len, flags, queue };
        Ok(Record { meta, frame, block })
    }

    /// Reads a record that [`Outline::read`] has accepted before, without its checks. Other bytes may give `None`, or
    /// a record with wrong contents.
    #[inline]
    pub fn parse_again(bytes: &'a [u8]) -> Option<Record<'a>> {
        let head = bytes.first_chunk::<{ HEADER_BYTES as usize }>()?;
        let at = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let caplen = at(20) as usize;
        let block = bytes.get(..at(4) as usize)?;
        let (frame, rest) = block.get(HEADER_BYTES as usize..)?.split_at_checked(caplen)?;
        let mut meta = Meta {
            interface_id: at(8),
            ts_ns: u64::from(at(12)) << 32 | u64::from(at(16)),
            wire_len: at(24),
            ..Meta::default()
        };
        // There is more than padding and trailer: options.
        if rest.len() > 7 {
            let options = rest.get(caplen.next_multiple_of(4) - caplen..rest.len() - 4)?;
            (meta.flags, meta.queue) = parse_options(options);
        }
        Some(Record { meta, frame, block })
    }
}

fn parse_options(mut options: &[u8]) -> (Option<Flags>, Option<u32>) {
    let (mut flags, mut queue) = (None, None);
    while let Some([c0, c1, l0, l1]) = options.first_chunk::<4>() {
        let (code, len) = (u16::from_le_bytes([*c0, *c1]), u16::from_le_bytes([*l0, *l1]));
        match (code, len) {
            (OPT_END, _) => break,
            (OPT_EPB_FLAGS, 4) => flags = word(options, 4).map(Flags).or(flags),
            (OPT_EPB_QUEUE, 4) => queue = word(options, 4).or(queue),
            _ => {}
        }
        let step = 4 + usize::from(len).next_multiple_of(4);
        options = options.get(step..).unwrap_or(&[]);
    }
    (flags, queue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(meta: &Meta, frame: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        append(&mut out, meta, frame);
        out
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            frame in proptest::collection::vec(any::<u8>(), 0..2000),
            ts_ns: u64, interface_id: u32, more in 0u32..9000,
            flags in proptest::option::of(any::<u32>()),
            queue in proptest::option::of(any::<u32>()),
        ) {
            let wire_len = frame.len() as u32 + more;
            let meta = Meta { interface_id, ts_ns, wire_len, flags: flags.map(Flags), queue };
            let bytes = write(&meta, &frame);
            prop_assert_eq!(bytes.len() as u32, record_bytes(&meta, frame.len() as u32));
            let record = Record::parse(&bytes).unwrap();
            prop_assert_eq!(record.meta, meta);
            prop_assert_eq!(record.frame, &frame[..]);
            prop_assert_eq!(record.block.len(), bytes.len());
            prop_assert_eq!(Record::parse_again(&bytes), Some(record));
        }

        #[test]
        fn hostile_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Record::parse(&bytes), Record::parse_again(&bytes));
            if bytes.len() >= 8 {
                bytes[..4].copy_from_slice(&EPB_TYPE.to_le_bytes());
                let claimed = bytes.len() as u32 & !3;
                bytes[4..8].copy_from_slice(&claimed.to_le_bytes());
                let again = Record::parse_again(&bytes);
                if let Ok(record) = Record::parse(&bytes) {
                    prop_assert_eq!(again, Some(record));
                }
            }
        }
    }

    #[test]
    fn a_caplen_near_the_top_of_u32_does_not_overflow() {
        let mut bytes = write(&Meta::default(), &[0; 60]);
        bytes[20..24].copy_from_slice(&(u32::MAX - 1).to_le_bytes());
        assert!(matches!(Record::parse(&bytes), Err(RecordError::BadLength { .. })));
    }
}
