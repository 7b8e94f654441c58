//! Generates and sends frames inside the kernel: `BPF_PROG_TEST_RUN` with live frames.
//!
//! One call runs the program for thousands of frames, in batches of 64. Each frame is redirected to the interface and
//! sent by the driver's `ndo_xdp_xmit`, without a system call or a socket buffer for each frame. Linux has this since
//! version 5.18.

use std::fs;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use weir_frame::datagram::{Addressing, Datagrams, Form};

use super::counter::Counter;
use super::pace::{self, Turns, Wire};
use super::template::{DESTINATION_MAC, DESTINATION_PORT, SOURCE_MAC};
use super::{FCS_BYTES, GenOptions, GenReport, How, Job, LIVE_SIZE_MAX, parking, peer};
use crate::{Error, Result};

#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/wire_generator.skel.rs"));
}
pub(super) use skel::WireGeneratorSkelBuilder;

/// Number of frames that the kernel generates before it sends them: the kernel's default, which is a NAPI budget.
const BATCH: u32 = 64;
/// Flag of BPF_PROG_TEST_RUN, from `linux/bpf.h`.
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// Frames of the first call, which shows whether the interface accepts frames.
const PROBE: u32 = 64;

/// A size on the wire that fits a live frame's page in every kernel, and its bytes in memory.
const SURE_SIZE: u32 = 3300;
const SURE_BYTES: usize = (SURE_SIZE - FCS_BYTES) as usize;

const VETH_REMEDY: &str =
    "the other end of a veth takes them only with GRO or an XDP program there; try: ";
const DRIVER_REMEDY: &str = "its driver may not send XDP frames, or only with an XDP program \
    loaded on it";

pub(super) fn run(job: &Job, options: &GenOptions, stop: &AtomicBool) -> Result<GenReport> {
    let refused = |reason: String| Error::LiveFrames { iface: job.iface.to_owned(), reason };
    let size = options.sizes.largest();
    if size > LIVE_SIZE_MAX {
        return Err(refused(format!("{size} bytes are above their limit of {LIVE_SIZE_MAX}")));
    }
    check_rights().map_err(refused)?;

    let counter = Counter::of_xdp(job.iface, options.threads)?;
    let paced = pace::run(options, stop, |turns| work(job, options, &counter, turns))?;
    job.report(paced, How::LiveFrames, &counter)
}

/// Runs one thread. Each thread has its own program, because each program has its own frame number.
fn work(job: &Job, options: &GenOptions, counter: &Counter, turns: &Turns) -> Result<()> {
    let refused = |reason: String| Error::LiveFrames { iface: job.iface.to_owned(), reason };
    let mut storage = MaybeUninit::uninit();
    let builder = WireGeneratorSkelBuilder::default();
    let mut open = builder.open(&mut storage).map_err(|e| refused(e.to_string()))?;
    configure(&mut open, job, options);
    let mut skel = open.load().map_err(|e| refused(format!("the program did not load: {e}")))?;
    let data = skel.maps.bss_data.as_deref_mut().expect("the program has a .bss");

    let program = match job.largest().form() {
        Some(_) => skel.progs.weir_gen_addressed.as_fd(),
        None => skel.progs.weir_gen.as_fd(),
    };
    // A failure to park the program only makes runs start more slowly.
    let _parked = parking::park(program).ok();
    turns.serve(&mut Live {
        job,
        program,
        next_number: &raw mut data.next_number,
        counter,
        proven: false,
    })
}

