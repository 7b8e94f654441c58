//! The poller: a thread that polls one queue and copies the queue's frames into its ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_frame::record::Meta;

use super::ffi::{BURST, Entered, Frame, Rx};
use crate::feed::fanout::Fanout;
use crate::kernel::vlan::{self, TAG_BYTES, TPID_QINQ, TPID_VLAN, Tag};

/// Polls without a frame before the first pause. They take some microseconds in total; within a burst, the next frame
/// comes sooner.
const LOOKS: u32 = 64;
/// Pauses double from the first to the longest. During the longest pause, frames of 64 bytes at 10 Gbit/s fill 1,500
/// descriptors; if a NIC has up to four queues, each usually has 2,048 or more. Waking up every 100 us takes a few per
/// cent of a CPU.
const PAUSE_FIRST: Duration = Duration::from_micros(5);
const PAUSE_LONGEST: Duration = Duration::from_micros(100);

/// The poller of one queue.
pub(super) struct Poller {
    pub(super) rx: Rx,
    pub(super) fanout: Fanout,
    /// The most bytes of a frame that any feed needs.
    pub(super) bytes_needed: usize,
    /// The queue number, if it is to be recorded as an option of each frame.
    pub(super) queue_option: Option<u32>,
    /// Nanoseconds of one tick, if the driver's time stamps are used. They are ticks since the Unix epoch.
    pub(super) stamp_ns: Option<u64>,
    /// Most frames that the poller still takes from the queue after the request to end.
    pub(super) left_max: usize,
    pub(super) ending: Arc<AtomicBool>,
}

impl Poller {
    /// Receives frames until `ending` is set, takes the frames that had come by then, and closes the ring.
    pub(super) fn run(mut self) {
        let entered = Entered::new();
        self.receive();
        self.fanout.close();
        drop(entered);
    }

    fn receive(&mut self) {
        let (mut scratch, mut gathered) = (Vec::new(), Vec::new());
        let (mut looks, mut pause, mut left) = (0, PAUSE_FIRST, self.left_max);
        loop {
            // Checked before the queue is polled, so frames that came before the request are taken.
            let ending = self.ending.load(Ordering::Acquire);
            let taken = self.turn(&mut scratch, &mut gathered);
            if taken > 0 {
                (looks, pause) = (0, PAUSE_FIRST);
                // This is limited, because frames may come without a pause.
                left = if ending { left.saturating_sub(taken) } else { left };
                if left == 0 {
                    return;
                }
            } else if ending {
                return;
            } else if looks < LOOKS {
                self.fanout.leave();
                looks += 1;
                std::hint::spin_loop();
            } else {
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_LONGEST);
            }
        }
    }

    /// Copies one burst, and returns its number of frames.
    #[inline]
    fn turn(&mut self, scratch: &mut Vec<u8>, gathered: &mut Vec<u8>) -> usize {
        let burst = self.rx.burst();
        let count = burst.len();
        debug_assert!(count <= BURST, "no more than was asked for");
        if count == 0 {
            return 0;
        }
        for frame in burst.frames() {
            let ts_ns = match (self.stamp_ns, frame.stamp) {
                (Some(tick_ns), Some(ticks)) => ticks.wrapping_mul(tick_ns),
                _ => now_ns(),
            };
            let tags = u32::from(frame.tci.is_some()) + u32::from(frame.outer_tci.is_some());
            let meta = Meta {
                interface_id: 0,
                ts_ns,
                wire_len: frame.wire_len.saturating_add(tags * TAG_BYTES as u32),
                flags: None,
                queue: self.queue_option,
            };
            let whole =
                if frame.gather(gathered, self.bytes_needed) { &*gathered } else { frame.bytes };
            let kept = &whole[..whole.len().min(self.bytes_needed)];
            if tags == 0 {
                self.fanout.push(&meta, kept);
            } else {
                let kept = with_tags(scratch, kept, &frame, self.bytes_needed);
                self.fanout.push(&meta, kept);
            }
        }
        drop(burst);
        self.fanout.publish();
        count
    }
}

/// Inserts the removed tags into the frame again: first the inner tag, then the outer one in front of it. DPDK does not
/// report the EtherTypes of the tags, so the usual ones are used.
#[cold]
fn with_tags<'a>(
    scratch: &'a mut Vec<u8>,
    kept: &[u8],
    frame: &Frame<'_>,
    caplen_max: usize,
) -> &'a [u8] {
    let inner = frame.tci.map(|tci| Tag { tpid: TPID_VLAN, tci });
    let outer = frame.outer_tci.map(|tci| Tag { tpid: TPID_QINQ, tci });
    let mut bytes = kept.to_vec();
    for tag in [inner, outer].into_iter().flatten() {
        bytes = vlan::put_back(scratch, &bytes, tag, caplen_max).to_vec();
    }
    *scratch = bytes;
    scratch
}

/// Returns the time of the realtime clock, in ns since the Unix epoch.
#[inline]
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
