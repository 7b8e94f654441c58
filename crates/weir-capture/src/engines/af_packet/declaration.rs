//! Declaration of the engine `af_packet`.

use super::AfPacket;
use super::pattern::Pattern;
use crate::engines::declaration::{
    Declaration, Opening, Patterns, QueueUse, Takes, Target, check_nothing, interface_link_type,
};
use crate::memory::Memory;
use crate::rights::NET_RAW;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "af_packet",
    purpose: "A TPACKET_V3 socket",
    takes: Takes::Interfaces,
    patterns: Patterns::First,
    auto: Some("a packet socket"),
    is_of_daemon: false,
    fills_bpf_arrays: false,
    flags: &["--hugepages"],
    rights: &[NET_RAW],
    queues: QueueUse::Unknown,
    memory: |_, _| Memory::BUFFERED,
    link_type: interface_link_type,
    taken_from: |_| None,
    check: check_nothing,
    open: |Opening { target, setup, why, .. }| {
        if let Target::Pattern { pattern, .. } = target {
            return Ok(Box::new(Pattern::open(pattern, setup, why)?));
        }
        let mut source = AfPacket::open(target.iface(), setup)?;
        source.set_why(why);
        Ok(Box::new(source))
    },
};
