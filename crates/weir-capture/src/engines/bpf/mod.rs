//! The engine `bpf`: TC or XDP programs in the kernel write pcapng records directly into per-CPU rings.
//!
//! The path of a frame: driver buffer or skb (kernel) → a program copies it once into the ring of the CPU that handles
//! it (a frozen BPF array, which only these programs write) → readers map the same pages. The source's thread handles
//! no frame: it updates the clock's offset, answers the doorbell and checks the interface.

mod at_hook;
pub(crate) mod attach;
mod attached_program;
pub mod block;
mod check;
mod clsact;
mod confirm;
pub(crate) mod control;
pub mod cpus;
pub(crate) mod declaration;
mod doorbell;
mod feed_control;
mod generations;
mod interrupt;
mod members;
pub(crate) mod memory;
mod pattern;
mod place_blocks;
mod placeholder;
mod plan;
mod program;
mod relay;
mod serving;
mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod xdp;

use std::sync::Arc;
use std::time::Duration;

use weir_ring::wake;

pub use crate::kernel::hooks::{AttachPoint, Attached, Hooks, XdpMode, hooks};
pub use attached_program::{AttachedProgram, is_generic_xdp};
pub(crate) use check::filter;
pub use check::{Loaded, load_all, load_tc, xdp_has_tags};
pub use clsact::has_clsact_filters;
pub use pattern::has_patterns;

use crate::engines::opened::Opened;
use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::feed::direction::Direction;
use crate::in_parallel::both;
use crate::kernel::interface::{Driver, Interface, Missed, Presence, Promiscuity};
use crate::kernel::rcu;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
use clsact::Side;
use serving::Serving;
use shared::{Served, State};

/// The hook in the kernel at which frames are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// TC ingress and egress, before all other filters. The traffic is not affected.
    Tc,
    /// XDP, in the driver if it supports native XDP. Received frames only.
    Xdp,
}

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcAttach {
    /// By tcx links, which end with the process, if the kernel has them (since 6.6); otherwise by a clsact filter.
    #[default]
    Best,
    /// By a clsact filter, as on kernels before 6.6.
    Clsact,
}

/// Options of the engine `bpf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// The hook at which frames are captured.
    pub hook: Hook,
    /// XDP: drop frames after the capture instead of passing them to the stack.
    pub consume: bool,
    /// Whether to record the NIC queue of every frame as an option.
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

/// Stops libbpf from writing to standard error. Important messages are also returned as errors, and only `weir lab
/// load-bpf` needs the verifier's log.
pub fn quiet_libbpf() {
    libbpf_rs::set_print(None);
}

/// Returns the smallest possible `ring_bytes` for the number of CPUs of this machine.
#[must_use]
pub fn least_ring_bytes() -> u64 {
    let rings = u64::from(cpus::entries().unwrap_or(1));
    (rings * weir_ring::geometry::DATA_BLOCKS_MIN) << 20
}

/// Shortest duration of a turn of `answer`. A shorter turn sleeps at its end, after it has woken readers.
const TURN_MIN: Duration = wake::RING_GAP;
/// Longest duration of a `pump`, and so the longest time between two updates of the counts and of the clock's offset,
/// and between two checks of the interface.
const TURN_MAX: Duration = Duration::from_millis(200);

/// A source that captures one interface with BPF programs.
pub struct Bpf {
    info: Info,
    interface: Arc<Interface>,
    presence: Presence,
    promiscuous: bool,
    serving: Serving,
    promiscuity: Option<Promiscuity>,
    missed: Missed,
}

impl Bpf {
    /// Loads the programs for `iface`, creates their rings, and attaches placeholders at TC hooks. The capture begins
    /// at `start`. A program at XDP is attached only then, since some drivers restart their queues when that happens.
    ///
    /// # Errors
    /// [`CaptureError`]: no such interface, missing privileges, contradictory options, or the kernel refuses the
    /// programs.
    pub fn open(iface: &str, mut setup: Setup, options: BpfOptions) -> Result<Bpf, CaptureError> {
        check_options(iface, &setup, &options)?;
        check_kernel()?;
        let Opened { query, interface, missed } = Opened::find(iface, &mut setup)?;
        if options.hook == Hook::Xdp {
            setup.ignore_direction();
        }
        let direction = setup.direction();
        let caplen_max = setup.caplen_max();
        let (promiscuous, owner) = (setup.promiscuous, setup.owner.clone());
        let is_for_clients = setup.is_for_clients;
        let by_queue = setup.feeds.iter().any(|feed| feed.queue.is_some());
        let interface = Arc::new(interface);
        let (serving, mut notes) = match options.hook {
            Hook::Tc => Bpf::open_at_tc(&interface, setup, options)?,
            Hook::Xdp => {
                let opened = Serving::open(iface, Some(&interface), setup, options)?;
                attach::sweep(&opened.0.shared.state().programs);
                opened
            }
        };
        let hook = match options.hook {
            Hook::Tc => {
                notes.extend(interface.notes(direction, caplen_max));
                if by_queue {
                    notes.insert(0, queue_warning(query.driver(iface).ok(), is_for_clients));
                }
                "tc"
            }
            Hook::Xdp => "xdp",
        };
        let info = Info {
            source: iface.to_owned(),
            engine: "bpf",
            hook: Some(hook),
            why: String::new(),
            notes,
            owner,
        };
        let presence = Presence::new(query, &interface);
        Ok(Bpf { info, interface, presence, promiscuous, serving, promiscuity: None, missed })
    }

