//! The engine `pcap`: captures through libpcap. It is the baseline of many papers (PF_PACKET through libpcap), and also
//! works with a patched libpcap, such as PF_RING's.
//!
//! The path of a frame: libpcap's buffer → this thread copies the frame into the ring. `offered` is libpcap's own
//! count: there is no independent count.

pub(crate) mod declaration;

use std::ffi::{CStr, c_char};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pcap::{Active, Capture};
use rustix::event::{PollFd, PollFlags};
use weir_frame::record::Meta;
use weir_ring::{Clock, Ledger};

use crate::engines::opened::Opened;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedControl;
use crate::feed::direction::Direction;
use crate::feed::fanout::Fanout;
use crate::feed::feeds::Feeds;
use crate::kernel::interface::{Interface, Missed, Presence};
use crate::kernel::rcu;
use crate::limits::{BUFFER_BYTES_MAX, DRAIN_TIME_MAX, LIBPCAP_CAPLEN_MAX};
use crate::setup::{Setup, refuse_queue};
use crate::source::{Info, Pumped, Source};

/// Longest time for which libpcap may delay a frame.
const TIMEOUT_MS: i32 = 4;
/// Most frames that one call of libpcap delivers.
const BURST: usize = 256;
/// Several times libpcap's time-out, each a jiffy (10 ms) longer: after this time, the kernel has retired a block that
/// was open.
const QUIET: Duration = Duration::from_millis(60);

/// A source that captures one interface through libpcap.
pub struct Pcap {
    info: Info,
    interface: Interface,
    presence: Presence,
    handle: Capture<Active>,
    feeds: Feeds,
    fanout: Fanout,
    counts: Counts,
    /// Whether libpcap counts frames that it does not deliver: those of the other direction, and duplicates on
    /// loopback.
    keeps_some: bool,
    missed: Missed,
    closed: bool,
}

/// The counts of libpcap, which have 32 bits, extended to 64 bits.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    last: (u32, u32),
    received: u64,
    dropped: u64,
}

impl Counts {
    fn follow(&mut self, received: u32, dropped: u32) {
        self.received += u64::from(received.wrapping_sub(self.last.0));
        self.dropped += u64::from(dropped.wrapping_sub(self.last.1));
        self.last = (received, dropped);
    }
}

/// Returns the version text of the loaded libpcap.
#[must_use]
pub fn library() -> String {
    unsafe extern "C" {
        fn pcap_lib_version() -> *const c_char;
    }
    // SAFETY: pcap_lib_version(3PCAP) takes no arguments, and returns a constant, terminated string.
    let text = unsafe { CStr::from_ptr(pcap_lib_version()) };
    text.to_string_lossy().into_owned()
}

impl Pcap {
    /// Opens `iface` with libpcap, which receives frames from now on.
    ///
    /// # Errors
    /// [`CaptureError`]: no such interface, or the error of libpcap.
    pub fn open(iface: &str, mut setup: Setup) -> Result<Pcap, CaptureError> {
        setup.check()?;
        setup.refuse_queues("libpcap")?;
        let Opened { query, interface, missed } = Opened::find(iface, &mut setup)?;
        let direction = setup.direction();
        if !setup.is_of_one_direction() {
            return Err(one_direction(iface));
        }
        let failed = |error: pcap::Error| refused(iface, &error);
        let handle = Capture::from_device(iface)
            .map_err(failed)?
            .promisc(setup.promiscuous)
            .snaplen(setup.bytes_needed() as i32)
            .buffer_size(BUFFER_BYTES_MAX as i32)
            .timeout(TIMEOUT_MS)
            .precision(pcap::Precision::Nano)
            .open()
            .and_then(Capture::setnonblock)
            .map_err(failed)?;
        match direction {
            Direction::In => handle.direction(pcap::Direction::In),
            Direction::Out => handle.direction(pcap::Direction::Out),
            Direction::Both => Ok(()),
        }
        .map_err(failed)?;
        let name = iface.to_owned();
        let admit = move |feed: &mut Feed| {
            refuse_queue(feed, "libpcap")?;
            if feed.direction == direction { Ok(()) } else { Err(one_direction(&name)) }
        };
        let (feeds, fanout) = Feeds::create_one(&setup, Clock::Realtime, Box::new(admit))?;
        let keeps_some = direction != Direction::Both || interface.name == "lo";
        let mut notes = vec![format!("offered frames are what {} reports", library())];
        if direction != Direction::Both {
            notes.push(
                "frames of the other direction are offered, too, and filtered by libpcap"
                    .to_owned(),
            );
        }
        let kept = interface.frame_bytes_max().min(setup.bytes_needed());
        if kept > LIBPCAP_CAPLEN_MAX {
            notes.push(format!("libpcap cuts frames above {LIBPCAP_CAPLEN_MAX} bytes (BIG TCP)"));
        }
        let info = Info {
            source: iface.to_owned(),
            engine: "pcap",
            hook: None,
            why: String::new(),
            notes,
            owner: setup.owner.clone(),
        };
        Ok(Pcap {
            info,
            presence: Presence::new(query, &interface),
            interface,
            handle,
            feeds,
            fanout,
            counts: Counts::default(),
            keeps_some,
            missed,
            closed: false,
        })
    }

