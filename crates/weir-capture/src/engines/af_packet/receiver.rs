//! Copies frames from the kernel's blocks into the rings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use weir_frame::record::{CAPLEN_MAX, Flags, Meta};

use super::blocks::Blocks;
use super::socket::Socket;
use super::walk::Frames;
use crate::error::CaptureError;
use crate::feed::fanout::Fanout;
use crate::feed::feeds::Feeds;
use crate::kernel::vlan;
use crate::limits::DRAIN_TIME_MAX;
use crate::setup::Setup;

/// Frames after which the receiver publishes, so that readers see them.
const BURST: u32 = 64;

/// Maps the interface of a frame to its interface in the rings.
pub(super) trait Origins {
    /// Returns for the kernel's interface index: the interface's number in the rings, and the length of the longest
    /// frame, without VLAN tags, that its link carries. `None`: the interface does not belong to the source.
    fn of(&mut self, ifindex: u32) -> Option<(u32, u32)>;
}

/// Reads a socket's blocks, and copies their frames into rings.
pub(super) struct Receiver<O> {
    blocks: Blocks,
    socket: Arc<Socket>,
    copier: Copier<O>,
}

impl<O: Origins> Receiver<O> {
    /// Maps the socket's blocks.
    pub(super) fn new(
        socket: &Arc<Socket>,
        fanout: Fanout,
        setup: &Setup,
        origins: O,
    ) -> Result<Receiver<O>, CaptureError> {
        let doing = || format!("{}: mapping the packet socket's blocks", socket.name());
        let blocks = Blocks::map(socket.as_fd(), socket.block_bytes())
            .map_err(|source| CaptureError::Os { doing: doing(), source })?;
        let copier = Copier {
            fanout,
            origins,
            scratch: Vec::with_capacity(CAPLEN_MAX as usize + 4),
            bytes_needed: setup.bytes_needed() as usize,
        };
        Ok(Receiver { blocks, socket: Arc::clone(socket), copier })
    }

    /// Copies the frames of all retired blocks into the rings, until `deadline`.
    pub(super) fn take_blocks(&mut self, deadline: Instant) -> Result<(), CaptureError> {
        while let Some(block) = self.blocks.next() {
            self.copier.copy(block.bytes()).map_err(|at| {
                let text = format!("a block of the packet socket contradicts itself at byte {at}");
                let source = std::io::Error::new(std::io::ErrorKind::InvalidData, text);
                CaptureError::Os { doing: self.socket.name().to_owned(), source }
            })?;
            drop(block);
            if Instant::now() >= deadline {
                break;
            }
        }
        Ok(())
    }

    /// Copies all frames that the socket has placed in blocks by now. The kernel retires the last block after a
    /// time-out. Returns false if not all were copied within `DRAIN_TIME_MAX`.
    pub(super) fn drain(&mut self, feeds: &Feeds) -> Result<bool, CaptureError> {
        let deadline = Instant::now() + DRAIN_TIME_MAX;
        let statistics = self.socket.statistics()?;
        let placed = statistics.packets - statistics.drops;
        loop {
            self.take_blocks(deadline)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let is_done = feeds.seen() >= placed;
            if is_done || left.is_zero() {
                return Ok(is_done);
            }
            self.socket.wait(left.min(Duration::from_millis(1)))?;
        }
    }

    /// Returns the mapping of the frames' interfaces.
    pub(super) fn origins(&mut self) -> &mut O {
        &mut self.copier.origins
    }

    /// Calls [`Fanout::leave`]; must be called before this thread waits, returns from `pump` or ends.
    pub(super) fn leave(&mut self) {
        self.copier.fanout.leave();
    }

    /// Closes the rings: no more frames will come.
    pub(super) fn close(&mut self) {
        self.copier.fanout.close();
    }
}

/// Copies the frames of blocks into the rings.
struct Copier<O> {
    fanout: Fanout,
    origins: O,
    /// The buffer in which a VLAN tag is inserted into its frame again.
    scratch: Vec<u8>,
    /// The most bytes of a frame that any feed needs.
    bytes_needed: usize,
}

impl<O: Origins> Copier<O> {
    /// Copies all frames of a block. The error is the offset of an inconsistency; the frames before it were copied.
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
            let Some((interface_id, link_bytes)) = self.origins.of(frame.ifindex) else { continue };
            let mut flags = frame.flags;
            if frame.exceeds(link_bytes) {
                flags = flags.with(Flags::SUPER_FRAME);
            }
            let mut meta = Meta {
                interface_id,
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
