//! The engine `af_xdp`: an AF_XDP socket for each queue. Threads of this process copy the frames from the sockets into
//! rings. It is for monitoring ports, because frames that a socket takes do not reach the stack.
//!
//! The path of a frame: driver buffer → the kernel copies it into a chunk of the socket's memory (with zero-copy, the
//! NIC writes it there) → a copier copies it into its ring → the copier gives the chunk back. A program at the XDP hook
//! counts the frame, sets its time stamp, and redirects it to the socket of its queue.
//!
//! With more than one copier for a queue, the queue's RX ring is divided into segments (`segments.rs`). So several CPUs
//! can copy the frames of one queue, without RSS.

mod area;
mod copier;
pub(crate) mod declaration;
mod options;
mod program;
mod rings;
mod segments;
mod socket;
pub mod synthetic;
mod words;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_ring::{Clock, Ledger};

pub use options::{AfXdpOptions, Queues, Stamps};
pub use socket::Mode;

use self::segments::Segments;
use crate::engines::bpf::control::Control;
use crate::engines::bpf::{cpus, xdp};
use crate::engines::opened::Opened;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedControl;
use crate::feed::feeds::Feeds;
use crate::feed::filters::Prefilter;
use crate::kernel::interface::{Interface, Missed, Presence, Promiscuity};
use crate::kernel::rcu;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
use copier::{Copier, Partial, Queue};
use options::{admit, check, refuse_masters, shape_of, wanted_queues};
use program::{AtHook, Needs, OnInterface, Program};
use socket::Socket;

/// Flags of a capture that records the VLAN tags that the program at XDP does not see.
const INSTEAD_OF_XDP: &str = "--engine bpf --hook tc";

/// A source that captures one interface through AF_XDP sockets.
pub struct AfXdp {
    info: Info,
    interface: Interface,
    presence: Presence,
    promiscuous: bool,
    queues: Vec<Arc<Queue>>,
    feeds: Feeds,
    copiers: Vec<Copier>,
    threads: Vec<JoinHandle<Result<(), CaptureError>>>,
    _program: Program,
    at_hook: Arc<Mutex<OnInterface>>,
    control: Control,
    promiscuity: Option<Promiscuity>,
    missed: Missed,
}

impl AfXdp {
    /// Creates the sockets for `iface`, their rings and the program. The program is not attached yet.
    ///
    /// # Errors
    /// [`CaptureError`]: no such interface, missing privileges, contradictory options, or queues that are
    /// in use.
    pub fn open(
        iface: &str,
        mut setup: Setup,
        options: AfXdpOptions,
    ) -> Result<AfXdp, CaptureError> {
        check(iface, &setup, &options)?;
        crate::engines::bpf::check_kernel()?;
        let Opened { query, interface, missed } = Opened::find(iface, &mut setup)?;
        setup.ignore_direction();
        refuse_masters(&query, &interface)?;
        let have = query.rx_queues(iface);
        let wanted = wanted_queues(iface, have, options.queues)?;
        let shape = shape_of(&interface, wanted.len() as u32, options.copiers)?;
        let cpus = cpus::entries()?;
        let with_words = options.stamps == Stamps::Hook;
        let has_filters = setup.may_have_filters();
        let needs = Needs { queues: wanted.end, cpus, with_words, has_filters };
        let (program, mut on_interface) = Program::load(&interface, needs)?;
        let control = Control::map(&program.control, cpus as usize, 1)?;
        let total = options.copiers as usize * wanted.len();
        let name = iface.to_owned();
        let admit = move |feed: &mut Feed| admit(&name, feed);
        let (feeds, fanouts) = Feeds::create(&setup, total, Clock::Realtime, Box::new(admit))?;
        let location = on_interface.choose(&setup.feeds)?;
        let at_hook = Arc::new(Mutex::new(on_interface));
        feeds.set_prefilter(Box::new(AtHook(Arc::clone(&at_hook))), location);
        let mut fanouts = fanouts.into_iter();
        let (mut queues, mut copiers) = (Vec::new(), Vec::new());
        for number in wanted {
            let (socket, shared, umem) =
                Socket::bind(&interface, number, shape, options.mode, setup.placement())?;
            program.steer(number, socket.as_fd())?;
            let queue = Arc::new(Queue {
                rings: shared,
                umem,
                chunk_bytes: shape.chunk_bytes,
                has_words: with_words,
                segments: Segments::new(options.copiers as usize, shape.chunks),
                socket: Some(socket),
                ending: AtomicBool::new(false),
                unreadable: AtomicU64::new(0),
            });
            for copier in 0..options.copiers as usize {
                copiers.push(Copier {
                    queue: Arc::clone(&queue),
                    segment: queue.segments.first_of(copier),
                    fanout: fanouts.next().expect("one for each copier"),
                    bytes_needed: setup.bytes_needed() as usize,
                    queue_option: options.record_queue.then_some(number),
                    partial: Partial::default(),
                    filled: 0,
                });
            }
            queues.push(queue);
        }
        let info = Info {
            source: iface.to_owned(),
            engine: "af_xdp",
            hook: Some("xdp"),
            why: String::new(),
            notes: notes(&interface, &queues, &program, &options, have),
            owner: setup.owner.clone(),
        };
        Ok(AfXdp {
            info,
            presence: Presence::new(query, &interface),
            interface,
            promiscuous: setup.promiscuous,
            queues,
            feeds,
            copiers,
            threads: Vec::new(),
            _program: program,
            at_hook,
            control,
            promiscuity: None,
            missed,
        })
    }

