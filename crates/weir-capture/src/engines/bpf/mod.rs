//! The `bpf` engine: TC or XDP programs write pcapng records straight into per-CPU rings, in the kernel.
//!
//! The life of a frame: driver buffer or skb (kernel) → copied once into the ring of the CPU that
//! handles it (BPF array, frozen: only these programs write) → readers map the same pages. This thread
//! touches no frame: it follows the clock, answers the doorbell and watches the interface.

pub(crate) mod attach;
pub mod block;
mod check;
mod clsact;
pub(crate) mod control;
pub(crate) mod cpus;
mod doorbell;
pub(crate) mod memory;
mod plan;
mod program;
mod relay;
#[cfg(test)]
mod tests;
pub(crate) mod xdp;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use weir_filter::block::Entry;
use weir_ring::geometry::WriterWord;
use weir_ring::wake::{self, Waker};
use weir_ring::{Ledger, Mapping, Ring};

pub use crate::kernel::hooks::{Attached, Hooks, Place, XdpMode, hooks};
pub(crate) use check::filter;
pub use check::{Loaded, load_all, load_tc, xdp_has_tags};

use crate::error::{CaptureError, with_causes};
use crate::feed::Feed;
use crate::feed::change::{Change, change_list};
use crate::feed::counts::count_written;
use crate::feed::direction::Direction;
use crate::feed::location::FilterLocation;
use crate::feed::wakers::Wakers;
use crate::kernel::interface::{Interface, InterfaceQuery, Missed, Promiscuity};
use crate::kernel::rcu;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
use attach::Attachment;
use block::Blocks;
use control::Control;
use doorbell::Doorbell;
use plan::Plan;
use program::{AtHook, Maps, Programs};
use relay::Relay;

/// Where in the kernel frames are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// TC ingress and egress, before all other filters: the traffic goes on as if nobody looked.
    Tc,
    /// XDP: in the driver, received frames only.
    Xdp,
}

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcAttach {
    /// tcx links where the kernel has them (6.6), which end with the process; else a clsact filter.
    #[default]
    Best,
    /// A clsact filter, as on kernels before 6.6.
    Clsact,
}

/// What only this engine asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// Where frames are taken.
    pub hook: Hook,
    /// XDP: frames end here instead of going on to the stack.
    pub consume: bool,
    /// Write the NIC queue of every frame as an option.
    pub record_queue: bool,
    /// How TC programs are attached.
    pub tc_attach: TcAttach,
}

impl Default for BpfOptions {
    fn default() -> Self {
        let (hook, tc_attach) = (Hook::Tc, TcAttach::Best);
        BpfOptions { hook, consume: false, record_queue: false, tc_attach }
    }
}

/// Stops libbpf from writing to standard error by itself: what matters comes back as an error, and the
/// verifier's log is for `weir lab load-bpf`.
pub fn quiet_libbpf() {
    libbpf_rs::set_print(None);
}

/// The least `ring_bytes` that this machine's CPUs can share.
#[must_use]
pub fn least_ring_bytes() -> u64 {
    let rings = u64::from(cpus::entries().unwrap_or(1));
    (rings * weir_ring::geometry::DATA_BLOCKS_MIN) << 20
}

/// How often the interface is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A turn of answering takes this long, if only by waiting at its end: sleepers are woken before that.
const TURN_MIN: Duration = wake::RING_GAP;

/// A ring that the programs write.
struct Written {
    ring: Ring<Mapping>,
    reader: WhoReads,
}

/// Who reads a ring, and by which number.
#[derive(Clone, Copy)]
enum WhoReads {
    /// Consumers of the source's ring of this number.
    Consumers(usize),
    /// The relay.
    Relay(usize),
}

/// The source.
pub struct Bpf {
    info: Info,
    interface: Interface,
    query: InterfaceQuery,
    options: BpfOptions,
    promiscuous: bool,
    plan: Plan,
    /// What the programs write: the feeds at the hook, and what the derived ones come from.
    at_hook: Vec<Feed>,
    blocks: Option<Blocks>,
    /// Of all feeds.
    rings: Vec<Ring<Mapping>>,
    /// Those that the programs write.
    written: Vec<Written>,
    relay: Option<Relay>,
    relay_wakers: Wakers,
    programs: Programs,
    control: Control,
    doorbell: Doorbell,
    notify_fd: OwnedFd,
    wakers: Wakers,
    attachments: Vec<Attachment>,
    has_begun: bool,
    promiscuity: Option<Promiscuity>,
    looked: Instant,
    closed: bool,
    missed: Missed,
}