/// Loads the programs of the generator and the sink, so that this kernel's verifier checks them.
/// Neither is attached.
///
/// # Errors
/// [`Error::Bpf`] with the kernel's error.
pub fn load_check() -> Result<()> {
    let failed = |source| Error::Bpf { what: "load the generator's programs", source };
    let mut storage = MaybeUninit::uninit();
    let mut open = WireGeneratorSkelBuilder::default().open(&mut storage).map_err(failed)?;
    let config = open.maps.rodata_data.as_deref_mut().expect("the program has a .rodata");
    // Loading the program with addresses needs the offsets of some valid frame; zeros would be invalid.
    let example = Addressing {
        source_mac: SOURCE_MAC,
        destination_mac: DESTINATION_MAC,
        vlans: vec![1, 2],
        source: None,
        destination: Ipv6Addr::LOCALHOST.into(),
        source_port: None,
        destination_port: DESTINATION_PORT,
        payload: None,
    };
    let datagrams = Datagrams::new(&example, example.frame_bytes_min(true));
    configure_form(config, &datagrams.form(), datagrams.blank());
    open.load().map(drop).map_err(failed)
}

/// Checks the capabilities first, because libbpf would print a long message of its own.
fn check_rights() -> std::result::Result<(), String> {
    // linux/capability.h: CAP_NET_ADMIN 12, CAP_SYS_ADMIN 21, CAP_BPF 39.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let caps = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(caps) = caps.and_then(|caps| u64::from_str_radix(caps.trim(), 16).ok()) else {
        return Ok(()); // without /proc, loading shows it
    };
    let has = |bit: u32| caps >> bit & 1 == 1;
    if has(21) || (has(12) && has(39)) {
        return Ok(());
    }
    Err("they need root, or CAP_BPF and CAP_NET_ADMIN".to_owned())
}

fn configure(open: &mut skel::OpenWireGeneratorSkel, job: &Job, options: &GenOptions) {
    // Only the program that runs is loaded. The sink and its maps are for the receiving end.
    open.progs.weir_sink.set_autoload(false);
    let is_addressed = job.largest().form().is_some();
    open.progs.weir_gen.set_autoload(!is_addressed);
    open.progs.weir_gen_addressed.set_autoload(is_addressed);
    _ = open.maps.sink_flows.set_autocreate(false);
    _ = open.maps.sink_counts.set_autocreate(false);
    let config = open.maps.rodata_data.as_deref_mut().expect("the program has a .rodata");
    config.out_ifindex = job.ifindex;
    config.with_stamp = u32::from(options.stamp);
    let largest = job.largest();
    config.flow_count = largest.flow_count();
    config.check_base = largest.check_base();
    match largest.form() {
        Some(form) => configure_form(config, &form, largest.blank()),
        None => copy_words(&mut config.header, largest.blank()),
    }
    if !job.sizes.is_one() {
        config.largest_bytes = largest.blank().len() as u32;
        config.turn_frames = job.sizes.turn().len() as u32;
        for (bytes, size) in config.turn_bytes.iter_mut().zip(job.sizes.turn()) {
            *bytes = (size - FCS_BYTES) as u16;
        }
    }
}

fn configure_form(config: &mut skel::types::rodata, form: &Form, blank: &[u8]) {
    let headers = &blank[..form.payload_at];
    copy_words(&mut config.headers, headers);
    let (_, left) = headers.as_chunks::<8>();
    for (word, bytes) in config.headers_end.iter_mut().zip(left.as_chunks::<2>().0) {
        *word = u16::from_ne_bytes(*bytes);
    }
    config.form = skel::types::form {
        payload_at: form.payload_at as u32,
        udp_at: form.udp_at as u32,
        source_at: form.source_at as u32,
        ip_check_at: form.ip_check_at.unwrap_or(0) as u32,
        ip_bytes_at: form.ip_bytes_at as u32,
        ip_bytes_less: form.ip_bytes_less as u32,
        varies_source: form.varies_source.into(),
        varies_port: form.varies_port.into(),
        has_number: form.has_number.into(),
        ip_sum: form.ip_sum,
        udp_sum: form.udp_sum,
    };
}

/// Copies whole words, as many as both slices have.
fn copy_words(words: &mut [u64], bytes: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
}

struct Live<'a> {
    job: &'a Job<'a>,
    program: BorrowedFd<'a>,
    /// Points into the program's mapped .bss, where the program keeps the next number.
    next_number: *mut u64,
    counter: &'a Counter<'a>,
    proven: bool,
}

