//! Frames of these tests are a nanosecond apart, a thousand to a block.

use super::*;
use crate::recorder::look_back::{Asked, LookBack, LookBackReport, Span, Watch};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use weir_filter::Program;

fn time(ns: u64) -> Span {
    Span::Time(Duration::from_nanos(ns))
}

fn rig(blocks: u64, before: Span, after: Span, watch: Watch) -> (Rig, Asked) {
    let asked = Asked::default();
    let look_back = LookBack { before, after, asked: asked.clone(), watch, began: |_| () };
    (Rig::new(blocks, |settings| settings.look_back = Some(look_back)), asked)
}

impl Rig {
    fn push_blocks(&mut self, count: u64) {
        for _ in 0..count {
            self.push_block();
            self.run();
        }
    }

    fn look_back(&self) -> LookBackReport {
        self.recorder.report().look_back.expect("asked for")
    }

    /// Asserts that every frame is in exactly one count, and that the kept frames are in files. Returns their times.
    #[track_caller]
    fn is_accounted_for(&self) -> Vec<u64> {
        let (delivered, times) = (self.recorder.delivered(), self.times());
        assert_eq!(delivered.frames + delivered.untriggered + delivered.lapped, self.pushed);
        assert_eq!(
            (times.len() as u64, delivered.frames),
            (self.recorder.kept().frames, self.recorder.kept().frames)
        );
        times
    }
}

/// The first and the last number of each run of consecutive numbers.
fn runs(numbers: &[u64]) -> Vec<(u64, u64)> {
    numbers.chunk_by(|one, next| one + 1 == *next).map(|run| (run[0], run[run.len() - 1])).collect()
}

#[test]
fn without_a_trigger_nothing_is_saved_and_nothing_is_lost() {
    let (mut rig, _) = rig(8, time(u64::MAX), time(0), Watch::default());
    rig.push_blocks(20);
    // The writer overwrites the whole ring. Nobody wanted the old frames, so they are not lost.
    (0..20).for_each(|_| rig.push_block());
    rig.push(3);
    rig.finish();
    let delivered = rig.recorder.delivered();
    assert_eq!((delivered.untriggered, delivered.lapped), (rig.pushed, 0));
    assert_eq!((rig.is_accounted_for(), rig.files()), (vec![], vec![]));
}

#[test]
fn what_lies_around_a_trigger_is_saved() {
    let (mut rig, asked) = rig(8, time(1500), time(2500), Watch::default());
    rig.push_blocks(10);
    asked.command.store(true, Ordering::Relaxed);
    rig.run();
    rig.push_blocks(10);
    // The last frame was 9999 at the time of the trigger. Blocks are saved whole.
    assert_eq!(runs(&rig.times()), [(8000, 12_999)]);
    let files = rig.files();
    assert!(
        files.iter().all(|path| path.extension().is_some_and(|end| end == "pcapng")),
        "{files:?}"
    );
    asked.signal.store(true, Ordering::Relaxed);
    rig.run();
    rig.push_blocks(1);
    rig.finish();
    let times = rig.is_accounted_for();
    assert_eq!(runs(&times), [(8000, 12_999), (18_000, 20_999)]);
    assert!(rig.files().len() > files.len());
    let expected = LookBackReport { saves: 2, signal: 1, command: 1, ..LookBackReport::default() };
    assert_eq!(rig.look_back(), expected);
}

#[test]
fn compressed_files_of_a_trigger_are_complete_once_its_time_is_over() {
    let asked = Asked::default();
    let look_back = LookBack {
        before: time(1500),
        after: time(2500),
        asked: asked.clone(),
        watch: Watch::default(),
        began: |_| (),
    };
    let mut rig = Rig::new(8, |settings| {
        settings.look_back = Some(look_back);
        compressed(settings);
    });
    rig.push_blocks(10);
    asked.command.store(true, Ordering::Relaxed);
    rig.run();
    rig.push_blocks(10);
    let files = rig.files();
    assert!(files.iter().all(|path| path.to_string_lossy().ends_with(".zst")), "{files:?}");
    let times: Vec<u64> = files.iter().flat_map(|path| unpacked_times(path)).collect();
    assert_eq!(runs(&times), [(8000, 12_999)]);
    rig.finish();
    assert_eq!(rig.files(), files);
}

