//! The generator of `weir gen IFACE`: sends numbered frames at a given rate, and counts them at the link.
//!
//! Two engines send the same frames (`template`): live frames in the kernel (`live`, about 6 Mpps on one core) or, if
//! these are not possible, `AF_PACKET` (`packet`). The reported number of sent frames is the link's own count
//! (`counter`), never the number of attempts.

pub(crate) mod affinity;
mod bucket;
mod counter;
mod live;
pub mod mix;
mod pace;
mod packet;
mod parking;
mod peer;
pub mod replay;
pub mod sink;
pub mod sizes;
pub mod template;
mod totals;

pub use live::load_check;
pub use packet::tai_ns;
pub use totals::Totals;

use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weir_frame::datagram::Addressing;

use crate::testbed::ifindex;
use crate::{Error, Result, ethtool};
use sizes::Sizes;
use template::Template;

/// Length of the frame check sequence, which is on the wire and never in memory.
pub const FCS_BYTES: u32 = 4;
pub use crate::limits::{LIVE_SIZE_MAX, SIZE_MIN, THREADS_MAX};

/// Options of the generator.
#[derive(Debug, Clone, PartialEq)]
pub struct GenOptions {
    /// Sizes of the frames on the wire, with FCS, without preamble and gap: 64 means 60 bytes in memory. A size is at
    /// most the MTU + 18; for live frames also at most [`LIVE_SIZE_MAX`].
    pub sizes: Sizes,
    /// Number of different 5-tuples.
    pub flows: Flows,
    /// The rate of sending.
    pub rate: Rate,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Stop after this number of attempts, whether the link accepted or refused the frames.
    pub frames: Option<u64>,
    /// Number of sending threads, 1 or more. Numbers, rate and limits apply to all of them
    /// together.
    pub threads: usize,
    /// A CPU for each thread. On a veth, this CPU also processes the frames at the receiving end. If empty, threads run
    /// on any CPU.
    pub cpus: Vec<usize>,
    /// Number in the first frame; each further frame has the next number.
    pub first_number: u64,
    /// Write the time into each frame (`template::STAMP_AT`). A clock read costs about 40 ns per
    /// frame.
    pub stamp: bool,
    /// Selects the engine.
    pub engine: GenEngine,
    /// Addresses and payload of the frames; `None` selects those of the template.
    pub addressing: Option<Addressing>,
}

impl Default for GenOptions {
    /// Sends 64-byte frames of one flow as fast as possible, until stopped.
    fn default() -> Self {
        GenOptions {
            sizes: SIZE_MIN.into(),
            flows: Flows::Single,
            rate: Rate::Max,
            duration: None,
            frames: None,
            threads: 1,
            cpus: Vec::new(),
            first_number: 0,
            stamp: false,
            engine: GenEngine::Auto,
            addressing: None,
        }
    }
}

/// Number of different 5-tuples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flows {
    /// All frames are of one flow.
    Single,
    /// Each frame has its own flow. Flows repeat after 2^32 frames.
    Multi,
    /// This number of flows (above zero), in turn.
    N(u32),
}

/// The rate of sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// As fast as the engine and the receiver allow.
    Max,
    /// Frames a second.
    Pps(f64),
    /// Bits a second, counted with FCS. For a mix of sizes the mean size applies. Preamble and inter-frame gap (20
    /// bytes a frame) do not count, so 10 Gbit/s here is more than a 10 Gbit/s link can carry.
    Bps(f64),
}

/// Selects the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GenEngine {
    /// Live frames if possible, else AF_PACKET. The report names the engine and the reason.
    #[default]
    Auto,
    /// Live frames; an error if they are not possible.
    LiveFrames,
    /// Always AF_PACKET.
    AfPacket,
}

/// The engine that sent the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`.
    LiveFrames,
    /// `sendmmsg` on a packet socket that bypasses the queueing discipline.
    AfPacket,
}

