//! Consumers whose feeds join and leave at any time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_ring::{Mapping, Writer};

use crate::account::{Delivered, Taken};
use crate::consumer::{Consumer, Step};
use crate::lanes::Lanes;
use crate::limits::PAST_FEEDS_MAX;
use crate::null::Null;
use crate::ordered::Ordered;
use crate::source::{Begin, JoinedFeed};
use crate::testing::{Collect, feed, push, ring_of, writer};

/// A slack longer than any test: frames are passed on out of order only if a ring is half full.
const FOREVER: Duration = Duration::from_secs(3600);

/// A step of a test run. Rings are numbered from 0 in the order in which they join.
#[derive(Clone, Debug)]
enum Act {
    /// Another ring joins, and gets this many frames.
    Join(u64),
    /// A ring gets this many frames of this size in bytes.
    Push(prop::sample::Index, u64, usize),
    /// A ring's feed is detached: its later frames are not for the consumer, which is told so by `Tell`.
    Detach(prop::sample::Index),
    /// The consumer is told of all rings that were detached since the last `Tell`.
    Tell,
    Close(prop::sample::Index),
    /// The consumer takes at most this many frames.
    Step(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let ring = any::<prop::sample::Index>;
    let act = prop_oneof![
        2 => (0u64..50).prop_map(Act::Join),
        8 => (ring(), 1u64..100, 0usize..400).prop_map(|(ring, frames, bytes)| Act::Push(ring, frames, bytes)),
        // About 70 frames of 60,000 bytes fill a ring.
        1 => (ring(), 1u64..60).prop_map(|(ring, frames)| Act::Push(ring, frames, 60_000)),
        2 => ring().prop_map(Act::Detach),
        2 => Just(Act::Tell),
        1 => ring().prop_map(Act::Close),
        6 => (1u64..300).prop_map(Act::Step),
    ];
    prop::collection::vec(act, 0..60)
}

/// A ring, seen from its writer's side.
struct Own {
    writer: Option<Writer<Mapping>>,
    frames: u64,
    /// Once the ring is detached, the ordinal of its first frame that is not for the consumer.
    until: Option<u64>,
    /// The frames of the ring that the consumer had delivered or lapped when it was told so.
    told_at: Option<u64>,
}

/// The rings of a test run. Frames have the timestamps 1, 2, 3 and so on, in the order in which they are written.
#[derive(Default)]
struct World {
    rings: Vec<Own>,
    stamp: u64,
    /// For the timestamp of each frame, the number of its ring and its ordinal there.
    frames: BTreeMap<u64, (usize, u64)>,
}

impl World {
    fn push(&mut self, number: usize, frames: u64, bytes: usize) {
        let own = &mut self.rings[number];
        let Some(writer) = &mut own.writer else { return };
        for _ in 0..frames {
            self.stamp += 1;
            self.frames.insert(self.stamp, (number, own.frames));
            let meta = Meta { ts_ns: self.stamp, wire_len: 60, ..Meta::default() };
            writer.push(&meta, &vec![0; bytes]);
            own.frames += 1;
        }
        writer.publish();
    }

    fn tell(&mut self, consumer: &mut dyn Consumer) {
        for (number, own) in self.rings.iter_mut().enumerate() {
            if let (Some(until), None) = (own.until, own.told_at) {
                let place = consumer.by_interface()[number];
                own.told_at = Some(place.frames + place.lapped);
                consumer.rings_mut().leave(number as u64, &[until]);
            }
        }
    }

    fn act(&mut self, act: Act, consumer: &mut dyn Consumer) {
        let rings = self.rings.len().max(1);
        let number = |ring: prop::sample::Index| ring.index(rings);
        match act {
            Act::Join(frames) => {
                let ring = writer();
                consumer.join(feed(self.rings.len(), ring.ring())).unwrap();
                self.rings.push(Own { writer: Some(ring), frames: 0, until: None, told_at: None });
                self.push(self.rings.len() - 1, frames, 60);
            }
            Act::Step(frames_max) => drop(consumer.step(frames_max).unwrap()),
            Act::Tell => self.tell(consumer),
            _ if self.rings.is_empty() => {}
            Act::Push(ring, frames, bytes) => self.push(number(ring), frames, bytes),
            Act::Detach(ring) => {
                let own = &mut self.rings[number(ring)];
                own.until.get_or_insert(own.frames);
            }
            Act::Close(ring) => self.rings[number(ring)].writer = None,
        }
    }

