//! What the engine `bpf` says about itself.

use super::{Bpf, BpfOptions, Hook, cpus};
use crate::engines::declaration::{
    Declaration, Opening, QueueUse, Takes, check_nothing, interface_link_type, its_interface,
};
use crate::engines::options::EngineOptions;
use crate::memory::Memory;
use crate::rights::{BPF, NET_ADMIN, NET_RAW, PERFMON};

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "bpf",
    purpose: "BPF programs that copy frames into the ring in the kernel",
    takes: Takes::Interfaces,
    takes_patterns: false,
    auto: Some("the fastest here: frames are copied once, in the kernel"),
    flags: &["--hook", "--consume", "--record-queue", "--tc-attach"],
    // Promiscuous mode, which is the default, takes CAP_NET_RAW of every engine.
    rights: &[BPF, PERFMON, NET_ADMIN, NET_RAW],
    queues: QueueUse::PerFrame,
    memory: |_, _| Memory { rings: cpus::entries().unwrap_or(1).into(), buffer_bytes: 0 },
    link_type: interface_link_type,
    taken_from: its_interface,
    check: check_nothing,
    open: |Opening { target, setup, options, why }| {
        let mut source = Bpf::open(target.iface(), setup, own_options(options))?;
        source.set_why(why);
        Ok(Box::new(source))
    },
};

fn own_options(options: &EngineOptions) -> BpfOptions {
    BpfOptions {
        hook: match (options.hook, options.consume) {
            (Some(hook), _) => hook,
            (None, true) => Hook::Xdp,
            (None, false) => Hook::Tc,
        },
        consume: options.consume,
        record_queue: options.record_queue,
        tc_attach: options.tc_attach,
    }
}
