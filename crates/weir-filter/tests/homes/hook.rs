//! How a capture program calls a filter that is not there when it is loaded: a subprogram tail-calls a slot
//! of a program array, and the verdict comes back as the subprogram's result. See
//! docs/decisions/0009-filter-homes.md.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
    let frames: Vec<_> = frames::all().into_iter().filter(|frame| frames::for_tc(frame)).collect();
    for number in [Number::Loaded, Number::Constant] {
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
                    let found = capture.run(bytes);
                    assert_eq!(found, expected, "{target:?}, '{text}' on {bytes:02x?}");
                }
            }
            slot.empty();
            assert_eq!(capture.run(&frames[0]), NO_FILTER, "{target:?}: empty again");
        }
    }
}

#[test]
fn root_a_filter_is_changed_while_frames_go_by() {
    if !weir_lab::testbed::require_root("root_a_filter_is_changed_while_frames_go_by") {
        return;
    }
    changed_while_frames_go_by(Number::Loaded);
}

#[test]
fn root_a_constant_slot_is_patched_while_frames_go_by() {
    if !weir_lab::testbed::require_root("root_a_constant_slot_is_patched_while_frames_go_by") {
        return;
    }
    changed_while_frames_go_by(Number::Constant);
}

fn changed_while_frames_go_by(number: Number) {
    let slot = Slot::new();
    let capture = slot.capture(number, Target::Tc);
    let frame = frames::all().into_iter().find(|frame| frames::for_tc(frame)).expect("some");
    // Both take every frame, each with a verdict of its own: anything else is a frame lost in between.
    let filters = [7, 8].map(|verdict| {
        let ret = weir_filter::Insn::new(weir_filter::insn::RET_K, verdict);
        let program = weir_filter::Program::new([ret]).expect("valid");
        Loaded::new(&program, Target::Tc).expect("a filter")
    });
    slot.put(&filters[0]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let runner = scope.spawn(|| {
            let mut runs = 0u64;
            while !done.load(Relaxed) {
                let verdict = capture.run(&frame) - 1;
                assert!(verdict == 7 || verdict == 8, "verdict {verdict}");
                runs += 1;
            }
            runs
        });
        for turn in 0..200 {
            slot.put(&filters[turn % 2]);
        }
        // Also on a machine that did not run both at once.
        slot.put(&filters[1]);
        assert_eq!(capture.run(&frame), 9);
        done.store(true, Relaxed);
        runner.join().expect("every verdict was one of the two");
    });
}
