//! Options of engines: each engine takes those that its declaration lists.

use std::path::PathBuf;
use std::sync::Arc;

use crate::engines::af_xdp::{Mode, Queues};
use crate::engines::bpf::{Hook, TcAttach};
use crate::engines::host::HostLink;
use crate::engines::replay::Speed;

/// When a frame is stamped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamp {
    /// At the hook, when it comes; without a hook, when it is copied.
    #[default]
    Hook,
    /// When it is copied.
    Copy,
    /// By the NIC, where its stamps tell the time of day.
    Nic,
}

/// Everything that can be asked of an engine beside its [`Setup`](crate::Setup).
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where in the kernel frames are taken; `None`: where the engine thinks best.
    pub hook: Option<Hook>,
    /// How TC programs are attached.
    pub tc_attach: TcAttach,
    /// Frames end here instead of going on to the stack.
    pub consume: bool,
    /// Write the NIC queue of every frame as an option.
    pub record_queue: bool,
    /// RX queues to take frames from.
    pub queues: Queues,
    /// Threads that share a queue.
    pub copiers: u32,
    /// Who copies frames out of the driver's memory.
    pub xdp_mode: Mode,
    /// When a frame is stamped.
    pub timestamp: Timestamp,
    /// Take the engine's own memory in huge pages that are reserved ([`Setup::ring_pages`](crate::Setup) says the same
    /// of rings).
    pub hugepages: bool,
    /// How fast a file is replayed.
    pub speed: Speed,
    /// The socket of the daemon whose feeds are read; `None`: the environment's, or the usual one.
    pub socket: Option<PathBuf>,
    /// How that daemon is reached, if by no socket: the host's, from a guest.
    pub link: Option<Arc<dyn HostLink>>,
    /// A feed that its daemon closes counts as vanished: it is waited for.
    pub follows: bool,
    /// A source that can wait does not overtake its readers ([`Pace`](crate::pace::Pace)).
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
