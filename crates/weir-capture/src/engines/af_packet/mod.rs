//! The `af_packet` engine: a TPACKET_V3 socket, read by a thread of ours. Anywhere, and without BPF.
//!
//! The life of a frame: skb (kernel) → copied by the kernel into the open block of the socket → block
//! handed over when it is full or its time is up → copied by this thread into the ring → block handed
//! back. The second copy is what buys readers that nobody waits for.

mod blocks;
mod classic;
mod count;
pub(crate) mod declaration;
mod socket;
mod walk;

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_frame::record::{CAPLEN_MAX, Flags, Meta};
use weir_ring::{Clock, Ledger};

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedControl;
use crate::feed::fanout::Fanout;
use crate::feed::feeds::Feeds;
use crate::feed::filters::Prefilter;
use crate::kernel::interface::{Interface, InterfaceQuery, Missed, Promiscuity};
use crate::kernel::{rcu, vlan};
use crate::setup::{Setup, refuse_queue};
use crate::source::{Info, Pumped, Source};
use blocks::Blocks;
use count::Counter;
use socket::{Socket, Waited};
use walk::Frames;

/// Frames that become visible together.
const BURST: u32 = 64;
/// How often the interface is looked for and the kernel's 32-bit counts are fetched.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a stopped socket may take to hand over its last block: a few of its time-outs.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Longest link-layer header in front of the MTU, tags not counted: Ethernet's.
const ETHERNET_BYTES: u32 = 14;

/// The source.
pub struct AfPacket {
    info: Info,
    interface: Interface,
    query: InterfaceQuery,
    promiscuous: bool,
    feeds: Feeds,
    copier: Copier,
    blocks: Blocks,
    socket: Arc<Socket>,
    counter: Counter,
    promiscuity: Option<Promiscuity>,
    missed: Missed,
    looked: Instant,
    closed: bool,
}

impl AfPacket {
    /// Makes the socket for `iface` and its ring; nothing is received yet.
    ///
    /// # Errors
    /// [`CaptureError`]: the interface, no CAP_NET_RAW, or no memory.
    pub fn open(iface: &str, mut setup: Setup) -> Result<AfPacket, CaptureError> {
        setup.check()?;
        setup.refuse_queues("a packet socket")?;
        rcu::prepare();
        let query = InterfaceQuery::new()?;
        let interface = query.find(iface)?;
        let missed = Missed::new(interface.index);
        setup.set_link_type(interface.link_type)?;
        let direction = setup.direction();
        let socket = Arc::new(Socket::new(&interface, direction)?);
        let (counter, mut at_socket, note) = Counter::attach(&socket, &setup)?;
        let blocks = Blocks::map(rustix::fd::AsFd::as_fd(&*socket))
            .map_err(CaptureError::os(format!("{iface}: mapping the packet socket's blocks")))?;
        let admit = move |feed: &mut Feed| {
            Setup::admit_direction(direction, feed)?;
            refuse_queue(feed, "a packet socket")
        };
        let (feeds, fanout) = Feeds::create_one(&setup, Clock::Realtime, Box::new(admit))?;
        let location = at_socket.choose(&setup.feeds)?;
        let notes = [note, at_socket.note(setup.may_change)].into_iter().flatten();
        feeds.set_prefilter(Box::new(at_socket), location);
        let notes = notes.chain(interface.twice_note(direction));
        let info = Info {
            source: iface.to_owned(),
            engine: "af_packet",
            hook: Some("socket"),
            why: String::new(),
            notes: notes.collect(),
            homes: feeds.locations(),
        };
        let header = if interface.link_type == LINKTYPE_ETHERNET { ETHERNET_BYTES } else { 0 };
        let copier = Copier {
            fanout,
            scratch: Vec::with_capacity(CAPLEN_MAX as usize + 4),
            bytes_needed: setup.bytes_needed() as usize,
            link_bytes: interface.mtu + header,
        };
        Ok(AfPacket {
            info,
            interface,
            query,
            promiscuous: setup.promiscuous,
            feeds,
            copier,
            blocks,
            socket,
            counter,
            promiscuity: None,
            missed,
            looked: Instant::now(),
            closed: false,
        })
    }

    /// Says why this engine was chosen.
    pub fn set_why(&mut self, why: String) {
        self.info.why = why;
    }

