//! The sink of merged frames: it checks them, and records them for the account. Its disk may be full.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_consumer::{ConsumerError, Count, Run, Sink};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::{Meta, Record};

use crate::frame::{Frame, number_of};
use crate::planted::Planted;

/// A delivered frame.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    /// The metadata of its record.
    pub meta: Meta,
    /// Bytes that were kept.
    pub caplen: u32,
    /// The number in its bytes.
    pub number: u64,
    /// Whether the other bytes are those of the frame with this number.
    pub is_whole: bool,
}

/// Delivered frames, and the state of the disk.
#[derive(Default)]
pub struct Gathered {
    /// Names of interfaces by their numbers.
    pub names: Vec<String>,
    /// Frames since the last [`take_got`](Gather::take_got).
    pub got: Vec<Got>,
    /// Frames that the disk has kept.
    pub kept: Count,
    /// Frames that it refused.
    pub refused: u64,
    /// The number of next frames that the disk will refuse.
    pub refuses: u64,
}

/// The sink of one consumer; clones share it.
#[derive(Clone)]
pub struct Gather {
    gathered: Arc<Mutex<Gathered>>,
    planted: Option<Planted>,
    run_frames_max: u64,
}

impl Gather {
    /// Creates an empty sink that takes this number of frames at a time.
    #[must_use]
    pub fn new(planted: Option<Planted>, run_frames_max: u64) -> Gather {
        Gather { gathered: Arc::default(), planted, run_frames_max }
    }

    /// Locks the contents, and returns them.
    pub fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the frames that were delivered since the last call.
    #[must_use]
    pub fn take_got(&self) -> Vec<Got> {
        let mut got = std::mem::take(&mut self.lock().got);
        let swaps = |one: &Got, other: &Got| {
            let is_same = one.meta.interface_id == other.meta.interface_id;
            match self.planted {
                Some(Planted::MergeUnordered) => !is_same && one.meta.ts_ns < other.meta.ts_ns,
                Some(Planted::SortedAcrossClockStep) => {
                    is_same && other.meta.ts_ns < one.meta.ts_ns
                }
                _ => false,
            }
        };
        if let Some(at) = got.windows(2).position(|two| swaps(&two[0], &two[1])) {
            got.swap(at, at + 1);
        }
        if self.planted == Some(Planted::DeliveredTwice) && got.len() > 5 {
            got.push(got[5]);
        }
        got
    }
}

impl Sink for Gather {
    fn describe(
        &mut self,
        number: u32,
        interface: &Interface,
        _label: &str,
    ) -> Result<(), ConsumerError> {
        let mut own = self.lock();
        assert_eq!(own.names.len(), number as usize, "interfaces come in order");
        own.names.push(interface.name.clone());
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        let (meta, kept) = (record.meta, record.frame);
        let number = number_of(kept).unwrap_or(u64::MAX);
        // Contains everything that determines a frame's bytes; the host is read from the bytes themselves.
        let host = kept.get(29).copied().unwrap_or_default();
        let (ts_ns, wire_len) = (meta.ts_ns, meta.wire_len);
        let frame = Frame { number, ts_ns, bytes: wire_len, wire_len, host };
        let is_whole = frame.begins_with(kept);
        let planted = self.planted;
        let mut own = self.lock();
        own.got.push(Got { meta, caplen: kept.len() as u32, number, is_whole });
        if own.refuses > 0 {
            own.refuses -= 1;
            own.refused += 1;
            if planted == Some(Planted::RefusedKept) {
                own.kept += Count::one(wire_len);
            }
            return Err(ConsumerError::Output("no space left".into()));
        }
        own.kept += Count::one(wire_len);
        Ok(())
    }

    fn run_frames_max(&self) -> u64 {
        self.run_frames_max
    }

    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        // Take all frames, even if some are refused, because the run does not come again.
        run.records().map(|record| self.take(&record)).fold(Ok(()), Result::and)
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn finish(&mut self, _statistics: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn kept(&self) -> Count {
        self.lock().kept
    }
}
