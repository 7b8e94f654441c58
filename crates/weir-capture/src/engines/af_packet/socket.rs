//! The packet socket. It is set up completely before it is bound, so that it receives no frame earlier.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use weir_filter::Insn;

use super::blocks::{BLOCKS_BYTES, BlockBytes};
use crate::error::CaptureError;
use crate::feed::direction::Direction;

/// Time after which the kernel retires a block that contains a frame. The timer is periodic, so a frame waits at most
/// this long; on kernels before 6.18, up to a jiffy (at most 10 ms) longer.
const RETIRE_MS: u32 = 4;
/// The socket option `PACKET_IGNORE_OUTGOING`, linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Result of [`Socket::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// There may be a block, or the time is over, or a signal came.
    Look,
    /// The interface went down or was removed.
    Down,
}

/// Sums of the counters that `PACKET_STATISTICS` returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    /// Frames that the filter accepted, including those that were lost.
    pub(super) packets: u64,
    /// Number of these frames that were lost because no block had space.
    pub(super) drops: u64,
}

pub(super) struct Socket {
    fd: OwnedFd,
    iface: String,
    block_bytes: BlockBytes,
    statistics: Mutex<Statistics>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Creates a socket with a ring of blocks of the size `block_bytes`. The socket receives nothing yet. `iface` is
    /// for error messages.
    pub(super) fn new(
        iface: &str,
        direction: Direction,
        block_bytes: BlockBytes,
    ) -> Result<Socket, CaptureError> {
        let iface = iface.to_owned();
        // Protocol 0: nothing is received until `bind` names one.
        // SAFETY: the call gets no pointers; it returns a descriptor or -1.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            let what = format!("a packet socket on {iface}");
            return Err(match source.raw_os_error() {
                Some(libc::EPERM) => CaptureError::NoRights { what, needs: "CAP_NET_RAW" },
                _ => CaptureError::Os { doing: format!("opening {what}"), source },
            });
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Socket { fd, iface, block_bytes, statistics: Mutex::default() };
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        socket.set(libc::PACKET_VERSION, &version, "choosing TPACKET_V3")?;
        let ring = libc::tpacket_req3 {
            tp_block_size: block_bytes.get() as u32,
            tp_block_nr: block_bytes.count() as u32,
            // TPACKET_V3 frames have no fixed size, but the kernel checks that these two values fit the size of the
            // ring.
            tp_frame_size: 2048,
            tp_frame_nr: (BLOCKS_BYTES / 2048) as u32,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        socket.set(libc::PACKET_RX_RING, &ring, "setting up 32 MiB of packet socket blocks")?;
        if !direction.takes_out() {
            // Saves a clone of each outgoing frame, which the filter would reject anyway.
            let _ = socket.set(PACKET_IGNORE_OUTGOING, &1 as &libc::c_int, "");
        }
        Ok(socket)
    }

    /// Returns the interface's name, or the pattern.
    pub(super) fn name(&self) -> &str {
        &self.iface
    }

    pub(super) fn block_bytes(&self) -> BlockBytes {
        self.block_bytes
    }

    /// Binds the socket to the interface, or to all interfaces of the network namespace if `index` is 0. Frames come
    /// from now on.
    pub(super) fn bind(&self, index: u32) -> Result<(), CaptureError> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is initialized, lives through the call, and its true size is passed.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(self.last_os("binding the packet socket"));
        }
        Ok(())
    }

    /// Switches promiscuous mode of an interface on or off. The kernel keeps the mode on as long as any socket requests
    /// it, and drops the requests of a closed socket.
    pub(super) fn set_promiscuous(&self, index: u32, on: bool) -> io::Result<()> {
        let option = if on { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
        let membership = libc::packet_mreq {
            mr_ifindex: index as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(self.as_fd(), libc::SOL_PACKET, option, &membership)
    }

    /// Waits for a block for at most `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Result<Waited, CaptureError> {
        let timeout = limit.try_into().unwrap_or(rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut wait = [PollFd::new(&self.fd, PollFlags::IN)];
        match rustix::event::poll(&mut wait, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(self.os("waiting for frames", errno.into())),
        }
        if !wait[0].revents().contains(PollFlags::ERR) {
            return Ok(Waited::Look);
        }
        // Reading the error clears it; otherwise the next wait would return at once.
        match self.take_error() {
            None => Ok(Waited::Look),
            Some(error) => match error.raw_os_error() {
                Some(libc::ENETDOWN | libc::ENODEV | libc::ENXIO) => Ok(Waited::Down),
                _ => Err(self.os("receiving", error)),
            },
        }
    }

    fn take_error(&self) -> Option<io::Error> {
        let mut error: libc::c_int = 0;
        self.get(libc::SOL_SOCKET, libc::SO_ERROR, &mut error).ok()?;
        (error != 0).then(|| io::Error::from_raw_os_error(error))
    }

    /// Returns the kernel's counts so far. Reading resets the kernel's counters, so they are added up here. The
    /// kernel's counters have 32 bits, so this must be called before they overflow.
    pub(super) fn statistics(&self) -> Result<Statistics, CaptureError> {
        let mut since = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut since)
            .map_err(|source| self.os("reading the packet socket's counts", source))?;
        let mut total = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        total.packets += u64::from(since.tp_packets);
        total.drops += u64::from(since.tp_drops);
        Ok(*total)
    }

    /// Attaches an eBPF program as the filter; the socket keeps the program loaded.
    pub(super) fn attach_ebpf(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        set_option(self.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program.as_raw_fd())
    }

    fn set<T>(&self, option: libc::c_int, value: &T, doing: &str) -> Result<(), CaptureError> {
        set_option(self.as_fd(), libc::SOL_PACKET, option, value)
            .map_err(|source| self.os(doing, source))
    }

    fn get<T: Copy>(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: &mut T,
    ) -> io::Result<()> {
        let mut bytes = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, the size of a live `T` that is borrowed mutably; both
        // callers pass integers or a struct of integers, for which all bytes are valid.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_mut(value).cast(),
                &raw mut bytes,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn os(&self, doing: &str, source: io::Error) -> CaptureError {
        CaptureError::Os { doing: format!("{}: {doing}", self.iface), source }
    }

    fn last_os(&self, doing: &str) -> CaptureError {
        self.os(doing, io::Error::last_os_error())
    }
}

/// Attaches a classic BPF program of 1 to 4096 instructions as a socket's filter, in place of any earlier one.
pub(super) fn attach_classic(socket: BorrowedFd<'_>, program: &[Insn]) -> io::Result<()> {
    const { assert!(size_of::<Insn>() == size_of::<libc::sock_filter>()) };
    let len =
        u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel only reads the instructions.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a live `T`; each caller passes the type that packet(7) or
    // socket(7) names for the option. A `sock_fprog` has a pointer to instructions, which its caller borrows for the
    // whole call, and their number; an `Insn` has the layout of `sock_filter`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
