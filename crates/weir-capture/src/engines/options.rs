//! Options of engines. Each engine supports the options whose flags are in its declaration.

use std::path::PathBuf;
use std::sync::Arc;

use crate::engines::af_xdp::{Mode, Queues};
use crate::engines::bpf::{Hook, TcAttach};
use crate::engines::host::HostLink;
use crate::engines::replay::Speed;

/// The point in a frame's path at which it gets its time stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamp {
    /// At the hook, when the frame comes; for an engine without a hook, when it is copied.
    #[default]
    Hook,
    /// When the frame is copied.
    Copy,
    /// By the NIC, if the NIC's time stamps are time since 1970.
    Nic,
}

/// The options of all engines, except those in [`Setup`](crate::Setup).
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The hook in the kernel; `None`: the engine's default.
    pub hook: Option<Hook>,
    /// How TC programs are attached.
    pub tc_attach: TcAttach,
    /// Whether to take frames away from the network stack.
    pub consume: bool,
    /// Whether to record the NIC queue of every frame as an option.
    pub record_queue: bool,
    /// RX queues to take frames from.
    pub queues: Queues,
    /// Number of threads that share a queue.
    pub copiers: u32,
    /// Zero-copy or copy mode of AF_XDP.
    pub xdp_mode: Mode,
    /// The point at which frames get their time stamps.
    pub timestamp: Timestamp,
    /// Whether to use reserved huge pages for the engine's own memory. For rings, [`Setup::ring_pages`](crate::Setup)
    /// is the option.
    pub hugepages: bool,
    /// Speed at which a file is replayed.
    pub speed: Speed,
    /// The socket of the daemon whose feeds are read; `None`: the socket in the environment, or the default one.
    pub socket: Option<PathBuf>,
    /// The link to the daemon if it is not reached by a socket of this machine: the link from a guest to its host.
    pub link: Option<Arc<dyn HostLink>>,
    /// Whether to report a feed that its daemon closes as vanished, so that the caller waits until the feed is back.
    pub follows: bool,
    /// Whether to wait for readers that have joined a [`Pace`](crate::pace::Pace), if the source can wait.
    pub waits: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            hook: None,
            tc_attach: TcAttach::Best,
            consume: false,
            record_queue: false,
            queues: Queues::All,
            copiers: 1,
            xdp_mode: Mode::Best,
            timestamp: Timestamp::Hook,
            hugepages: false,
            speed: Speed::Top,
            socket: None,
            link: None,
            follows: false,
            waits: false,
        }
    }
}
