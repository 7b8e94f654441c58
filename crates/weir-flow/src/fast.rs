//! A fast parser of the headers of most frames: TCP or UDP in an unfragmented IPv4 packet without options, no VLAN
//! tag.
//!
//! It returns the same as [`FrameView`](weir_frame::headers::FrameView), or `None`; a test compares both.

use weir_frame::headers::{ether_type, protocol};

use crate::key::KeyWords;

/// Bytes of a frame up to and including the TCP flags.
const KEPT_BYTES: usize = 48;

/// Returns the key, the length in the IP header and the TCP flags.
#[inline(always)]
pub fn plain_v4(frame: &[u8]) -> Option<(KeyWords, u32, u8)> {
    let head = frame.first_chunk::<KEPT_BYTES>()?;
    let be32 = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    // Compares ethertype, version and header length; then the IPv4 flags except "don't fragment", and the offset.
    if be32(12) >> 8 != u32::from(ether_type::IPV4) << 8 | 0x45 || be32(20) & 0x3fff_0000 != 0 {
        return None;
    }
    let (number, length) = (head[23], be32(16) >> 16);
    // The packet must be long enough to contain the ports (UDP) or the TCP flags.
    let is_tcp = number == protocol::TCP;
    if !(is_tcp && length >= 34 || number == protocol::UDP && length >= 24) {
        return None;
    }
    let addresses = u64::from(be32(26)) << 32 | u64::from(be32(30));
    let key =
        KeyWords { addresses: [addresses, 0, 0, 0], rest: KeyWords::rest_of(be32(34), number) };
    Some((key, length, if is_tcp { head[47] } else { 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_frame::flow::FlowKey;
    use weir_frame::headers::{Fragment, FrameView};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn it_is_what_the_walk_gives(
            mut frame in proptest::collection::vec(any::<u8>(), 34..80), number in 0..20u8,
            length in prop_oneof![0..60u16, any::<u16>()], word in prop_oneof![Just(0u16), Just(0x4000), any::<u16>()],
            first in prop_oneof![Just(0x45u8), any::<u8>()],
        ) {
            frame[12..15].copy_from_slice(&[8, 0, first]);
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            frame[20..22].copy_from_slice(&word.to_be_bytes());
            frame[23] = [6, 17, number][usize::from(number) % 3];
            if let Some((key, bytes, tcp_flags)) = plain_v4(&frame) {
                let view = FrameView::parse(&frame);
                let ip = view.ip().unwrap();
                prop_assert_eq!(key, KeyWords::of(&FlowKey::of_ip(ip), None));
                prop_assert_eq!(bytes, ip.packet_end - 14);
                prop_assert_eq!(tcp_flags, view.tcp_flags().unwrap_or(0));
                prop_assert_eq!(ip.fragment, Fragment::Whole);
            } else {
                let tcp = frame[23] == 6 && length >= 34;
                let plain = first == 0x45 && word & 0x3fff == 0 && (tcp || frame[23] == 17 && length >= 24);
                prop_assert!(!plain || frame.len() < KEPT_BYTES);
            }
        }
    }
}
