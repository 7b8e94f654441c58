//! The error type of this crate. Each text ends with a remedy, if there is one.

use std::io;
use std::path::PathBuf;

/// The errors of the testbed, the generator and the bench.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A set-up command could not be started.
    #[error("cannot run `{command}`: is it installed? (`ip` is in Debian's iproute2)")]
    Spawn {
        /// The command line.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// A set-up command ran and failed.
    #[error("`{command}` failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its standard error output, trimmed.
        stderr: String,
    },
    /// A set-up command did not end in time and was killed.
    #[error("`{command}` did not end within {seconds} s; killed")]
    Timeout {
        /// The command line.
        command: String,
        /// The time limit, seconds.
        seconds: u64,
    },
    /// A thread could not enter a network namespace.
    #[error("cannot enter network namespace {netns}: run as root, and see `ip netns list`")]
    EnterNetns {
        /// Name under `/run/netns`.
        netns: String,
        /// The system's error.
        source: io::Error,
    },
    /// A kernel setting could not be written.
    #[error("cannot write {path}")]
    Sysctl {
        /// The file below `/proc/sys`.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is no interface with this name in this network namespace.
    #[error(
        "{iface}: no such interface in this network namespace; see `ip link` (and `ip netns list`)"
    )]
    NoInterface {
        /// The requested name.
        iface: String,
    },
    /// An ethtool request was refused.
    #[error("{iface}: ethtool {request} refused")]
    Ethtool {
        /// The interface.
        iface: String,
        /// The request.
        request: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The interface is down.
    #[error("{iface} is down; try: ip link set {iface} up")]
    Down {
        /// The interface.
        iface: String,
    },
    /// The interface is up, but nothing is at the other end.
    #[error("{iface} has no carrier: plug the cable in, or set the other end of the pair up")]
    NoCarrier {
        /// The interface.
        iface: String,
    },
    /// Frames of this size cannot be sent.
    #[error("size {size} is out of range for {iface}: {min} to {max} bytes on the wire, {why}")]
    Size {
        /// The interface.
        iface: String,
        /// The requested size, FCS included.
        size: u32,
        /// Smallest possible size.
        min: u32,
        /// Largest possible size.
        max: u32,
        /// The reason for the limit, and how to raise it.
        why: String,
    },
    /// The value of an option is not valid.
    #[error("{option}: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// The error.
        reason: String,
    },
    /// A trace could not be read.
    #[error("{}: {message}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The error.
        message: String,
    },
    /// The thread could not be bound to a CPU.
    #[error("cannot run on CPU {cpu}; see `taskset -p $$` for those allowed")]
    Cpu {
        /// The requested CPU.
        cpu: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Live frames, which the kernel generates, cannot be used here; AF_PACKET may work.
    #[error("live frames through {iface} are not possible: {reason}")]
    LiveFrames {
        /// The interface.
        iface: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// The interface accepted none of the first frames sent to it by XDP.
    #[error("{iface} takes no frames that XDP sends ({attempted} tried): {remedy}")]
    PeerNotReady {
        /// The interface.
        iface: String,
        /// Number of attempted frames.
        attempted: u64,
        /// The remedy.
        remedy: String,
    },
    /// The system refused to send.
    #[error("{iface}: cannot {what}")]
    Send {
        /// The interface.
        iface: String,
        /// The action that failed, and the missing capability, if that is the reason.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The interface's counters could not be read.
    #[error("{iface}: cannot read its counters in {path}")]
    Counters {
        /// The interface.
        iface: String,
        /// The file.
        path: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Something could not be measured.
    #[error("{what}: {reason}")]
    Measure {
        /// The intended measurement.
        what: String,
        /// The reason.
        reason: String,
    },
    /// The BPF program could not be loaded or attached.
    #[error(
        "cannot {what}; root, or CAP_BPF and CAP_NET_ADMIN, and a kernel from 6.1 on are needed"
    )]
    Bpf {
        /// The action that failed.
        what: &'static str,
        /// The error of libbpf.
        source: libbpf_rs::Error,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