    /// Sets the text that explains why this engine was chosen.
    pub fn set_why(&mut self, why: String) {
        self.info.why = why;
    }

    /// Copies the frames that libpcap has, at most a burst, to the ring. Returns their number.
    fn take(&mut self) -> Result<usize, CaptureError> {
        let fanout = &mut self.fanout;
        let taken = self.handle.dispatch(Some(BURST), |packet| offer(fanout, &packet));
        fanout.publish();
        taken.map_err(|error| {
            let gone = self.presence.check_now().err();
            gone.unwrap_or_else(|| refused(&self.interface.name, &error))
        })
    }

    fn count(&mut self) -> Result<(), CaptureError> {
        self.follow_counts()?;
        let mut ledger = Ledger {
            offered: self.counts.received,
            missed_before: self.missed.frames(),
            ..Ledger::default()
        };
        ledger.drops.insert("kernel", self.counts.dropped);
        if self.keeps_some && self.closed {
            ledger.filtered = self.held();
        }
        self.feeds.count(ledger);
        Ok(())
    }

    fn follow_counts(&mut self) -> Result<(), CaptureError> {
        let now = self.handle.stats().map_err(|error| refused(&self.interface.name, &error))?;
        self.counts.follow(now.received, now.dropped);
        Ok(())
    }

    fn wait(&self, limit: Duration) -> Result<(), CaptureError> {
        let timeout = limit.try_into().unwrap_or(rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 });
        let fd = self.handle.as_fd();
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(CaptureError::os("waiting for libpcap")(errno.into())),
        }
    }

    /// Returns the number of frames that libpcap has counted but not delivered.
    fn held(&self) -> u64 {
        let given = self.feeds.seen() + self.counts.dropped;
        self.counts.received.saturating_sub(given)
    }

    /// Stops the arrival of frames, if libpcap reads a packet socket, and copies the remaining frames.
    fn drain(&mut self) -> Result<(), CaptureError> {
        // The filter is attached to the socket directly: a filter that is set by libpcap would also apply to frames
        // that libpcap has already received. If the handle is no socket, this fails, and frames that come meanwhile are
        // captured like all others.
        let _ = reject_all(self.handle.as_raw_fd());
        rcu::synchronize()?;
        let deadline = Instant::now() + DRAIN_TIME_MAX;
        let mut quiet_since = Instant::now();
        loop {
            let taken = self.take()?;
            self.follow_counts()?;
            if taken > 0 {
                quiet_since = Instant::now();
            }
            // Frames that libpcap counts but does not deliver never come. Then only a time without frames shows the
            // end.
            let done = self.held() == 0 || (self.keeps_some && quiet_since.elapsed() >= QUIET);
            let left = deadline.saturating_duration_since(Instant::now());
            if done && taken == 0 || left.is_zero() {
                return Ok(());
            }
            if taken == 0 {
                self.wait(left.min(Duration::from_millis(1)))?;
            }
        }
    }
}

/// Attaches a socket filter that rejects all frames.
fn reject_all(fd: libc::c_int) -> std::io::Result<()> {
    let mut program =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    // SAFETY: the option takes a `sock_fprog`, whose only instruction lives through the call.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn one_direction(iface: &str) -> CaptureError {
    CaptureError::Options(format!(
        "{iface}: libpcap does not say which way a frame went, so all feeds have one direction; or take \
         --engine bpf"
    ))
}

fn refused(iface: &str, error: &pcap::Error) -> CaptureError {
    let text = error.to_string();
    if text.contains("ermi") {
        // Contained in "You don't have permission" and "Operation not permitted".
        return CaptureError::NoRights {
            what: format!("libpcap on {iface}"),
            needs: "CAP_NET_RAW",
        };
    }
    let source = std::io::Error::other(text);
    CaptureError::Os { doing: format!("{iface}: libpcap"), source }
}

#[inline]
fn offer(fanout: &mut Fanout, packet: &pcap::Packet<'_>) {
    // With nanosecond precision, `tv_usec` contains nanoseconds (pcap-tstamp(7)).
    let stamp = packet.header.ts;
    let ts_ns = (stamp.tv_sec as u64).wrapping_mul(1_000_000_000) + stamp.tv_usec as u64;
    let wire_len = packet.header.len.max(packet.header.caplen);
    fanout.push(&Meta { ts_ns, wire_len, ..Meta::default() }, packet.data);
}

impl Source for Pcap {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.feeds.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.missed.begin();
        Ok(())
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let deadline = Instant::now() + limit;
        loop {
            let taken = self.take()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if taken == 0 {
                self.fanout.leave();
                self.wait(left)?;
            }
        }
        self.fanout.leave();
        self.count()?;
        self.presence.check()?;
        Ok(Pumped::More)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        if !self.closed {
            let drained = self.drain();
            self.closed = true;
            self.fanout.close();
            drained?;
        }
        self.missed.ask();
        self.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_32_bits_are_followed_past_their_end() {
        let mut counts = Counts::default();
        counts.follow(u32::MAX - 1, 3);
        counts.follow(4, 3);
        assert_eq!((counts.received, counts.dropped), (u64::from(u32::MAX) + 5, 3));
    }

    #[test]
    fn the_library_names_itself() {
        assert!(library().starts_with("libpcap version"), "{}", library());
    }
}
