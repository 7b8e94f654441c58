//! Declaration of the engine `bpf`.

use super::pattern::BpfPattern;
use super::{Bpf, BpfOptions, Hook, cpus, members};
use crate::engines::declaration::{
    Declaration, Opening, Patterns, QueueUse, Takes, Target, interface_link_type, its_interface,
};
use crate::engines::options::EngineOptions;
use crate::error::CaptureError;
use crate::memory::Memory;
use crate::rights::{BPF, NET_ADMIN, NET_RAW, PERFMON};

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "bpf",
    purpose: "BPF programs that copy frames into the ring in the kernel",
    takes: Takes::Interfaces,
    patterns: Patterns::IfAsked,
    auto: Some("the fastest here: frames are copied once, in the kernel"),
    is_of_daemon: false,
    fills_bpf_arrays: true,
    flags: &["--hook", "--consume", "--record-queue", "--tc-attach"],
    // Promiscuous mode, which is the default, needs CAP_NET_RAW with every engine.
    rights: &[BPF, PERFMON, NET_ADMIN, NET_RAW],
    queues: QueueUse::PerFrame,
    memory: |target, _| {
        let rings = cpus::entries().unwrap_or(1).into();
        let counts = matches!(target, Target::Pattern { .. }).then(|| members::bytes_max(rings));
        Memory { rings, buffer_bytes: counts.unwrap_or(0) }
    },
    link_type: interface_link_type,
    taken_from: its_interface,
    check,
    open: |Opening { target, setup, options, why }| {
        if let Target::Pattern { pattern, .. } = target {
            return Ok(Box::new(BpfPattern::open(pattern, setup, own_options(options), why)?));
        }
        let mut source = Bpf::open(target.iface(), setup, own_options(options))?;
        source.set_why(why);
        Ok(Box::new(source))
    },
};

fn check(target: &Target, options: &EngineOptions) -> Result<(), CaptureError> {
    match target {
        Target::Pattern { pattern, .. } if own_options(options).hook == Hook::Xdp => {
            Err(CaptureError::Options(format!(
                "{pattern}: XDP takes interfaces by name, because drivers differ in what they support of it; leave \
                 --hook xdp and --consume out, or name the interface"
            )))
        }
        _ => Ok(()),
    }
}

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