    /// Runs all steps. Then closes every ring that was not detached, and runs the consumer to its end.
    fn play(&mut self, acts: Vec<Act>, consumer: &mut dyn Consumer) {
        acts.into_iter().for_each(|act| self.act(act, consumer));
        for own in self.rings.iter_mut().filter(|own| own.until.is_none()) {
            own.writer = None;
        }
        self.tell(consumer);
        for step in 0.. {
            if consumer.step(u64::MAX).unwrap() == Step::Ended {
                break;
            }
            assert!(step < 10_000, "it does not end");
        }
    }

    /// The number of this ring's frames that the consumer must have counted, as delivered or lapped.
    fn expected(&self, number: usize) -> u64 {
        let Own { frames, until, told_at, .. } = &self.rings[number];
        // The consumer may have read past `until` before it was told. Those frames count.
        until.map_or(*frames, |until| until.max(told_at.unwrap()))
    }

    /// Checks that the counts of the consumer add up, for each ring and in total.
    fn check_counts(&self, consumer: &dyn Consumer) {
        let taken = consumer.by_interface();
        assert_eq!(taken.len(), self.rings.len());
        for (number, taken) in taken.iter().enumerate() {
            assert_eq!(taken.frames + taken.lapped, self.expected(number), "ring {number}");
        }
        let delivered = consumer.delivered();
        assert_eq!(delivered.frames, taken.iter().map(|taken| taken.frames).sum::<u64>());
        assert_eq!(delivered.lapped, taken.iter().map(|taken| taken.lapped).sum::<u64>());
        assert_eq!(consumer.rings().unread(), 0);
        assert!(consumer.rings().readers().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_null_monitor_counts_every_frame_of_rings_that_come_and_go(acts in acts()) {
        let (mut world, mut null) = (World::default(), Null::new());
        world.play(acts, &mut null);
        world.check_counts(&null);
    }

    /// With an endless slack, frames are out of order only if a ring was half full. Without slack, they come in the
    /// order in which the consumer's turns find them.
    #[test]
    fn every_frame_of_rings_that_come_and_go_is_passed_on_once(acts in acts(), waits in any::<bool>()) {
        let large = acts.iter().any(|act| matches!(act, Act::Push(_, _, 60_000)));
        let (mut world, output) = (World::default(), Collect::default());
        let slack = if waits { FOREVER } else { Duration::ZERO };
        let mut ordered = Ordered::new(slack, output.clone());
        world.play(acts, &mut ordered);
        world.check_counts(&ordered);
        let stamps: Vec<u64> = output.0.lock().unwrap().frames.iter().map(|(_, ts)| *ts).collect();
        let (mut last, mut late) = (0, 0);
        let mut next = vec![0; world.rings.len()];
        let taken = ordered.by_interface();
        for stamp in &stamps {
            late += u64::from(*stamp < last);
            last = last.max(*stamp);
            let (ring, ordinal) = world.frames[stamp];
            prop_assert!(ordinal >= next[ring], "frame {} of ring {} again", ordinal, ring);
            prop_assert!(ordinal < world.expected(ring), "a frame that is not for this consumer");
            prop_assert!(taken[ring].lapped > 0 || ordinal == next[ring], "a frame is missing");
            next[ring] = ordinal + 1;
        }
        prop_assert_eq!(ordered.delivered().late, late);
        prop_assert!(!waits || large || late == 0, "{} frames out of order", late);
        prop_assert_eq!(ordered.delivered().frames, stamps.len() as u64);
    }
}

#[test]
fn a_ring_that_was_let_go_is_mapped_no_more_and_its_counts_stay() {
    let (mut closed, mut left, mut lasting) = (writer(), writer(), writer());
    let mut null = Null::new();
    let output = Collect::default();
    let mut ordered: Ordered<_> = Ordered::new(Duration::ZERO, output.clone());
    let consumers: [&mut dyn Consumer; 2] = [&mut null, &mut ordered];
    for writer in [&mut closed, &mut left, &mut lasting] {
        (1..=5).for_each(|ts| push(writer, ts));
    }
    closed.close();
    let memory = [closed.ring().clone(), left.ring().clone()].map(|ring| ring.memory().clone());
    let before = memory.each_ref().map(std::sync::Arc::strong_count);
    for consumer in consumers {
        for (key, writer) in [&closed, &left, &lasting].into_iter().enumerate() {
            consumer.join(feed(key, writer.ring())).unwrap();
        }
        consumer.rings_mut().leave(1, &[3]);
        while consumer.step(u64::MAX).unwrap() != Step::Idle {}
        assert_eq!(memory.each_ref().map(std::sync::Arc::strong_count), before);
        assert_eq!(consumer.by_interface().iter().map(|t| t.frames).collect::<Vec<_>>(), [5, 3, 5]);
        assert_eq!(
            (consumer.rings().ordinal(0, 0), consumer.rings().ordinal(2, 0)),
            (None, Some(5))
        );
        assert_eq!((consumer.delivered().frames, consumer.rings().unread()), (13, 0));
    }
    assert_eq!(output.0.lock().unwrap().frames.len(), 13);
}

/// An interface comes and goes faster than the consumer reads it. Each time, its feed joins and leaves.
#[test]
fn rings_of_feeds_that_left_unread_are_let_go_and_their_frames_are_lapped() {
    let consumers: [Box<dyn Consumer>; 2] =
        [Box::new(Null::new()), Box::new(Ordered::new(Duration::ZERO, Collect::default()))];
    for mut consumer in consumers {
        let mut memory = Vec::new();
        let lives = PAST_FEEDS_MAX + 3;
        for life in 0..lives {
            let mut writer = writer();
            (1..=5).for_each(|ts| push(&mut writer, ts));
            consumer.join(JoinedFeed { output: 0, ..feed(life, writer.ring()) }).unwrap();
            if life == 0 {
                assert_eq!(consumer.step(1).unwrap(), Step::Busy);
            }
            memory.push(writer.ring().memory().clone());
            // A writer that fails may leave its ring open.
            std::mem::forget(writer);
            consumer.rings_mut().leave(life as u64, &[]);
        }
        // The forgotten writer and `memory` hold one reference each; a third one is the consumer's.
        let held = memory.iter().filter(|memory| Arc::strong_count(memory) > 2).count();
        assert_eq!(held, PAST_FEEDS_MAX);
        let let_go = consumer.rings().let_go();
        assert_eq!(let_go, 4 + 5 + 5, "of three lives, one frame of which was read");
        assert_eq!(consumer.rings().unread(), 5 * PAST_FEEDS_MAX as u64);
        assert!(consumer.rings().readers().is_empty(), "none has a line any more");
        while consumer.step(u64::MAX).unwrap() != Step::Ended {}
        let delivered = consumer.delivered();
        assert_eq!((delivered.lapped, delivered.frames), (let_go, (lives * 5) as u64 - let_go));
        assert_eq!(
            consumer.by_interface(),
            [Taken { frames: delivered.frames, lapped: let_go, untriggered: 0 }]
        );
    }
}

/// A consumer that leaves a feed and joins it again has a past feed and a present one with the same key.
#[test]
fn a_feed_that_was_joined_again_is_not_let_go_with_its_past() {
    let consumers: [Box<dyn Consumer>; 2] =
        [Box::new(Null::new()), Box::new(Ordered::new(Duration::ZERO, Collect::default()))];
    for mut consumer in consumers {
        let mut again = writer();
        push(&mut again, 1);
        consumer.join(feed(0, again.ring())).unwrap();
        consumer.rings_mut().leave(0, &[1]);
        consumer.join(feed(0, again.ring())).unwrap();
        for key in 1..=PAST_FEEDS_MAX {
            let mut writer = writer();
            push(&mut writer, 1);
            consumer.join(JoinedFeed { output: 0, ..feed(key, writer.ring()) }).unwrap();
            consumer.rings_mut().leave(key as u64, &[1]);
        }
        push(&mut again, 2);
        drop(again);
        while consumer.step(u64::MAX).unwrap() != Step::Ended {}
        let Delivered { frames, lapped, .. } = consumer.delivered();
        assert_eq!((frames, lapped), (2 + PAST_FEEDS_MAX as u64, 1), "only its past is let go");
    }
}

/// A consumer that always has more frames to read must still release rings that it has read to their end.
#[test]
fn a_null_monitor_that_is_always_busy_lets_rings_go_that_it_has_read() {
    let mut consumer = Null::new();
    let mut busy = writer();
    (1..=1000).for_each(|ts| push(&mut busy, ts));
    consumer.join(feed(1000, busy.ring())).unwrap();
    let mut memory = Vec::new();
    for life in 0..20 {
        let mut writer = writer();
        push(&mut writer, 1);
        consumer.join(JoinedFeed { output: 0, ..feed(life, writer.ring()) }).unwrap();
        memory.push(writer.ring().memory().clone());
        consumer.rings_mut().leave(life as u64, &[u64::from(life % 2 == 0)]);
        for _ in 0..4 {
            assert_eq!(consumer.step(1).unwrap(), Step::Busy);
        }
    }
    let held = memory.iter().filter(|memory| Arc::strong_count(memory) > 1).count();
    assert!(held <= 1, "{held} of 20 rings");
    assert_eq!(consumer.rings().let_go(), 0);
}

/// The frame of feed 0 has the latest timestamp, so the other feeds are read before it, and do not count as unread past
/// feeds when they leave.
#[test]
fn feeds_that_left_when_they_were_read_push_nobody_out() {
    let mut consumer = Ordered::new(Duration::ZERO, Collect::default());
    let writers: Vec<_> = (0..=PAST_FEEDS_MAX)
        .map(|key| {
            let mut writer = writer();
            push(&mut writer, if key == 0 { 100 } else { key as u64 });
            consumer.join(JoinedFeed { output: 0, ..feed(key, writer.ring()) }).unwrap();
            writer
        })
        .collect();
    assert_eq!(consumer.step(PAST_FEEDS_MAX as u64).unwrap(), Step::Busy);
    (0..writers.len()).for_each(|key| consumer.rings_mut().leave(key as u64, &[1]));
    assert_eq!((consumer.rings().let_go(), consumer.rings().unread()), (0, 1));
    while consumer.step(u64::MAX).unwrap() != Step::Ended {}
    assert_eq!(consumer.delivered().frames, writers.len() as u64);
}

/// An interface that comes and goes within a long slack loses no frames: they are passed on before the slack ends.
#[test]
fn order_gives_way_before_a_feed_that_left_is_let_go() {
    let silent = writer();
    let mut consumer = Ordered::new(FOREVER, Collect::default());
    consumer.join(feed(100, silent.ring())).unwrap();
    let lives = PAST_FEEDS_MAX + 3;
    for life in 0..lives {
        let mut writer = writer();
        (1..=5).for_each(|ts| push(&mut writer, 10 * life as u64 + ts));
        consumer.join(JoinedFeed { output: 0, ..feed(life, writer.ring()) }).unwrap();
        drop(writer);
        consumer.rings_mut().leave(life as u64, &[]);
        while consumer.step(u64::MAX).unwrap() == Step::Busy {}
    }
    let waiting = 5 * (PAST_FEEDS_MAX as u64 - 1);
    assert_eq!((consumer.rings().let_go(), consumer.rings().unread()), (0, waiting));
    let delivered = consumer.delivered();
    assert_eq!((delivered.lapped, delivered.frames), (0, 5 * lives as u64 - waiting));
}

#[test]
fn a_feed_that_leaves_within_a_batch_that_was_copied_is_not_passed_on_further() {
    let (mut fast, silent) = (writer(), writer());
    let output = Collect::default();
    let mut ordered: Ordered<_> = Ordered::new(FOREVER, output.clone());
    ordered.join(feed(0, fast.ring())).unwrap();
    ordered.join(feed(1, silent.ring())).unwrap();
    (1..=9).for_each(|ts| push(&mut fast, ts));
    // All nine are copied, and wait for the silent ring.
    assert_eq!(ordered.step(u64::MAX).unwrap(), Step::Waiting);
    assert_eq!(ordered.rings().unread(), 9);
    ordered.rings_mut().leave(0, &[4]);
    assert_eq!(ordered.rings().unread(), 4);
    ordered.rings_mut().leave(1, &[0]);
    while ordered.step(u64::MAX).unwrap() != Step::Ended {}
    assert_eq!((ordered.delivered().frames, ordered.rings().unread()), (4, 0));
}

/// A consumer that is blocked joins a feed long after the feed began.
#[test]
fn frames_that_were_overwritten_before_a_consumer_joined_are_lapped() {
    for until in [None, Some(90), Some(3)] {
        let consumers: [Box<dyn Consumer>; 2] =
            [Box::new(Null::new()), Box::new(Ordered::new(Duration::ZERO, Collect::default()))];
        for mut consumer in consumers {
            let mut writer = writer();
            // Some 70 frames fill the ring.
            for ts_ns in 1..=100 {
                let meta = Meta { ts_ns, wire_len: 60_000, ..Meta::default() };
                writer.push(&meta, &[0; 60_000]);
            }
            writer.publish();
            let begin = Begin::First;
            consumer.join(JoinedFeed { begin, ..feed(0, writer.ring()) }).unwrap();
            until.iter().for_each(|until| consumer.rings_mut().leave(0, &[*until]));
            drop(writer);
            while consumer.step(u64::MAX).unwrap() != Step::Ended {}
            let Delivered { frames, lapped, .. } = consumer.delivered();
            assert_eq!(frames + lapped, until.unwrap_or(100), "{frames} + {lapped}");
            assert!(lapped > 0 && (frames > 0) == (until != Some(3)), "{frames}, {lapped}");
            assert_eq!(consumer.by_interface(), [Taken { frames, lapped, untriggered: 0 }]);
        }
    }
}

#[test]
fn a_consumer_that_begins_at_an_ordinal_has_what_comes_from_there_on() {
    // The ring holds about 70 frames. Frame 20 of 50 is still there, frame 90 of 200 is overwritten, and frame 70 of 50
    // is not written yet. `expected` is the sum of delivered and lapped frames, and whether any were lapped.
    for (frames, from, until, expected) in [
        (50, 20, None, (30, 0)),
        (50, 20, Some(25), (5, 0)),
        (200, 90, None, (110, 1)),
        (200, 90, Some(95), (5, 5)),
        (50, 70, None, (0, 0)),
    ] {
        let consumers: [Box<dyn Consumer>; 2] =
            [Box::new(Null::new()), Box::new(Ordered::new(Duration::ZERO, Collect::default()))];
        for mut consumer in consumers {
            let mut writer = writer();
            for ts_ns in 1..=frames {
                let meta = Meta { ts_ns, wire_len: 60_000, ..Meta::default() };
                writer.push(&meta, &[0; 60_000]);
            }
            writer.publish();
            let begin = Begin::At(vec![from]);
            consumer.join(JoinedFeed { begin, ..feed(0, writer.ring()) }).unwrap();
            until.iter().for_each(|until| consumer.rings_mut().leave(0, &[*until]));
            drop(writer);
            while consumer.step(u64::MAX).unwrap() != Step::Ended {}
            let Delivered { frames: delivered, lapped, .. } = consumer.delivered();
            let case = (frames, from, until, delivered, lapped);
            assert_eq!(delivered + lapped, expected.0, "{case:?}");
            assert_eq!(lapped > 0, expected.1 > 0, "{case:?}");
        }
    }
}

#[test]
fn a_ring_that_leaves_holds_nobody_and_one_that_joins_is_waited_for() {
    let (mut fast, silent, late) = (writer(), writer(), writer());
    let mut ordered: Ordered<_> = Ordered::new(FOREVER, Collect::default());
    ordered.join(feed(0, fast.ring())).unwrap();
    ordered.join(feed(1, silent.ring())).unwrap();
    push(&mut fast, 1);
    assert_eq!(ordered.step(u64::MAX).unwrap(), Step::Waiting);
    ordered.rings_mut().leave(1, &[0]);
    assert_eq!(ordered.step(u64::MAX).unwrap(), Step::Busy);
    ordered.join(feed(2, late.ring())).unwrap();
    push(&mut fast, 2);
    assert_eq!(ordered.step(u64::MAX).unwrap(), Step::Waiting);
    drop(late);
    assert_eq!(ordered.step(u64::MAX).unwrap(), Step::Busy);
}

#[test]
fn sinks_hear_of_interfaces_before_their_frames_and_of_a_feed_that_came_back_not_again() {
    let named = |name: &str| Interface { name: name.into(), link_type: 1, ..Interface::default() };
    let rings = [vec!["eth0"], vec!["eth1", "eth2"], vec!["eth0", "eth3"]]
        .map(|names| ring_of(names.into_iter().map(named).collect()));
    let output = Collect::default();
    let mut ordered: Ordered<_> = Ordered::new(Duration::ZERO, output.clone());
    for (key, (ring, of)) in rings.iter().zip([0, 1, 0]).enumerate() {
        let mut joined = feed(key, ring);
        (joined.output, joined.label) = (of, format!("[{key}]"));
        ordered.join(joined).unwrap();
        let mut writer = Writer::new(ring.clone());
        let interface_id = ring.append_interface(&named("vnet")).unwrap();
        let meta = Meta { interface_id, ts_ns: key as u64, ..Meta::default() };
        writer.push(&meta, &[]);
        drop(writer);
        while ordered.step(u64::MAX).unwrap() != Step::Ended {}
    }
    let own = output.0.lock().unwrap();
    let names = ["eth0[0]", "vnet[0]", "eth1[1]", "eth2[1]", "vnet[1]", "eth3[2]"];
    assert_eq!(own.interfaces, names);
    assert_eq!(own.frames, [(1, 0), (4, 1), (1, 2)]);
    assert_eq!(ordered.rings().first_interface(1), Some(2));
}

#[test]
fn a_feed_of_which_one_ring_is_no_ring_does_not_join() {
    let mut lanes: Lanes = Lanes::new();
    let good = writer();
    let bad = ring_of(vec![Interface::default()]);
    for word in &weir_ring::Words::words(bad.memory().as_ref())[..100] {
        word.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    }
    let mut joined = feed(0, &bad);
    joined.rings.push(good.ring().clone());
    assert!(lanes.join(joined).is_err());
    assert!(lanes.is_empty() && lanes.numbering().interfaces().is_empty());
}
