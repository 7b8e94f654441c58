//! Options of engines. Each engine supports those that its declaration lists.

use std::path::PathBuf;
use std::sync::Arc;

use crate::engines::af_xdp::{Mode, Queues};
use crate::engines::bpf::{Hook, TcAttach};
use crate::engines::host::HostLink;
use crate::engines::replay::Speed;

/// The time at which frames are stamped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamp {
    /// At the hook, when the frame comes; for an engine without a hook, when it is copied.
    #[default]
    Hook,
    /// When the frame is copied.
    Copy,
    /// By the NIC, if its stamps are time since 1970.
    Nic,
}

/// All options of engines except those of [`Setup`](crate::Setup).
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The hook in the kernel; `None`: the engine's default.
    pub hook: Option<Hook>,
    /// How TC programs are attached.
    pub tc_attach: TcAttach,
    /// Take frames away from the network stack.
    pub consume: bool,
    /// Write the NIC queue of every frame as an option.
    pub record_queue: bool,
    /// RX queues to take frames from.
    pub queues: Queues,
    /// Number of threads that share a queue.
    pub copiers: u32,
    /// Zero-copy or copy mode of AF_XDP.
    pub xdp_mode: Mode,
    /// The time at which frames are stamped.
    pub timestamp: Timestamp,
    /// Use reserved huge pages for the engine's own memory ([`Setup::ring_pages`](crate::Setup) is the
    /// option for rings).
    pub hugepages: bool,
    /// Speed of the replay of a file.
    pub speed: Speed,
    /// The socket of the daemon whose feeds are read; `None`: the one in the environment, or the default.
    pub socket: Option<PathBuf>,
    /// The link to the daemon if it is not reached by a socket: from a guest to its host.
    pub link: Option<Arc<dyn HostLink>>,
    /// Report a feed that its daemon closes as vanished, so that the caller waits for it to come back.
    pub follows: bool,
    /// Wait for readers that have joined a [`Pace`](crate::pace::Pace), if the source can wait.
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