#[test]
fn what_is_too_old_goes_also_where_the_recorder_was_late() {
    let (mut rig, asked) = rig(16, time(1500), time(0), Watch::default());
    rig.push_blocks(2);
    (0..6).for_each(|_| rig.push_block());
    asked.command.store(true, Ordering::Relaxed);
    rig.run();
    rig.finish();
    // The last frame was 7999.
    assert_eq!(runs(&rig.is_accounted_for()), [(6000, 7999)]);
}

#[test]
fn half_of_the_ring_is_history_and_a_second_trigger_moves_the_end() {
    let (mut rig, asked) = rig(16, time(u64::MAX), time(1000), Watch::default());
    rig.push_blocks(40);
    asked.command.store(true, Ordering::Relaxed);
    rig.run();
    rig.push(500);
    asked.command.store(true, Ordering::Relaxed);
    rig.push(500);
    rig.run();
    rig.push_blocks(8);
    rig.finish();
    let times = rig.is_accounted_for();
    let [(first, last)] = runs(&times)[..] else { panic!("{:?}", runs(&times)) };
    assert!(
        (31_000..=33_000).contains(&first) && (41_499..43_000).contains(&last),
        "{first} to {last}"
    );
    assert_eq!((rig.look_back().saves, rig.look_back().command), (1, 2));
}

#[test]
fn a_trigger_says_that_the_rings_had_room_for_less_than_was_wanted() {
    static SHORT: Mutex<Vec<bool>> = Mutex::new(Vec::new());
    let told = |before: Span, blocks: u64| {
        let asked = Asked::default();
        let look_back = LookBack {
            before,
            after: time(0),
            asked: asked.clone(),
            watch: Watch::default(),
            began: |began| SHORT.lock().unwrap().push(began.is_short),
        };
        let mut rig = Rig::new(16, |settings| settings.look_back = Some(look_back));
        rig.push_blocks(blocks);
        asked.command.store(true, Ordering::Relaxed);
        rig.run();
        rig.finish();
        std::mem::take(&mut *SHORT.lock().unwrap())
    };
    assert_eq!(told(time(20_000), 40), [true]);
    // Half of the ring is enough; or the capture has just begun; or all that the ring has is wanted.
    assert_eq!(told(time(5000), 40), [false]);
    assert_eq!(told(time(20_000), 4), [false]);
    assert_eq!(told(Span::Time(Duration::MAX), 40), [false]);
}

#[test]
fn so_many_bytes_before_and_after_are_saved() {
    let (mut rig, asked) = rig(16, Span::Bytes(2 << 20), Span::Bytes(3 << 20), Watch::default());
    rig.push_blocks(10);
    asked.command.store(true, Ordering::Relaxed);
    rig.run();
    rig.push_blocks(10);
    rig.finish();
    let times = rig.is_accounted_for();
    assert_eq!(runs(&times), [(7000, 12_999)]);
}

/// A filter that accepts frames of 61 bytes.
fn odd_frames() -> Watch {
    let compile = |_| {
        Program::parse("4,128 0 0 0,21 0 1 61,6 0 0 1,6 0 0 0").map_err(|error| error.to_string())
    };
    Watch { filters: vec![Arc::new(compile)], ..Watch::default() }
}

#[test]
fn a_frame_that_the_filter_accepts_is_a_trigger_and_is_saved() {
    let (mut rig, _) = rig(8, time(100), time(100), odd_frames());
    rig.push_blocks(6);
    rig.push(20);
    let meta = Meta { ts_ns: rig.pushed, wire_len: 61, ..Meta::default() };
    rig.writer.push(&meta, &[rig.pushed as u8; 61]);
    rig.pushed += 1;
    rig.push(500);
    rig.run();
    rig.push_blocks(6);
    rig.finish();
    let times = rig.is_accounted_for();
    let [(first, last)] = runs(&times)[..] else { panic!("{:?}", runs(&times)) };
    assert!(first <= 5920 && last >= 6120 && last - first < 3000, "{first} to {last}");
    let LookBackReport { saves, filter, unwatched, .. } = rig.look_back();
    assert_eq!((saves, filter, unwatched), (1, 1, 0));
}

#[test]
fn the_last_frame_of_a_ring_may_be_a_trigger() {
    let (mut rig, _) = rig(8, time(10), time(10), odd_frames());
    rig.push_blocks(3);
    let meta = Meta { ts_ns: rig.pushed, wire_len: 61, ..Meta::default() };
    rig.writer.push(&meta, &[rig.pushed as u8; 61]);
    rig.pushed += 1;
    rig.finish();
    assert_eq!(rig.is_accounted_for().last(), Some(&3000));
}