/// Result of the generator. The attempted frames have the numbers `first_number` to `first_number + attempted - 1`. The
/// numbers of refused frames are missing at the receiver.
///
/// With a [`Rate`] and a duration, and unless a number of frames ends the run earlier, `attempted` is the rate times
/// the duration less [`Totals::given_up`]. At the end of the duration, at most 16,384 late frames are still sent; the
/// time of further late frames is part of `given_up`.
#[derive(Debug, Clone, PartialEq)]
pub struct GenReport {
    /// Counts and duration.
    pub totals: Totals,
    /// The engine that sent the frames.
    pub how: How,
    /// The reason why live frames were not used, and a remedy. `None` if they were used, or if AF_PACKET was requested.
    pub why: Option<String>,
}

impl Deref for GenReport {
    type Target = Totals;

    fn deref(&self) -> &Totals {
        &self.totals
    }
}

/// Sends frames out of `iface`, in the calling thread's network namespace, until the duration or
/// the number of frames is reached or `stop` is set. `stop` is checked every 16,384 frames and,
/// while waiting, every 5 ms.
/// With [`GenEngine::Auto`], frames go through AF_PACKET if the interface accepts no live frames, and
/// [`GenReport::why`] gives the remedy. An example is a veth whose other end has neither GRO nor an XDP program.
/// [`GenOptions::frames`] is exact: this number of frames is attempted, and [`Totals::sent`] of them are accepted.
///
/// # Errors
/// The interface is missing or down; a size, rate or CPU is impossible; or capabilities are missing. Each text gives a
/// remedy. If the interface goes away while sending, this is detected within a second.
pub fn run(iface: &str, options: &GenOptions, stop: &AtomicBool) -> Result<GenReport> {
    let job = Job::new(iface, options)?;
    match options.engine {
        GenEngine::LiveFrames => live::run(&job, options, stop),
        GenEngine::AfPacket => packet::run(&job, options, stop, None),
        GenEngine::Auto => match live::run(&job, options, stop) {
            Err(error @ (Error::LiveFrames { .. } | Error::PeerNotReady { .. })) => {
                // Neither of these errors occurs after a frame has been accepted, so the numbers can start again.
                packet::run(&job, options, stop, Some(error.to_string()))
            }
            other => other,
        },
    }
}

/// Options that have been checked against the interface.
struct Job<'a> {
    iface: &'a str,
    ifindex: u32,
    sizes: &'a Sizes,
    /// One template for each share of the sizes.
    templates: Vec<Template>,
    first_number: u64,
}

impl<'a> Job<'a> {
    fn new(iface: &'a str, options: &'a GenOptions) -> Result<Job<'a>> {
        let ifindex = checked_link(iface)?;
        check_size(iface, ethtool::mtu(iface)?, options)?;
        let flow_count = match options.flows {
            Flows::Single => 1,
            Flows::Multi => 0,
            Flows::N(0) => return Err(option("flows", "0 flows hold no frame; give 1 or more")),
            Flows::N(count) => u64::from(count),
        };
        check_threads(options)?;
        check_rate(options.rate)?;
        if let Some(addressing) = &options.addressing {
            check_addressing(addressing, flow_count, options.stamp)?;
        }
        let template = |size: u32| {
            let bytes = (size - FCS_BYTES) as usize;
            match &options.addressing {
                Some(addressing) => Template::addressed(addressing, bytes, flow_count),
                None => Template::new(
                    bytes,
                    flow_count,
                    template::SOURCE_MAC,
                    template::DESTINATION_MAC,
                ),
            }
        };
        let sizes = &options.sizes;
        let templates = sizes.shares().iter().map(|share| template(share.0)).collect();
        Ok(Job { iface, ifindex, sizes, templates, first_number: options.first_number })
    }

    /// Returns the template of frame `number`.
    fn template(&self, number: u64) -> &Template {
        &self.templates[self.sizes.index(number)]
    }

    /// Returns the template of the largest frames.
    fn largest(&self) -> &Template {
        let largest = self.templates.iter().max_by_key(|template| template.blank().len());
        largest.expect("there is no mix without a size")
    }

    /// Returns the report of a finished run.
    fn report(
        &self,
        paced: pace::Paced,
        how: How,
        counter: &counter::Counter,
    ) -> Result<GenReport> {
        let sent = counter.settled(paced.attempted)?;
        let all = self.sizes.bytes(self.first_number, paced.attempted);
        let bytes = if sent == paced.attempted {
            all
        } else if self.sizes.is_one() {
            sent * u64::from(self.sizes.largest())
        } else {
            // It is unknown which frames were refused, so the bytes are read from the link's counter.
            (counter.settled_bytes()? + sent * u64::from(FCS_BYTES)).min(all)
        };
        let totals = Totals {
            sent,
            bytes,
            duration: paced.duration,
            attempted: paced.attempted,
            refused: paced.attempted - sent,
            given_up: paced.given_up,
            counted_by: counter.name(),
        };
        Ok(GenReport { totals, how, why: None })
    }
}

