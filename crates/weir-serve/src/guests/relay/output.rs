//! The ring in the guest's region, and its writer.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_consumer::{ConsumerError, Count, Run, Sink};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;
use weir_region::words::AWAKE;
use weir_ring::{Clock, Mapping, RingSpec, Writer, WriterKind};
use weir_vm::{GuestMemory, TakenRing, VmError};

use crate::limits::RELAY_RUN_FRAMES;

/// The bell that makes a guest wake the readers of a feed.
pub(crate) struct Bell {
    /// The guest's memory, with the words that the guest writes.
    pub memory: Arc<GuestMemory>,
    /// Rings the bell.
    pub ring: Arc<dyn Fn() + Send + Sync>,
}

/// The guest's ring, open until one of its users closes it.
pub(super) struct Output {
    /// Locked only while frames are copied, so never for long.
    writer: Mutex<Option<Writer<Mapping>>>,
    place: Mutex<Option<TakenRing>>,
    bell: Arc<Bell>,
}

impl Output {
    fn writer(&self) -> MutexGuard<'_, Option<Writer<Mapping>>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ring's place; only the first call returns it. The last owner of the place frees it.
    pub(super) fn hand_over_place(&self) -> Option<TakenRing> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Closes the ring. The guest's readers find the end after the last frame.
    pub(super) fn close(&self) {
        let writer = self.writer().take();
        if writer.is_some() {
            drop(writer);
            // The bell also wakes readers that sleep, which then find the end.
            (self.bell.ring)();
        }
    }
}

/// Copies frames to an [`Output`].
pub(super) struct ToRegion {
    data_blocks: u64,
    /// The clock that stamps the frames.
    clock: Clock,
    bell: Arc<Bell>,
    output: Option<Arc<Output>>,
    slot: u32,
    /// Number of frames that were written and not published yet.
    unpublished: u64,
    /// The threshold for which the bell was rung last.
    woken_for: u64,
    kept: Count,
}

impl ToRegion {
    /// Creates an output. Its ring, with `data_blocks` blocks, is created when the first interface is described.
    pub(super) fn new(data_blocks: u64, bell: Bell) -> ToRegion {
        let (bell, kept) = (Arc::new(bell), Count::default());
        let (output, slot, unpublished, woken_for) = (None, 0, 0, AWAKE);
        let clock = Clock::Realtime;
        ToRegion { data_blocks, clock, bell, output, slot, unpublished, woken_for, kept }
    }

    pub(super) fn output(&self) -> Option<Arc<Output>> {
        self.output.clone()
    }

    /// Writes `count` frames, and publishes frames once enough were written.
    fn write(
        &mut self,
        count: Count,
        write: impl FnOnce(&mut Writer<Mapping>),
    ) -> Result<(), ConsumerError> {
        let Some(output) = &self.output else { return Ok(()) };
        let mut open = output.writer();
        let writer = open.as_mut().ok_or_else(closed)?;
        write(writer);
        self.kept += count;
        self.unpublished += count.frames;
        if self.unpublished < RELAY_RUN_FRAMES {
            return Ok(());
        }
        drop(open);
        self.publish()
    }

    fn publish(&mut self) -> Result<(), ConsumerError> {
        if std::mem::take(&mut self.unpublished) == 0 {
            return Ok(());
        }
        let Some(output) = &self.output else { return Ok(()) };
        let mut open = output.writer();
        let writer = open.as_mut().ok_or_else(closed)?;
        writer.publish();
        let frames = writer.frames();
        drop(open);
        // H of weir_ring::doorbell: pairs with the fence between the guest's threshold and its
        // check of the ring.
        fence(Ordering::SeqCst);
        let threshold = self.bell.memory.threshold(self.slot);
        if threshold != AWAKE && threshold != self.woken_for && frames >= threshold {
            self.woken_for = threshold;
            (self.bell.ring)();
        }
        Ok(())
    }
}

fn closed() -> ConsumerError {
    ConsumerError::Output("the guest's ring was closed meanwhile".into())
}

impl Sink for ToRegion {
    fn describe(
        &mut self,
        number: u32,
        interface: &Interface,
        _: &str,
    ) -> Result<(), ConsumerError> {
        if let Some(output) = &self.output
            && number > 0
        {
            let open = output.writer();
            open.as_ref().ok_or_else(closed)?.ring().append_interface(interface)?;
            return Ok(());
        }
        let failed = |error: VmError| ConsumerError::Output(error.into());
        let spec = RingSpec {
            data_blocks: self.data_blocks,
            interfaces: vec![interface.clone()],
            cpu: None,
            clock: self.clock,
            // The guest's broker sets thresholds for its readers, like the owner of BPF programs.
            writer: WriterKind::Bpf,
        };
        let taken = self.bell.memory.take_ring(&spec).map_err(failed)?;
        let writer = Mutex::new(Some(Writer::new(taken.ring().clone())));
        self.slot = taken.place().slot;
        let (place, bell) = (Mutex::new(Some(taken)), Arc::clone(&self.bell));
        self.output = Some(Arc::new(Output { writer, place, bell }));
        Ok(())
    }

    fn joined_foreign_clock(&mut self) {
        self.clock = Clock::Foreign;
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        let count = Count::one(record.meta.wire_len);
        self.write(count, |writer| writer.push(&record.meta, record.frame))
    }

    fn run_frames_max(&self) -> u64 {
        RELAY_RUN_FRAMES
    }

    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        let records = run.records();
        self.write(run.count, |writer| {
            writer.push_burst(records.map(|record| (record.meta, record.frame)));
        })
    }

    fn end_turn(&mut self) -> Result<(), ConsumerError> {
        self.publish()
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.publish()
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        self.flush()
    }

    fn kept(&self) -> Count {
        self.kept
    }
}