impl Bpf {
    /// Loads the programs for `iface`, makes their rings, and takes places at TC hooks; frames are let
    /// in by `start`. XDP is attached only then: some drivers restart their queues for it.
    ///
    /// # Errors
    /// [`CaptureError`]: the interface, rights, contradicting options, or a kernel that refuses.
    pub fn open(iface: &str, mut setup: Setup, options: BpfOptions) -> Result<Bpf, CaptureError> {
        check_options(iface, &setup, &options)?;
        check_kernel()?;
        rcu::prepare();
        let query = InterfaceQuery::new()?;
        let interface = query.find(iface)?;
        let missed = Missed::new(interface.index);
        setup.set_link_type(interface.link_type)?;
        if options.hook == Hook::Xdp {
            setup.ignore_direction();
        }
        let prepare = |plan| Prepared::new(iface, &interface, &setup, &options, plan);
        let plan = Plan::of(options.hook, &setup, plan::FEEDS_MAX);
        let Prepared { plan, derived, at_hook, arrays, blocks, programs, mut notes } = match (
            plan.has_filters,
            prepare(plan),
        ) {
            // Filters can be too much together with the program that they are in.
            (true, Err(first @ CaptureError::Bpf { .. })) => {
                let plan = Plan::without_filters(&setup, plan::FEEDS_MAX);
                let mut prepared = prepare(plan).map_err(|_| first)?;
                let note = "the kernel does not take these filters as part of the capture program: all of them \
                                run in user space";
                prepared.notes.push(note.to_owned());
                prepared
            }
            (_, prepared) => prepared?,
        };
        if options.hook == Hook::Xdp && setup.direction() == Direction::Both {
            notes.push("XDP sees received frames only; --hook tc sees both directions".to_owned());
        }
        if options.consume && !setup.feeds.iter().any(Feed::takes_all) {
            notes.push("--consume: frames that no feed takes end here, too".to_owned());
        }
        if options.hook == Hook::Tc {
            if setup.feeds.iter().any(|feed| feed.queue.is_some()) {
                let note = "at tc only some drivers say which queue a frame came by (veth does not); at --hook xdp it is \
                            always known";
                notes.push(note.to_owned());
            }
            notes.extend(interface.twice_note(setup.direction()));
        }
        let written = memory::attach(&arrays)?;
        let cpus = written.len() / at_hook.feeds.len();
        let control = Control::map(&programs.control, cpus, at_hook.feeds.len())?;
        let relay = match plan.derived.is_empty() {
            true => None,
            false => {
                let base = &written[plan.at_hook.len() * cpus..];
                Some(Relay::new(&derived, base, &plan.derived)?)
            }
        };
        let doorbell = Doorbell::new(&programs.doorbell)?;
        let notify_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| CaptureError::os("creating an eventfd")(errno.into()))?;
        let attachments = attach::take_places(&interface, &programs, options.tc_attach)?;
        let info = Info {
            source: iface.to_owned(),
            engine: "bpf",
            hook: Some(match options.hook {
                Hook::Tc => "tc",
                Hook::Xdp => "xdp",
            }),
            why: String::new(),
            notes,
            homes: homes(&setup, &plan, relay.as_ref()),
        };
        let rings = rings(&plan, &written, relay.as_ref());
        let written = who_reads(&plan, written);
        Ok(Bpf {
            info,
            interface,
            query,
            options,
            promiscuous: setup.promiscuous,
            plan,
            at_hook: at_hook.feeds,
            blocks,
            rings,
            written,
            relay,
            relay_wakers: Wakers::default(),
            programs,
            control,
            doorbell,
            notify_fd,
            wakers: Wakers::default(),
            attachments,
            has_begun: false,
            promiscuity: None,
            looked: Instant::now(),
            closed: false,
            missed,
        })
    }

    /// Says why this engine was chosen.
    pub fn set_why(&mut self, why: String) {
        self.info.why = why;
    }

    /// Wakes whoever got what it waits for.
    fn wake(&mut self) {
        for Written { ring, reader } in &self.written {
            let ordinal = ring.frames_written();
            match *reader {
                WhoReads::Consumers(number) => self.wakers.published(number, ordinal),
                WhoReads::Relay(number) => self.relay_wakers.published(number, ordinal),
            }
        }
    }

    /// Wakes whoever got what it waits for, and arms the doorbell for the next. False if there is more
    /// to answer already.
    fn answer(&mut self) -> bool {
        let mut settled = true;
        self.wake();
        for (index, Written { ring, reader }) in self.written.iter().enumerate() {
            let ordinal = ring.frames_written();
            let threshold = match *reader {
                WhoReads::Consumers(number) => self.wakers.earliest(number, ordinal),
                WhoReads::Relay(number) => self.relay_wakers.earliest(number, ordinal),
            };
            self.control.arm(index, threshold);
            // Frames may have come before the programs saw the new threshold. No second try here: thresholds
            // that are always one frame ahead would keep it trying for as long as frames come.
            settled &= ring.frames_written() < threshold;
        }
        settled
    }

    /// Puts these programs in the place of those that run, at all sides or at none.
    fn exchange(&mut self, programs: &AtHook) -> Result<(), CaptureError> {
        let Err(error) = attach::exchange(&self.interface, programs, &mut self.attachments) else {
            return Ok(());
        };
        // One of two sides may have the new one already.
        let back = attach::exchange(&self.interface, &self.programs.at, &mut self.attachments);
        let Err(undoing) = back else { return Err(error) };
        Err(CaptureError::Options(format!(
            "{}; and so was the way back ({}): frames of one direction may be chosen by the new filter, until the \
             filter is changed again",
            with_causes(&error),
            with_causes(&undoing)
        )))
    }

    /// Changes the block list of a feed at the hook.
    fn block(&mut self, at: usize, remove: &[Entry], add: &[Entry]) -> Result<(), CaptureError> {
        let blocks = self.blocks.as_mut().expect("set up for changes");
        let mut wanted = blocks.list(at).clone();
        change_list(&mut wanted, remove, add)
            .map_err(|full| CaptureError::Options(full.to_string()))?;
        let before = blocks.list(at).clone();
        if let Err(error) = blocks.set(at, &wanted) {
            // What was taken away finds its room again.
            let error = with_causes(&error);
            return Err(CaptureError::Options(match blocks.set(at, &before) {
                Ok(()) => format!("{error}; the list is as it was"),
                Err(undoing) => format!(
                    "{error}; and so was the way back ({}): more may be blocked than the list says, until the \
                     capture is started again",
                    with_causes(&undoing)
                ),
            }));
        }
        // What looked the list up before is over when this returns.
        rcu::synchronize()?;
        Ok(())
    }

    fn look_for_interface(&mut self) -> Result<(), CaptureError> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        self.control.follow_tai();
        if self.query.exists(self.interface.index) {
            return Ok(());
        }
        Err(CaptureError::Vanished { iface: self.interface.name.clone() })
    }
}

