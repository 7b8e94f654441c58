//! Reinserts VLAN tags that the kernel or the NIC removed from a frame.

/// `ETH_P_8021Q`, and `ETH_P_8021AD` for the outer of two tags. Source: linux/if_ether.h.
pub(crate) const TPID_VLAN: u16 = 0x8100;
pub(crate) const TPID_QINQ: u16 = 0x88a8;
/// Length of the two MAC addresses, after which the tag comes, and length of the tag.
pub(crate) const MACS_BYTES: usize = 12;
pub(crate) const TAG_BYTES: usize = 4;

/// A VLAN tag that is not part of its frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) tpid: u16,
    pub(crate) tci: u16,
}

/// Returns the frame as it was on the wire, with its tag after the MAC addresses, cut at `caplen_max` bytes. `scratch`
/// is the memory for the result.
pub(crate) fn put_back<'a>(
    scratch: &'a mut Vec<u8>,
    frame: &[u8],
    tag: Tag,
    caplen_max: usize,
) -> &'a [u8] {
    scratch.clear();
    let (macs, rest) = frame.split_at(frame.len().min(MACS_BYTES));
    scratch.extend_from_slice(macs);
    // A frame that was cut within the addresses has no tag.
    if macs.len() == MACS_BYTES {
        scratch.extend_from_slice(&tag.tpid.to_be_bytes());
        scratch.extend_from_slice(&tag.tci.to_be_bytes());
        scratch.extend_from_slice(rest);
    }
    scratch.truncate(caplen_max);
    scratch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_behind_the_addresses_unless_the_cut_is_before() {
        let tag = Tag { tpid: 0x8100, tci: 0x0064 };
        let frame: Vec<u8> = (0..60).collect();
        let mut scratch = Vec::new();
        let mut whole = frame.clone();
        whole.splice(12..12, [0x81, 0x00, 0x00, 0x64]);
        for snaplen in [1, 11, 12, 13, 14, 16, 17, 60, 63, 64, 65, 1000] {
            // The kernel has cut at the same snaplen.
            let kernel = &frame[..frame.len().min(snaplen)];
            let kept = put_back(&mut scratch, kernel, tag, snaplen);
            assert_eq!(kept, &whole[..whole.len().min(snaplen)], "snaplen {snaplen}");
        }
    }
}
