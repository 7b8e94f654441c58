//! Classic pcap: one header, then records of 16 bytes and a frame.
//!
//! Source: draft-ietf-opsawg-pcap, sections 4 and 5.

use super::bytes::Order;
use super::window::Window;
use super::{Found, Limits, Reason, Step};
use crate::pcapng::Interface;
use std::io::Read;

const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;

const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// libpcap as patched by Kuznetzov: record headers are 8 bytes longer.
const MAGIC_KUZNETZOV: u32 = 0xa1b2_cd34;
/// IXIA's lcap, hardware and software.
const MAGIC_IXIA: [u32; 2] = [0x1c00_01ac, 0x1c00_01ab];

/// The format, determined from the magic number.
#[derive(Debug)]
pub(super) struct Classic {
    order: Order,
    ns_per_tick: u64,
}

impl Classic {
    /// Returns the format for `magic`, the first 4 bytes of the file read as little-endian.
    pub(super) fn by_magic(magic: u32) -> Result<Classic, Reason> {
        for (order, magic) in [(Order::Little, magic), (Order::Big, magic.swap_bytes())] {
            match magic {
                MAGIC_US => return Ok(Classic { order, ns_per_tick: 1000 }),
                MAGIC_NS => return Ok(Classic { order, ns_per_tick: 1 }),
                _ if magic == MAGIC_KUZNETZOV || MAGIC_IXIA.contains(&magic) => {
                    return Err(Reason::ModifiedPcap(magic));
                }
                _ => {}
            }
        }
        Err(match magic.to_le_bytes() {
            [0x1f, 0x8b, ..] => Reason::Compressed("gzip"),
            [0x28, 0xb5, 0x2f, 0xfd] => Reason::Compressed("zstd"),
            [0xfd, b'7', b'z', b'X'] => Reason::Compressed("xz"),
            [b'B', b'Z', b'h', b'1'..=b'9'] => Reason::Compressed("bzip2"),
            [0x04, 0x22, 0x4d, 0x18] => Reason::Compressed("lz4"),
            bytes => Reason::UnknownMagic(u32::from_be_bytes(bytes)),
        })
    }

    /// Reads the header in the first step, and a record in every other step.
    pub(super) fn step<R: Read>(
        &self,
        window: &mut Window<R>,
        limits: &Limits,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Step, Reason> {
        if interfaces.is_empty() {
            interfaces.push(self.header(window)?);
            return Ok(Step::Other);
        }
        self.record(window, limits)
    }

    fn header<R: Read>(&self, window: &mut Window<R>) -> Result<Interface, Reason> {
        window.need(HEADER_BYTES).map_err(Reason::Io)?;
        let Some(head) = window.bytes().first_chunk::<HEADER_BYTES>() else {
            return Err(cut_off("file header", window, HEADER_BYTES));
        };
        let version = |at: usize| self.order.u16([head[at], head[at + 1]]);
        let (major, minor) = (version(4), version(6));
        if (major, minor) != (2, 4) {
            return Err(Reason::Version { major, minor });
        }
        let word = |at: usize| self.order.u32([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        // The upper half of the word with the link type describes the FCS, and is not part of the number.
        let (snaplen, link_type) = (word(16), word(20) as u16);
        window.consume(HEADER_BYTES);
        Ok(Interface { link_type, snaplen, ..Interface::default() })
    }

    fn record<R: Read>(&self, window: &mut Window<R>, limits: &Limits) -> Result<Step, Reason> {
        window.need(RECORD_BYTES).map_err(Reason::Io)?;
        if window.bytes().is_empty() {
            return Ok(Step::End);
        }
        let Some(head) = window.bytes().first_chunk::<RECORD_BYTES>() else {
            return Err(cut_off("record header", window, RECORD_BYTES));
        };
        let word = |at: usize| self.order.u32([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (seconds, ticks, caplen, wire_len) = (word(0), word(4), word(8), word(12));
        if caplen > limits.caplen {
            return Err(Reason::FrameTooLong { caplen, limit: limits.caplen });
        }
        let block_bytes = RECORD_BYTES + caplen as usize;
        if !window.need(block_bytes).map_err(Reason::Io)? {
            return Err(cut_off("record", window, block_bytes));
        }
        Ok(Step::Frame(Found {
            // At most 2^32 * 10^9 + 2^32 * 1000, which is below 2^63.
            ts_ns: u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * self.ns_per_tick,
            wire_len,
            interface: 0,
            flags: None,
            queue: None,
            data: RECORD_BYTES..block_bytes,
            block_bytes,
        }))
    }
}

/// Returns the error for an input that has ended inside the part `what`.
pub(super) fn cut_off<R: Read>(what: &'static str, window: &Window<R>, need: usize) -> Reason {
    Reason::CutOff { what, have: window.bytes().len() as u64, need: need as u64 }
}
