//! Why a capture cannot begin or go on, and what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use weir_ring::RingError;

/// What is wrong, on what, and the way out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// No such interface.
    #[error(
        "{iface}: no such interface here; `ip -brief link` lists them (a container's are in its own network namespace)"
    )]
    NoInterface {
        /// Name that was asked for.
        iface: String,
    },
    /// No such network namespace.
    #[error("{netns}: no such network namespace; `ip netns` lists them")]
    NoNetns {
        /// Name that was asked for.
        netns: String,
    },
    /// The interface is administratively down.
    #[error("{iface} is down; `ip link set {iface} up` brings it up")]
    InterfaceDown {
        /// Its name.
        iface: String,
    },
    /// The interface went away.
    #[error("{iface} vanished while it was being captured; what came before is kept")]
    Vanished {
        /// Its name.
        iface: String,
    },
    /// A link type that Weir does not carry.
    #[error("{iface} has link type {arphrd} (ARPHRD), which is neither Ethernet nor raw IP")]
    LinkType {
        /// Its name.
        iface: String,
        /// The kernel's ARPHRD number.
        arphrd: u16,
    },
    /// Missing privileges.
    #[error(
        "{what} needs {needs}; run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon+ep` the binary"
    )]
    NoRights {
        /// What was tried.
        what: String,
        /// Capabilities that it takes.
        needs: &'static str,
    },
    /// Somebody else's XDP program is on the interface.
    #[error(
        "{iface} already has an XDP program, '{program}' (id {id}); detach it (`ip link set {iface} xdp off`), or capture with --hook tc, which goes beside it"
    )]
    XdpBusy {
        /// Interface.
        iface: String,
        /// Name of the program that is there.
        program: String,
        /// Its id.
        id: u32,
    },
    /// A kernel that does not take a program or lacks what it needs.
    #[error(
        "the kernel refused {what}; Weir's bpf engine needs Linux 6.1 or later without PREEMPT_RT (`weir lab load-bpf` shows what the verifier says); --engine af_packet needs no BPF"
    )]
    Bpf {
        /// What was tried.
        what: String,
        /// What libbpf or the kernel said.
        #[source]
        source: libbpf_rs::Error,
    },
    /// Options that contradict each other or the engine.
    #[error("{0}")]
    Options(String),
    /// The ring size is one that this machine's rings cannot have.
    #[error(
        "--ring-size {asked_mib} MiB over {rings} rings (one per CPU) is too small: each ring needs 4 blocks of 1 MiB; use at least {least_mib}MiB"
    )]
    RingTooSmall {
        /// What was asked for, in MiB.
        asked_mib: u64,
        /// Rings to share it.
        rings: u64,
        /// The least that works, in MiB.
        least_mib: u64,
    },
    /// A ring could not be made.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A capture file that cannot be read.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, where, and what to do.
        message: String,
    },
    /// A system call failed.
    #[error("{doing}")]
    Os {
        /// What was tried, on what.
        doing: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl CaptureError {
    pub(crate) fn os(doing: impl Into<String>) -> impl FnOnce(io::Error) -> CaptureError {
        let doing = doing.into();
        move |source| CaptureError::Os { doing, source }
    }

    /// The last system call's error.
    pub(crate) fn last_os(doing: impl Into<String>) -> CaptureError {
        CaptureError::os(doing)(io::Error::last_os_error())
    }
}
