//! pcapng: sections of blocks, each with its own byte order and interfaces.
//!
//! Blocks without a frame are skipped, of known and unknown types: name resolution, statistics, custom and decryption
//! blocks, Weir's padding.
//!
//! Source: draft-ietf-opsawg-pcapng, sections 3.1 (blocks), 4.1 to 4.4, and appendix A (obsolete
//! Packet Block).

use super::bytes::{Order, options};
use super::pcap::cut_off;
use super::time::Clock;
use super::window::Window;
use super::{Found, Limits, Reason, Step};
use crate::pcapng::{
    BLOCK_MIN_BYTES, BYTE_ORDER_MAGIC, IDB_TYPE, Interface, PB_TYPE, SHB_TYPE, SPB_TYPE, option,
};
use crate::record::{EPB_TYPE, Flags};
use std::io::Read;

/// Type and total length.
const HEAD_BYTES: usize = 8;
/// The repeated total length.
const TAIL_BYTES: usize = 4;
/// Bytes of an EPB's or PB's body before the frame.
const PACKET_FIELDS: usize = 20;

/// The section that is being read.
#[derive(Debug, Default)]
pub(super) struct Section {
    order: Order,
    /// Number of the section's first interface in the whole file.
    first_interface: usize,
    /// Clocks of the section's interfaces.
    clocks: Vec<Clock>,
    /// A block that is being skipped, if its end had not arrived yet.
    passed: Option<Passed>,
}

/// A block that is being skipped.
#[derive(Clone, Copy, Debug)]
struct Passed {
    /// Total length of the block.
    total: u32,
    /// Bytes of the block that are before the window.
    behind: u64,
}

/// A block whose lengths are checked and whose bytes are all in the window.
#[derive(Clone, Copy)]
struct Block<'a> {
    block_type: u32,
    body: &'a [u8],
}

impl Section {
    /// Returns the bytes before the window of the block that is being skipped.
    pub(super) fn passed(&self) -> u64 {
        self.passed.map_or(0, |block| block.behind)
    }

