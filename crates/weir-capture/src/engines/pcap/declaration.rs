//! Declaration of the engine `pcap`.

use super::Pcap;
use crate::engines::declaration::{
    Declaration, Opening, Patterns, QueueUse, Takes, check_nothing, interface_link_type,
};
use crate::memory::Memory;
use crate::rights::NET_RAW;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "pcap",
    purpose: "libpcap, as this system has it",
    takes: Takes::Interfaces,
    patterns: Patterns::None,
    auto: None,
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
        let mut source = Pcap::open(target.iface(), setup)?;
        source.set_why(why);
        Ok(Box::new(source))
    },
};
