//! The errors of a capture. Each text contains the cause and a remedy.

mod words;

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;
use weir_client::EndReason;
pub use weir_client::error_text;
use weir_ring::RingError;

use crate::kernel::hooks::XdpOwner;
pub(crate) use words::bare;
use words::{brackets, capabilities, counted_rings, ip, meant, size, way_out};

/// An error of a capture. Its text names the subject, the cause and a remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no such interface.
    #[error(
        "{iface}: no such interface here; `{} -brief link` lists them (a container's are in its own network \
         namespace){}", ip(.iface), brackets(.iface)
    )]
    NoInterface {
        /// The requested name.
        iface: String,
    },
    /// There is no such network namespace.
    #[error("{netns}: no such network namespace; `ip netns` lists them")]
    NoNetns {
        /// The requested name.
        netns: String,
    },
    /// A container, pod or process does not exist or does not run.
    #[error("{owner}: {why}")]
    NoOwner {
        /// The name that the user gave.
        owner: String,
        /// The cause and a remedy.
        why: String,
    },
    /// The interface is administratively down.
    #[error("{iface} is down; `{} link set {} up` brings it up", ip(.iface), bare(.iface))]
    InterfaceDown {
        /// The interface.
        iface: String,
    },
    /// The interface was removed during the capture.
    #[error("{iface} vanished while it was being captured; what came before is kept")]
    Vanished {
        /// The interface.
        iface: String,
    },
    /// A daemon has ended a feed, and may offer it again.
    #[error("{feed}: {why}; what came before is kept, and the feed may be opened again")]
    FeedEnded {
        /// The address of the feed: `host:NAME`.
        feed: String,
        /// The reason.
        why: EndReason,
    },
    /// No daemon answers at this socket.
    #[error(
        "no daemon answers at {} ({}); start one with `weir serve` (in a virtual machine: `weir guest`), or say where \
         it listens: --socket PATH", path.display(), weir_client::reason_text(.cause)
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The client's error. It is part of the text.
        cause: weir_client::ClientError,
    },
    /// The daemon has closed a feed that was read.
    #[error(
        "{feed}: the daemon at {} has closed the feed: {reason}; with --follow, the capture waits until it can be \
         opened again", path.display()
    )]
    FeedClosed {
        /// The feed's name as the user gave it.
        feed: String,
        /// The daemon's socket.
        path: PathBuf,
        /// The daemon's reason.
        reason: String,
    },
    /// The daemon refused a request.
    #[error("{feed}: the daemon at {} refused: {reason}", path.display())]
    Daemon {
        /// The feed's name as the user gave it.
        feed: String,
        /// The daemon's socket.
        path: PathBuf,
        /// The daemon's answer.
        reason: String,
    },
    /// The daemon refused a feed, and the caller asks for it again until the daemon opens it.
    #[error("{feed}: the daemon at {} refuses for now: {reason}", path.display())]
    DaemonRefuses {
        /// The feed's name as the user gave it.
        feed: String,
        /// The daemon's socket.
        path: PathBuf,
        /// The daemon's answer.
        reason: String,
    },
    /// The daemon is at its limit of concurrent work for this user. A later attempt may succeed.
    #[error("{feed}: the daemon at {} does not do it now: {reason}", path.display())]
    DaemonBusy {
        /// The feed's name as the user gave it.
        feed: String,
        /// The daemon's socket.
        path: PathBuf,
        /// The daemon's answer.
        reason: String,
    },
    /// A change was requested of a source that has ended.
    #[error("the source has ended; nothing more comes that a change would be for")]
    Ended,
    /// The source has no such feed, or has removed it.
    #[error("the source has no such feed; it may have been removed")]
    NoFeed,
    /// The waker has fewer lines than the feed needs: one for each ring, from a given line on.
    #[error(
        "the waker has {lines} lines, and the feed's {rings} rings begin at line {first_line}; make the sleeper for \
         {} rings or more", .first_line + .rings
    )]
    NarrowWaker {
        /// Number of lines of the waker.
        lines: usize,
        /// The line of the feed's first ring.
        first_line: usize,
        /// Number of rings of the feed.
        rings: usize,
    },
    /// Weir does not support the link type of the interface.
    #[error("{iface} has link type {arphrd} (ARPHRD), which is neither Ethernet nor raw IP")]
    LinkType {
        /// The interface.
        iface: String,
        /// The kernel's ARPHRD number.
        arphrd: u16,
    },
    /// This process lacks privileges.
    #[error(
        "{what} needs {needs}; run as root, or `setcap {}+ep` the binary", capabilities(.needs)
    )]
    NoRights {
        /// The action that failed.
        what: String,
        /// The capabilities that it needs.
        needs: &'static str,
    },
    /// Another program's XDP program is attached to the interface.
    #[error(
        "{iface} already has an XDP program, '{program}' (id {id}); have whoever attached it take it off (`bpftool \
         net` lists it), or capture beside it with --hook tc, without --consume"
    )]
    XdpBusy {
        /// The interface.
        iface: String,
        /// Name of the attached program.
        program: String,
        /// Id of the attached program.
        id: u32,
    },
    /// As `XdpBusy`, and the owner of the hook is known.
    #[error(
        "{iface} already has an XDP program, '{program}' (id {id}): {}; or capture beside it with --hook tc, without \
         --consume", way_out(.iface, .program, .owner)
    )]
    XdpHeld {
        /// The interface.
        iface: String,
        /// Name of the attached program.
        program: String,
        /// Id of the attached program.
        id: u32,
        /// The owner of the hook.
        owner: XdpOwner,
    },
    /// The driver refused native XDP with the present settings.
    #[error(
        "the driver of {iface} refused native XDP; try {try_first}; --hook tc, without --consume, works with every \
         driver and MTU"
    )]
    XdpRefused {
        /// The interface.
        iface: String,
        /// A remedy to try.
        try_first: String,
        /// The driver's error.
        #[source]
        source: io::Error,
    },
    /// The kernel rejected a program, or lacks a function that it needs.
    #[error(
        "the kernel refused {what}; Weir's bpf engine needs Linux 6.1 or later without PREEMPT_RT (`weir lab load-bpf` \
         shows what the verifier says); --engine af_packet needs no BPF"
    )]
    Bpf {
        /// The action that failed.
        what: String,
        /// The error of libbpf or the kernel.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The kernel refused to attach a program to a hook.
    #[error(
        "{hook} of {iface} takes no program; `bpftool net` lists what is there (a hook has 63 places); --engine \
         af_packet needs no hook"
    )]
    Attach {
        /// The interface.
        iface: String,
        /// The hook.
        hook: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel has PREEMPT_RT, where programs on one CPU may preempt each other.
    #[error("the bpf engine does not run on PREEMPT_RT kernels yet; use --engine af_packet")]
    RealTimeKernel,
    /// Options contradict each other, or the engine does not support them.
    #[error("{0}")]
    Options(String),
    /// The ring size is too small for the number of rings.
    #[error(
        "--ring-size {} over {} (one per CPU) is too small: each ring needs 4 blocks of 1 MiB; use at least \
         {least_mib}MiB{}", size(*asked_bytes), counted_rings(*rings), meant(*asked_bytes, *rings, *least_mib)
    )]
    RingTooSmall {
        /// The requested size, in bytes.
        asked_bytes: u64,
        /// Number of rings that share it.
        rings: u64,
        /// The smallest possible size, in MiB.
        least_mib: u64,
    },
    /// The ring size is too large for the number of rings.
    #[error(
        "--ring-size {asked_mib} MiB over {} (one per CPU) is too large: no ring can have more than 8 GiB; use at most \
         {most_mib}MiB", counted_rings(*rings)
    )]
    RingTooLarge {
        /// The requested size, in MiB.
        asked_mib: u64,
        /// Number of rings that share it.
        rings: u64,
        /// The largest possible size, in MiB.
        most_mib: u64,
    },
    /// The kernel has no memory for a ring.
    #[error(
        "no memory for {what} of {mib} MiB, which cannot be swapped out; use a smaller --ring-size, or raise \
         memory.max of the cgroup that this runs in"
    )]
    NoMemory {
        /// The purpose of the memory.
        what: String,
        /// The requested size, in MiB.
        mib: u64,
        /// The kernel's error.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A library that an engine uses returned an error.
    #[error("{what}: {library} refused: {said}; {advice}")]
    Library {
        /// Name of the library.
        library: &'static str,
        /// The action that failed, and its object.
        what: String,
        /// The library's message.
        said: String,
        /// A remedy.
        advice: String,
    },
    /// A ring could not be created.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A capture file cannot be read.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error, its position, and a remedy.
        message: String,
    },
    /// A system call failed.
    #[error("{doing}")]
    Os {
        /// The action that failed, and its object.
        doing: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl CaptureError {
    /// Makes an `Os` error with this action, for `map_err` on the result of a system call.
    pub fn os(doing: impl Into<String>) -> impl FnOnce(io::Error) -> CaptureError {
        let doing = doing.into();
        move |source| CaptureError::Os { doing, source }
    }

    /// Changes the error to one for an interface in a network namespace: the text names the namespace, and the commands
    /// in it run there.
    pub(crate) fn in_netns(mut self, netns: &impl fmt::Display) -> CaptureError {
        use CaptureError::{
            Attach, InterfaceDown, LinkType, NoInterface, Vanished, XdpBusy, XdpHeld, XdpRefused,
        };
        if let NoInterface { iface }
        | InterfaceDown { iface }
        | Vanished { iface }
        | LinkType { iface, .. }
        | XdpBusy { iface, .. }
        | XdpHeld { iface, .. }
        | XdpRefused { iface, .. }
        | Attach { iface, .. } = &mut self
        {
            *iface = format!("{netns}/{iface}");
        }
        self
    }

    /// Returns an `Os` error with the present `errno`.
    pub(crate) fn last_os(doing: impl Into<String>) -> CaptureError {
        CaptureError::os(doing)(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::hooks::XdpMode;

    #[test]
    fn advice_on_an_interface_looks_in_its_namespace() {
        let iface = || "d0".to_owned();
        let missing = CaptureError::NoInterface { iface: iface() };
        assert!(missing.to_string().contains("`ip -brief link`"));
        let missing = missing.in_netns(&"netns:blue").to_string();
        assert!(missing.starts_with("netns:blue/d0: ") && missing.contains("`ip -n blue -brief"));
        assert!(!missing.contains("pattern"), "{missing}");
        let meant = CaptureError::NoInterface { iface: "netns:blue/d[01]".to_owned() };
        assert!(meant.to_string().ends_with("? (one character) only"), "{meant}");
        let down = CaptureError::InterfaceDown { iface: iface() };
        assert!(down.to_string().contains("`ip link set d0 up`"));
        assert!(down.in_netns(&"netns:blue").to_string().contains("`ip -n blue link set d0 up`"));
        let held = |owner| {
            let (iface, program) = (iface(), "theirs".to_owned());
            CaptureError::XdpHeld { iface, program, id: 1, owner }
                .in_netns(&"netns:blue")
                .to_string()
        };
        let loose = |mode| held(XdpOwner::Netlink(mode));
        assert!(loose(XdpMode::Native).contains("`ip -n blue link set dev d0 xdp off`"));
        assert!(loose(XdpMode::Generic).contains("`ip -n blue link set dev d0 xdpgeneric off`"));
        assert!(held(XdpOwner::Link(7)).contains("`bpftool link detach id 7`"));
        let of_process = CaptureError::InterfaceDown { iface: iface() }.in_netns(&"netns:4711");
        assert!(of_process.to_string().contains("`nsenter -n -t 4711 ip link set d0 up`"));
        let gone = CaptureError::Vanished { iface: iface() }.in_netns(&"netns:blue");
        assert!(gone.to_string().starts_with("netns:blue/d0 vanished"));
    }

    #[test]
    fn a_ring_size_that_is_too_small_is_told_as_it_was_given() {
        let text = |asked_bytes, rings| {
            let least_mib = 4 * rings;
            CaptureError::RingTooSmall { asked_bytes, rings, least_mib }.to_string()
        };
        let forgotten = text(64, 1);
        assert!(forgotten.starts_with("--ring-size 64 bytes over 1 ring (one"), "{forgotten}");
        assert!(forgotten.ends_with("at least 4MiB; did you mean 64MiB?"), "{forgotten}");
        let small = text(1 << 20, 2);
        assert!(small.starts_with("--ring-size 1 MiB over 2 rings (one"), "{small}");
        assert!(small.ends_with("use at least 8MiB"), "{small}");
        assert!(text(0, 1).ends_with("use at least 4MiB"));
    }

    #[test]
    fn the_advice_on_rights_holds_what_is_needed() {
        let advice = |needs| CaptureError::NoRights { what: "it".into(), needs }.to_string();
        assert!(advice("CAP_SYS_ADMIN").contains("cap_perfmon,cap_sys_admin+ep"));
        assert!(advice("CAP_NET_RAW").contains("cap_perfmon+ep"));
    }
}
