//! Community ID: a text that identifies a flow in the same way in all tools that observe the same traffic.
//!
//! Source: Corelight, "Community ID Flow Hashing", version 1, <https://github.com/corelight/community-id-spec>.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use weir_frame::flow::FlowKey;
use weir_frame::headers::{Addresses, protocol};

/// Returns the Community ID of a flow, version 1 with seed 0: `1:` and the SHA-1 of the key in base64.
///
/// It is the same for both directions. For ICMP, `icmp` is the type and code of a message, which take the place of
/// ports; a request and its reply have the same ID. Other protocols have the ports of [`FlowKey`], except for those
/// that have no ports according to the specification.
#[must_use]
pub fn community_id(key: &FlowKey, icmp: Option<(u8, u8)>) -> String {
    let mut ends = match key.addresses {
        Addresses::V4 { src, dst } => [src.octets().to_vec(), dst.octets().to_vec()],
        Addresses::V6 { src, dst } => [src.octets().to_vec(), dst.octets().to_vec()],
    };
    let (mut ports, one_way) = ports(key, icmp);
    let ordered = (&ends[0], ports[0]) <= (&ends[1], ports[1]);
    if !ordered && !one_way {
        ends.swap(0, 1);
        ports.swap(0, 1);
    }
    let mut hash = Sha1::new();
    hash.update(0u16.to_be_bytes());
    ends.iter().for_each(|end| hash.update(end));
    hash.update([key.protocol, 0]);
    if has_ports(key.protocol) {
        ports.iter().for_each(|port| hash.update(port.to_be_bytes()));
    }
    format!("1:{}", STANDARD.encode(hash.finalize()))
}

fn has_ports(number: u8) -> bool {
    use protocol::*;
    matches!(number, ICMP | TCP | UDP | ICMPV6 | SCTP)
}

/// Returns the ports, or the numbers in their place; and whether the directions differ, as for ICMP messages that
/// have no reply.
fn ports(key: &FlowKey, icmp: Option<(u8, u8)>) -> ([u16; 2], bool) {
    let (kind, code) = icmp.unwrap_or_default();
    let answers: &[(u8, u8)] = match key.protocol {
        protocol::ICMP => &[(8, 0), (13, 14), (15, 16), (10, 9), (17, 18)],
        protocol::ICMPV6 => {
            &[(128, 129), (133, 134), (135, 136), (130, 131), (139, 140), (144, 145)]
        }
        _ => return ([key.src_port, key.dst_port], false),
    };
    for (request, reply) in answers {
        if kind == *request {
            return ([u16::from(*request), u16::from(*reply)], false);
        }
        if kind == *reply {
            return ([u16::from(*reply), u16::from(*request)], false);
        }
    }
    ([u16::from(kind), u16::from(code)], true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn key(src: &str, dst: &str, protocol: u8, ports: [u16; 2]) -> FlowKey {
        let addresses = match (src.parse().unwrap(), dst.parse().unwrap()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 { src, dst },
            (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6 { src, dst },
            _ => panic!("one version for both"),
        };
        FlowKey { addresses, src_port: ports[0], dst_port: ports[1], protocol }
    }

    /// The values are those of the reference implementation's own tests (corelight/pycommunityid).
    #[test]
    fn it_is_what_the_reference_implementation_gives() {
        for (src, dst, number, ports, want) in [
            ("128.232.110.120", "66.35.250.204", 6, [34855, 80], "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
            ("10.0.0.1", "10.0.0.2", 6, [10, 11569], "1:SXBGMX1lBOwhhoDrZynfROxnhnM="),
            ("192.168.1.52", "8.8.8.8", 17, [54585, 53], "1:d/FP5EW3wiY1vCndhwleRRKHowQ="),
            ("192.168.170.8", "192.168.170.56", 132, [7, 80], "1:jQgCxbku+pNGw8WPbEc/TS/uTpQ="),
            ("10.1.24.4", "10.1.12.1", 46, [0, 0], "1:/nQI4Rh/TtY3mf0R2gJFBkVlgS4="),
        ] {
            let key = key(src, dst, number, ports);
            assert_eq!(community_id(&key, None), want);
            assert_eq!(community_id(&key.reversed(), None), want);
        }
    }

    #[test]
    fn icmp_messages_are_ordered_where_they_are_answered() {
        let (a, b) = ("192.168.0.89", "192.168.0.1");
        let (c, d) = ("fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea");
        let (e, f) = ("3ffe:507:0:1:260:97ff:fe07:69ea", "3ffe:507:0:1:200:86ff:fe05:80da");
        for (src, dst, number, message, want) in [
            (a, b, 1, (8, 0), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (b, a, 1, (0, 8), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (a, b, 1, (20, 0), "1:3o2RFccXzUgjl7zDpqmY7yJi8rI="),
            (a, b, 1, (20, 1), "1:tz/fHIDUHs19NkixVVoOZywde+I="),
            (b, a, 1, (0, 20), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (c, d, 58, (135, 0), "1:dGHyGvjMfljg6Bppwm3bg0LO8TY="),
            (d, c, 58, (136, 0), "1:dGHyGvjMfljg6Bppwm3bg0LO8TY="),
            (e, f, 58, (3, 0), "1:NdobDX8PQNJbAyfkWxhtL2Pqp5w="),
            (f, e, 58, (3, 0), "1:/OGBt9BN1ofenrmSPWYicpij2Vc="),
        ] {
            assert_eq!(
                community_id(&key(src, dst, number, [0, 0]), Some(message)),
                want,
                "{message:?}"
            );
        }
    }
}