    /// Copies the blocks that are there into the ring, until `deadline`.
    fn take_blocks(&mut self, deadline: Instant) -> Result<(), CaptureError> {
        while let Some(block) = self.blocks.next() {
            self.copier.copy(block.bytes()).map_err(|at| {
                let text = format!("a block of the packet socket contradicts itself at byte {at}");
                let source = std::io::Error::new(std::io::ErrorKind::InvalidData, text);
                CaptureError::Os { doing: self.interface.name.clone(), source }
            })?;
            drop(block);
            if Instant::now() >= deadline {
                break;
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), CaptureError> {
        let statistics = self.socket.statistics()?;
        let mut ledger = Ledger {
            offered: self.counter.offered(statistics)?,
            filtered: self.counter.unwanted()?,
            filtered_uncounted: self.counter.has_uncounted(),
            missed_before: self.missed.frames(),
            ..Ledger::default()
        };
        ledger.drops.insert("kernel", statistics.drops);
        self.feeds.count(ledger);
        Ok(())
    }

    fn look_for_interface(&mut self, now: bool) -> Result<(), CaptureError> {
        if !now && self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        self.socket.statistics()?;
        if self.query.exists(self.interface.index) {
            return Ok(());
        }
        Err(CaptureError::Vanished { iface: self.interface.name.clone() })
    }

    /// After the last frame was placed in a block: waits for that block, which its time-out closes.
    fn drain(&mut self) -> Result<(), CaptureError> {
        let deadline = Instant::now() + DRAIN_LIMIT;
        loop {
            self.take_blocks(deadline)?;
            let statistics = self.socket.statistics()?;
            let placed = statistics.packets - statistics.drops;
            let left = deadline.saturating_duration_since(Instant::now());
            if self.feeds.seen() >= placed || left.is_zero() {
                return Ok(());
            }
            self.socket.wait(left.min(Duration::from_millis(1)))?;
        }
    }
}

impl Source for AfPacket {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.feeds.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        if self.promiscuous {
            self.promiscuity = Some(Promiscuity::new(&self.interface)?);
        }
        self.missed.begin();
        self.socket.bind(self.interface.index)
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let deadline = Instant::now() + limit;
        let mut down = false;
        loop {
            self.take_blocks(deadline)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || down {
                break;
            }
            // An interface that is only set down comes back: the socket then receives again.
            self.copier.fanout.leave();
            down = self.socket.wait(left)? == Waited::Down;
        }
        self.copier.fanout.leave();
        self.count()?;
        self.look_for_interface(down)?;
        Ok(Pumped::More)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        if !self.closed {
            self.closed = true;
            let drained = count::reject_all(&self.socket).and_then(|()| self.drain());
            // Readers see the end whatever went wrong.
            self.copier.fanout.close();
            self.promiscuity = None;
            drained?;
        }
        self.missed.ask();
        self.count()
    }
}

/// What turns kernel blocks into records.
struct Copier {
    fanout: Fanout,
    /// Frames whose tag is put back, one at a time.
    scratch: Vec<u8>,
    /// The most that any feed wants of a frame.
    bytes_needed: usize,
    /// Longest frame without tags that is one frame on the link.
    link_bytes: u32,
}

impl Copier {
    /// Copies all frames of a block. The error is the offset of the contradiction; what came before it
    /// is in the ring.
    fn copy(&mut self, block: &[u8]) -> Result<(), usize> {
        let mut unseen = 0;
        let mut result = Ok(());
        let frames = Frames::of(block).map_err(|bad| bad.0)?;
        for frame in frames {
            let frame = match frame {
                Ok(frame) => frame,
                Err(bad) => {
                    result = Err(bad.0);
                    break;
                }
            };
            let mut flags = frame.flags;
            if frame.exceeds(self.link_bytes) {
                flags = flags.with(Flags::SUPER_FRAME);
            }
            let mut meta = Meta {
                interface_id: 0,
                ts_ns: frame.ts_ns,
                wire_len: frame.wire_len,
                flags: Some(flags),
                queue: None,
            };
            match frame.tag {
                None => self.fanout.push(&meta, frame.data),
                Some(tag) => {
                    meta.wire_len = meta.wire_len.saturating_add(4);
                    let most = self.bytes_needed;
                    let whole = vlan::put_back(&mut self.scratch, frame.data, tag, most);
                    self.fanout.push(&meta, whole);
                }
            }
            unseen += 1;
            if unseen == BURST {
                unseen = 0;
                self.fanout.publish();
            }
        }
        self.fanout.publish();
        result
    }
}
