//! The one error type of this crate. Each text ends with the way out, where there is one.

use std::io;

/// Why a testbed could not be built or frames could not be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A set-up command could not be started.
    #[error("cannot run `{command}`: is it installed? (Debian: apt install iproute2)")]
    Spawn {
        /// The command line.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// A set-up command ran and failed.
    #[error("`{command}` failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// What it printed, trimmed.
        stderr: String,
    },
    /// A set-up command did not end in time and was killed.
    #[error("`{command}` did not end within {seconds} s; killed")]
    Timeout {
        /// The command line.
        command: String,
        /// The time it was given.
        seconds: u64,
    },
    /// A thread could not enter a network namespace.
    #[error("cannot enter network namespace {netns}: run as root, and see `ip netns list`")]
    EnterNetns {
        /// Name under `/run/netns`.
        netns: String,
        /// What the system said.
        source: io::Error,
    },
    /// A kernel setting could not be written.
    #[error("cannot write {path}")]
    Sysctl {
        /// The file below `/proc/sys`.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// No interface of that name in this network namespace.
    #[error(
        "{iface}: no such interface in this network namespace; see `ip link` (and `ip netns list`)"
    )]
    NoInterface {
        /// The name asked for.
        iface: String,
    },
    /// An ethtool request was refused.
    #[error("{iface}: ethtool {request} refused")]
    Ethtool {
        /// The interface.
        iface: String,
        /// What was asked.
        request: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;
