//! Declaration of the engine `replay`.

use super::{Replay, ReplayOptions, link_type};
use crate::engines::declaration::{
    Declaration, Opening, Patterns, QueueUse, Takes, Target, check_nothing, ethernet,
};
use crate::error::CaptureError;
use crate::memory::Memory;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "replay",
    purpose: "A capture file",
    takes: Takes::Files,
    patterns: Patterns::None,
    auto: None,
    is_of_daemon: false,
    fills_bpf_arrays: false,
    flags: &["--speed", "--no-wait", "--hugepages"],
    rights: &[],
    queues: QueueUse::Unknown,
    memory: |_, _| Memory::ONE_RING,
    link_type: |target| match target {
        Target::File(path) => link_type(path),
        _ => ethernet(target),
    },
    taken_from: |_| None,
    check: check_nothing,
    open: |Opening { target, setup, options, .. }| {
        let Target::File(path) = target else {
            return Err(CaptureError::Options("a replay is of a file".to_owned()));
        };
        let (speed, waits) = (options.speed, options.waits);
        let options = ReplayOptions { speed, waits, ..ReplayOptions::default() };
        Ok(Box::new(Replay::open(path, setup, options)?))
    },
};