/// What is in the kernel before the capture starts.
struct Prepared {
    plan: Plan,
    /// The feeds that are derived.
    derived: Setup,
    /// The feeds that the hook serves, and the one that those come from.
    at_hook: Setup,
    arrays: Vec<MapHandle>,
    blocks: Option<Blocks>,
    programs: Programs,
    notes: Vec<String>,
}

impl Prepared {
    fn new(
        iface: &str,
        interface: &Interface,
        setup: &Setup,
        options: &BpfOptions,
        plan: Plan,
    ) -> Result<Prepared, CaptureError> {
        let own = |feed: &usize| setup.feeds[*feed].clone();
        let derived = setup.of_feeds(plan.derived.iter().map(own).collect());
        let mut at_hook = setup.of_feeds(plan.at_hook.iter().map(own).collect());
        if !plan.derived.is_empty() {
            at_hook.feeds.push(relay::base(&derived));
        }
        let arrays = memory::create(&at_hook)?;
        if plan.derived.iter().any(|feed| setup.feeds[*feed].queue.is_some()) {
            return Err(CaptureError::Options(format!(
                "{iface}: feeds go by an RX queue at the hook only, and these are too many for it ({} at most), or a \
                 filter is too long for the kernel",
                plan::FEEDS_MAX
            )));
        }
        let blocks = setup.may_change.then(|| Blocks::new(at_hook.feeds.len())).transpose()?;
        let lists = blocks.as_ref().map(Blocks::maps);
        let maps = Maps { rings: &arrays, has_filters: plan.has_filters, blocks: lists };
        let (programs, notes) = Programs::load(interface, &at_hook, options, maps)?;
        Ok(Prepared { plan, derived, at_hook, arrays, blocks, programs, notes })
    }
}

/// Where each feed's frames are chosen.
fn homes(setup: &Setup, plan: &Plan, relay: Option<&Relay>) -> Vec<FilterLocation> {
    let one_way = setup.is_of_one_direction();
    let home = |(number, feed): (usize, &Feed)| {
        if let Ok(at) = plan.derived.binary_search(&number) {
            return relay.map_or(FilterLocation::Nowhere, |relay| relay.homes()[at]);
        }
        let chooses = setup.may_change || !feed.takes_all() || !one_way;
        if chooses { FilterLocation::Hook } else { FilterLocation::Nowhere }
    };
    setup.feeds.iter().enumerate().map(home).collect()
}