    /// Reads one block.
    pub(super) fn step<R: Read>(
        &mut self,
        window: &mut Window<R>,
        limits: &Limits,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Step, Reason> {
        if let Some(block) = self.passed {
            return self.pass_over(window, block);
        }
        window.need(HEAD_BYTES).map_err(Reason::Io)?;
        if window.bytes().is_empty() {
            return Ok(Step::End);
        }
        let Some(head) = window.bytes().first_chunk::<HEAD_BYTES>().copied() else {
            return Err(cut_off("block header", window, HEAD_BYTES));
        };
        let [t0, t1, t2, t3, len @ ..] = head;
        if u32::from_le_bytes([t0, t1, t2, t3]) == SHB_TYPE {
            self.order = section_order(window)?;
        }
        let block_type = self.order.u32([t0, t1, t2, t3]);
        let total = checked_length(block_type, self.order.u32(len), limits)?;
        if !matches!(block_type, SHB_TYPE | IDB_TYPE | EPB_TYPE | PB_TYPE | SPB_TYPE) {
            return self.pass_over(window, Passed { total, behind: 0 });
        }

        if !window.need(total as usize).map_err(Reason::Io)? {
            return Err(cut_off("block", window, total as usize));
        }
        let (bytes, _) = window.bytes().split_at(total as usize);
        let (rest, tail) = bytes.split_at(bytes.len() - TAIL_BYTES);
        self.check_tail(total, tail)?;
        let block = Block { block_type, body: &rest[HEAD_BYTES..] };
        let found = match block_type {
            SHB_TYPE => self.start(block, interfaces).map(|()| None),
            IDB_TYPE => self.describe(block, limits, interfaces).map(|()| None),
            SPB_TYPE => self.simple(block, limits, interfaces).map(Some),
            _ => self.packet(block, limits).map(Some),
        }?;
        Ok(match found {
            Some(found) => Step::Frame(found),
            None => {
                window.consume(total as usize);
                Step::Other
            }
        })
    }

    /// Skips a block without buffering it.
    fn pass_over<R: Read>(
        &mut self,
        window: &mut Window<R>,
        block: Passed,
    ) -> Result<Step, Reason> {
        let Passed { total, behind } = block;
        let before_tail = u64::from(total) - TAIL_BYTES as u64;
        let begin = window.offset();
        let skipped = window.skip(before_tail - behind);
        let behind = behind + (window.offset() - begin);
        self.passed = Some(Passed { total, behind });
        skipped.map_err(Reason::Io)?;
        if behind < before_tail || !window.need(TAIL_BYTES).map_err(Reason::Io)? {
            let have = behind + window.bytes().len() as u64;
            return Err(Reason::CutOff { what: "block", have, need: u64::from(total) });
        }
        self.passed = None;
        self.check_tail(total, &window.bytes()[..TAIL_BYTES])?;
        window.consume(TAIL_BYTES);
        Ok(Step::Other)
    }

    fn check_tail(&self, head: u32, tail: &[u8]) -> Result<(), Reason> {
        let tail = self.order.u32_at(tail, 0).unwrap_or(0);
        if tail == head { Ok(()) } else { Err(Reason::LengthsDiffer { head, tail }) }
    }

    /// Reads a Section Header Block: interfaces are counted from 0 again.
    fn start(&mut self, block: Block<'_>, interfaces: &[Interface]) -> Result<(), Reason> {
        let word = |at| self.order.u16_at(block.body, at).ok_or_else(|| block.too_short());
        let (major, minor) = (word(4)?, word(6)?);
        if block.body.len() < 16 {
            return Err(block.too_short());
        }
        // Minor version 2 is in use, and has no differences (draft, section 4.1).
        if major != 1 {
            return Err(Reason::Version { major, minor });
        }
        self.first_interface = interfaces.len();
        self.clocks.clear();
        Ok(())
    }

    /// Reads an Interface Description Block.
    fn describe(
        &mut self,
        block: Block<'_>,
        limits: &Limits,
        interfaces: &mut Vec<Interface>,
    ) -> Result<(), Reason> {
        if interfaces.len() >= limits.interfaces as usize {
            return Err(Reason::TooManyInterfaces(limits.interfaces));
        }
        let too_short = || block.too_short();
        let mut interface = Interface {
            link_type: self.order.u16_at(block.body, 0).ok_or_else(too_short)?,
            snaplen: self.order.u32_at(block.body, 4).ok_or_else(too_short)?,
            ..Interface::default()
        };
        let mut clock = Clock::default();
        for (code, value) in options(self.order, &block.body[8..]) {
            match (code, value) {
                (option::IF_NAME, _) => interface.name = text(value),
                (option::IF_DESCRIPTION, _) => interface.description = Some(text(value)),
                (option::IF_FILTER, [0, filter @ ..]) => interface.filter = Some(text(filter)),
                (option::IF_TSRESOL, [resolution]) => clock.resolution = *resolution,
                (option::IF_TSOFFSET, _) => {
                    if let Ok(seconds) = value.try_into() {
                        clock.offset_s = self.order.u64(seconds).cast_signed();
                    }
                }
                _ => {}
            }
        }
        interfaces.push(interface);
        self.clocks.push(clock);
        Ok(())
    }

    /// Reads an Enhanced Packet Block, or the obsolete Packet Block: the interface number is in different fields.
    fn packet(&self, block: Block<'_>, limits: &Limits) -> Result<Found, Reason> {
        let body = block.body;
        if body.len() < PACKET_FIELDS {
            return Err(block.too_short());
        }
        let word = |at| self.order.u32_at(body, at).unwrap_or(0);
        let id = match block.block_type {
            PB_TYPE => self.order.u16_at(body, 0).map_or(0, u32::from),
            _ => word(0),
        };
        let clock = self.clocks.get(id as usize).ok_or_else(|| self.unknown_interface(id))?;
        let (ticks, caplen, wire_len) =
            (u64::from(word(4)) << 32 | u64::from(word(8)), word(12), word(16));
        let end = frame_end(body, PACKET_FIELDS, caplen, limits)?;
        let (mut flags, mut queue) = (None, None);
        let after_padding = end.next_multiple_of(4).min(body.len());
        for (code, value) in options(self.order, &body[after_padding..]) {
            let Ok(value) = value.try_into() else { continue };
            let value = self.order.u32(value);
            match (code, block.block_type) {
                (option::EPB_FLAGS, _) => flags = Some(Flags(value)), // also pack_flags
                (option::EPB_QUEUE, EPB_TYPE) => queue = Some(value),
                _ => {}
            }
        }
        Ok(Found {
            ts_ns: clock.ns(ticks),
            wire_len,
            interface: self.first_interface as u32 + id,
            flags,
            queue,
            data: HEAD_BYTES + PACKET_FIELDS..HEAD_BYTES + end,
            block_bytes: block.total_bytes(),
        })
    }

    /// Reads a Simple Packet Block: it belongs to the section's first interface, and has no time and no captured
    /// length.
    fn simple(
        &self,
        block: Block<'_>,
        limits: &Limits,
        interfaces: &[Interface],
    ) -> Result<Found, Reason> {
        let wire_len = self.order.u32_at(block.body, 0).ok_or_else(|| block.too_short())?;
        let interface =
            interfaces.get(self.first_interface).ok_or_else(|| self.unknown_interface(0))?;
        let caplen = match interface.snaplen {
            0 => wire_len,
            snaplen => wire_len.min(snaplen),
        };
        let end = frame_end(block.body, 4, caplen, limits)?;
        Ok(Found {
            ts_ns: 0,
            wire_len,
            interface: self.first_interface as u32,
            flags: None,
            queue: None,
            data: HEAD_BYTES + 4..HEAD_BYTES + end,
            block_bytes: block.total_bytes(),
        })
    }

    fn unknown_interface(&self, id: u32) -> Reason {
        Reason::UnknownInterface { id, known: self.clocks.len() as u32 }
    }
}

impl Block<'_> {
    fn total_bytes(&self) -> usize {
        HEAD_BYTES + self.body.len() + TAIL_BYTES
    }

