//! The declaration of an engine: all properties of the engine that the rest of Weir uses.

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

/// The target of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An interface, in the named network namespace or in that of the calling thread.
    Interface {
        /// The network namespace; `None`: that of the calling thread.
        netns: Option<NetnsName>,
        /// Interface name.
        iface: String,
    },
    /// Every interface whose name matches, in the named network namespace or in that of the calling thread.
    Pattern {
        /// The network namespace; `None`: that of the calling thread.
        netns: Option<NetnsName>,
        /// The pattern of names.
        pattern: LinkPattern,
    },
    /// A capture file.
    File(PathBuf),
    /// The text after the engine's prefix: a device, or the specification of generated frames.
    Text(String),
}

impl Target {
    /// Returns the interface's name; empty if the target is not an interface.
    pub(crate) fn iface(&self) -> &str {
        if let Target::Interface { iface, .. } = self { iface } else { "" }
    }

    /// Returns the text after a prefix; empty if there is no prefix.
    #[must_use]
    pub fn text(&self) -> &str {
        if let Target::Text(text) = self { text } else { "" }
    }
}

/// The targets that an engine supports, and how a command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Interfaces of the kernel, by name.
    Interfaces,
    /// Live devices that are not interfaces of the kernel. Their names follow a prefix.
    Devices {
        /// The prefix, with its colon.
        prefix: &'static str,
        /// An example of a whole name, for help.
        example: &'static str,
    },
    /// Files.
    Files,
    /// Generated frames.
    Generated,
}

/// Whether an engine knows the RX queues of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueUse {
    /// The queue of a frame is not known.
    Unknown,
    /// The queue of each frame is known, and feeds may select by it.
    PerFrame,
    /// The engine captures from one range of queues, but feeds cannot select by queue.
    OneRange,
}

/// Whether an engine supports interfaces by pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patterns {
    /// The engine does not support patterns.
    None,
    /// The engine supports patterns, if the user requests it by name, or by a flag that no engine with
    /// [`First`](Patterns::First) supports.
    IfAsked,
    /// The engine supports patterns, and `auto` selects it for them.
    First,
}

/// An engine. Each engine's folder has one declaration, and `engines.rs` lists all declarations.
pub struct Declaration {
    /// The engine's name, as for `--engine`.
    pub name: &'static str,
    /// One line for help: how the engine captures frames.
    pub purpose: &'static str,
    /// Targets that the engine supports.
    pub takes: Takes,
    /// Whether the engine also supports a pattern of interfaces, as one source.
    pub patterns: Patterns,
    /// The reason why `auto` prefers the engine to the engines for interfaces that are listed after it; `None`: `auto`
    /// never selects the engine.
    pub auto: Option<&'static str>,
    /// Whether the engine's sources and rings belong to a daemon, which may end or restart at any time.
    pub is_of_daemon: bool,
    /// Whether the engine's rings are BPF arrays, unless a feed must be [sealed](crate::Feed::is_sealed). Rings of
    /// other engines are always sealed.
    pub fills_bpf_arrays: bool,
    /// The flags that the engine supports, among those that not every engine supports.
    pub flags: &'static [&'static str],
    /// Capabilities that the engine needs.
    pub rights: &'static [Right],
    /// Whether the engine knows the RX queues of frames.
    pub queues: QueueUse,
    /// Memory that the engine needs for a target.
    pub memory: fn(&Target, &EngineOptions) -> Memory,
    /// The pcap link type of a target's frames.
    pub link_type: fn(&Target) -> Result<u16, CaptureError>,
    /// The interface, in the target's namespace, whose frames `--consume` takes away from the network
    /// stack.
    pub taken_from: for<'a> fn(&'a Target) -> Option<&'a str>,
    /// Refuses targets that the engine does not support, and options that contradict each other, before anything is
    /// opened.
    pub check: fn(&Target, &EngineOptions) -> Result<(), CaptureError>,
    /// Opens a target. The calling thread must be in the target's network namespace.
    pub open: fn(Opening<'_>) -> Result<Box<dyn Source>, CaptureError>,
}

/// Parameters for opening a source.
pub struct Opening<'a> {
    /// The target.
    pub target: &'a Target,
    /// The feeds and their memory.
    pub setup: Setup,
    /// Options for the engine.
    pub options: &'a EngineOptions,
    /// The reason why this engine was chosen.
    pub why: String,
}

impl Declaration {
    /// Returns true if the engine supports this flag. Only for flags that not every engine supports.
    #[must_use]
    pub fn heeds(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns true if the engine supports this kind of target.
    #[must_use]
    pub fn takes_target(&self, target: &Target) -> bool {
        match target {
            Target::Interface { .. } => self.takes == Takes::Interfaces,
            Target::Pattern { .. } => self.patterns != Patterns::None,
            Target::File(_) => self.takes == Takes::Files,
            Target::Text(_) => matches!(self.takes, Takes::Devices { .. } | Takes::Generated),
        }
    }

    /// Returns true if the engine is live: its frames come from an interface or a device.
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

/// Accepts all targets and options, for `Declaration::check`.
pub(crate) fn check_nothing(_: &Target, _: &EngineOptions) -> Result<(), CaptureError> {
    Ok(())
}

/// Returns the interface of the target, for `Declaration::taken_from`.
pub(crate) fn its_interface(target: &Target) -> Option<&str> {
    Some(target.iface()).filter(|iface| !iface.is_empty())
}

/// Returns the link type of an interface.
pub(crate) fn interface_link_type(target: &Target) -> Result<u16, CaptureError> {
    let Target::Interface { netns, iface } = target else { return ethernet(target) };
    crate::kernel::interface::link_type(netns.as_ref(), iface)
}

/// Returns Ethernet, for every target.
#[expect(clippy::unnecessary_wraps, reason = "the signature of `Declaration::link_type`")]
pub(crate) fn ethernet(_: &Target) -> Result<u16, CaptureError> {
    Ok(weir_frame::pcapng::LINKTYPE_ETHERNET)
}
