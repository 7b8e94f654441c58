//! The `bpf` engine: TC or XDP programs write pcapng records straight into per-CPU rings, in the kernel.
//!
//! The life of a frame: driver buffer or skb (kernel) → copied once into the ring of the CPU that
//! handles it (BPF array, frozen: only these programs write) → readers map the same pages. This thread
//! touches no frame: it follows the clock, answers the doorbell and watches the interface.

mod at_hook;
pub(crate) mod attach;
pub mod block;
mod check;
mod clsact;
mod confirm;
pub(crate) mod control;
pub(crate) mod cpus;
pub(crate) mod declaration;
mod doorbell;
mod feed_control;
mod generations;
pub(crate) mod memory;
mod place_blocks;
mod plan;
mod program;
mod relay;
mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod xdp;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use weir_ring::wake;

pub use crate::kernel::hooks::{AttachPoint, Attached, Hooks, XdpMode, hooks};
pub(crate) use check::filter;
pub use check::{Loaded, load_all, load_tc, xdp_has_tags};
pub use clsact::has_clsact_filters;

use crate::engines::opened::Opened;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::{FeedControl, FeedSlot};
use crate::feed::direction::Direction;
use crate::feed::location::FilterLocation;
use crate::kernel::interface::{Interface, Missed, Presence, Promiscuity};
use crate::kernel::rcu;
use crate::limits::HOOK_FEEDS_MAX;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
use block::Blocks;
use confirm::Confirmer;
use control::Control;
use doorbell::Doorbell;
use feed_control::BpfControl;
use plan::Plan;
use program::{Maps, Programs};
use relay::Relay;
use shared::{Served, Shared, State};

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

/// A turn of answering takes this long, if only by waiting at its end: sleepers are woken before that.
const TURN_MIN: Duration = wake::RING_GAP;

/// The source.
pub struct Bpf {
    info: Info,
    presence: Presence,
    promiscuous: bool,
    shared: Arc<Shared>,
    doorbell: Doorbell,
    confirmer: Confirmer,
    promiscuity: Option<Promiscuity>,
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
        let Opened { query, interface, missed } = Opened::find(iface, &mut setup)?;
        if options.hook == Hook::Xdp {
            setup.ignore_direction();
        }
        let prepare = |plan| Prepared::new(iface, &interface, &setup, &options, plan);
        let plan = Plan::of(options.hook, &setup, HOOK_FEEDS_MAX);
        let Prepared { plan, derived, places, arrays, blocks, programs, mut notes } = match (
            plan.has_filters,
            prepare(plan),
        ) {
            // Filters can be too much together with the program that they are in.
            (true, Err(first @ CaptureError::Bpf { .. })) => {
                let plan = Plan::without_filters(&setup, HOOK_FEEDS_MAX);
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
                let note = "at tc only some drivers say which queue a frame came by (veth does not); at --hook xdp it \
                            is always known";
                notes.push(note.to_owned());
            }
            notes.extend(interface.notes(setup.direction(), setup.caplen_max()));
        }
        let promiscuous = setup.promiscuous;
        let written = memory::attach(&arrays)?;
        let cpus = cpus::entries()? as usize;
        let control = Control::map(&programs.control, cpus, places.len())?;
        let relay = match plan.derived.is_empty() {
            true => None,
            false => {
                let base = &written[plan.at_hook.len() * cpus..];
                let slot = |feed: &usize| FeedSlot::new(*feed as u32);
                let slots: Vec<FeedSlot> = plan.derived.iter().map(slot).collect();
                Some(Relay::new(&derived, base, &slots)?)
            }
        };
        let doorbell = Doorbell::new(&programs.doorbell)?;
        let notify_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| CaptureError::os("creating an eventfd")(errno.into()))?;
        let attachments = attach::take_places(&interface, &programs, options.tc_attach)?;
        let locations = locations(&setup, &plan, relay.as_ref());
        let info = Info {
            source: iface.to_owned(),
            engine: "bpf",
            hook: Some(match options.hook {
                Hook::Tc => "tc",
                Hook::Xdp => "xdp",
            }),
            why: String::new(),
            notes,
        };
        let presence = Presence::new(query, &interface);
        let shared = Shared::new(shared::Parts {
            interface,
            options,
            setup,
            plan,
            places,
            blocks,
            written,
            relay,
            programs,
            control,
            notify_fd,
            attachments,
            locations,
            cpus,
        });
        Ok(Bpf {
            info,
            presence,
            promiscuous,
            shared: Arc::new(shared),
            doorbell,
            confirmer: Confirmer::new()?,
            promiscuity: None,
            missed,
        })
    }

    /// Says why this engine was chosen.
    pub fn set_why(&mut self, why: String) {
        self.info.why = why;
    }
}

