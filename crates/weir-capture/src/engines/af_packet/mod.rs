//! The engine `af_packet`: a TPACKET_V3 socket, which a thread of this process reads. This engine also works where BPF
//! programs cannot be loaded.
//!
//! The path of a frame: skb (kernel) → the kernel copies it into the open block of the socket → the kernel retires the
//! block when it is full or after a time-out → this thread copies the frame into the ring → this thread gives the block
//! back. Because of the second copy, a slow reader cannot delay the return of a block to the kernel.

mod blocks;
mod classic;
mod count;
pub(crate) mod declaration;
mod pattern;
mod receiver;
mod socket;
mod walk;

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_ring::{Clock, Ledger};

use crate::engines::opened::Opened;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedControl;
use crate::feed::feeds::Feeds;
use crate::feed::filters::Prefilter;
use crate::kernel::interface::{Interface, Missed, Presence, Promiscuity};
use crate::setup::{Setup, refuse_queue};
use crate::source::{Info, Pumped, Source};
use blocks::BlockBytes;
use count::Counter;
use receiver::{Origins, Receiver};
use socket::{Socket, Waited};

/// Length of the longest link-layer header, without VLAN tags: that of Ethernet.
const ETHERNET_BYTES: u32 = 14;

/// The origin of all frames: the interface to which the socket is bound.
struct OneLink {
    link_bytes: u32,
}

impl Origins for OneLink {
    #[inline]
    fn of(&mut self, _: u32) -> Option<(u32, u32)> {
        Some((0, self.link_bytes))
    }
}

/// A source that captures one interface through one packet socket.
pub struct AfPacket {
    info: Info,
    interface: Interface,
    presence: Presence,
    promiscuous: bool,
    feeds: Feeds,
    receiver: Receiver<OneLink>,
    socket: Arc<Socket>,
    counter: Counter,
    promiscuity: Option<Promiscuity>,
    missed: Missed,
    closed: bool,
}

impl AfPacket {
    /// Creates the socket for `iface`, with its blocks, and the rings of the feeds. The socket receives nothing before
    /// [`start`](Source::start).
    ///
    /// # Errors
    /// [`CaptureError`]: no such interface, no CAP_NET_RAW, no memory, or a setup that this engine does not support.
    pub fn open(iface: &str, mut setup: Setup) -> Result<AfPacket, CaptureError> {
        setup.check()?;
        setup.refuse_queues("a packet socket")?;
        let Opened { query, interface, missed } = Opened::find(iface, &mut setup)?;
        let direction = setup.direction();
        let block_bytes = BlockBytes::for_frames_of(interface.frame_bytes_max());
        let socket = Arc::new(Socket::new(iface, direction, block_bytes)?);
        let (counter, mut at_socket, note) = Counter::attach(&socket, &setup)?;
        let admit = move |feed: &mut Feed| {
            Setup::admit_direction(direction, feed)?;
            refuse_queue(feed, "a packet socket")
        };
        let (feeds, fanout) = Feeds::create_one(&setup, Clock::Realtime, Box::new(admit))?;
        let location = at_socket.choose(&setup.feeds)?;
        let notes = [note, at_socket.note(setup.may_change)].into_iter().flatten();
        feeds.set_prefilter(Box::new(at_socket), location);
        let notes = notes.chain(interface.notes(direction, setup.caplen_max()));
        let info = Info {
            source: iface.to_owned(),
            engine: "af_packet",
            hook: Some("socket"),
            why: String::new(),
            notes: notes.collect(),
            owner: setup.owner.clone(),
        };
        let header = if interface.link_type == LINKTYPE_ETHERNET { ETHERNET_BYTES } else { 0 };
        let origins = OneLink { link_bytes: interface.mtu + header };
        let receiver = Receiver::new(&socket, fanout, &setup, origins)?;
        Ok(AfPacket {
            info,
            presence: Presence::new(query, &interface),
            interface,
            promiscuous: setup.promiscuous,
            feeds,
            receiver,
            socket,
            counter,
            promiscuity: None,
            missed,
            closed: false,
        })
    }

    /// Sets the text that says why this engine was chosen.
    pub fn set_why(&mut self, why: String) {
        self.info.why = why;
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
            self.receiver.take_blocks(deadline)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || down {
                break;
            }
            // If the interface is down but still exists, the socket receives again once it is up.
            self.receiver.leave();
            down = self.socket.wait(left)? == Waited::Down;
        }
        self.receiver.leave();
        // Read the counters in each call: the kernel's counters have only 32 bits.
        self.count()?;
        match down {
            true => self.presence.check_now()?,
            false => self.presence.check()?,
        }
        Ok(Pumped::More)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        if !self.closed {
            self.closed = true;
            let drained =
                count::reject_all(&self.socket).and_then(|()| self.receiver.drain(&self.feeds));
            // Close the rings even after an error, so that readers see the end.
            self.receiver.close();
            self.promiscuity = None;
            drained?;
        }
        self.missed.ask();
        self.count()
    }
}
