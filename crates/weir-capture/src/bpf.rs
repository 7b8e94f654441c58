//! The `bpf` engine: TC or XDP programs write pcapng records straight into per-CPU rings, in the kernel.
//!
//! The life of a frame: driver buffer or skb (kernel) → copied once into the ring of the CPU that
//! handles it (BPF array, frozen: only these programs write) → readers map the same pages. This thread
//! touches no frame: it follows the clock, answers the doorbell and watches the interface.

pub(crate) mod attach;
mod check;
mod clsact;
pub(crate) mod control;
pub(crate) mod cpus;
mod doorbell;
mod look;
pub(crate) mod memory;
mod program;
#[cfg(test)]
mod tests;
pub(crate) mod xdp;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use weir_ring::geometry::WriterWord;
use weir_ring::wake::{self, Bell};
use weir_ring::{Ledger, Mapping, Ring};

pub use check::{Loaded, load_all, load_tc, xdp_has_tags};
pub use look::{Attached, Hooks, Place, hooks};

use crate::error::CaptureError;
use crate::grace;
use crate::iface::{Asker, Interface, Missed, Promiscuity};
use crate::source::{Bells, Direction, Info, Pumped, Setup, Source, written};
use attach::Attachment;
use control::Control;
use doorbell::Doorbell;
use program::Programs;

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

/// The source.
pub struct Bpf {
    info: Info,
    interface: Interface,
    asker: Asker,
    options: BpfOptions,
    setup: Setup,
    rings: Vec<Ring<Mapping>>,
    programs: Programs,
    control: Control,
    doorbell: Doorbell,
    nudge: OwnedFd,
    bells: Bells,
    attachments: Vec<Attachment>,
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
        let asker = Asker::new()?;
        let interface = asker.find(iface)?;
        let missed = Missed::new(interface.index);
        setup.set_link_type(interface.link_type);
        let arrays = memory::create(&setup)?;
        let (programs, mut notes) = Programs::load(&interface, &setup, &options, &arrays)?;
        if options.hook == Hook::Xdp && setup.direction == Direction::Both {
            notes.push("XDP sees received frames only; --hook tc sees both directions".to_owned());
        }
        if options.hook == Hook::Tc {
            notes.extend(interface.twice_note(setup.direction));
        }
        let rings = memory::attach(&arrays)?;
        let control = Control::map(&programs.control, rings.len())?;
        let doorbell = Doorbell::new(&programs.doorbell)?;
        let nudge = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| CaptureError::os("creating an eventfd")(errno.into()))?;
        let attachments =
            attach::take_places(&interface, &programs.at, options.tc_attach, setup.direction)?;
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
        Ok(Bpf {
            info,
            interface,
            asker,
            options,
            setup,
            rings,
            programs,
            control,
            doorbell,
            nudge,
            bells: Bells::default(),
            attachments,
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
        for (index, ring) in self.rings.iter().enumerate() {
            self.bells.published(index, ring.frames_written());
        }
    }

    /// Wakes whoever got what it waits for, and arms the doorbell for the next. False if there is more
    /// to answer already.
    fn answer(&mut self) -> bool {
        let mut settled = true;
        for (index, ring) in self.rings.iter().enumerate() {
            let ordinal = ring.frames_written();
            self.bells.published(index, ordinal);
            let wish = self.bells.earliest(index, ordinal);
            self.control.arm(index, wish);
            // Frames may have come before the programs saw the new wish. No second try here: wishes
            // that are always one frame ahead would keep it trying for as long as frames come.
            settled &= ring.frames_written() < wish;
        }
        settled
    }

    fn look_for_interface(&mut self) -> Result<(), CaptureError> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        self.control.follow_tai();
        if self.asker.exists(self.interface.index) {
            return Ok(());
        }
        Err(CaptureError::Vanished { iface: self.interface.name.clone() })
    }
}

/// On PREEMPT_RT softirqs are threads and programs of one CPU could interleave: one writer per ring
/// would no longer hold.
pub(crate) fn check_kernel() -> Result<(), CaptureError> {
    if is_real_time() { Err(CaptureError::RealTimeKernel) } else { Ok(()) }
}

/// Whether tasks can preempt softirqs: PREEMPT_RT, which a kernel's version text names.
pub(crate) fn is_real_time() -> bool {
    rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT")
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
    if options.hook == Hook::Xdp && setup.direction == Direction::Out {
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

    fn nudge(&self) -> Option<BorrowedFd<'_>> {
        Some(self.nudge.as_fd())
    }

    fn add_bell(&mut self, bell: Bell, first: usize) {
        self.bells.add(bell, first);
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.control.follow_tai();
        self.missed.begin();
        if self.setup.promiscuous {
            self.promiscuity = Some(Promiscuity::new(&self.interface)?);
        }
        attach::begin(&self.interface, &self.programs.at, &mut self.attachments)?;
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
                PollFd::new(&self.nudge, PollFlags::IN),
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
            wake::drain(self.nudge.as_fd());
            self.wake();
            // Wishes and nudges of a hostile consumer cost a turn each, and the programs a doorbell.
            std::thread::sleep(TURN_MIN.saturating_sub(turn.elapsed()));
            if Instant::now() >= deadline {
                break;
            }
        }
        self.look_for_interface()?;
        Ok(Pumped::More)
    }

    fn ledger(&mut self) -> Result<Ledger, CaptureError> {
        let mut ledger = Ledger { offered: self.control.offered(), ..written(&self.rings) };
        let (mut reentry, mut unreadable) = (0, 0);
        for ring in &self.rings {
            reentry += ring.writer_word(WriterWord::DropsReentry);
            unreadable += ring.writer_word(WriterWord::DropsUnreadable);
        }
        ledger.drops.insert("reentry", reentry);
        ledger.drops.insert("unreadable", unreadable);
        ledger.missed_before = self.missed.frames();
        Ok(ledger)
    }

    fn stop(&mut self) -> Result<Ledger, CaptureError> {
        self.attachments.clear();
        grace::wait();
        if !self.closed {
            self.closed = true;
            let close = |cpu| self.programs.close_ring(cpu as u32).err();
            // All of them, whatever becomes of one: a reader waits for every close.
            let errors: Vec<CaptureError> = (0..self.rings.len()).filter_map(close).collect();
            self.bells.ring_all();
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