impl Wire for Live<'_> {
    fn send(&mut self, first: u64, frames: u32) -> Result<u64> {
        self.set_number(first);
        if self.proven {
            return self.call(frames);
        }
        let attempted = self.call(frames.min(PROBE))?;
        self.prove(attempted)?;
        Ok(attempted)
    }

    fn check(&mut self) -> Result<()> {
        self.counter.now().map(|_| ())
    }
}

impl Live<'_> {
    /// Runs the program until it has generated `frames` frames or a signal arrives. Returns the number of generated
    /// frames.
    fn call(&mut self, frames: u32) -> Result<u64> {
        let first = self.number();
        let mut stuck = 0;
        loop {
            let left = u64::from(frames) - (self.number() - first);
            if left == 0 {
                return Ok(u64::from(frames));
            }
            let Err(error) = self.test_run(left as i32) else { continue };
            let made = self.number() - first;
            match error.raw_os_error() {
                // A signal has arrived; the caller checks its stop flag.
                Some(libc::EINTR) => return Ok(made),
                // Receivers have all pages and will free them.
                Some(libc::ENOMEM) if stuck < 1000 => {
                    stuck += 1;
                    sleep(Duration::from_millis(1));
                }
                _ if !self.proven && made == 0 => {
                    let iface = self.job.iface.to_owned();
                    let mut reason = format!("the kernel refused to run the program: {error}");
                    // Linux 6.1 reserves more bytes of a frame's page than later kernels, and reports a frame that is
                    // too large only by this error.
                    if self.job.largest().blank().len() > SURE_BYTES {
                        reason += &format!("; try a --size of at most {SURE_SIZE}");
                    }
                    return Err(Error::LiveFrames { iface, reason });
                }
                _ => {
                    let (iface, what) = (self.job.iface.to_owned(), "run the generator program");
                    return Err(Error::Send { iface, what, source: error });
                }
            }
        }
    }

    fn set_number(&mut self, number: u64) {
        // SAFETY: as in `number`; the program does not run now, and the mapping is writable.
        unsafe { self.next_number.write_volatile(number) }
    }

    /// Returns the number of the next frame, which the program has stored.
    fn number(&self) -> u64 {
        // SAFETY: `next_number` points into the skeleton's mapping of .bss, which `work` keeps
        // alive longer than this value, and is aligned as the C program's u64. Its only writers are
        // `set_number` and the program, which runs only inside `test_run`, on this thread. The
        // access is volatile, because the compiler does not see the program's writes.
        unsafe { self.next_number.read_volatile() }
    }

    fn test_run(&self, repeat: i32) -> io::Result<()> {
        let frame = self.job.largest().blank();
        let mut opts = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: BATCH,
            ..Default::default()
        };
        // SAFETY: the descriptor is borrowed for longer than the call. `opts` is complete, and `sz`
        // is its size. `data_in` is readable for `data_size_in` bytes, those of the template's Vec.
        // All other pointers are null with length 0, which the kernel takes as absent. The kernel
        // keeps no pointer.
        match unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut opts) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }

    /// Checks, after the first call, that the interface has accepted a frame, or has at least counted one.
    fn prove(&mut self, attempted: u64) -> Result<()> {
        if attempted == 0 {
            return Ok(()); // interrupted; the next call counts as the first
        }
        let start = Instant::now();
        loop {
            let reading = self.counter.now()?;
            if reading.taken > 0 || (self.counter.is_veth_xdp() && reading.refused > 0) {
                self.proven = true;
                return Ok(());
            }
            // A veth counts a frame before the call returns. Other drivers count it when the NIC has sent it.
            if self.counter.is_veth_xdp() || start.elapsed() > Duration::from_millis(300) {
                break;
            }
            sleep(Duration::from_millis(1));
        }
        let veth = self.counter.is_veth_xdp();
        let remedy = if veth {
            VETH_REMEDY.to_owned() + &peer::gro_command(self.job.iface)
        } else {
            DRIVER_REMEDY.to_owned()
        };
        Err(Error::PeerNotReady { iface: self.job.iface.to_owned(), attempted, remedy })
    }
}
