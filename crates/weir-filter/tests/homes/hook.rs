//! How a capture program calls a filter that is not there when it is loaded: a subprogram tail-calls a slot
//! of a program array, and the verdict comes back as the subprogram's result. See
//! docs/decisions/0009-filter-homes.md.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use weir_filter::ebpf::Target;

use crate::kernel::Loaded;
use crate::slot::{NO_FILTER, Number, Slot};
use crate::{frames, oracle};

#[test]
fn root_a_capture_program_calls_the_filter_of_the_hour() {
    if !weir_lab::testbed::require_root("root_a_capture_program_calls_the_filter_of_the_hour") {
        return;
    }
    the_filter_of_the_hour_is_called(Number::Loaded);
}

/// The engines do not call so, but the figures of filter_rate are of both. Not under traffic: that ended Linux
/// 6.1 in an emulated machine.
#[test]
fn root_a_constant_slot_is_called_too() {
    if !weir_lab::testbed::require_root("root_a_constant_slot_is_called_too") {
        return;
    }
    the_filter_of_the_hour_is_called(Number::Constant);
}

fn the_filter_of_the_hour_is_called(number: Number) {
    let frames: Vec<_> = frames::all().into_iter().filter(|frame| frames::for_tc(frame)).collect();
    for target in [Target::Xdp, Target::Tc] {
        let slot = Slot::new();
        let capture = slot.capture(number, target);
        assert_eq!(capture.run(&frames[0]), NO_FILTER, "{target:?}: an empty slot");
        for text in ["tcp port 80", "vlan", "udp", "", "less 100"] {
            let program = oracle::compile(text);
            // The slot keeps the filter alive; its descriptor is closed at once.
            slot.put(&Loaded::new(&program, target).expect("a filter"));
            for bytes in &frames {
                let expected = oracle::run(&program, bytes, bytes.len() as u32) + 1;
                assert_eq!(capture.run(bytes), expected, "{target:?}, '{text}' on {bytes:02x?}");
            }
        }
        slot.empty();
        assert_eq!(capture.run(&frames[0]), NO_FILTER, "{target:?}: empty again");
    }
}

#[test]
fn root_a_filter_is_changed_while_frames_go_by() {
    if !weir_lab::testbed::require_root("root_a_filter_is_changed_while_frames_go_by") {
        return;
    }
    let slot = Slot::new();
    let capture = slot.capture(Number::Loaded, Target::Tc);
    let frame = frames::all().into_iter().find(|frame| frames::for_tc(frame)).expect("some");
    // Both take every frame, each with a verdict of its own: anything else is a frame lost in between.
    let filters = [7, 8].map(|verdict| {
        let ret = weir_filter::Insn::new(weir_filter::insn::RET_K, verdict);
        let program = weir_filter::Program::new([ret]).expect("valid");
        Loaded::new(&program, Target::Tc).expect("a filter")
    });
    slot.put(&filters[0]);
    let (runs, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let runner = scope.spawn(|| {
            while !done.load(Relaxed) {
                let verdict = capture.run(&frame) - 1;
                assert!(verdict == 7 || verdict == 8, "verdict {verdict}");
                runs.fetch_add(1, Relaxed);
            }
        });
        // As many changes at least, and as many frames beside them.
        let mut turn = 0;
        while (turn < 200 || runs.load(Relaxed) < 200) && !runner.is_finished() {
            slot.put(&filters[turn % 2]);
            turn += 1;
        }
        slot.put(&filters[1]);
        assert_eq!(capture.run(&frame), 9);
        done.store(true, Relaxed);
        runner.join().expect("every verdict was one of the two");
    });
}