    /// Loads the programs, and attaches placeholders at the hooks. Also returns notes for the user.
    fn open_at_tc(
        interface: &Arc<Interface>,
        setup: Setup,
        options: BpfOptions,
    ) -> Result<(Serving, Vec<String>), CaptureError> {
        let sides = Side::of(setup.direction());
        // Attaching links waits for RCU, while the verifier takes CPU time. If the programs cannot be loaded, the links
        // end without a trace; clsact filters would leave their qdisc.
        let place = || attach::place_links(interface, &sides, options.tc_attach);
        let load = || Serving::open(&interface.name, Some(interface), setup, options);
        let (links, opened) = both(place, load);
        let (serving, notes) = opened?;
        attach::sweep(&serving.shared.state().programs);
        let attachments = match links? {
            Some(links) => links,
            None => attach::place_filters(interface, &sides)?,
        };
        serving.shared.state().attachments = attachments;
        Ok((serving, notes))
    }

    /// Sets the text that explains why this engine was chosen.
    pub fn set_why(&mut self, why: String) {
        self.info.why = why;
    }
}

/// Refuses PREEMPT_RT kernels. There, softirqs run in threads, and programs on one CPU may preempt each other, so that
/// a ring would have more than one writer at a time.
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

/// Returns a warning for feeds of an RX queue at TC. Clients of a daemon cannot choose the hook.
fn queue_warning(driver: Option<Driver>, is_for_clients: bool) -> String {
    let what = match driver {
        Some(driver) if driver.name == "veth" => {
            "@q captures nothing here: a veth does not say at tc which queue a frame came by"
        }
        _ => "@q may capture nothing here: only some drivers say at tc which queue a frame came by",
    };
    match is_for_clients {
        true => format!("warning: {what}"),
        false => format!("warning: {what}; capture with --hook xdp, where it is always known"),
    }
}

impl Source for Bpf {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.serving.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        let shared = &*self.serving.shared;
        let mut state = shared.state();
        shared.control.follow_tai();
        {
            let Served { relay, places, .. } = &mut *shared.served();
            let base = places.last_mut().expect("a source has a feed");
            relay.as_mut().map_or(Ok(()), |relay| shared.start_relay(relay, base))?;
        }
        self.missed.begin();
        if self.promiscuous {
            self.promiscuity = Some(Promiscuity::new(&self.interface)?);
        }
        let State { programs, attachments, has_begun, .. } = &mut *state;
        attach::begin(&self.interface, &programs.at, attachments)?;
        *has_begun = true;
        if shared.options.hook == Hook::Xdp && xdp::is_generic(self.interface.index) {
            self.info.hook = Some("xdp-generic");
            let note = "the driver has no native XDP; the kernel's generic hook is slower";
            self.info.notes.push(note.to_owned());
        }
        Ok(())
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        self.serving.answer(limit.min(TURN_MAX), None)?;
        if let Some(relay) =
            self.serving.shared.served().relay.as_mut().filter(|relay| relay.is_over())
        {
            relay.finish()?;
        }
        self.serving.shared.count(self.missed.frames());
        // Read the offset in each turn: after a time daemon changes it, time stamps are wrong by the change until then.
        self.serving.shared.control.follow_tai();
        self.presence.check()?;
        Ok(Pumped::More)
    }

    fn can_be_woken(&self) -> bool {
        true
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        let ended = self.serving.shared.end();
        self.promiscuity = None;
        if self.serving.shared.control.tags_unknown() {
            self.info.notes.push(xdp::tags_note(&self.interface, "--hook tc"));
        }
        self.missed.ask();
        self.serving.shared.count(self.missed.frames());
        ended
    }
}
