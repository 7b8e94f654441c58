use rustix::event::{PollFd, PollFlags, Timespec};
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Ring, Writer};

use super::*;
use crate::source::{JoinedFeed, Static};
use crate::testing::{push, writer};

const LONG: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(20);

fn pull(rings: &[&Ring<Mapping>], slack: Duration) -> Pull<Static> {
    let sleeper = Sleeper::new(rings.len()).unwrap();
    let rings = rings.iter().map(|ring| (*ring).clone()).collect();
    Pull::new(Static::new(sleeper, JoinedFeed::in_order(vec![rings])), slack, 1)
}

fn stamps(pull: &Pull<Static>) -> Vec<u64> {
    pull.run().records().map(|record| record.meta.ts_ns).collect()
}

fn is_readable(pull: &Pull<Static>, within: Duration) -> bool {
    let fd = pull.pollable().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::try_from(within).unwrap())).unwrap() == 1
}

#[test]
fn frames_of_several_rings_come_in_the_order_of_time_and_then_the_end() {
    let mut writers = [writer(), writer()];
    let mut pull = pull(&[writers[0].ring(), writers[1].ring()], Duration::ZERO);
    for ts_ns in 1..=2000 {
        push(&mut writers[usize::from(ts_ns % 7 == 0)], ts_ns);
    }
    writers.iter_mut().for_each(Writer::close);
    let (mut all, mut counted) = (Vec::new(), 0);
    loop {
        match pull.next(50, LONG).unwrap() {
            Pulled::Frames(frames) => {
                assert!((1..=50).contains(&frames));
                counted += frames;
                assert_eq!(pull.run().count.frames, frames);
                all.extend(stamps(&pull));
            }
            Pulled::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(all, (1..=2000).collect::<Vec<_>>());
    assert_eq!(
        (counted, pull.delivered().frames, pull.delivered().wire_bytes),
        (2000, 2000, 120_000)
    );
    assert_eq!(pull.run().count.frames, 0);
    assert_eq!(pull.next(1, LONG).unwrap(), Pulled::Ended);
}

#[test]
fn a_call_that_finds_nothing_may_hold_frames_for_their_order() {
    let mut writers = [writer(), writer()];
    let mut pull = pull(&[writers[0].ring(), writers[1].ring()], LONG);
    push(&mut writers[0], 1);
    assert_eq!(pull.next(1, SOON).unwrap(), Pulled::Nothing);
    assert_eq!(pull.held(), 1, "the other ring may have an older one");
    push(&mut writers[1], 2);
    assert_eq!(pull.next(1, LONG).unwrap(), Pulled::Frames(1));
    assert_eq!((stamps(&pull), pull.held()), (vec![1], 1));
    writers.iter_mut().for_each(Writer::close);
    assert_eq!(pull.next(1, LONG).unwrap(), Pulled::Frames(1));
    assert_eq!(pull.held(), 0);
}

#[test]
fn a_call_that_finds_nothing_returns_after_its_limit_or_an_interruption() {
    let mut writer = writer();
    let mut pull = pull(&[writer.ring()], Duration::ZERO);
    assert_eq!(pull.next(10, Duration::ZERO).unwrap(), Pulled::Nothing);
    assert_eq!(pull.next(10, SOON).unwrap(), Pulled::Nothing);
    pull.source().sleeper().interrupter().unwrap().interrupt();
    assert_eq!(pull.next(10, LONG).unwrap(), Pulled::Interrupted);
    push(&mut writer, 1);
    assert_eq!(pull.next(10, Duration::ZERO).unwrap(), Pulled::Frames(1));
}

#[test]
fn a_frame_waits_for_an_empty_ring_no_longer_than_the_slack() {
    let (mut one, other) = (writer(), writer());
    let mut pull = pull(&[one.ring(), other.ring()], SOON);
    push(&mut one, 1);
    assert_eq!(pull.next(10, Duration::ZERO).unwrap(), Pulled::Nothing, "it waits");
    pull.arm(LONG).unwrap();
    assert!(is_readable(&pull, LONG), "when its time has come");
    assert_eq!(pull.next(10, LONG).unwrap(), Pulled::Frames(1));
}

#[test]
fn the_descriptor_tells_of_frames_that_are_left_and_of_those_that_come() {
    let mut writer = writer();
    let mut pull = pull(&[writer.ring()], Duration::ZERO);
    let mut waker = pull.source().sleeper().waker().unwrap();
    (1..=3).for_each(|ts_ns| push(&mut writer, ts_ns));
    assert_eq!(pull.next(1, LONG).unwrap(), Pulled::Frames(1));
    pull.arm(LONG).unwrap();
    assert!(is_readable(&pull, Duration::ZERO), "two are left in the batch");
    assert_eq!(pull.next(10, LONG).unwrap(), Pulled::Frames(2));
    assert_eq!(pull.next(10, Duration::ZERO).unwrap(), Pulled::Nothing);
    pull.arm(LONG).unwrap();
    assert!(!is_readable(&pull, SOON));
    push(&mut writer, 4);
    waker.wake_if_due(0, 4);
    assert!(is_readable(&pull, LONG));
    assert_eq!(pull.next(10, Duration::ZERO).unwrap(), Pulled::Frames(1));
    assert_eq!(stamps(&pull), [4]);
}

#[test]
fn a_writer_that_has_gone_ends_what_it_left_open() {
    let mut writer = writer();
    let mut feeds = JoinedFeed::in_order(vec![vec![writer.ring().clone()]]);
    feeds[0].channel = Some(0);
    let mut pull = Pull::new(Static::new(Sleeper::new(1).unwrap(), feeds), Duration::ZERO, 1);
    let waker = pull.source().sleeper().waker().unwrap();
    push(&mut writer, 1);
    drop(waker);
    assert_eq!(pull.next(10, LONG).unwrap(), Pulled::Frames(1));
    assert_eq!(pull.next(10, LONG).unwrap(), Pulled::Ended);
    assert!(matches!(pull.take_gone(), Some(RingError::WriterGone { frames: 1 })));
    assert!(pull.take_gone().is_none());
}
