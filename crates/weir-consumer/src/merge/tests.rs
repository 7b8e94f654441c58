use super::*;
use proptest::prelude::*;
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_ring::Writer;

use crate::testing::{push, writer as ring};

/// A merge of these rings, each in a feed of its own. The number of frames that it passes on at a time is not limited.
fn merge_of(writers: &[&Writer<Mapping>], slack: Duration) -> Merge {
    merge_in_runs_of(u64::MAX, writers, slack)
}

fn merge_in_runs_of(frames_max: u64, writers: &[&Writer<Mapping>], slack: Duration) -> Merge {
    let mut merge = Merge::new(slack, frames_max);
    let rings = writers.iter().map(|writer| vec![writer.ring().clone()]).collect();
    JoinedFeed::in_order(rings).into_iter().for_each(|feed| merge.join(feed).unwrap());
    merge
}

fn drain(merge: &mut Merge, out: &mut Vec<u64>) -> Turn {
    loop {
        let turn = merge.turn(u64::MAX, |run, _| {
            out.extend(run.records().map(|record| record.meta.ts_ns));
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
        run_frames_max in prop_oneof![Just(1), 2..20u64, Just(u64::MAX)],
    ) {
        let mut writers: Vec<_> = times.iter().map(|_| ring()).collect();
        for (writer, times) in writers.iter_mut().zip(&mut times) {
            times.sort_unstable();
            times.iter().for_each(|&ts| push(writer, ts));
            writer.close();
        }
        let writers: Vec<_> = writers.iter().collect();
        let mut merge = merge_in_runs_of(run_frames_max, &writers, Duration::from_secs(60));
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
    let mut merge = merge_of(&[&a, &b], Duration::from_millis(30));
    let mut out = Vec::new();
    push(&mut a, 5);
    // The slack begins in the first turn. Measure from before it, because this thread may be delayed after it.
    let begin = Instant::now();
    assert_eq!(drain(&mut merge, &mut out), Turn::Waiting);
    assert!(out.is_empty());
    turns_until_empty(&mut merge, &mut out);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    assert_eq!(out, [5]);
}

/// Runs turns, as a consumer does, until no frame waits. Returns how long that took.
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
    let mut merge = merge_of(&[&a, &b], Duration::from_millis(20));
    let mut out = Vec::new();
    // About 60 batches of 16 KiB, all written at once: more than a second if each waited for a slack of its own.
    (0..10_000).for_each(|ts| push(&mut a, ts));
    let waited = turns_until_empty(&mut merge, &mut out);
    assert_eq!(out.len(), 10_000);
    assert!(waited < Duration::from_millis(600), "{waited:?}");
}

#[test]
fn what_comes_later_than_the_slack_is_passed_on_and_counted() {
    let (mut a, mut b) = (ring(), ring());
    let mut merge = merge_of(&[&a, &b], Duration::ZERO);
    let mut out = Vec::new();
    push(&mut a, 10);
    drain(&mut merge, &mut out);
    push(&mut b, 7);
    drain(&mut merge, &mut out);
    assert_eq!((out, merge.late()), (vec![10, 7], 1));
}

/// Writes a frame of 1,514 bytes without publishing it. About 680 such frames fill a block.
fn push_large(writer: &mut Writer<Mapping>, ts_ns: u64) {
    writer.push(&Meta { ts_ns, wire_len: 1514, ..Meta::default() }, &[0; 1514]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    /// Rings of 4 MiB, and a slack that does not end in the test. The writer fills its ring several times, but
    /// between two turns of the merge it writes less than a quarter of the ring.
    #[test]
    fn a_fast_writer_does_not_lap_the_merge_while_other_rings_are_empty(
        bursts in proptest::collection::vec(100u64..600, 40..60),
        old_frame_first in any::<bool>(),
    ) {
        let (mut fast, mut slow, mut empty) = (ring(), ring(), ring());
        let mut merge = merge_of(&[&empty, &fast, &slow], Duration::from_secs(3600));
        let mut expected: Vec<u64> = Vec::new();
        // The oldest frame is in a ring that gets no more frames. It must not delay those of the fast ring.
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
    let mut merge = merge_of(&[&fast, &other], Duration::from_secs(3600));
    let mut out = Vec::new();
    // No frame is passed on before the ring is half full.
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
fn refused_frames_are_passed_over_once() {
    for (run_frames_max, left) in [(1, &[2, 3, 4, 5][..]), (3, &[4, 5]), (u64::MAX, &[])] {
        let mut a = ring();
        (1..=5).for_each(|ts_ns| push(&mut a, ts_ns));
        let mut merge = merge_in_runs_of(run_frames_max, &[&a], Duration::ZERO);
        let refuse = |run: &Run<'_>, _: &[OutputInterface]| {
            assert_eq!(run.count.wire_bytes, 60 * run.count.frames);
            Err(RingError::NotSealed)
        };
        assert!(merge.turn(u64::MAX, refuse).is_err());
        assert_eq!(merge.passed(), 5 - left.len() as u64);
        let mut out = Vec::new();
        drain(&mut merge, &mut out);
        assert_eq!(out, left);
    }
}

#[test]
fn records_have_the_number_of_their_feed_and_of_interfaces_that_join() {
    let mut writers = [ring(), ring(), ring()];
    let rings: Vec<_> = writers.iter().map(|writer| writer.ring().clone()).collect();
    let mut merge = merge_of(&writers.iter().collect::<Vec<_>>(), Duration::ZERO);
    let joined = Interface { name: "vnet1".into(), link_type: 1, ..Interface::default() };
    assert_eq!(rings[1].append_interface(&joined).unwrap(), 1);
    let mut ts_ns = 0;
    for interface_id in [0, 1, 1, 0] {
        for writer in &mut writers {
            ts_ns += 1;
            let other = !std::ptr::eq(writer.ring().memory().as_ref(), rings[1].memory().as_ref());
            let interface_id = if other { 0 } else { interface_id };
            writer.push(&Meta { interface_id, ts_ns, ..Meta::default() }, &[1; 60]);
            writer.publish();
        }
    }
    writers.iter_mut().for_each(Writer::close);
    let (mut numbers, mut blocks) = (Vec::new(), Vec::new());
    let pass = |run: &Run<'_>, interfaces: &[OutputInterface]| {
        for record in run.records() {
            assert!((record.meta.interface_id as usize) < interfaces.len());
            numbers.push(record.meta.interface_id);
            blocks.push(u32::from_le_bytes(record.block[8..12].try_into().unwrap()));
        }
        Ok::<(), RingError>(())
    };
    merge.turn(u64::MAX, pass).unwrap();
    assert_eq!(numbers, [0, 1, 2, 0, 3, 2, 0, 3, 2, 0, 1, 2]);
    assert_eq!(blocks, numbers, "files get the blocks as they are");
    let names: Vec<_> =
        merge.numbering().interfaces().iter().map(|own| &own.interface.name[..]).collect();
    assert_eq!(names, ["", "", "", "vnet1"]);
}

#[test]
fn a_clock_that_is_set_back_makes_no_frame_late() {
    let (mut a, mut b) = (ring(), ring());
    let mut merge = merge_of(&[&a, &b], Duration::ZERO);
    let mut out = Vec::new();
    let hour = 3_600_000_000_000;
    for begin in [2 * hour, hour] {
        for ts in 0..10 {
            push(&mut a, begin + 2 * ts);
            drain(&mut merge, &mut out);
            push(&mut b, begin + 2 * ts + 1);
            drain(&mut merge, &mut out);
        }
    }
    assert_eq!((out.len(), merge.late()), (40, 0));
}
