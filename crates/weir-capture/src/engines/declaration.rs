//! Declaration of an engine: everything that the rest of Weir knows of it.

use std::fmt;
use std::path::PathBuf;

use crate::engines::options::EngineOptions;
use crate::error::CaptureError;
use crate::kernel::interface::LinkPattern;
use crate::kernel::netns::NetnsName;
use crate::memory::Memory;
use crate::rights::Right;
use crate::setup::Setup;
use crate::source::Source;

/// The thing from which frames are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An interface, in a network namespace by name or in that of the calling thread.
    Interface {
        /// The network namespace; `None`: that of the calling thread.
        netns: Option<NetnsName>,
        /// Interface name.
        iface: String,
    },
    /// Every interface whose name fits, in a network namespace by name or in that of the calling thread.
    Pattern {
        /// The network namespace; `None`: that of the calling thread.
        netns: Option<NetnsName>,
        /// Which ones.
        pattern: LinkPattern,
    },
    /// A capture file.
    File(PathBuf),
    /// The text behind the engine's prefix: a device, a specification.
    Text(String),
}

impl Target {
    /// The interface's name; empty if it is none.
    pub(crate) fn iface(&self) -> &str {
        if let Target::Interface { iface, .. } = self { iface } else { "" }
    }

    /// The text behind a prefix; empty if there is none.
    #[must_use]
    pub fn text(&self) -> &str {
        if let Target::Text(text) = self { text } else { "" }
    }
}

/// Which targets an engine takes, and how a command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Interfaces of the kernel, by name.
    Interfaces,
    /// Devices that are no interfaces: live as these are, named behind a prefix.
    Devices {
        /// With its colon.
        prefix: &'static str,
        /// A whole name, for help.
        example: &'static str,
    },
    /// Files.
    Files,
    /// Made-up frames.
    Generated,
}

/// Which RX queues an engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueUse {
    /// None: a frame's queue is not known.
    Unknown,
    /// Each frame's: feeds may go by it.
    PerFrame,
    /// It takes frames from one range of queues, and feeds cannot go by them.
    OneRange,
}

/// Whether an engine takes interfaces by pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patterns {
    /// It does not.
    None,
    /// It does if it is asked for, by its name or by a flag that no engine of [`First`](Patterns::First) heeds.
    IfAsked,
    /// It does, and `auto` takes it.
    First,
}

/// An engine. There is one of these in each engine's folder, and a list of them in `engines.rs`.
pub struct Declaration {
    /// As `--engine` has it.
    pub name: &'static str,
    /// One line for help: how it takes frames.
    pub purpose: &'static str,
    /// Targets that it takes.
    pub takes: Takes,
    /// Whether it takes interfaces by pattern, too, as one source.
    pub patterns: Patterns,
    /// Why `auto` prefers it to the engines of interfaces that are listed after it; `None`: `auto` never takes it.
    pub auto: Option<&'static str>,
    /// It opens something of another process, which may go and come back without notice. The rings are not this
    /// process's either.
    pub is_of_daemon: bool,
    /// Its rings are BPF arrays, unless a feed is to be [sealed](crate::Feed::is_sealed); those of others are sealed
    /// anyhow.
    pub fills_bpf_arrays: bool,
    /// Flags that it heeds and not every engine does.
    pub flags: &'static [&'static str],
    /// Capabilities that it takes.
    pub rights: &'static [Right],
    /// Which RX queues it knows.
    pub queues: QueueUse,
    /// Memory that it takes for a target.
    pub memory: fn(&Target, &EngineOptions) -> Memory,
    /// The pcap link type of a target's frames.
    pub link_type: fn(&Target) -> Result<u16, CaptureError>,
    /// The kernel's interface in the target's namespace whose frames it takes away, if it is told to.
    pub taken_from: for<'a> fn(&'a Target) -> Option<&'a str>,
    /// Refuses options and targets that it does not support, before anything is opened: options that contradict one
    /// another, targets of others.
    pub check: fn(&Target, &EngineOptions) -> Result<(), CaptureError>,
    /// Opens a target. The calling thread is in its network namespace.
    pub open: fn(Opening<'_>) -> Result<Box<dyn Source>, CaptureError>,
}

/// Parameters for opening a source.
pub struct Opening<'a> {
    /// The target.
    pub target: &'a Target,
    /// Its feeds and their memory.
    pub setup: Setup,
    /// Options for the engine.
    pub options: &'a EngineOptions,
    /// Why it is this engine.
    pub why: String,
}

impl Declaration {
    /// Whether it heeds a flag that not every engine does.
    #[must_use]
    pub fn heeds(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether it takes this target, as far as the kind of it says.
    #[must_use]
    pub fn takes_target(&self, target: &Target) -> bool {
        match target {
            Target::Interface { .. } => self.takes == Takes::Interfaces,
            Target::Pattern { .. } => self.patterns != Patterns::None,
            Target::File(_) => self.takes == Takes::Files,
            Target::Text(_) => matches!(self.takes, Takes::Devices { .. } | Takes::Generated),
        }
    }

    /// Whether its frames come while it runs, from an interface or a device.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.takes, Takes::Interfaces | Takes::Devices { .. })
    }
}

impl fmt::Debug for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine {}", self.name)
    }
}

impl PartialEq for Declaration {
    fn eq(&self, other: &Declaration) -> bool {
        self.name == other.name
    }
}

impl Eq for Declaration {}

/// Nothing that it could refuse.
pub(crate) fn check_nothing(_: &Target, _: &EngineOptions) -> Result<(), CaptureError> {
    Ok(())
}

/// The interface itself.
pub(crate) fn its_interface(target: &Target) -> Option<&str> {
    Some(target.iface()).filter(|iface| !iface.is_empty())
}

/// The link type of an interface.
pub(crate) fn interface_link_type(target: &Target) -> Result<u16, CaptureError> {
    let Target::Interface { netns, iface } = target else { return ethernet(target) };
    crate::kernel::interface::link_type(netns.as_ref(), iface)
}

/// Ethernet, whatever the target.
#[expect(clippy::unnecessary_wraps, reason = "the signature of `Declaration::link_type`")]
pub(crate) fn ethernet(_: &Target) -> Result<u16, CaptureError> {
    Ok(weir_frame::pcapng::LINKTYPE_ETHERNET)
}