/// What is in the kernel before the capture starts.
struct Prepared {
    plan: Plan,
    /// The feeds that are derived.
    derived: Setup,
    /// The feeds that the hook serves, and the one that those come from; by place.
    places: Vec<Option<Feed>>,
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
        let mut places: Vec<Option<Feed>> = at_hook.feeds.iter().cloned().map(Some).collect();
        if setup.may_change {
            // For feeds that join later.
            places.resize(HOOK_FEEDS_MAX, None);
        }
        if !plan.derived.is_empty() {
            let base = relay::base(if setup.may_change { setup } else { &derived });
            at_hook.feeds.push(base.clone());
            places.push(Some(base));
        } else if setup.may_change {
            places.push(None);
        }
        let arrays = memory::create(&at_hook, 0..at_hook.feeds.len())?;
        if plan.derived.iter().any(|feed| setup.feeds[*feed].queue.is_some()) {
            return Err(CaptureError::Options(format!(
                "{iface}: feeds go by an RX queue at the hook only, and these are too many for it ({} at most), or a \
                 filter is too long for the kernel",
                HOOK_FEEDS_MAX
            )));
        }
        // The relay's place has no list.
        let blocks = setup.may_change.then(|| Blocks::new(places.len() - 1)).transpose()?;
        let lists = blocks.as_ref().map(Blocks::maps);
        let cpus = cpus::entries()?;
        let has_filters = plan.has_filters;
        let maps = Maps { places: &places, rings: &arrays, cpus, has_filters, blocks: lists };
        let (programs, notes) = Programs::load(interface, &at_hook, options, maps)?;
        Ok(Prepared { plan, derived, places, arrays, blocks, programs, notes })
    }
}

/// Where each feed's frames are chosen.
fn locations(setup: &Setup, plan: &Plan, relay: Option<&Relay>) -> Vec<FilterLocation> {
    let one_way = setup.is_of_one_direction();
    let location = |(number, feed): (usize, &Feed)| {
        if let Ok(at) = plan.derived.binary_search(&number) {
            return relay.map_or(FilterLocation::Nowhere, |relay| relay.locations()[at]);
        }
        let chooses = setup.may_change || !feed.takes_all() || !one_way;
        if chooses { FilterLocation::Hook } else { FilterLocation::Nowhere }
    };
    setup.feeds.iter().enumerate().map(location).collect()
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

impl Drop for Bpf {
    fn drop(&mut self) {
        // Its control may outlive it, and has all that is attached.
        let _ = self.shared.end();
    }
}

impl Source for Bpf {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        Arc::new(BpfControl(Arc::clone(&self.shared)))
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        let shared = &*self.shared;
        let mut state = shared.state();
        shared.control.follow_tai();
        {
            let Served { relay, places, .. } = &mut *shared.served();
            let base = places.last_mut().expect("a source has a feed");
            relay.as_mut().map_or(Ok(()), |relay| shared.start_relay(relay, base))?;
        }
        self.missed.begin();
        if self.promiscuous {
            self.promiscuity = Some(Promiscuity::new(&shared.interface)?);
        }
        let State { programs, attachments, has_begun, .. } = &mut *state;
        attach::begin(&shared.interface, &programs.at, attachments)?;
        *has_begun = true;
        if shared.options.hook == Hook::Xdp && xdp::is_generic(shared.interface.index) {
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
            let settled = self.shared.answer(&mut self.confirmer);
            let left = deadline.saturating_duration_since(Instant::now());
            let left = if settled { left } else { Duration::ZERO };
            let timeout = left.try_into().expect("a pump's limit fits a timespec");
            let mut wait = [
                PollFd::from_borrowed_fd(self.doorbell.as_fd(), PollFlags::IN),
                PollFd::new(&self.shared.notify_fd, PollFlags::IN),
                PollFd::from_borrowed_fd(self.confirmer.as_fd(), PollFlags::IN),
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
            wake::drain(self.shared.notify_fd.as_fd());
            self.shared.wake();
            // Thresholds and notifications of a hostile consumer cost a turn each, and the programs a doorbell.
            std::thread::sleep(TURN_MIN.saturating_sub(turn.elapsed()));
            if Instant::now() >= deadline {
                break;
            }
        }
        if let Some(relay) = self.shared.served().relay.as_mut().filter(|relay| relay.is_over()) {
            relay.finish()?;
        }
        self.shared.count(self.missed.frames());
        // Every time: until it is followed, stamps are off by what a time daemon changed it by.
        self.shared.control.follow_tai();
        self.presence.check()?;
        Ok(Pumped::More)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        let ended = self.shared.end();
        self.promiscuity = None;
        if self.shared.control.tags_unknown() {
            self.info.notes.push(program::tags_note(&self.shared.interface));
        }
        self.missed.ask();
        self.shared.count(self.missed.frames());
        ended
    }
}
