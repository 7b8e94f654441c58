//! How a capture program calls a filter that is not there when it is loaded: a subprogram tail-calls a slot
//! of a program array, and the verdict comes back as the subprogram's result. See
//! docs/decisions/0009-filter-homes.md.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use weir_filter::ebpf::Target;

use crate::kernel::{Loaded, insn};
use crate::{frames, oracle};

/// What the capture program below gives while its slot is empty.
const NO_FILTER: u32 = u32::MAX;

/// A program array of one slot.
struct Slot(OwnedFd);

impl Slot {
    fn new() -> Slot {
        // SAFETY: the name is terminated; null options mean defaults.
        let fd = unsafe {
            let kind = libbpf_sys::BPF_MAP_TYPE_PROG_ARRAY;
            libbpf_sys::bpf_map_create(kind, c"filters".as_ptr(), 4, 4, 1, ptr::null())
        };
        assert!(fd >= 0, "a program array: {}", io::Error::from_raw_os_error(-fd));
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        Slot(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn put(&self, filter: &Loaded) {
        let (slot, fd) = (0u32, filter.fd().as_raw_fd());
        // SAFETY: key and value live through the call and are as large as the map was made for.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.0.as_raw_fd(),
                (&raw const slot).cast(),
                (&raw const fd).cast(),
                0,
            )
        };
        assert_eq!(result, 0, "putting a filter in: {}", io::Error::last_os_error());
    }

    fn empty(&self) {
        let slot = 0u32;
        // SAFETY: the key lives through the call and is as large as the map was made for.
        let result = unsafe {
            libbpf_sys::bpf_map_delete_elem(self.0.as_raw_fd(), (&raw const slot).cast())
        };
        assert_eq!(result, 0, "taking a filter out: {}", io::Error::last_os_error());
    }
}

/// Calls the slot's filter, and goes on: it gives the verdict plus 1, so that a filter which ended the
/// whole program would show.
fn capture(slot: &Slot, target: Target) -> Loaded {
    const LOCAL: u8 = 1;
    const MAP_FD: u8 = 1;
    const TAIL_CALL: i32 = 12;
    let code = [
        insn(0x85, 0, LOCAL, 0, 2),
        insn(0x04, 0, 0, 0, 1),
        insn(0x95, 0, 0, 0, 0),
        // The subprogram, its context in r1.
        insn(0x18, 2, MAP_FD, 0, slot.0.as_raw_fd()),
        insn(0, 0, 0, 0, 0),
        insn(0xb7, 3, 0, 0, 0),
        insn(0x85, 0, 0, 0, TAIL_CALL),
        insn(0xb4, 0, 0, 0, NO_FILTER.wrapping_sub(1) as i32),
        insn(0x95, 0, 0, 0, 0),
    ];
    Loaded::with_subprogram(&code, 3, target).unwrap_or_else(|log| panic!("{target:?}: {log}"))
}

#[test]
fn root_a_capture_program_calls_the_filter_of_the_hour() {
    if !weir_lab::testbed::require_root("root_a_capture_program_calls_the_filter_of_the_hour") {
        return;
    }
    let frames: Vec<_> = frames::all().into_iter().filter(|frame| frames::for_tc(frame)).collect();
    for target in [Target::Xdp, Target::Tc] {
        let slot = Slot::new();
        let capture = capture(&slot, target);
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
    let capture = capture(&slot, Target::Tc);
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
