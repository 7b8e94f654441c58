//! Declaration of the engine `host`.

use super::{HostFeeds, address_of, link_type};
use crate::engines::declaration::{Declaration, Patterns, QueueUse, Takes, Target};
use crate::error::CaptureError;
use crate::memory::Memory;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "host",
    purpose: "Feeds of a daemon on this machine (weir serve), named host:SOURCE; needs no rights",
    takes: Takes::Devices { prefix: "host:", example: "host:eth0" },
    patterns: Patterns::None,
    auto: None,
    is_of_daemon: true,
    fills_bpf_arrays: false,
    flags: &["--socket"],
    rights: &[],
    // The daemon's engine may know the queue of a frame. If not, the daemon refuses the feed.
    queues: QueueUse::PerFrame,
    // The rings belong to the daemon.
    memory: |_, _| Memory { rings: 0, buffer_bytes: 0 },
    link_type: |target| Ok(link_type(&address_of(target)?)),
    taken_from: |_| None,
    check: |target, _| match target {
        Target::Text(_) => address_of(target).map(drop),
        _ => Err(CaptureError::Options(format!(
            "--engine host takes sources of a daemon only; name one as host:{}",
            target.iface()
        ))),
    },
    open: |opening| {
        let address = address_of(opening.target)?;
        let (setup, options) = (&opening.setup, opening.options);
        let given = options.socket.as_deref();
        let feeds = match &options.link {
            Some(link) => HostFeeds::open_by(link.as_ref(), &address, setup, options.follows)?,
            None => HostFeeds::open(&address, setup, given, options.follows)?,
        };
        Ok(Box::new(feeds))
    },
};
