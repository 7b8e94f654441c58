//! Every interleaving of a writer and a reader, and every value that a load may return, over rings of a few words. The
//! code under test is the code that runs in service.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p weir-ring --test loom`
//!
//! The comments in the source name each pair of memory orderings by two letters. Each half of each pair in this table
//! was weakened once by hand (the fence left out, or the release or acquire made relaxed). Loom then found an execution
//! that fails at least this model:
//!
//! | weakened | what goes wrong | found by |
//! |---|---|---|
//! | A, B in `confirm` | bytes of the next block are taken for this one's | `a_lapped_poll_...`, `a_lapped_count_...` |
//! | B in `relocate` | a wrong count: the ordinal is that of the next block | `a_place_that_is_reclaimed_...` |
//! | C, D | bytes below `committed` are read before they are there | `the_end_is_seen_...` |
//! | E, F in `relocate` | a wrong count: the ordinal is that of the block before | `a_poll_lapped_twice_...` |
//! | F in `look` | `committed` and bytes of the block before are read as this one's | `a_reader_that_waits_...` |
//! | G, H | writer and sleeper both miss what the other has stored: a wake-up is lost | `no_wake_up_is_lost` |
//! | I | the newest of the counted blocks is not found | `a_reader_that_joins_...` |
//! | K, L | a counted frame cannot be read | `what_is_counted_can_be_read` |
//! | M, N | the end is reported before the last frames are read | `the_end_is_seen_...` |
//!
//! J, L and N are one load, so they were weakened together; the models of L and N fail then. None fails because of J: a
//! reader that does not find a counted block looks again, and by then the fence of its first look has run. No model has
//! B in `holds`, which is as in `confirm`, and O and P, which store and read descriptions of interfaces.
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use weir_frame::record::{Meta, Record};
use weir_ring::{Batch, Geometry, Poll, Reader, Ring, Start, Tally, Writer, doorbell};

type Memory = Vec<AtomicU64>;

/// Bytes of a record with an empty frame. Only the fields of its header differ from other records.
const RECORD: u32 = 32;
/// Bytes that a block has behind its last record at most: another record, or padding of the smallest size.
const ROOM: u32 = RECORD + 12;

fn ring(records_per_block: u32, blocks: u64) -> Ring<Memory> {
    let block_bytes = (RECORD * records_per_block + 12).next_multiple_of(8);
    let geometry = Geometry::model(block_bytes, blocks, ROOM);
    let memory = (0..geometry.total_words()).map(|_| AtomicU64::new(0)).collect();
    Ring::new(Arc::new(memory), geometry).unwrap()
}

/// The metadata of a record: each of its words differs from those of every other record.
fn meta(ordinal: u64) -> Meta {
    let mark = ordinal as u32 + 1;
    let ts_ns = u64::from(mark) << 32 | u64::from(mark);
    Meta { interface_id: mark, ts_ns, wire_len: mark, ..Meta::default() }
}

fn push(writer: &mut Writer<Memory>, frames: u64) {
    for _ in 0..frames {
        writer.push(&meta(writer.frames()), &[]);
        writer.publish();
    }
}

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Polls once. Asserts that only frames that were written are delivered, in order.
fn poll(reader: &mut Reader<Memory>, batch: &mut Batch) -> Poll {
    let before = (reader.ordinal(), reader.delivered(), reader.lapped());
    let poll = reader.poll(batch).expect("an honest ring is never corrupt");
    match poll {
        Poll::Frames(frames) => {
            assert_eq!(batch.len() as u32, frames);
            for (ordinal, record) in (before.0..).zip(batch.records()) {
                let Record { meta: found, frame, .. } = record;
                assert_eq!((found, frame.len()), (meta(ordinal), 0), "frame {ordinal}");
            }
            assert_eq!(reader.delivered(), before.1 + u64::from(frames));
        }
        Poll::Lapped(frames) => {
            assert!(frames > 0);
            assert_eq!(reader.lapped(), before.2 + frames);
        }
        Poll::Empty | Poll::Closed => {
            assert_eq!((reader.delivered(), reader.lapped()), (before.1, before.2));
        }
    }
    poll
}

/// Reads until the end of the ring, which must come.
fn finish(reader: &mut Reader<Memory>, batch: &mut Batch, published: u64) {
    for _ in 0..20 {
        if poll(reader, batch) == Poll::Closed {
            assert_eq!(reader.delivered() + reader.lapped(), published);
            return;
        }
    }
    panic!("a closed ring has no end");
}

/// A writer that laps a reader: nothing torn is delivered, and every frame is delivered or counted.
fn lapped_poll(per_block: u32, before: u64, during: u64, polls: u32, preemptions: usize) {
    explore(preemptions, move || {
        let ring = ring(per_block, 2);
        let mut writer = Writer::new(ring.clone());
        push(&mut writer, before);
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let writing = thread::spawn(move || {
            push(&mut writer, during);
            writer.close();
        });
        let mut batch = Batch::new();
        for _ in 0..polls {
            poll(&mut reader, &mut batch);
        }
        writing.join().unwrap();
        finish(&mut reader, &mut batch, before + during);
    });
}

#[test]
fn a_lapped_poll_accepts_nothing_torn_and_counts_the_rest() {
    lapped_poll(1, 2, 1, 1, 3);
}

