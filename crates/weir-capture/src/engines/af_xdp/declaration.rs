//! Declaration of the engine `af_xdp`.

use super::options::memory;
use super::{AfXdp, AfXdpOptions, Stamps};
use crate::engines::bpf::Hook;
use crate::engines::declaration::{
    Declaration, Opening, Patterns, QueueUse, Takes, Target, interface_link_type, its_interface,
};
use crate::engines::options::{EngineOptions, Timestamp};
use crate::error::CaptureError;
use crate::memory::Memory;
use crate::rights::{BPF, NET_ADMIN, NET_RAW, PERFMON};

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "af_xdp",
    purpose: "AF_XDP sockets; they take frames away from the stack, so --consume must be given",
    takes: Takes::Interfaces,
    patterns: Patterns::None,
    auto: None,
    is_of_daemon: false,
    fills_bpf_arrays: false,
    flags: &[
        "--hook",
        "--consume",
        "--record-queue",
        "--queues",
        "--copiers",
        "--xdp-mode",
        "--timestamp",
        "--hugepages",
    ],
    rights: &[BPF, PERFMON, NET_ADMIN, NET_RAW],
    queues: QueueUse::OneRange,
    memory: own_memory,
    link_type: interface_link_type,
    taken_from: its_interface,
    check,
    open: |Opening { target, setup, options, why }| {
        let mut source = AfXdp::open(target.iface(), setup, own_options(options))?;
        source.set_why(why);
        Ok(Box::new(source))
    },
};

fn own_memory(target: &Target, options: &EngineOptions) -> Memory {
    let netns = if let Target::Interface { netns, .. } = target { netns.as_ref() } else { None };
    memory(netns, target.iface(), &own_options(options))
}

fn check(_: &Target, options: &EngineOptions) -> Result<(), CaptureError> {
    let wrong = |text: &str| Err(CaptureError::Options(text.to_owned()));
    if !options.consume {
        return wrong(
            "--engine af_xdp takes frames away from the stack: say so with --consume, or watch with --engine bpf",
        );
    }
    if options.hook == Some(Hook::Tc) {
        return wrong("--engine af_xdp takes frames at XDP; leave out --hook tc");
    }
    Ok(())
}

fn own_options(options: &EngineOptions) -> AfXdpOptions {
    AfXdpOptions {
        queues: options.queues,
        copiers: options.copiers,
        mode: options.xdp_mode,
        stamps: match options.timestamp {
            // `Nic` is for other sources of the run. The hook's time stamps are the closest to it that this engine has.
            Timestamp::Hook | Timestamp::Nic => Stamps::Hook,
            Timestamp::Copy => Stamps::Copier,
        },
        record_queue: options.record_queue,
    }
}
