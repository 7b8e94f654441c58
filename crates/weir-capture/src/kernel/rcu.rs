//! Waits for an RCU grace period: until every BPF program and packet handler that was running has returned.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::error::CaptureError;
use crate::kernel::map_options;

/// Objects for waiting on systems that refuse membarrier. They are made while the process has its
/// privileges, and used when it may have dropped them.
static SPARES: Mutex<Vec<Spare>> = Mutex::new(Vec::new());

/// An object for waiting whose creation needs privileges, but whose use does not.
#[derive(Debug)]
enum Spare {
    /// Serves any number of waits: an update of a map of maps returns when no program can still use the
    /// former value.
    ///
    /// Source: `maybe_wait_bpf_programs`, kernel/bpf/syscall.c, since Linux 4.15.
    MapOfMaps { outer: MapHandle, inner: MapHandle },
    /// Serves one wait: closing a packet socket waits for the packet handlers.
    ///
    /// Source: `packet_release`, net/packet/af_packet.c, calls `synchronize_net`, which is `synchronize_rcu`.
    PacketSocket(OwnedFd),
}

/// Makes the object that [`synchronize`] needs later, when this process may have dropped its privileges.
///
/// Called once for each source, when it is opened. Does nothing if membarrier is used. If the object cannot
/// be made, [`synchronize`] returns the error later.
pub fn prepare() {
    if uses_membarrier() {
        return;
    }
    let mut spares = spares();
    if !spares.iter().any(|spare| matches!(spare, Spare::MapOfMaps { .. })) {
        spares.extend(Spare::new());
    }
}

/// Returns when every BPF program, filter and packet handler that was running at the call has returned.
/// They all run inside RCU read-side critical sections.
///
/// `MEMBARRIER_CMD_GLOBAL` calls `synchronize_rcu`. The kernel refuses it with nohz_full, and does nothing
/// if only one CPU is online. One CPU needs no wait: all of these run with bottom halves disabled (XDP and
/// the receiving side in softirqs, the sending side under `rcu_read_lock_bh`), so that no task, including
/// this one, runs before they return. With PREEMPT_RT, tasks may preempt them, so membarrier is not used
/// there.
///
/// Source: kernel/sched/membarrier.c, net/core/dev.c.
///
/// # Errors
/// [`CaptureError::Os`]: this process lacks the privileges for every way to wait.
pub fn synchronize() -> Result<(), CaptureError> {
    #[cfg(test)]
    if REFUSED.get() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        return Err(CaptureError::os("waiting, as a test will have it")(error));
    }
    if uses_membarrier() && by_membarrier().is_ok() {
        return Ok(());
    }
    by_spare(&mut spares()).map_err(CaptureError::os("waiting for the kernel's packet handlers"))
}

#[cfg(test)]
thread_local! {
    /// Makes every wait of this thread fail.
    pub(crate) static REFUSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns whether tasks can preempt softirqs: whether the kernel's version text contains PREEMPT_RT.
pub(crate) fn is_real_time() -> bool {
    rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT")
}

fn spares() -> MutexGuard<'static, Vec<Spare>> {
    SPARES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether [`synchronize`] waits by membarrier. Does not wait itself.
fn uses_membarrier() -> bool {
    let is_offered = |offered| offered & libc::c_long::from(libc::MEMBARRIER_CMD_GLOBAL) != 0;
    !is_real_time() && membarrier(libc::MEMBARRIER_CMD_QUERY).is_ok_and(is_offered)
}

fn by_membarrier() -> io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL).map(|_| ())
}

fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: membarrier takes integers and no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result >= 0 { Ok(result) } else { Err(io::Error::last_os_error()) }
}

/// Waits with a spare object, or with a new one.
fn by_spare(spares: &mut Vec<Spare>) -> io::Result<()> {
    // If there is a map of maps, it is the last element, since it is always pushed after the sockets.
    let spare = match spares.pop() {
        Some(spare) => spare,
        None => Spare::new()?,
    };
    if let Some(lasting) = spare.wait()? {
        spares.push(lasting);
    }
    Ok(())
}

impl Spare {
    fn new() -> io::Result<Spare> {
        Spare::map_of_maps().or_else(|_| Spare::packet_socket())
    }

    /// Creates a map of maps. Needs CAP_BPF.
    fn map_of_maps() -> io::Result<Spare> {
        let failed = io::Error::other::<libbpf_rs::Error>;
        let options = |inner: Option<&MapHandle>| libbpf_sys::bpf_map_create_opts {
            inner_map_fd: inner.map_or(0, |inner| inner.as_fd().as_raw_fd() as u32),
            ..map_options(0)
        };
        let inner = MapHandle::create(MapType::Array, Some("weir_rcu_in"), 4, 4, 1, &options(None));
        let inner = inner.map_err(failed)?;
        let given = options(Some(&inner));
        let outer = MapHandle::create(MapType::ArrayOfMaps, Some("weir_rcu"), 4, 4, 1, &given);
        Ok(Spare::MapOfMaps { outer: outer.map_err(failed)?, inner })
    }

