//! Several rings read as one stream in timestamp order.
//!
//! Each ring is in order, or nearly so; between rings a frame can become visible a little after a younger
//! one of another ring. So a frame passes an *empty* ring only once it has been in its own ring for
//! `slack`: whatever the empty one still had to publish of an earlier time is there by then. A frame
//! that is older than one already passed on is *late*: passed on all the same, and counted.
//!
//! How long a frame has been in its ring is known without looking at clocks or stamps: several times in
//! each slack the merge notes how far every ring is written, and a note that is a slack old releases
//! the frames before it.
//!
//! A small ring can fill up within the slack. Then order gives way: once some ring is half full nothing
//! waits, and what an empty ring publishes after that is late. A frame out of place can be put back; one
//! that was overwritten is gone (decision 0004).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::numbering::Numbering;
use weir_frame::record::Record;
use weir_ring::{Batch, Mapping, Poll, Reader, Ring, RingError, Start, Words};

/// What a [`Merge::turn`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Frames were passed on.
    Passed(u64),
    /// Frames are there, but they must wait for a ring that may still have older ones.
    Waiting,
    /// Nothing new.
    Empty,
    /// Every ring is closed and read to its end.
    Ended,
}

/// One ring and what was copied of it.
struct Lane<M: Words> {
    /// Number of the ring.
    ring: usize,
    reader: Reader<M>,
    batch: Batch,
    /// Bytes of the batch that were passed on.
    used: usize,
    /// Timestamp of the next record; `None`: the batch is used up.
    next_ns: Option<u64>,
    /// Ordinal of the next record.
    ordinal: u64,
    /// Frames below this ordinal need not wait for empty rings.
    released: u64,
    closed: bool,
}

/// A ring that lies before its reader this far (`Reader::fill`) is not made to wait: the other half is for what
/// the writer brings until the reader has caught up.
const PRESSED: f64 = 0.5;

/// Notes in each slack. More would make the wait more even, at some cost; fewer, longer.
const NOTES: u32 = 4;

/// How far every ring was written at some time.
struct Note {
    taken: Instant,
    ordinals: Vec<u64>,
}

impl<M: Words> Lane<M> {
    fn peek(&mut self) {
        let rest = &self.batch.block_bytes()[self.used..];
        self.next_ns = Record::parse(rest).ok().map(|record| record.meta.ts_ns);
    }

    /// Gives the records of the batch the numbers that their interfaces have in the output.
    fn renumber(&mut self, numbering: &mut Numbering) {
        let highest = self.batch.highest_interface_id();
        // Known from here on, so that looking a number up cannot fail.
        numbering.number(self.ring, highest);
        if !numbering.is_same(self.ring, highest + 1) {
            let ring = self.ring;
            self.batch.renumber(|id| numbering.number(ring, id));
        }
    }

    /// Fills an empty batch. True if there is a frame to pass on.
    fn fill(&mut self, numbering: &mut Numbering) -> Result<bool, RingError> {
        while self.next_ns.is_none() && !self.closed {
            match self.reader.poll(&mut self.batch)? {
                Poll::Frames(frames) => {
                    self.used = 0;
                    self.renumber(numbering);
                    self.ordinal = self.reader.ordinal() - u64::from(frames);
                    self.peek();
                }
                Poll::Lapped(_) => {}
                Poll::Empty => break,
                Poll::Closed => self.closed = true,
            }
        }
        Ok(self.next_ns.is_some())
    }
}

/// A merging reader of some rings.
pub struct Merge<M: Words = Mapping> {
    lanes: Vec<Lane<M>>,
    numbering: Numbering,
    slack: Duration,
    notes: VecDeque<Note>,
    last_ns: u64,
    passed: u64,
    late: u64,
}