    /// Sets the text that explains why this engine was chosen.
    pub fn set_why(&mut self, why: String) {
        self.info.why = why;
    }

    fn count(&mut self) -> Result<(), CaptureError> {
        let mut ledger = Ledger {
            offered: self.control.offered(),
            filtered: self.control.unwanted(),
            ..Ledger::default()
        };
        let (mut kernel, mut unreadable) = (0, 0);
        for queue in &self.queues {
            unreadable += queue.unreadable.load(Ordering::Relaxed);
            if let Some(socket) = &queue.socket {
                let statistics = socket.statistics();
                let statistics =
                    statistics.map_err(CaptureError::os("reading the sockets' counts"))?;
                kernel += statistics.rx_dropped + statistics.rx_ring_full;
            }
        }
        ledger.drops.insert("kernel", kernel);
        ledger.drops.insert("unreadable", unreadable);
        ledger.drops.insert("in_parts", self.control.in_parts());
        ledger.missed_before = self.missed.frames();
        self.feeds.count(ledger);
        Ok(())
    }

    fn end_copiers(&mut self) -> Result<(), CaptureError> {
        for queue in &self.queues {
            queue.ending.store(true, Ordering::Release);
        }
        // If the source was never started, dropping the copiers closes the rings.
        self.copiers.clear();
        let join = |thread: JoinHandle<_>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let results: Vec<_> = self.threads.drain(..).map(join).collect();
        results.into_iter().collect()
    }
}

/// Loads the program to test it with this kernel's verifier. Does not attach it.
///
/// # Errors
/// The kernel's refusal.
pub fn load_check() -> Result<(), CaptureError> {
    let interface = Interface { name: "lo".into(), index: 1, link_type: 1, mtu: 1500 };
    let needs = Needs { queues: 1, cpus: 1, with_words: true, has_filters: true };
    let (_program, mut on_interface) = Program::load(&interface, needs)?;
    let filtered =
        Feed { filter: Some(Arc::new(crate::engines::bpf::filter())), ..Feed::default() };
    match on_interface.choose(&[filtered]) {
        Ok(Some(_)) => Ok(()),
        _ => Err(CaptureError::Options("the kernel does not take a filter in it".to_owned())),
    }
}

impl Drop for AfXdp {
    fn drop(&mut self) {
        program::lock(&self.at_hook).detach();
        let _ = self.end_copiers();
    }
}

fn notes(
    interface: &Interface,
    queues: &[Arc<Queue>],
    program: &Program,
    options: &AfXdpOptions,
    have: Option<u32>,
) -> Vec<String> {
    let iface = &interface.name;
    let mut notes = Vec::new();
    let zero_copy =
        queues.iter().all(|queue| queue.socket.as_ref().is_some_and(Socket::is_zero_copy));
    if !zero_copy && options.mode == Mode::Best {
        notes.push(format!("the driver of {iface} has no zero-copy AF_XDP: the kernel copies"));
    }
    if have.is_none() {
        notes.push(format!(
            "the driver of {iface} does not say how many queues it has; taking queue 0"
        ));
    }
    if options.stamps == Stamps::Copier {
        notes.push(
            "--timestamp copy leaves out what the hook would say: VLAN tags that the driver takes off, and \
             the order of frames that different copiers take"
                .to_owned(),
        );
    } else if !program.sees_tags {
        notes.push(xdp::unbound_note(interface, INSTEAD_OF_XDP));
    }
    notes
}

impl Source for AfXdp {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.feeds.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.control.follow_tai();
        self.missed.begin();
        if self.promiscuous {
            self.promiscuity = Some(Promiscuity::new(&self.interface)?);
        }
        for copier in std::mem::take(&mut self.copiers) {
            let thread = std::thread::Builder::new()
                .name("weir-copier".into())
                .spawn(move || copier.run())
                .map_err(CaptureError::os("starting a copier"))?;
            self.threads.push(thread);
        }
        program::lock(&self.at_hook).attach()?;
        if xdp::is_generic(self.interface.index) {
            self.info.hook = Some("xdp-generic");
            let note = "the driver has no native XDP; the kernel's generic hook is slower";
            self.info.notes.push(note.to_owned());
        }
        Ok(())
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        std::thread::sleep(limit);
        if let Some(at) = self.threads.iter().position(JoinHandle::is_finished) {
            let ended = self.threads.swap_remove(at).join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        // Read the offset in each turn: after a time daemon changes it, time stamps are wrong by the change until then.
        self.control.follow_tai();
        self.presence.check()?;
        self.count()?;
        Ok(Pumped::More)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        // Frames on their way to a socket must have arrived when the driver releases the program.
        self.control.close();
        let waited = rcu::synchronize();
        program::lock(&self.at_hook).detach();
        let ended = self.end_copiers();
        self.promiscuity = None;
        if self.control.tags_unknown() {
            self.info.notes.push(xdp::tags_note(&self.interface, INSTEAD_OF_XDP));
        }
        waited.and(ended)?;
        self.missed.ask();
        self.count()
    }
}