    /// Creates a packet socket. Needs CAP_NET_RAW. With protocol 0, the socket receives nothing.
    fn packet_socket() -> io::Result<Spare> {
        // SAFETY: no pointers are passed; a descriptor or -1 comes back.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        Ok(Spare::PacketSocket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits. Returns an object for the next wait, if there is one.
    fn wait(self) -> io::Result<Option<Spare>> {
        match self {
            Spare::MapOfMaps { outer, inner } => {
                let value = inner.as_fd().as_raw_fd().to_ne_bytes();
                let updated = outer.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY);
                updated.map_err(io::Error::other)?;
                Ok(Some(Spare::MapOfMaps { outer, inner }))
            }
            Spare::PacketSocket(socket) => {
                drop(socket);
                // Open the socket for the next wait, if the privileges are still there.
                Ok(Spare::packet_socket().ok())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use libbpf_rs::ProgramInput;
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};

    use super::*;

    #[allow(clippy::all, missing_docs, dead_code, clippy::undocumented_unsafe_blocks)]
    mod skel {
        include!(concat!(env!("OUT_DIR"), "/rcu_test.skel.rs"));
    }

    /// Repeatedly runs a program that takes tens of milliseconds, and waits during a run: that run must
    /// have ended after the wait.
    fn waits_for_programs(test: &str, wait: impl Fn() -> io::Result<()> + Sync) {
        if !weir_lab::testbed::require_root(test) {
            return;
        }
        let mut storage = MaybeUninit::uninit();
        let open = skel::RcuTestSkelBuilder::default().open(&mut storage).expect("a sound object");
        let skel = open.load().expect("the verifier takes it");
        let bss = skel.maps.bss_data.as_deref().expect("it has counts");
        // Programs may write these words at any time.
        let count = |word: &u64| {
            // SAFETY: aligned, and mapped as long as the object is; every access from here is atomic.
            unsafe { AtomicU64::from_ptr(std::ptr::from_ref(word).cast_mut()) }
                .load(Ordering::SeqCst)
        };
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let begin = Instant::now();
                let (mut seen, mut right) = (0, Ok(true));
                while seen < 10 && right.is_ok() && begin.elapsed() < Duration::from_secs(30) {
                    let (ended, begun) = (count(&bss.ended), count(&bss.begun));
                    // A run has begun before the wait and has not ended.
                    if begun > ended {
                        seen += 1;
                        right = right
                            .and_then(|right| wait().map(|()| right && count(&bss.ended) >= begun));
                    }
                }
                done.store(1, Ordering::SeqCst);
                (seen, right.expect("the wait is allowed"))
            });
            let frame = [0; 60];
            while done.load(Ordering::SeqCst) == 0 {
                let input = ProgramInput { data_in: Some(&frame), ..ProgramInput::default() };
                skel.progs.weir_rcu_test.test_run(input).expect("it runs");
            }
            assert_eq!(waits.join().expect("no panic"), (10, true));
        });
    }

    #[test]
    fn membarrier_is_used_where_it_works() {
        assert_eq!(uses_membarrier(), !is_real_time() && by_membarrier().is_ok());
    }

    #[test]
    fn root_membarrier_waits_for_programs() {
        // With one CPU membarrier does not wait. The program of this test runs in a system call, where
        // tasks may preempt it.
        if by_membarrier().is_err()
            || std::thread::available_parallelism().is_ok_and(|n| n.get() < 2)
        {
            return weir_lab::testbed::skip(
                "root_membarrier_waits_for_programs",
                "one CPU, or nohz_full",
            );
        }
        waits_for_programs("root_membarrier_waits_for_programs", by_membarrier);
    }

    #[test]
    fn root_a_change_of_a_map_of_maps_waits_for_programs() {
        let spares = Mutex::new(Vec::new());
        waits_for_programs("root_a_change_of_a_map_of_maps_waits_for_programs", || {
            by_spare(&mut spares.lock().unwrap())
        });
        // The same map was used for all waits.
        assert!(
            spares.lock().unwrap().iter().all(|spare| matches!(spare, Spare::MapOfMaps { .. }))
        );
    }

    #[test]
    fn root_closing_a_packet_socket_waits_for_programs() {
        waits_for_programs("root_closing_a_packet_socket_waits_for_programs", || {
            let mut spares = vec![Spare::packet_socket()?];
            by_spare(&mut spares)?;
            assert!(matches!(spares[..], [Spare::PacketSocket(_)]));
            Ok(())
        });
    }
}
