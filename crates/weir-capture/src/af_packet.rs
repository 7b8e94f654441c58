//! The `af_packet` engine: a TPACKET_V3 socket, read by a thread of ours. Anywhere, and without BPF.
//!
//! The life of a frame: skb (kernel) → copied by the kernel into the open block of the socket → block
//! handed over when it is full or its time is up → copied by this thread into the ring → block handed
//! back. The second copy is what buys readers that nobody waits for.

mod blocks;
mod count;
mod socket;
mod walk;

use std::time::{Duration, Instant};

use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_frame::record::{CAPLEN_MAX, Flags, Meta};
use weir_ring::wake::Bell;
use weir_ring::{Clock, Ledger, Mapping, Ring, Writer, WriterKind, memory};

use crate::error::CaptureError;
use crate::iface::{Asker, Interface, Missed, Promiscuity};
use crate::source::{Bells, Info, Pumped, Setup, Source, written};
use crate::vlan;
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
    asker: Asker,
    setup: Setup,
    rings: [Ring<Mapping>; 1],
    copier: Copier,
    blocks: Blocks,
    socket: Socket,
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
        let asker = Asker::new()?;
        let interface = asker.find(iface)?;
        let missed = Missed::new(interface.index);
        setup.set_link_type(interface.link_type);
        let socket = Socket::new(&interface, setup.direction)?;
        let caplen_max = setup.snaplen.min(CAPLEN_MAX);
        let (counter, note) = Counter::attach(&socket, setup.direction, caplen_max)?;
        let blocks = Blocks::map(rustix::fd::AsFd::as_fd(&socket))
            .map_err(CaptureError::os(format!("{iface}: mapping the packet socket's blocks")))?;
        let spec = setup.ring_spec(1, None, Clock::Realtime, WriterKind::User)?;
        let ring = memory::create_memfd("weir-ring", &spec)?;
        let info = Info {
            source: iface.to_owned(),
            engine: "af_packet",
            hook: Some("socket"),
            why: String::new(),
            notes: note.into_iter().chain(interface.twice_note(setup.direction)).collect(),
        };
        let header = if interface.link_type == LINKTYPE_ETHERNET { ETHERNET_BYTES } else { 0 };
        let copier = Copier {
            writer: Writer::new(ring.clone()),
            bells: Bells::default(),
            scratch: Vec::with_capacity(CAPLEN_MAX as usize + 4),
            interface_id: setup.interface_id(),
            caplen_max: caplen_max as usize,
            link_bytes: interface.mtu + header,
        };
        Ok(AfPacket {
            info,
            interface,
            asker,
            setup,
            rings: [ring],
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

    fn look_for_interface(&mut self, now: bool) -> Result<(), CaptureError> {
        if !now && self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        self.socket.statistics()?;
        if self.asker.exists(self.interface.index) {
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
            if self.copier.writer.frames() >= placed || left.is_zero() {
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

    fn rings(&self) -> &[Ring<Mapping>] {
        &self.rings
    }

    fn add_bell(&mut self, bell: Bell, first: usize) {
        self.copier.bells.add(bell, first);
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        if self.setup.promiscuous {
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
            down = self.socket.wait(left)? == Waited::Down;
        }
        self.look_for_interface(down)?;
        Ok(Pumped::More)
    }

    fn ledger(&mut self) -> Result<Ledger, CaptureError> {
        let statistics = self.socket.statistics()?;
        let mut ledger = Ledger {
            offered: self.counter.offered(statistics)?,
            missed_before: self.missed.frames(),
            ..written(&self.rings)
        };
        ledger.drops.insert("kernel", statistics.drops);
        Ok(ledger)
    }

    fn stop(&mut self) -> Result<Ledger, CaptureError> {
        if !self.closed {
            self.closed = true;
            let drained = count::reject_all(&self.socket)
                .map_err(CaptureError::os("ending the offering"))
                .and_then(|()| self.drain());
            // Readers see the end whatever went wrong.
            self.copier.writer.close();
            self.copier.bells.ring_all();
            self.promiscuity = None;
            drained?;
        }
        self.missed.ask();
        self.ledger()
    }
}

/// What turns kernel blocks into records.
struct Copier {
    writer: Writer<Mapping>,
    bells: Bells,
    /// Frames whose tag is put back, one at a time.
    scratch: Vec<u8>,
    interface_id: u32,
    caplen_max: usize,
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
                interface_id: self.interface_id,
                ts_ns: frame.ts_ns,
                wire_len: frame.wire_len,
                flags: Some(flags),
                queue: None,
            };
            match frame.tag {
                None => {
                    let caplen = frame.data.len().min(self.caplen_max);
                    self.writer.push(&meta, &frame.data[..caplen]);
                }
                Some(tag) => {
                    meta.wire_len = meta.wire_len.saturating_add(4);
                    let kept = vlan::put_back(&mut self.scratch, frame.data, tag, self.caplen_max);
                    self.writer.push(&meta, kept);
                }
            }
            unseen += 1;
            if unseen == BURST {
                unseen = 0;
                self.publish();
            }
        }
        self.publish();
        result
    }

    fn publish(&mut self) {
        self.writer.publish();
        self.bells.published(0, self.writer.frames());
    }
}