impl<M: Words> Merge<M> {
    /// Reads `rings` from their oldest frames on. Records are passed on with the interface numbers of `numbering`.
    ///
    /// # Errors
    /// [`RingError`] for a ring that contradicts itself.
    pub fn new(
        rings: &[Ring<M>],
        numbering: Numbering,
        slack: Duration,
    ) -> Result<Merge<M>, RingError> {
        let lane = |(number, ring): (usize, &Ring<M>)| {
            Ok(Lane {
                ring: number,
                reader: Reader::new(ring, Start::Oldest)?,
                batch: Batch::new(),
                used: 0,
                next_ns: None,
                ordinal: 0,
                released: 0,
                closed: false,
            })
        };
        let lanes = rings.iter().enumerate().map(lane).collect::<Result<_, RingError>>()?;
        Ok(Merge {
            lanes,
            numbering,
            slack,
            notes: VecDeque::new(),
            last_ns: 0,
            passed: 0,
            late: 0,
        })
    }

    /// The readers, in the order of the rings: for sleeping on them, and for their counts.
    pub fn readers(&self) -> impl Iterator<Item = &Reader<M>> {
        self.lanes.iter().map(|lane| &lane.reader)
    }

    /// The numbers of the interfaces so far.
    #[must_use]
    pub fn numbering(&self) -> &Numbering {
        &self.numbering
    }

    /// Frames passed on so far.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Frames that came after a younger one had been passed on.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Frames that the writers overwrote before they were read.
    #[must_use]
    pub fn lapped(&self) -> u64 {
        self.readers().map(Reader::lapped).sum()
    }

    /// Frames copied out of the rings and not passed on: 0 after `Turn::Ended`.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.readers().map(Reader::delivered).sum::<u64>() - self.passed
    }

    /// Passes on what is due, oldest first, at most `frames_max` frames.
    ///
    /// # Errors
    /// Whatever `pass` says, after which the frame it refused is passed over; and [`RingError`].
    pub fn turn<E: From<RingError>>(
        &mut self,
        frames_max: u64,
        mut pass: impl FnMut(&Record<'_>) -> Result<(), E>,
    ) -> Result<Turn, E> {
        let before = self.passed;
        self.release(Instant::now());
        while self.passed - before < frames_max {
            let Some(choice) = self.choose()? else { break };
            let lane = &mut self.lanes[choice.lane];
            // Everything of this lane up to the next frame of another: one choice for many frames.
            while let Some(ts_ns) = lane.next_ns.filter(|&ts_ns| ts_ns <= choice.until_ns) {
                if self.passed - before == frames_max || lane.ordinal >= choice.until_ordinal {
                    break;
                }
                let Ok(record) = Record::parse(&lane.batch.block_bytes()[lane.used..]) else {
                    break;
                };
                lane.used += record.block.len();
                lane.ordinal += 1;
                self.passed += 1;
                self.late += u64::from(ts_ns < self.last_ns);
                self.last_ns = self.last_ns.max(ts_ns);
                let passed = pass(&record);
                lane.peek();
                passed?;
            }
        }
        Ok(if self.passed > before {
            Turn::Passed(self.passed - before)
        } else if self.lanes.iter().any(|lane| lane.next_ns.is_some()) {
            Turn::Waiting
        } else if self.lanes.iter().all(|lane| lane.closed) {
            Turn::Ended
        } else {
            Turn::Empty
        })
    }

    /// How long until frames that wait for other rings are released, if none of those brings anything.
    #[must_use]
    pub fn due(&self) -> Duration {
        let releases = |note: &&Note| {
            self.lanes.iter().zip(&note.ordinals).any(|(lane, ordinal)| lane.ordinal < *ordinal)
        };
        match self.notes.iter().find(releases) {
            Some(note) => self.slack.saturating_sub(note.taken.elapsed()),
            // They came after the last note: the next one has them.
            None => self.slack / NOTES,
        }
    }

    /// Notes how far the rings are, and releases what an old enough note has.
    fn release(&mut self, now: Instant) {
        let age = |note: &Note| now.saturating_duration_since(note.taken);
        if self.notes.back().is_none_or(|note| age(note) >= self.slack / NOTES) {
            let written = self.lanes.iter().map(|lane| lane.reader.ring().frames_written());
            self.notes.push_back(Note { taken: now, ordinals: written.collect() });
        }
        while self.notes.front().is_some_and(|note| age(note) >= self.slack) {
            let Some(note) = self.notes.pop_front() else { break };
            for (lane, ordinal) in self.lanes.iter_mut().zip(note.ordinals) {
                lane.released = ordinal;
            }
        }
    }

    /// The lane with the oldest frame, and how far it may be read without looking at the others again;
    /// `None` if there is no frame, or it must wait.
    fn choose(&mut self) -> Result<Option<Choice>, RingError> {
        let mut oldest: Option<(usize, u64)> = None;
        let mut until_ns = u64::MAX;
        let mut somebody_may_come = false;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if !lane.fill(&mut self.numbering)? {
                somebody_may_come |= !lane.closed;
                continue;
            }
            let ts_ns = lane.next_ns.unwrap_or(u64::MAX);
            match oldest {
                Some((_, best)) if best <= ts_ns => until_ns = until_ns.min(ts_ns),
                _ => {
                    until_ns = until_ns.min(oldest.map_or(u64::MAX, |(_, best)| best));
                    oldest = Some((index, ts_ns));
                }
            }
        }
        let Some((index, _)) = oldest else { return Ok(None) };
        let lane = &self.lanes[index];
        let until_ordinal = match somebody_may_come {
            true if lane.ordinal < lane.released => lane.released,
            true if !self.is_pressed() => return Ok(None),
            // Pressed: for as long as its batch lasts, and then this is asked again.
            _ => u64::MAX,
        };
        Ok(Some(Choice { lane: index, until_ns, until_ordinal }))
    }

    /// Whether some ring may be lapped soon. Any of them: the oldest frame, of whichever ring, holds up all
    /// others. Looked at only when a frame would wait, for it takes a line from each writer.
    fn is_pressed(&self) -> bool {
        self.lanes.iter().any(|lane| lane.reader.fill() >= PRESSED)
    }
}

