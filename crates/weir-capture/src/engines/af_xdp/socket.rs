//! An AF_XDP socket for one queue, with its own UMEM. Source: linux/if_xdp.h, and the kernel's
//! Documentation/networking/af_xdp.rst.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use weir_ring::memory::{Pages, Placement};

use super::area::Area;
use super::rings::{Places, Rings};
use crate::error::CaptureError;
use crate::kernel::interface::Interface;

/// Bytes in front of the frame in a chunk: `XDP_PACKET_HEADROOM`, linux/bpf.h.
const HEADROOM_BYTES: u32 = 256;
/// Bytes of a chunk: 2 KiB, or 4 KiB if the longest frame of the interface does not fit into 2 KiB.
const CHUNK_SMALL: u32 = 2048;
pub(super) const CHUNK_LARGE: u32 = 4096;
/// Bytes of an Ethernet header with two VLAN tags.
const LINK_BYTES: u32 = 14 + 8;
/// Longest wait for a queue: the kernel releases the queue of a closed socket some time later, in a workqueue.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// Slots of the completion ring. Only sending uses this ring, but the kernel requires it.
const COMPLETIONS: u32 = 64;

/// Whether the kernel copies frames from the driver's memory into chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Zero-copy if the driver supports it, else copy mode.
    #[default]
    Best,
    /// Copy mode.
    Copy,
    /// Zero-copy, or an error.
    ZeroCopy,
}

/// Losses of the socket: `struct xdp_statistics`. Losses because of an empty fill ring are also in `rx_dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    pub(super) rx_dropped: u64,
    pub(super) rx_ring_full: u64,
}

/// Sizes of a socket's memory and of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) chunks: u32,
    pub(super) chunk_bytes: u32,
    /// Whether frames may use several chunks.
    pub(super) multi: bool,
}

impl Shape {
    /// Returns the sizes for an interface with this MTU: `chunks` chunks, of a size that holds its longest frame if
    /// possible. If it does not, frames may use several chunks, and then only one copier is possible.
    pub(super) fn of(interface: &Interface, chunks: u32) -> Shape {
        let frame = interface.mtu.saturating_add(LINK_BYTES);
        let small = frame <= CHUNK_SMALL - HEADROOM_BYTES;
        Shape {
            chunks,
            chunk_bytes: if small { CHUNK_SMALL } else { CHUNK_LARGE },
            multi: frame > CHUNK_LARGE - HEADROOM_BYTES,
        }
    }
}

/// A bound socket.
pub(super) struct Socket {
    fd: OwnedFd,
    zero_copy: bool,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Creates and binds a socket. The caller owns its rings and its memory.
    pub(super) fn bind(
        interface: &Interface,
        queue: u32,
        shape: Shape,
        mode: Mode,
        placement: Placement,
    ) -> Result<(Socket, Rings, Area), CaptureError> {
        let doing = |what: &str| format!("{}, queue {queue}: {what}", interface.name);
        let fail = |what: &str| CaptureError::os(doing(what));
        // SAFETY: the call gets no pointers; it returns a descriptor or -1.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::EPERM) => {
                    CaptureError::NoRights { what: doing("an AF_XDP socket"), needs: "CAP_NET_RAW" }
                }
                Some(libc::EAFNOSUPPORT) => CaptureError::Options(format!(
                    "{}: this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use --engine bpf",
                    interface.name
                )),
                _ => fail("opening an AF_XDP socket")(source),
            });
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let umem = Area::anonymous((shape.chunks * shape.chunk_bytes) as usize, placement)
            .map_err(fail(match placement.pages {
                Pages::Reserved => {
                    "taking reserved huge pages for frames (`sysctl vm.nr_hugepages`)"
                }
                _ => "reserving memory for frames",
            }))?;
        let registration = libc::xdp_umem_reg {
            addr: umem.as_ptr() as u64,
            len: umem.len() as u64,
            chunk_size: shape.chunk_bytes,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &registration).map_err(fail(
            "registering memory for frames (locked memory: raise RLIMIT_MEMLOCK, `ulimit -l`)",
        ))?;
        for (option, slots) in [
            (libc::XDP_UMEM_FILL_RING, shape.chunks),
            (libc::XDP_UMEM_COMPLETION_RING, COMPLETIONS),
            (libc::XDP_RX_RING, shape.chunks),
        ] {
            set(&fd, option, &slots).map_err(fail("sizing a ring"))?;
        }
        let rings = map_rings(&fd, shape.chunks).map_err(fail("mapping the rings"))?;
        rings.give_all(shape.chunk_bytes);
        bind(&fd, interface, queue, shape, mode)?;
        let options: libc::xdp_options =
            get(&fd, libc::XDP_OPTIONS).map_err(fail("asking for the mode"))?;
        let zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok((Socket { fd, zero_copy }, rings, umem))
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Waits for a frame, for at most `limit`.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<()> {
        let timeout = limit.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        match rustix::event::poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Tells the kernel that chunks were given back.
    pub(super) fn wake_kernel(&self) {
        // Errors do not matter: the chunks are in the fill ring, and the kernel is called again after the next release.
        // SAFETY: no buffer is passed, and the kernel writes none: the length is 0.
        unsafe {
            let flags = libc::MSG_DONTWAIT;
            let (none, nobody) = (std::ptr::null_mut(), std::ptr::null_mut());
            libc::recvfrom(self.fd.as_raw_fd(), none, 0, flags, nobody, std::ptr::null_mut());
        }
    }

    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        let now: libc::xdp_statistics = get(&self.fd, libc::XDP_STATISTICS)?;
        Ok(Statistics { rx_dropped: now.rx_dropped, rx_ring_full: now.rx_ring_full })
    }
}

