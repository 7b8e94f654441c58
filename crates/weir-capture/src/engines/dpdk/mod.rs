//! The `dpdk` engine: whatever DPDK has a poll-mode driver for. For passed-through NICs and virtual
//! functions, which no kernel interface shows; and for its virtual devices.
//!
//! The life of a frame: as the driver has it in an mbuf of DPDK's → copied by the poller of its queue into
//! a ring → mbuf given back. `offered` is the port's statistics, which the driver keeps: docs/dpdk.md says
//! what those leave out, driver by driver.

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

/// Largest packet asked of a NIC.
const MTU: u16 = 9000;
/// How long a NIC may take to hand over the frames that it has counted.
const DRAIN_LIMIT: Duration = Duration::from_millis(100);
/// The kernel's ring of `net_af_packet`, in bursts of ours: the most that is thrown away at the start.
const STALE_BURSTS: usize = 1024;

/// The source.
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
    /// Counts of the port when the run was over: it may go on counting.
    over: Option<Counts>,
    /// Frames that a NIC had counted and not handed over when it was stopped.
    at_stop: u64,
    /// Of that interface.
    missed: Option<Missed>,
    presence: Option<Presence>,
}

/// The port: alone before the start, then shared with its pollers.
enum Stage {
    Ready(Port),
    Running(Arc<Port>),
    Over,
}

/// Parameters of every poller.
struct Make {
    queues: u32,
    descriptors: u32,
    bytes_needed: usize,
    record_queue: bool,
    stamp_ns: Option<u64>,
}

impl Dpdk {
    /// Starts DPDK if it does not run, has it probe `device`, and sets up its queues. Nothing is received
    /// yet; a driver on a kernel socket may queue already. Frames that `net_af_packet` has queued are
    /// discarded at the start; those of other drivers belong to the run.
    ///
    /// # Errors
    /// [`CaptureError`]: the device and what DPDK says of it, a device that is open already, contradicting
    /// options.
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
        // Earlier messages are not about this device.
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

    /// Starts the port; frames from here on count.
    fn start_port(&mut self, port: &mut Port) -> Result<(), CaptureError> {
        // Messages so far are not the reason for the failed start.
        drop(ffi::said());
        let flagged =
            self.interface.as_ref().is_some_and(|own| self.query.is_promiscuous(&own.name));
        let failed = |what| move |error: std::io::Error| (what, error);
        let before = port.counts().map_err(failed("reading its statistics"));
        let started = before.and_then(|before| {
            port.start().map_err(failed("starting it"))?;
            let after = port.counts().map_err(failed("reading its statistics"))?;
            // Some drivers begin again at their start. Frames that the port counts between the two
            // are offered.
            Ok(if after.packets < before.packets { Counts::default() } else { before })
        });
        self.base = started.map_err(|(what, error)| self.failed(what, &error))?;
        match &self.interface {
            Some(interface) => {
                // DPDK's start switches the mode off if it was not DPDK that switched it on: not ours to.
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

    /// `net_af_packet` queues from its probing on: frames from before the start do not belong to this run.
    /// Others do, too; but `net_af_xdp` sleeps up to a second in a look that finds nothing, and what
    /// `net_pcap` has may be a file.
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

    /// Frames that the port has handed out, or counted for that, and that are in no ring.
    fn held(&self) -> Result<u64, CaptureError> {
        Ok(self.counts()?.packets.saturating_sub(self.feeds.seen()))
    }

    /// A NIC counts frames when they come in: ends the arrival, and waits until it has handed over all
    /// frames that it has counted.
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
            // A driver may sleep, up to a second, in a call that only a signal ends.
            while !poller.is_finished() {
                ffi::interrupt(&poller);
                std::thread::sleep(Duration::from_millis(1));
            }
            poller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        // Of a source that was never started.
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

/// Judges a feed.
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
            // By the name that the user gave, which is the device's.
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
        // Once: where the link did not go down, frames still come, and belong to no run.
        self.over = Some(self.counts()?);
        // No more than the NIC's descriptors hold: a larger gap is not of the stop, and shows.
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