/// What may be passed on next.
struct Choice {
    lane: usize,
    until_ns: u64,
    until_ordinal: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_frame::pcapng::Interface;
    use weir_frame::record::Meta;
    use weir_ring::{Clock, RingSpec, Writer, WriterKind, memory};

    fn ring() -> Writer<Mapping> {
        let spec = RingSpec {
            data_blocks: 4,
            interfaces: vec![Interface { link_type: 1, ..Interface::default() }],
            cpu: None,
            clock: Clock::Foreign,
            writer: WriterKind::User,
        };
        Writer::new(memory::create_memfd("merge-test", &spec).unwrap())
    }

    fn push(writer: &mut Writer<Mapping>, ts_ns: u64) {
        writer.push(&Meta { ts_ns, wire_len: 60, ..Meta::default() }, &[0; 60]);
        writer.publish();
    }

    fn drain(merge: &mut Merge, out: &mut Vec<u64>) -> Turn {
        loop {
            let turn = merge.turn(u64::MAX, |record| {
                out.push(record.meta.ts_ns);
                Ok::<(), RingError>(())
            });
            match turn.unwrap() {
                Turn::Passed(_) => {}
                other => return other,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn closed_rings_come_out_sorted_and_whole(
            mut times in proptest::collection::vec(
                proptest::collection::vec(0u64..10_000, 0..200), 1..5),
        ) {
            let mut writers: Vec<_> = times.iter().map(|_| ring()).collect();
            for (writer, times) in writers.iter_mut().zip(&mut times) {
                times.sort_unstable();
                times.iter().for_each(|&ts| push(writer, ts));
                writer.close();
            }
            let rings: Vec<_> = writers.iter().map(|writer| writer.ring().clone()).collect();
            let mut merge = Merge::new(&rings, Numbering::of_one_feed(&rings), Duration::from_secs(60)).unwrap();
            let mut out = Vec::new();
            prop_assert_eq!(drain(&mut merge, &mut out), Turn::Ended);
            let mut all: Vec<u64> = times.concat();
            all.sort_unstable();
            prop_assert_eq!(out, all);
            prop_assert_eq!((merge.late(), merge.lapped(), merge.held()), (0, 0, 0));
        }
    }

    #[test]
    fn an_empty_ring_holds_the_others_for_the_slack_and_no_longer() {
        let (mut a, b) = (ring(), ring());
        let rings = [a.ring().clone(), b.ring().clone()];
        let mut merge =
            Merge::new(&rings, Numbering::of_one_feed(&rings), Duration::from_millis(30)).unwrap();
        let mut out = Vec::new();
        push(&mut a, 5);
        assert_eq!(drain(&mut merge, &mut out), Turn::Waiting);
        assert!(out.is_empty());
        assert!(turns_until_empty(&mut merge, &mut out) >= Duration::from_millis(30));
        assert_eq!(out, [5]);
    }

    /// Turns as a consumer makes them, until nothing waits any more.
    fn turns_until_empty(merge: &mut Merge, out: &mut Vec<u64>) -> Duration {
        let begin = Instant::now();
        while drain(merge, out) != Turn::Empty {
            std::thread::sleep(Duration::from_millis(1));
        }
        begin.elapsed()
    }

    #[test]
    fn an_empty_ring_does_not_hold_the_others_to_a_batch_a_slack() {
        let (mut a, b) = (ring(), ring());
        let rings = [a.ring().clone(), b.ring().clone()];
        let mut merge =
            Merge::new(&rings, Numbering::of_one_feed(&rings), Duration::from_millis(20)).unwrap();
        let mut out = Vec::new();
        // Some 60 batches, all of them there at once: over a second if each waited by itself.
        (0..10_000).for_each(|ts| push(&mut a, ts));
        let waited = turns_until_empty(&mut merge, &mut out);
        assert_eq!(out.len(), 10_000);
        assert!(waited < Duration::from_millis(600), "{waited:?}");
    }

    #[test]
    fn what_comes_later_than_the_slack_is_passed_on_and_counted() {
        let (mut a, mut b) = (ring(), ring());
        let rings = [a.ring().clone(), b.ring().clone()];
        let mut merge = Merge::new(&rings, Numbering::of_one_feed(&rings), Duration::ZERO).unwrap();
        let mut out = Vec::new();
        push(&mut a, 10);
        drain(&mut merge, &mut out);
        push(&mut b, 7);
        drain(&mut merge, &mut out);
        assert_eq!((out, merge.late()), (vec![10, 7], 1));
    }

    /// Some 700 frames of a block.
    fn push_large(writer: &mut Writer<Mapping>, ts_ns: u64) {
        writer.push(&Meta { ts_ns, wire_len: 1514, ..Meta::default() }, &[0; 1514]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        /// Rings of 4 MiB and a slack without end. The writer is never more than a quarter of the ring ahead
        /// of the merge's turns, and writes it several times over.
        #[test]
        fn a_fast_writer_does_not_lap_the_merge_while_other_rings_are_empty(
            bursts in proptest::collection::vec(100u64..600, 40..60),
            old_frame_first in any::<bool>(),
        ) {
            let (mut fast, mut slow, mut empty) = (ring(), ring(), ring());
            let rings = [&empty, &fast, &slow].map(|writer| writer.ring().clone());
            let mut merge = Merge::new(&rings, Numbering::of_one_feed(&rings), Duration::from_secs(3600)).unwrap();
            let mut expected: Vec<u64> = Vec::new();
            // The oldest frame of all is in a ring that is not filling: it must not hold up the one that is.
            if old_frame_first {
                push(&mut slow, 0);
                expected.push(0);
            }
            let mut out = Vec::new();
            let mut ts_ns = 1;
            for burst in bursts {
                for _ in 0..burst {
                    push_large(&mut fast, ts_ns);
                    expected.push(ts_ns);
                    ts_ns += 1;
                }
                fast.publish();
                prop_assert_ne!(drain(&mut merge, &mut out), Turn::Ended);
            }
            prop_assert!(fast.frames() > 2800, "the ring was full more than once");
            prop_assert_eq!(merge.lapped(), 0);
            fast.close();
            slow.close();
            empty.close();
            prop_assert_eq!(drain(&mut merge, &mut out), Turn::Ended);
            prop_assert_eq!(out, expected);
            prop_assert_eq!((merge.late(), merge.lapped(), merge.held()), (0, 0, 0));
        }
    }

    #[test]
    fn what_an_empty_ring_brings_after_others_had_to_pass_is_late_and_there() {
        let (mut fast, mut other) = (ring(), ring());
        let rings = [fast.ring().clone(), other.ring().clone()];
        let mut merge =
            Merge::new(&rings, Numbering::of_one_feed(&rings), Duration::from_secs(3600)).unwrap();
        let mut out = Vec::new();
        // Nothing passes before half of the ring is full.
        let mut frames = 0;
        while out.is_empty() {
            assert!(frames < 4 * 700, "the ring is full, and everything waits");
            push_large(&mut fast, 10 + frames);
            fast.publish();
            frames += 1;
            drain(&mut merge, &mut out);
        }
        assert!(frames > 2 * 600, "{frames} frames were no reason not to wait");
        push(&mut other, 1);
        fast.close();
        other.close();
        assert_eq!(drain(&mut merge, &mut out), Turn::Ended);
        assert_eq!((merge.late(), merge.lapped()), (1, 0));
        assert_eq!(out.len() as u64, frames + 1);
        assert!(out.contains(&1));
    }

    #[test]
    fn a_refused_frame_is_passed_over_once() {
        let mut a = ring();
        push(&mut a, 1);
        push(&mut a, 2);
        let rings = [a.ring().clone()];
        let numbering = Numbering::of_one_feed(&rings);
        let mut merge = Merge::new(&rings, numbering, Duration::ZERO).unwrap();
        let refuse = |_: &Record<'_>| Err(RingError::NotSealed);
        assert!(merge.turn(u64::MAX, refuse).is_err());
        let mut out = Vec::new();
        drain(&mut merge, &mut out);
        assert_eq!(out, [2]);
    }

    #[test]
    fn records_have_the_number_of_their_feed_and_of_interfaces_that_join() {
        let mut writers = [ring(), ring(), ring()];
        let rings: Vec<_> = writers.iter().map(|writer| writer.ring().clone()).collect();
        let numbering = Numbering::new(&rings, &[0, 1, 2]);
        let mut merge = Merge::new(&rings, numbering, Duration::ZERO).unwrap();
        let joined = Interface { name: "vnet1".into(), link_type: 1, ..Interface::default() };
        assert_eq!(rings[1].append_interface(&joined).unwrap(), 1);
        let mut ts_ns = 0;
        for interface_id in [0, 1, 1, 0] {
            for writer in &mut writers {
                ts_ns += 1;
                let other =
                    !std::ptr::eq(writer.ring().memory().as_ref(), rings[1].memory().as_ref());
                let interface_id = if other { 0 } else { interface_id };
                writer.push(&Meta { interface_id, ts_ns, ..Meta::default() }, &[1; 60]);
                writer.publish();
            }
        }
        writers.iter_mut().for_each(Writer::close);
        let (mut numbers, mut blocks) = (Vec::new(), Vec::new());
        let pass = |record: &Record<'_>| {
            numbers.push(record.meta.interface_id);
            blocks.push(u32::from_le_bytes(record.block[8..12].try_into().unwrap()));
            Ok::<(), RingError>(())
        };
        merge.turn(u64::MAX, pass).unwrap();
        assert_eq!(numbers, [0, 1, 2, 0, 3, 2, 0, 3, 2, 0, 1, 2]);
        assert_eq!(blocks, numbers, "files get the blocks as they are");
        assert_eq!(merge.numbering().interfaces(), [(0, 0), (1, 0), (2, 0), (1, 1)]);
    }
}
