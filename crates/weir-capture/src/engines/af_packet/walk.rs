//! Reads the frames of a block. Every offset and length is checked before use. The kernel wrote them, so a wrong value
//! means that the mapping is wrong: this must be an error and not a crash.
//!
//! ```text
//! block:  0 version  4 offset_to_priv  8 block_status  12 num_pkts  16 offset_to_first_pkt  ...
//! frame:  0 tp_next_offset  4 tp_sec  8 tp_nsec  12 tp_snaplen  16 tp_len  20 tp_status
//!        24 tp_mac (u16)  26 tp_net (u16)  28 tp_rxhash  32 tp_vlan_tci  36 tp_vlan_tpid (u16)
//!        48 struct sockaddr_ll, with sll_ifindex at its byte 4 and sll_pkttype at its byte 10
//!        tp_mac: the frame
//! ```
//! Source: `struct tpacket_block_desc`, `struct tpacket3_hdr`, linux/if_packet.h.

use weir_frame::record::Flags;

use crate::kernel::vlan::{MACS_BYTES, TAG_BYTES, TPID_QINQ, TPID_VLAN, Tag};

/// Bytes of `tpacket3_hdr`, whose size is a multiple of its alignment (16), and of `sockaddr_ll`.
const HEADER_BYTES: usize = 48 + 20;
const _: () = assert!(size_of::<libc::tpacket3_hdr>() == 48);
const _: () = assert!(size_of::<libc::sockaddr_ll>() == 20);
const IFINDEX_AT: usize = 48 + 4;
const PKTTYPE_AT: usize = 48 + 10;
/// `TP_STATUS_GSO_TCP`, linux/if_packet.h since Linux 6.2.
const TP_STATUS_GSO_TCP: u32 = 1 << 8;

/// The kernel's description of a frame in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelFrame<'a> {
    pub(super) ts_ns: u64,
    /// The kernel's index of the interface.
    pub(super) ifindex: u32,
    /// Length on the wire, without the tag in `tag`.
    pub(super) wire_len: u32,
    pub(super) flags: Flags,
    /// The VLAN tag that the kernel or the NIC removed.
    pub(super) tag: Option<Tag>,
    /// The bytes of the frame that the kernel copied.
    pub(super) data: &'a [u8],
}

/// The block is inconsistent at this offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadBlock(pub(super) usize);

/// The frames of one block, in order.
pub(super) struct Frames<'a> {
    block: &'a [u8],
    at: usize,
    left: u32,
}

impl<'a> Frames<'a> {
    pub(super) fn of(block: &'a [u8]) -> Result<Frames<'a>, BadBlock> {
        let head = block.first_chunk::<20>().ok_or(BadBlock(0))?;
        Ok(Frames { block, at: u32_at(head, 16) as usize, left: u32_at(head, 12) })
    }

    #[inline]
    fn parse(&self) -> Option<(KernelFrame<'a>, usize)> {
        let bytes = self.block.get(self.at..)?;
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let (start, caplen) = (u16_at(header, 24) as usize, u32_at(header, 12) as usize);
        let data = bytes.get(start..start.checked_add(caplen)?)?;
        let status = u32_at(header, 20);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| Tag {
            tpid: match status & libc::TP_STATUS_VLAN_TPID_VALID {
                0 => TPID_VLAN,
                _ => u16_at(header, 36),
            },
            tci: u32_at(header, 32) as u16,
        });
        let frame = KernelFrame {
            ts_ns: u64::from(u32_at(header, 4)) * 1_000_000_000 + u64::from(u32_at(header, 8)),
            ifindex: u32_at(header, IFINDEX_AT),
            // At least the copied length: readers rely on that.
            wire_len: u32_at(header, 16).max(caplen as u32),
            flags: flags(status, header[PKTTYPE_AT]),
            tag,
            data,
        };
        // The last frame has a step of 0. In any other frame, a step of 0 would lead to an endless loop.
        let next = match u32_at(header, 0) as usize {
            step @ HEADER_BYTES.. => self.at.saturating_add(step),
            _ => usize::MAX,
        };
        Some((frame, next))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<KernelFrame<'a>, BadBlock>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let Some((frame, next)) = self.parse() else {
            self.left = 0;
            return Some(Err(BadBlock(self.at)));
        };
        self.at = next;
        Some(Ok(frame))
    }
}

fn flags(status: u32, pkttype: u8) -> Flags {
    let mut flags = match pkttype {
        libc::PACKET_OUTGOING => Flags::OUTBOUND,
        _ => Flags::INBOUND,
    };
    if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
        flags = flags.with(Flags::CHECKSUM_NOT_READY);
    }
    if status & TP_STATUS_GSO_TCP != 0 {
        flags = flags.with(Flags::SUPER_FRAME);
    }
    flags
}

impl KernelFrame<'_> {
    /// Returns true if the frame is longer than its link carries, because it comprises several frames of the wire.
    /// `link_bytes` is the MTU plus the link-layer header, without VLAN tags. The kernel's status bit for this is
    /// missing for UDP, and before Linux 6.2.
    #[inline]
    pub(super) fn exceeds(&self, link_bytes: u32) -> bool {
        self.wire_len > link_bytes && self.wire_len > link_bytes + inline_tag_bytes(self.data)
    }
}

