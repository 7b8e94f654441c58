//! The engine `dpdk`: captures from devices for which DPDK has a poll-mode driver. These are passed-through NICs and
//! virtual functions, which have no kernel interface, and DPDK's virtual devices.
//!
//! The path of a frame: the driver or the NIC writes it into an mbuf → the poller of its queue copies it into a ring →
//! the poller gives the mbuf back. `offered` comes from the port's statistics, which the driver keeps; docs/dpdk.md
//! lists which frames the statistics of each driver do not include.

pub(crate) mod declaration;
mod device;
mod eal;
mod ffi;
mod options;
mod poller;
mod queues;

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_ring::{Clock, Ledger};

pub use device::Device;
pub use options::{DpdkOptions, Stamps};
pub(crate) use queues::memory;

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedControl;
use crate::feed::direction::Direction;
use crate::feed::fanout::Fanout;
use crate::feed::feeds::Feeds;
use crate::kernel::interface::{Interface, InterfaceQuery, Missed, Presence, Promiscuity};
use crate::setup::{Setup, refuse_queue};
use crate::source::{Info, Pumped, Source};
use ffi::{BURST, Counts, Facts, Port, Rx};
use options::stamp_ns;
use poller::Poller;
use queues::{port_setup, queues};

/// The MTU that the source requests from a NIC.
const MTU: u16 = 9000;
/// Longest wait for the frames that a NIC has counted but not handed over yet.
const DRAIN_LIMIT: Duration = Duration::from_millis(100);
/// Most bursts of a queue that are discarded at the start: enough to empty the kernel's ring of `net_af_packet`.
const STALE_BURSTS: usize = 1024;

/// A source that captures from one DPDK port.
pub struct Dpdk {
    info: Info,
    facts: Facts,
    query: InterfaceQuery,
    /// The kernel's interface behind a virtual device, if there is one.
    interface: Option<Interface>,
    promiscuous: bool,
    promiscuity: Option<Promiscuity>,
    feeds: Feeds,
    fanouts: Vec<Fanout>,
    make: Make,
    stage: Stage,
    pollers: Vec<JoinHandle<()>>,
    ending: Arc<AtomicBool>,
    base: Counts,
    /// The port's counts at the end of the run. The port itself may continue to count.
    over: Option<Counts>,
    /// Number of frames that a NIC had counted but not handed over when it was stopped.
    at_stop: u64,
    /// Losses that the kernel's interface reports.
    missed: Option<Missed>,
    presence: Option<Presence>,
}

/// The port. Before the start the source owns it, then the source shares it with the pollers.
enum Stage {
    Ready(Port),
    Running(Arc<Port>),
    Over,
}

/// Parameters of all pollers.
struct Make {
    queues: u32,
    descriptors: u32,
    bytes_needed: usize,
    record_queue: bool,
    stamp_ns: Option<u64>,
}

impl Dpdk {
    /// Starts DPDK if it does not run yet, probes `device`, and sets up its queues. Nothing is received yet, but a
    /// driver that uses a kernel socket may already queue frames. Those that `net_af_packet` has queued are discarded
    /// at the start; those of other drivers belong to the run.
    ///
    /// # Errors
    /// [`CaptureError`]: DPDK's error for the device, a device that is already open, or contradictory options.
    pub fn open(
        device: &Device,
        mut setup: Setup,
        options: DpdkOptions,
    ) -> Result<Dpdk, CaptureError> {
        setup.check()?;
        setup.feeds.iter_mut().try_for_each(admit)?;
        let query = InterfaceQuery::new()?;
        let interface = device.iface().map(|iface| query.find(iface)).transpose()?;
        if let Some(interface) = &interface {
            setup.set_link_type(interface.link_type)?;
        }
        eal::start(if options.hugepages { eal::Memory::Huge } else { eal::Memory::Ordinary })?;
        // Discard earlier messages, which are not about this device.
        drop(ffi::said());
        let text = CString::new(device.text()).expect("a device's text has no zeroes");
        let probed = Port::probe(&text).map_err(|error| eal::refused(device, &error))?;
        let Some(mut port) = probed else {
            return Err(CaptureError::Options(format!(
                "dpdk:{device} is named twice; a device is one source, and --queues says how many threads \
                 it has"
            )));
        };
        let facts = port.facts().map_err(|error| eal::refused(device, &error))?;
        let queues = queues(device, &facts, options.queues)?;
        let stamp_ns = stamp_ns(&facts, options.stamps)?;
        let mut port_setup = port_setup(device, &facts, queues, stamp_ns.is_some());
        port.set_up(&mut port_setup).map_err(|error| eal::refused(device, &error))?;
        let (feeds, fanouts) =
            Feeds::create(&setup, queues as usize, Clock::Realtime, Box::new(admit))?;
        let mut notes = vec![format!("offered frames are what DPDK's {} reports", facts.driver)];
        if !facts.is_virtual && facts.can_scatter && port.set_mtu(MTU).is_err() {
            notes.push(format!(
                "{device} takes no MTU of {MTU}: longer frames than its own are errors"
            ));
        }
        let missed = interface.as_ref().map(|own| Missed::new(own.index));
        let presence = match &interface {
            Some(interface) => Some(Presence::new(InterfaceQuery::new()?, interface)),
            None => None,
        };
        let info = Info {
            source: format!("dpdk:{device}"),
            engine: "dpdk",
            hook: None,
            why: "asked for".into(),
            notes,
            owner: None,
        };
        Ok(Dpdk {
            info,
            facts,
            query,
            interface,
            promiscuous: setup.promiscuous,
            promiscuity: None,
            feeds,
            fanouts,
            make: Make {
                queues,
                descriptors: port_setup.descriptors,
                bytes_needed: setup.bytes_needed() as usize,
                record_queue: options.record_queue,
                stamp_ns,
            },
            stage: Stage::Ready(port),
            pollers: Vec::new(),
            ending: Arc::default(),
            base: Counts::default(),
            over: None,
            at_stop: 0,
            missed,
            presence,
        })
    }