fn bind(
    fd: &OwnedFd,
    interface: &Interface,
    queue: u32,
    shape: Shape,
    mode: Mode,
) -> Result<(), CaptureError> {
    let multi = if shape.multi { libc::XDP_USE_SG } else { 0 };
    let mode_flag = match mode {
        Mode::Best => 0,
        Mode::Copy => libc::XDP_COPY,
        Mode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | multi | mode_flag,
        sxdp_ifindex: interface.index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let deadline = Instant::now() + RELEASE_LIMIT;
    let source = loop {
        // SAFETY: the address is initialized, lives through the call, and its true size is passed.
        let result = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= deadline {
            break error;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let iface = &interface.name;
    let options = |text: String| Err(CaptureError::Options(text));
    match (source.raw_os_error(), mode) {
        (Some(libc::EBUSY), _) => options(format!(
            "{iface}: queue {queue} belongs to another AF_XDP socket; stop that program (`bpftool net`, \
             `ss --xdp` show who has it), or take other queues with --queues"
        )),
        (Some(libc::EOPNOTSUPP | libc::EINVAL), Mode::ZeroCopy) => options(format!(
            "{iface}: the driver has no zero-copy AF_XDP on queue {queue}; leave out --xdp-mode, and the \
             kernel copies"
        )),
        (Some(libc::EINVAL | libc::EOPNOTSUPP), _) if shape.multi => options(format!(
            "{iface}: frames of MTU {} need several chunks, which AF_XDP has since Linux 6.6; lower the \
             MTU to {} or use --engine bpf",
            interface.mtu,
            CHUNK_LARGE - HEADROOM_BYTES - LINK_BYTES
        )),
        _ => {
            let doing = format!("{iface}, queue {queue}: binding an AF_XDP socket");
            Err(CaptureError::Os { doing, source })
        }
    }
}

fn map_rings(fd: &OwnedFd, slots: u32) -> io::Result<Rings> {
    let offsets: libc::xdp_mmap_offsets = get(fd, libc::XDP_MMAP_OFFSETS)?;
    let places = |offset: libc::xdp_ring_offset| Places {
        producer: offset.producer as usize,
        consumer: offset.consumer as usize,
        flags: offset.flags as usize,
        slots: offset.desc as usize,
    };
    let (rx, fill) = (places(offsets.rx), places(offsets.fr));
    let map = |places: Places, slot: usize, offset: u64| {
        Area::of_fd(fd.as_fd(), places.slots + slots as usize * slot, offset)
    };
    let rx_area = map(rx, size_of::<libc::xdp_desc>(), libc::XDP_PGOFF_RX_RING as u64)?;
    let fill_area = map(fill, 8, libc::XDP_UMEM_PGOFF_FILL_RING)?;
    Ok(Rings::new(rx_area, rx, fill_area, fill, slots))
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a live `T`; each caller passes the type that if_xdp.h names
    // for the option. The kernel pins the memory to which an `xdp_umem_reg` points, and the owner of the socket also
    // owns the `Area` of that memory.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Structs of integers, for which all bytes are valid.
trait Plain {}
impl Plain for libc::xdp_options {}
impl Plain for libc::xdp_statistics {}
impl Plain for libc::xdp_mmap_offsets {}

fn get<T: Plain>(fd: &OwnedFd, option: libc::c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes into a live `T`, for which all bytes are valid (`Plain`).
    unsafe {
        let result = libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            option,
            value.as_mut_ptr().cast(),
            &raw mut bytes,
        );
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value.assume_init()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_holds_a_frame_of_the_interface() {
        let shape =
            |mtu| Shape::of(&Interface { name: "x".into(), index: 1, link_type: 1, mtu }, 4096);
        assert_eq!((shape(1500).chunk_bytes, shape(1500).multi), (2048, false));
        assert_eq!((shape(1770).chunk_bytes, shape(1771).chunk_bytes), (2048, 4096));
        assert_eq!((shape(3818).multi, shape(3819).multi), (false, true));
        assert!(shape(u32::MAX).multi);
    }
}