/// Checks that an interface exists, is up and has a carrier. Returns its index.
///
/// # Errors
/// [`Error::NoInterface`], [`Error::Down`], [`Error::NoCarrier`].
pub fn checked_link(iface: &str) -> Result<u32> {
    let ifindex = ifindex(iface)?;
    let flags = ethtool::link_flags(iface)?;
    if flags & libc::IFF_UP == 0 {
        return Err(Error::Down { iface: iface.to_owned() });
    }
    if flags & libc::IFF_RUNNING == 0 {
        return Err(Error::NoCarrier { iface: iface.to_owned() });
    }
    Ok(ifindex)
}

/// Returns the size on the wire of the smallest frame with these addresses and payload, with or without a stamp.
pub fn size_min(addressing: &Addressing, stamp: bool) -> u32 {
    (addressing.frame_bytes_min(stamp) as u32 + FCS_BYTES).max(SIZE_MIN)
}

fn option(option: &'static str, reason: &str) -> Error {
    Error::Option { option, reason: reason.to_owned() }
}

fn check_rate(rate: Rate) -> Result<()> {
    match rate {
        Rate::Pps(rate) | Rate::Bps(rate) if !(rate > 0.0 && rate.is_finite()) => {
            Err(option("rate", "must be above zero; leave it out for full speed"))
        }
        _ => Ok(()),
    }
}

fn check_threads(options: &GenOptions) -> Result<()> {
    let (threads, cpus) = (options.threads, options.cpus.len());
    if !(1..=THREADS_MAX).contains(&threads) {
        return Err(option("threads", "1 to 48 threads can send"));
    }
    if cpus != 0 && cpus != threads {
        let reason = format!("{cpus} CPUs for {threads} threads; name one for each, or none");
        return Err(Error::Option { option: "cpu", reason });
    }
    Ok(())
}

/// Checks addresses and number of flows. A `flow_count` of 0 means 2^32.
fn check_addressing(addressing: &Addressing, flow_count: u64, stamp: bool) -> Result<()> {
    addressing.check().map_err(|reason| Error::Option { option: "addresses", reason })?;
    if stamp && addressing.payload.is_some() {
        return Err(option("stamp", "a payload of one's own has no room for a stamp"));
    }
    let flows = if flow_count == 0 { 1 << 32 } else { flow_count };
    addressing.check_flows(flows).map_err(|reason| Error::Option { option: "flows", reason })
}

fn check_size(iface: &str, mtu: u32, options: &GenOptions) -> Result<()> {
    // An IPv4 packet has at most 65535 bytes, whatever the MTU.
    let link_max = mtu.min(65_535) + 14 + FCS_BYTES;
    let (max, why) = if options.engine == GenEngine::LiveFrames && LIVE_SIZE_MAX < link_max {
        (
            LIVE_SIZE_MAX,
            "which is what a live frame's page holds; AF_PACKET sends larger ones".into(),
        )
    } else {
        (link_max, format!("which is MTU {mtu} + 18; try: ip link set {iface} mtu ..."))
    };
    let addressing = options.addressing.as_ref();
    let min = addressing.map_or(SIZE_MIN, |addressing| size_min(addressing, options.stamp));
    let sizes = [options.sizes.smallest(), options.sizes.largest()];
    match sizes.into_iter().find(|size| !(min..=max).contains(size)) {
        None => Ok(()),
        Some(size) if size < min => {
            let why = match min {
                SIZE_MIN => "FCS included: no Ethernet frame is shorter",
                _ => "FCS included: that is what holds headers and payload",
            };
            Err(Error::Size { iface: iface.to_owned(), size, min, max, why: why.into() })
        }
        Some(size) => Err(Error::Size { iface: iface.to_owned(), size, min, max, why }),
    }
}