    fn failed(&self, doing: &str, error: &std::io::Error) -> CaptureError {
        CaptureError::Library {
            library: "DPDK",
            what: format!("{}: {doing}", self.info.source),
            said: eal::because(error),
            advice: "docs/dpdk.md says what drivers need".into(),
        }
    }

    /// Starts the port. Frames are counted from now on.
    fn start_port(&mut self, port: &mut Port) -> Result<(), CaptureError> {
        // Discard earlier messages, which would not explain a failed start.
        drop(ffi::said());
        let flagged =
            self.interface.as_ref().is_some_and(|own| self.query.is_promiscuous(&own.name));
        let failed = |what| move |error: std::io::Error| (what, error);
        let before = port.counts().map_err(failed("reading its statistics"));
        let started = before.and_then(|before| {
            port.start().map_err(failed("starting it"))?;
            let after = port.counts().map_err(failed("reading its statistics"))?;
            // Some drivers reset their counts at the start. Frames that the port counts between the two readings are
            // offered.
            Ok(if after.packets < before.packets { Counts::default() } else { before })
        });
        self.base = started.map_err(|(what, error)| self.failed(what, &error))?;
        match &self.interface {
            Some(interface) => {
                // If another program had switched promiscuous mode on, DPDK's start switches it off. Switch it on
                // again.
                if flagged && !self.query.is_promiscuous(&interface.name) {
                    let _ = port.set_promiscuous(true);
                }
                if self.promiscuous {
                    self.promiscuity = Some(Promiscuity::new(interface)?);
                }
            }
            None if self.promiscuous && !self.facts.is_virtual => {
                if let Err(error) = port.set_promiscuous(true) {
                    let note = format!(
                        "no promiscuous mode ({error}): frames for others are not seen; a virtual function \
                         needs `ip link set PF vf N trust on`"
                    );
                    self.info.notes.push(note);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Discards frames that came before the start. `net_af_packet` queues frames as soon as it is probed, and these do
    /// not belong to the run. Other drivers also queue frames, but polling an empty queue of `net_af_xdp` can take a
    /// second, and the frames of `net_pcap` may be those of a file.
    fn drop_stale(&mut self, port: &Port, receivers: &mut [Rx]) -> Result<(), CaptureError> {
        if self.facts.driver != "net_af_packet" {
            return Ok(());
        }
        for rx in receivers {
            (0..STALE_BURSTS).take_while(|_| rx.burst().len() > 0).for_each(drop);
        }
        self.base = port.counts().map_err(|error| self.failed("reading its statistics", &error))?;
        Ok(())
    }

    fn counts(&self) -> Result<Counts, CaptureError> {
        if let Some(over) = self.over {
            return Ok(over);
        }
        let Stage::Running(port) = &self.stage else { return Ok(Counts::default()) };
        let now = port.counts().map_err(|error| self.failed("reading its statistics", &error))?;
        Ok(now.since(self.base))
    }

    /// Returns the number of frames that the port has counted and that are not in a ring yet.
    fn held(&self) -> Result<u64, CaptureError> {
        Ok(self.counts()?.packets.saturating_sub(self.feeds.seen()))
    }

    /// Takes a NIC's link down, and waits until the NIC has handed over all frames that it has counted. A NIC counts
    /// frames when they arrive.
    fn quiesce(&self) -> Result<(), CaptureError> {
        if let Stage::Running(port) = &self.stage
            && !self.facts.is_virtual
        {
            let _ = port.link_down();
            let begin = Instant::now();
            while self.held()? > 0 && begin.elapsed() < DRAIN_LIMIT {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), CaptureError> {
        let Counts { packets, missed: lost, errors, no_mbuf } = self.counts()?;
        let offered = packets + lost + errors + no_mbuf;
        let mut ledger = Ledger { offered, ..Ledger::default() };
        ledger.drops.insert("missed", lost);
        ledger.drops.insert("errors", errors);
        ledger.drops.insert("no_mbuf", no_mbuf);
        if !self.facts.is_virtual {
            ledger.drops.insert("at_stop", self.at_stop);
        }
        ledger.missed_before = self.missed.as_mut().and_then(Missed::frames);
        self.feeds.count(ledger);
        Ok(())
    }

    fn end_pollers(&mut self) {
        self.ending.store(true, Ordering::Release);
        for poller in self.pollers.drain(..) {
            // Without frames, a driver may sleep for up to a second in a system call that only a signal interrupts.
            while !poller.is_finished() {
                ffi::interrupt(&poller);
                std::thread::sleep(Duration::from_millis(1));
            }
            poller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        // If the source was never started, the fan-outs are still here.
        for mut fanout in self.fanouts.drain(..) {
            fanout.close();
        }
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        self.end_pollers();
    }
}

/// Checks that this engine supports a feed.
fn admit(feed: &mut Feed) -> Result<(), CaptureError> {
    refuse_queue(feed, "a socket or poller")?;
    if feed.direction == Direction::Both {
        return Ok(());
    }
    Err(CaptureError::Options(
        "--direction: DPDK does not say which way a frame went; leave it out".into(),
    ))
}

impl Source for Dpdk {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.feeds.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        let Stage::Ready(mut port) = std::mem::replace(&mut self.stage, Stage::Over) else {
            unreachable!("a source is started once")
        };
        if let Some(missed) = &mut self.missed {
            missed.begin();
        }
        self.start_port(&mut port)?;
        let (port, mut receivers) = Rx::all(port, self.make.queues);
        self.drop_stale(&port, &mut receivers)?;
        self.stage = Stage::Running(port);
        let fanouts = std::mem::take(&mut self.fanouts);
        for (queue, (rx, fanout)) in receivers.into_iter().zip(fanouts).enumerate() {
            let poller = Poller {
                rx,
                fanout,
                bytes_needed: self.make.bytes_needed,
                queue_option: self.make.record_queue.then_some(queue as u32),
                stamp_ns: self.make.stamp_ns,
                left_max: self.make.descriptors as usize + BURST,
                ending: Arc::clone(&self.ending),
            };
            let thread = std::thread::Builder::new()
                .name("weir-poller".into())
                .spawn(move || poller.run())
                .map_err(CaptureError::os("starting a poller"))?;
            self.pollers.push(thread);
        }
        Ok(())
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        std::thread::sleep(limit);
        if let Some(dead) = self.pollers.iter().position(JoinHandle::is_finished) {
            let dead = self.pollers.swap_remove(dead).join();
            dead.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            unreachable!("a poller goes on until it is told to end");
        }
        let gone = match (&mut self.presence, &self.stage) {
            (Some(presence), _) => presence.check().is_err(),
            (None, Stage::Running(port)) if !self.facts.is_virtual => port.is_removed(),
            _ => false,
        };
        if gone {
            // The error contains the name that the user gave.
            return Err(CaptureError::Vanished { iface: self.info.source.clone() });
        }
        self.count()?;
        Ok(Pumped::More)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        let quiet = self.quiesce();
        self.end_pollers();
        self.promiscuity = None;
        if let Some(missed) = &mut self.missed {
            missed.ask();
        }
        quiet?;
        // Read the counts only once: if the link could not be taken down, further frames come, which do not belong to
        // the run.
        self.over = Some(self.counts()?);
        // A NIC can hold at most as many frames as it has descriptors. A larger difference has another cause, and must
        // remain visible.
        let held = self.held()?;
        let room = u64::from(self.make.queues) * u64::from(self.make.descriptors);
        if !self.facts.is_virtual && held <= room {
            self.at_stop = held;
        }
        self.count()
    }
}

#[cfg(test)]
mod tests;