#[test]
fn a_poll_lapped_twice_counts_exactly() {
    lapped_poll(1, 1, 2, 2, 2);
}

#[test]
fn a_place_that_is_reclaimed_while_it_is_taken_is_not_taken() {
    lapped_poll(1, 2, 2, 1, 1);
}

#[test]
fn polling_a_block_while_it_fills_and_is_reclaimed() {
    lapped_poll(2, 3, 2, 1, 2);
}

#[test]
fn a_reader_that_waits_for_a_block_sees_nothing_of_the_one_before_it() {
    explore(3, || {
        let ring = ring(1, 2);
        let mut writer = Writer::new(ring.clone());
        push(&mut writer, 2);
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        for _ in 0..2 {
            assert_eq!(poll(&mut reader, &mut batch), Poll::Frames(1));
        }
        let writing = thread::spawn(move || push(&mut writer, 1));
        for _ in 0..2 {
            poll(&mut reader, &mut batch);
        }
        writing.join().unwrap();
        finish(&mut reader, &mut batch, 3);
        assert_eq!(reader.lapped(), 0);
    });
}

#[test]
fn a_lapped_count_counts_exactly() {
    explore(2, || {
        let ring = ring(1, 2);
        let mut writer = Writer::new(ring.clone());
        push(&mut writer, 2);
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let writing = thread::spawn(move || {
            push(&mut writer, 2);
            writer.close();
        });
        let mut tally = Tally::default();
        let mut count = |reader: &mut Reader<Memory>| {
            let before = reader.ordinal();
            let mut found = Tally::default();
            let poll =
                reader.count_in_place(&mut found, 8).expect("an honest ring is never corrupt");
            if let Poll::Frames(frames) = poll {
                // With torn or stale words, the sum would not match the ordinals that were passed.
                let marks: u64 = (before..reader.ordinal()).map(|ordinal| ordinal + 1).sum();
                assert_eq!((found.frames, found.wire_bytes), (u64::from(frames), marks));
                assert_eq!(found.last_ns, meta(reader.ordinal() - 1).ts_ns);
            } else {
                assert_eq!(found, Tally::default());
            }
            tally.frames += found.frames;
            poll
        };
        count(&mut reader);
        writing.join().unwrap();
        while count(&mut reader) != Poll::Closed {}
        assert_eq!(tally.frames, reader.delivered());
        assert_eq!(reader.delivered() + reader.lapped(), 4);
    });
}

#[test]
fn the_end_is_seen_after_every_frame() {
    explore(3, || {
        let ring = ring(1, 4);
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let writing = thread::spawn(move || {
            push(&mut writer, 2);
            writer.close();
        });
        let mut batch = Batch::new();
        for _ in 0..3 {
            if poll(&mut reader, &mut batch) == Poll::Closed {
                assert_eq!(reader.delivered(), 2, "an end before the last frame");
            }
        }
        writing.join().unwrap();
        finish(&mut reader, &mut batch, 2);
        assert_eq!(reader.lapped(), 0);
    });
}

#[test]
fn what_is_counted_can_be_read() {
    explore(3, || {
        let ring = ring(2, 4);
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let writing = thread::spawn(move || push(&mut writer, 2));
        let counted = ring.frames_written();
        let mut batch = Batch::new();
        while reader.ordinal() < counted {
            assert!(matches!(poll(&mut reader, &mut batch), Poll::Frames(_)), "{counted} counted");
        }
        writing.join().unwrap();
    });
}

#[test]
fn a_reader_that_joins_a_moving_ring_finds_a_place() {
    for start in [Start::Oldest, Start::Newest] {
        explore(2, move || {
            let ring = ring(1, 2);
            let mut writer = Writer::new(ring.clone());
            push(&mut writer, 3);
            let writing = thread::spawn(move || push(&mut writer, 1));
            let joined = Reader::new(&ring, start).map(|mut reader| {
                let mut batch = Batch::new();
                poll(&mut reader, &mut batch);
                (reader, batch)
            });
            writing.join().unwrap();
            // The newest block is overwritten last, so that reader always finds its place. The oldest block may be
            // reclaimed at every try: then there is no reader, and no wrong count.
            assert!(joined.is_ok() || start == Start::Oldest);
            if let Ok((mut reader, mut batch)) = joined {
                let joined_at = reader.joined_at();
                finish(&mut reader, &mut batch, 4 - joined_at);
            }
        });
    }
}

#[test]
fn no_wake_up_is_lost() {
    explore(3, || {
        let ring = ring(2, 2);
        let mut writer = Writer::new(ring.clone());
        let word = loom::sync::Arc::new(AtomicU64::new(doorbell::AWAKE));
        let threshold = loom::sync::Arc::clone(&word);
        let writing = thread::spawn(move || {
            let mut rung = false;
            for _ in 0..2 {
                push(&mut writer, 1);
                rung |= doorbell::is_due(&threshold, writer.frames());
            }
            rung
        });
        doorbell::set_threshold(&word, 2);
        let sleeps = ring.frames_written() < 2;
        let rung = writing.join().unwrap();
        assert!(rung || !sleeps, "asleep with two frames in the ring");
        doorbell::clear_threshold(&word);
        assert_eq!(word.load(Ordering::Relaxed), doorbell::AWAKE);
    });
}