    fn too_short(&self) -> Reason {
        Reason::BlockLength { block_type: self.block_type, bytes: self.total_bytes() as u32 }
    }
}

/// Returns the byte order from the magic of the section header at the window's start.
fn section_order<R: Read>(window: &mut Window<R>) -> Result<Order, Reason> {
    window.need(HEAD_BYTES + 4).map_err(Reason::Io)?;
    let Some(magic) = Order::Little.u32_at(window.bytes(), HEAD_BYTES) else {
        return Err(cut_off("section header", window, HEAD_BYTES + 4));
    };
    match magic {
        BYTE_ORDER_MAGIC => Ok(Order::Little),
        _ if magic.swap_bytes() == BYTE_ORDER_MAGIC => Ok(Order::Big),
        _ => Err(Reason::ByteOrder(magic)),
    }
}

fn checked_length(block_type: u32, bytes: u32, limits: &Limits) -> Result<u32, Reason> {
    if bytes < BLOCK_MIN_BYTES || !bytes.is_multiple_of(4) {
        return Err(Reason::BlockLength { block_type, bytes });
    }
    if bytes > limits.block_bytes {
        return Err(Reason::BlockTooLong { bytes, limit: limits.block_bytes });
    }
    Ok(bytes)
}

/// Returns the offset in `body` of the end of a frame that begins at `start`.
fn frame_end(body: &[u8], start: usize, caplen: u32, limits: &Limits) -> Result<usize, Reason> {
    let room = (body.len() - start) as u32;
    if caplen > room {
        return Err(Reason::FrameOverruns { caplen, room });
    }
    if caplen > limits.caplen {
        return Err(Reason::FrameTooLong { caplen, limit: limits.caplen });
    }
    Ok(start + caplen as usize)
}

/// Returns a text of the file; bytes that are not UTF-8 are replaced. Some writers terminate texts with a NUL.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}