/// The rings of all feeds in their order: of those at the hook what the programs write, of the others the relay's.
fn rings(plan: &Plan, written: &[Ring<Mapping>], relay: Option<&Relay>) -> Vec<Ring<Mapping>> {
    let relayed = relay.map_or(&[][..], Relay::rings);
    let each = cpus_of(plan, written.len());
    let at_hook = plan.at_hook.iter().zip(written.chunks(each));
    let derived = plan.derived.iter().zip(relayed.chunks(each));
    let mut feeds: Vec<_> = at_hook.chain(derived).collect();
    feeds.sort_by_key(|(feed, _)| **feed);
    feeds.into_iter().flat_map(|(_, rings)| rings.iter().cloned()).collect()
}

fn who_reads(plan: &Plan, written: Vec<Ring<Mapping>>) -> Vec<Written> {
    let each = cpus_of(plan, written.len());
    let who = |(number, ring)| {
        let reader = match plan.at_hook.get(number / each) {
            Some(feed) => WhoReads::Consumers(feed * each + number % each),
            None => WhoReads::Relay(number % each),
        };
        Written { ring, reader }
    };
    written.into_iter().enumerate().map(who).collect()
}

/// Rings of one feed, if there are so many of all that are at the hook.
fn cpus_of(plan: &Plan, written: usize) -> usize {
    written / (plan.at_hook.len() + usize::from(!plan.derived.is_empty()))
}

/// On PREEMPT_RT softirqs are threads and programs of one CPU could interleave: one writer per ring
/// would no longer hold.
pub(crate) fn check_kernel() -> Result<(), CaptureError> {
    if rcu::is_real_time() { Err(CaptureError::RealTimeKernel) } else { Ok(()) }
}

fn check_options(iface: &str, setup: &Setup, options: &BpfOptions) -> Result<(), CaptureError> {
    let wrong = |text: String| Err(CaptureError::Options(text));
    setup.check()?;
    if options.consume && options.hook == Hook::Tc {
        return wrong(format!(
            "{iface}: --consume ends frames at XDP and cannot go with --hook tc, which lets the \
             traffic be; leave one of the two out"
        ));
    }
    if options.hook == Hook::Xdp && setup.feeds.iter().any(|feed| feed.direction == Direction::Out)
    {
        return wrong(format!(
            "{iface}: XDP sees received frames only; for --direction out use --hook tc"
        ));
    }
    Ok(())
}

impl Source for Bpf {
    fn info(&self) -> &Info {
        &self.info
    }

    fn rings(&self) -> &[Ring<Mapping>] {
        &self.rings
    }

    fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.notify_fd.as_fd())
    }

    fn add_waker(&mut self, waker: Waker, first: usize) -> Result<(), CaptureError> {
        if let Some(relay) = &mut self.relay {
            relay.add_waker(&waker, first)?;
        }
        self.wakers.add(waker, first);
        Ok(())
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.control.follow_tai();
        if let Some(relay) = &mut self.relay {
            let notify_fd = self.notify_fd.try_clone();
            let waker =
                relay.start(notify_fd.map_err(CaptureError::os("duplicating an eventfd"))?)?;
            self.relay_wakers.add(waker, 0);
        }
        self.missed.begin();
        if self.promiscuous {
            self.promiscuity = Some(Promiscuity::new(&self.interface)?);
        }
        attach::begin(&self.interface, &self.programs.at, &mut self.attachments)?;
        self.has_begun = true;
        if self.options.hook == Hook::Xdp && xdp::is_generic(self.interface.index) {
            self.info.hook = Some("xdp-generic");
            let note = "the driver has no native XDP; the kernel's generic hook is slower";
            self.info.notes.push(note.to_owned());
        }
        Ok(())
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let deadline = Instant::now() + limit;
        loop {
            let turn = Instant::now();
            let settled = self.answer();
            let left = deadline.saturating_duration_since(Instant::now());
            let left = if settled { left } else { Duration::ZERO };
            let timeout = left.try_into().expect("a pump's limit fits a timespec");
            let mut wait = [
                PollFd::from_borrowed_fd(self.doorbell.as_fd(), PollFlags::IN),
                PollFd::new(&self.notify_fd, PollFlags::IN),
            ];
            match rustix::event::poll(&mut wait, Some(&timeout)) {
                Ok(0) if settled => break,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => break,
                Err(errno) => {
                    return Err(CaptureError::os("waiting for the doorbell")(errno.into()));
                }
            }
            self.doorbell.drain();
            wake::drain(self.notify_fd.as_fd());
            self.wake();
            // Thresholds and notifications of a hostile consumer cost a turn each, and the programs a doorbell.
            std::thread::sleep(TURN_MIN.saturating_sub(turn.elapsed()));
            if Instant::now() >= deadline {
                break;
            }
        }
        if let Some(relay) = self.relay.as_mut().filter(|relay| relay.is_over()) {
            relay.finish()?;
        }
        self.look_for_interface()?;
        Ok(Pumped::More)
    }

    fn ledgers(&mut self) -> Result<Vec<Ledger>, CaptureError> {
        let (judged, missed_before) = (self.control.judged(), self.missed.frames());
        let cpus = cpus_of(&self.plan, self.written.len());
        let of_feed = |(number, written): (usize, &[Written])| {
            let mut ledger = Ledger { offered: self.control.offered(), ..Ledger::default() };
            if self.programs.count_chosen {
                ledger.filtered = judged.saturating_sub(self.control.chosen(number));
            }
            ledger.blocked = self.control.blocked(number);
            ledger.sampled = self.control.sampled(number);
            ledger.missed_before = missed_before;
            let rings: Vec<_> = written.iter().map(|written| written.ring.clone()).collect();
            count_written(&mut ledger, &rings);
            let unreadable = |ring: &Ring<_>| ring.writer_word(WriterWord::DropsUnreadable);
            ledger.drops.insert("reentry", self.control.reentry());
            ledger.drops.insert("unreadable", rings.iter().map(unreadable).sum());
            ledger
        };
        let mut written: Vec<Ledger> = self.written.chunks(cpus).enumerate().map(of_feed).collect();
        let derived = match &self.relay {
            Some(relay) => relay.ledgers(&written.pop().expect("the relay has a feed")),
            None => Vec::new(),
        };
        let mut feeds: Vec<_> = (self.plan.at_hook.iter().zip(written))
            .chain(self.plan.derived.iter().zip(derived))
            .collect();
        feeds.sort_by_key(|(feed, _)| **feed);
        Ok(feeds.into_iter().map(|(_, ledger)| ledger).collect())
    }

    fn change(&mut self, feed: usize, change: Change) -> Result<(), CaptureError> {
        if let (Ok(at), Some(relay)) = (self.plan.derived.binary_search(&feed), &mut self.relay) {
            return relay.change(at, change, &mut self.info.homes[feed]);
        }
        let at = self.plan.at_hook.iter().position(|own| *own == feed).expect("a feed of ours");
        let filter = match change {
            Change::Filter(filter) => filter,
            Change::Block { remove, add } => return self.block(at, &remove, &add),
        };
        let text = filter.as_ref().map_or_else(String::new, |filter| filter.text.clone());
        let mut feeds = self.at_hook.clone();
        feeds[at].filter = filter;
        let Some(programs) = self.programs.with_filters_of(&feeds) else {
            return Err(CaptureError::Options(format!(
                "the kernel does not take the filter '{text}' while the capture runs; the feed keeps the one that it \
                 has. A new capture can choose by it in user space"
            )));
        };
        if self.has_begun {
            self.exchange(&programs)?;
        }
        self.programs.at = programs;
        // What still runs by the old one is over when this returns.
        rcu::synchronize()?;
        self.at_hook = feeds;
        self.info.homes[feed] = FilterLocation::Hook;
        Ok(())
    }

    fn stop(&mut self) -> Result<Ledger, CaptureError> {
        self.attachments.clear();
        let waited = rcu::synchronize();
        if !self.closed {
            self.closed = true;
            let close = |ring| self.programs.close_ring(ring as u32).err();
            // All of them, whatever becomes of one: a reader waits for every close.
            let mut errors: Vec<CaptureError> = (0..self.written.len()).filter_map(close).collect();
            self.relay_wakers.wake_all();
            errors.extend(self.relay.as_mut().and_then(|relay| relay.finish().err()));
            self.wakers.wake_all();
            errors.extend(waited.err());
            if let Some(error) = errors.into_iter().next() {
                return Err(error);
            }
        }
        self.promiscuity = None;
        if self.control.tags_unknown() {
            self.info.notes.push(program::tags_note(&self.interface));
        }
        self.missed.ask();
        self.ledger()
    }
}