/// Returns the bytes of the VLAN tags that are still in the frame: at most two tags.
#[cold]
fn inline_tag_bytes(frame: &[u8]) -> u32 {
    let is_tag = |at: usize| {
        let tpid = frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        matches!(tpid, Some(TPID_VLAN | TPID_QINQ))
    };
    match (is_tag(MACS_BYTES), is_tag(MACS_BYTES + TAG_BYTES)) {
        (true, true) => 2 * TAG_BYTES as u32,
        (true, false) => TAG_BYTES as u32,
        _ => 0,
    }
}

#[inline]
fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block with these frames, in the kernel's layout.
    fn block(frames: &[(&[u8], u32, u8, Option<Tag>)]) -> Vec<u8> {
        let mut block = vec![0; 48];
        block[12..16].copy_from_slice(&(frames.len() as u32).to_ne_bytes());
        block[16..20].copy_from_slice(&48u32.to_ne_bytes());
        for &(data, status, pkttype, tag) in frames {
            let mut frame = vec![0; 82];
            let next = (82 + data.len()).next_multiple_of(16) as u32;
            let tag_status =
                tag.map_or(0, |_| libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID);
            let tci = tag.map_or(0, |tag| u32::from(tag.tci));
            for (at, word) in [
                (0, next),
                (4, 1_700_000_000),
                (8, 123_456_789),
                (12, data.len() as u32),
                (16, data.len() as u32),
                (20, status | tag_status),
                (32, tci),
            ] {
                frame[at..at + 4].copy_from_slice(&word.to_ne_bytes());
            }
            frame[24..26].copy_from_slice(&82u16.to_ne_bytes());
            frame[36..38].copy_from_slice(&tag.map_or(0, |tag| tag.tpid).to_ne_bytes());
            frame[IFINDEX_AT..IFINDEX_AT + 4].fill(data[0]);
            frame[PKTTYPE_AT] = pkttype;
            frame.extend_from_slice(data);
            frame.resize(next as usize, 0);
            block.extend(frame);
        }
        block
    }

    #[test]
    fn frames_come_with_their_direction_time_and_tag() {
        let tag = Tag { tpid: TPID_QINQ, tci: 0x2064 };
        let status = libc::TP_STATUS_CSUMNOTREADY | TP_STATUS_GSO_TCP;
        let block = block(&[(&[1; 60], 0, 0, None), (&[2; 61], status, 4, Some(tag))]);
        let frames: Vec<_> = Frames::of(&block).unwrap().map(Result::unwrap).collect();
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0].data, [1; 60]);
        assert_eq!(frames[0].ts_ns, 1_700_000_000_123_456_789);
        assert_eq!((frames[0].flags, frames[0].tag), (Flags::INBOUND, None));
        assert_eq!((frames[0].ifindex, frames[1].ifindex), (0x0101_0101, 0x0202_0202));
        assert_eq!((frames[1].data, frames[1].tag), (&[2; 61][..], Some(tag)));
        let all = Flags::OUTBOUND.with(Flags::CHECKSUM_NOT_READY).with(Flags::SUPER_FRAME);
        assert_eq!(frames[1].flags, all);
    }

    #[test]
    fn a_tag_without_its_type_is_an_8021q_tag() {
        let mut block = block(&[(&[1; 60], libc::TP_STATUS_VLAN_VALID, 0, None)]);
        block[48 + 32] = 7;
        let frame = Frames::of(&block).unwrap().next().unwrap().unwrap();
        assert_eq!(frame.tag, Some(Tag { tpid: 0x8100, tci: 7 }));
    }

    #[test]
    fn hostile_blocks_are_errors() {
        let good = block(&[(&[1; 60], 0, 0, None), (&[2; 60], 0, 0, None)]);
        let mut seed = 7u32;
        for round in 0..200_000 {
            let mut bad = good.clone();
            for _ in 0..1 + round % 3 {
                seed ^= seed << 13;
                seed ^= seed >> 17;
                seed ^= seed << 5;
                let at = 12 + (seed as usize >> 8) % (bad.len() - 12);
                bad[at] = seed as u8;
            }
            bad.truncate(bad.len() - round % 7);
            if let Ok(frames) = Frames::of(&bad) {
                for frame in frames.flatten() {
                    assert!(frame.data.len() <= bad.len());
                    let _ = frame.exceeds(0);
                }
            }
        }
        assert!(Frames::of(&[0; 19]).is_err());
        let mut far = good;
        far[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(Frames::of(&far).unwrap().next(), Some(Err(BadBlock(u32::MAX as usize))));
    }

    #[test]
    fn a_step_that_does_not_go_on_ends_the_walk() {
        let mut bad = block(&[(&[1; 60], 0, 0, None)]);
        bad[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        for step in [0u32, 1, 67, u32::MAX] {
            bad[48..52].copy_from_slice(&step.to_ne_bytes());
            let frames: Vec<_> = Frames::of(&bad).unwrap().collect();
            assert!(frames.len() == 2 && frames[0].is_ok() && frames[1].is_err(), "step {step}");
        }
    }

    #[test]
    fn tags_do_not_make_a_super_frame() {
        let mut data = vec![0; 1522];
        let frame = |data: &'_ [u8]| {
            let block = block(&[(data, 0, 0, None)]);
            Frames::of(&block).unwrap().next().unwrap().unwrap().exceeds(1514)
        };
        assert!(!frame(&data[..1514]));
        assert!(frame(&data[..1518]));
        data[12..14].copy_from_slice(&[0x88, 0xa8]);
        assert!(!frame(&data[..1518]) && frame(&data[..1522]));
        data[16..18].copy_from_slice(&[0x81, 0x00]);
        assert!(!frame(&data[..1522]));
    }
}
