//! Declaration of the engine `gen`.

use super::{GenSpec, MemGen};
use crate::engines::declaration::{
    Declaration, Opening, Patterns, QueueUse, Takes, check_nothing, ethernet,
};
use crate::memory::Memory;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "gen",
    purpose: "Frames made in memory",
    takes: Takes::Generated,
    patterns: Patterns::None,
    auto: None,
    is_of_daemon: false,
    fills_bpf_arrays: false,
    flags: &["--hugepages"],
    rights: &[],
    queues: QueueUse::Unknown,
    memory: |_, _| Memory::ONE_RING,
    link_type: ethernet,
    taken_from: |_| None,
    check: check_nothing,
    open: |Opening { target, setup, options, .. }| {
        let spec: GenSpec = target.text().parse()?;
        Ok(Box::new(MemGen::open(spec, setup, options.waits)?))
    },
};
