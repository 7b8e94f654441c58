//! The BPF programs, run by `BPF_PROG_TEST_RUN`, give the same records as `weir_flow::FlowTable`.
#![allow(unsafe_code)]

#[path = "../../weir-capture/tests/flow/frames.rs"]
#[allow(dead_code)]
mod frames;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_capture::Direction;
use weir_flow::{EndReason, FlowConfig, FlowRecord, FlowTable, LinkLayer, Octets, Seen, merge};
use weir_lab::testbed::require_root;

use crate::config::{Hook, KernelConfig};
use crate::programs::{Programs, load};
use crate::table::KernelTable;
use crate::ticks::Ticks;

/// Runs a program on a frame.
fn run(program: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: the descriptor is open. `sz` is the size of `options`; `data_in` is readable for `data_size_in` bytes
    // and lives through the call; all other pointers are null with length 0, which the kernel takes as absent.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn loaded(config: KernelConfig) -> (KernelTable, Arc<OwnedFd>) {
    let ticks = Ticks::of(&config.flow);
    let (programs, memory) = load(1, &config, &ticks).expect("the kernel takes the programs");
    let table = KernelTable::of(config, ticks, Programs::default(), memory);
    (table, programs.into_iter().next().expect("one was asked for"))
}

/// Pins the thread, so that all frames of a test are seen on one CPU: the first frame of a flow determines the ICMP
/// type of its record.
fn stay_on_this_cpu() {
    let cpu = rustix::thread::sched_getcpu();
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).expect("a thread may stay where it is");
}

/// Merges and sorts the records, and clears the fields that depend on the times of frames.
fn timeless(records: Vec<FlowRecord>) -> Vec<FlowRecord> {
    let mut merged = merge(records, false, false);
    for record in &mut merged {
        (record.first_ns, record.last_ns, record.reason) = (0, 0, EndReason::Forced);
    }
    merged.sort_by_key(|record| (record.key, record.vlan));
    merged
}

fn same_records_at(hook: Hook, by_vlan: bool, octets: Octets) {
    let flow = FlowConfig {
        flows_max: 1 << 15,
        // Long enough that no flow ends during the test, even on a slow machine.
        idle_timeout: Some(Duration::from_secs(3600)),
        active_timeout: Some(Duration::from_secs(3600)),
        by_vlan,
        octets,
        ..FlowConfig::default()
    };
    let direction = if hook == Hook::Xdp { Direction::In } else { Direction::Both };
    let config = KernelConfig { flow: flow.clone(), hook, direction, ..KernelConfig::default() };
    let (mut in_kernel, program) = loaded(config);
    let mut in_user_space = FlowTable::new(flow).expect("sound limits");
    let (mut of_kernel, mut of_user_space) = (Vec::new(), Vec::new());
    // A test run at TC accepts only frames that contain a whole IP header and fit in a page.
    let least = if hook == Hook::Xdp { 14 } else { 14 + 40 };
    let mut count = 0;
    for frame in frames::all().iter().filter(|frame| (least..3000).contains(&frame.len())) {
        // Each frame is sent twice, so that flows have several frames.
        for _ in 0..2 {
            run(&program, frame).unwrap_or_else(|error| panic!("{frame:02x?}: {error}"));
            let (wire_len, interface) = (frame.len() as u32, 0);
            let (link, ts_ns) = (LinkLayer::Ethernet, 1_000_000_000 + count);
            let seen = Seen { frame, link, wire_len, ts_ns, interface };
            in_user_space.add([seen], &mut |record| of_user_space.push(record));
            count += 1;
        }
    }
    let (kernel, user) = (in_kernel.counters(), in_user_space.counters());
    assert_eq!(kernel.table.flows, kernel.table.began - kernel.table.evicted);
    let live = timeless(in_kernel.live().collect());
    in_kernel.finish(&mut |record| of_kernel.push(record)).expect("a wait is allowed");
    in_user_space.finish(&mut |record| of_user_space.push(record));
    let kernel_packets: u64 = of_kernel.iter().map(FlowRecord::packets).sum();
    assert_eq!(kernel_packets + kernel.table.not_flows.total(), count);
    assert_eq!(kernel.table.evicted, 0, "there is room for all");
    assert_eq!((kernel.table.frames, kernel.table.not_flows), (user.frames, user.not_flows));
    assert_eq!(
        (kernel.table.fragments_attributed, kernel.table.fragments_unattributed),
        (user.fragments_attributed, user.fragments_unattributed)
    );
    let (of_kernel, of_user_space) = (timeless(of_kernel), timeless(of_user_space));
    assert!(of_kernel.len() > 500, "the frames are of many kinds, or this would say little");
    assert_eq!(of_kernel.len(), of_user_space.len());
    for (kernel, user) in of_kernel.iter().zip(&of_user_space) {
        assert_eq!(kernel, user);
    }
    assert_eq!(live, of_kernel);
}

#[test]
fn root_records_at_xdp_are_those_of_the_table_in_user_space() {
    if !require_root("root_records_at_xdp_are_those_of_the_table_in_user_space") {
        return;
    }
    stay_on_this_cpu();
    same_records_at(Hook::Xdp, false, Octets::Ip);
    same_records_at(Hook::Xdp, true, Octets::Wire);
}

#[test]
fn root_records_at_tc_are_those_of_the_table_in_user_space() {
    if !require_root("root_records_at_tc_are_those_of_the_table_in_user_space") {
        return;
    }
    stay_on_this_cpu();
    same_records_at(Hook::Tc, true, Octets::Ip);
    same_records_at(Hook::Tc, false, Octets::Wire);
}

/// A UDP frame with `number` in one field of its addresses or ports, which are zero otherwise.
fn numbered(number: u16, field: usize, v6: bool) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    let at = if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, 17, 64]);
        frame.extend([0; 58]);
        [14 + 8, 14 + 16, 14 + 24, 14 + 32, 14 + 40, 14 + 42][field]
    } else {
        frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([0; 34]);
        [14 + 12, 14 + 14, 14 + 16, 14 + 18, 14 + 20, 14 + 22][field]
    };
    frame[at..at + 2].copy_from_slice(&number.to_be_bytes());
    frame
}

#[test]
fn root_flows_that_differ_in_one_field_fill_the_table() {
    if !require_root("root_flows_that_differ_in_one_field_fill_the_table") {
        return;
    }
    stay_on_this_cpu();
    for (field, v6) in (0..6).flat_map(|field| [(field, false), (field, true)]) {
        let flow = FlowConfig { flows_max: 1024, ..FlowConfig::default() };
        // At TC, because test runs at XDP may wait for an update of the kernel's XDP dispatcher.
        let (mut table, program) = loaded(KernelConfig { flow, ..KernelConfig::default() });
        for number in 0..700 {
            run(&program, &numbered(number, field, v6)).expect("a frame");
        }
        let counters = table.counters().table;
        assert_eq!((counters.began, counters.evicted), (700, 0), "field {field}, IPv6 {v6}");
        let mut records = 0;
        table.finish(&mut |_| records += 1).expect("a wait is allowed");
        assert_eq!(records, 700);
    }
}
