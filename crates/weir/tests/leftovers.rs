//! A capture leaves nothing behind when it ends or is killed. Only clsact filters outlive SIGKILL; the next capture
//! removes them.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::bpf::{CountingFilter, attached};
use common::{HOOKS, Run, bed, closes, generate, number, promiscuity, ready, settle, sh, weir};
use weir_lab::Testbed;

/// State that a capture could leave on an interface: programs at tcx ingress, tcx egress and XDP; clsact filters of
/// both directions, as text; and the promiscuity counter.
type Traces = ([u32; 3], String, u64);

fn traces(bed: &Testbed) -> Traces {
    let filters = sh(&bed.rx, "tc filter show dev wrx0 ingress; tc filter show dev wrx0 egress");
    (attached(&bed.rx), filters, promiscuity(&bed.rx))
}

fn nothing() -> Traces {
    ([0, 0, 0], String::new(), 0)
}

/// Waits until an interface has no traces. The kernel removes links and sockets a little after the process has ended.
#[track_caller]
fn soon_nothing(bed: &Testbed, what: &str) {
    let start = Instant::now();
    while traces(bed) != nothing() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what}: {:?}", traces(bed));
        sleep(Duration::from_millis(20));
    }
}

fn files_of_weir(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("weir")).collect()
}

#[test]
fn root_a_tidy_end_leaves_nothing() {
    let Some(_alone) = ready("root_a_tidy_end_leaves_nothing", &[]) else { return };
    let bed = bed();
    for (args, programs) in [
        ("--hook tc", [1, 1, 0]),
        ("--hook tc --direction in", [1, 0, 0]),
        ("--hook tc --direction out", [0, 1, 0]),
        ("--hook xdp", [0, 0, 1]),
        ("--consume", [0, 0, 1]),
        ("--engine af_packet", [0, 0, 0]),
    ] {
        let run = Run::capture(&bed.rx, args);
        assert_eq!(traces(&bed), (programs, String::new(), 1), "{args}: while it runs");
        run.stop().expect(0);
        assert_eq!(traces(&bed), nothing(), "{args}");
        let run = Run::capture(&bed.rx, &format!("{args} --no-promiscuous"));
        assert_eq!(promiscuity(&bed.rx), 0, "{args}: against the user's will");
        run.stop().expect(0);
    }
    assert_eq!(files_of_weir("/sys/fs/bpf"), Vec::<String>::new(), "pinned");
}

#[test]
fn root_a_killed_capture_leaves_nothing() {
    let Some(_alone) = ready("root_a_killed_capture_leaves_nothing", &[]) else { return };
    let bed = bed();
    for hook in HOOKS {
        let mut run = Run::capture(&bed.rx, hook);
        assert_ne!(traces(&bed), nothing(), "{hook}");
        run.signal(libc::SIGKILL);
        assert_eq!(run.end().code, None);
        soon_nothing(&bed, hook);
        // The next capture can attach.
        let run = Run::capture(&bed.rx, &format!("{hook} --json"));
        generate(&bed.tx, "--frames 100 --rate 10kpps");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 100, "{hook}: {json}");
    }
    assert_eq!(files_of_weir("/sys/fs/bpf"), Vec::<String>::new(), "pinned");
}

#[test]
fn root_a_clsact_capture_counts_and_leaves_no_filter() {
    let Some(_alone) = ready("root_a_clsact_capture_counts_and_leaves_no_filter", &[]) else {
        return;
    };
    let bed = bed();
    let run = Run::capture(&bed.rx, "--hook tc --tc-attach clsact --json");
    let (programs, filters, promiscuity) = traces(&bed);
    assert_eq!((programs, promiscuity), ([0, 0, 0], 1), "clsact was not forced");
    assert_eq!(filters.matches("name weir_tc_").count(), 2, "{filters}");
    let sent = number(&generate(&bed.tx, "--duration 500ms"), "sent");
    settle();
    let json = run.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "offered"), sent, "{json}");
    assert_eq!(traces(&bed), nothing());
}

#[test]
fn root_the_filters_of_a_killed_clsact_capture_go_with_the_next_start() {
    let test = "root_the_filters_of_a_killed_clsact_capture_go_with_the_next_start";
    let Some(_alone) = ready(test, &[]) else { return };
    let mut pids = Vec::new();
    // Every kind of capture removes the filters when it starts.
    for next in ["--hook tc --tc-attach clsact", "--hook tc", "--hook xdp"] {
        let bed = bed();
        let mut killed = Run::capture(&bed.rx, "--hook tc --tc-attach clsact");
        // The filters of a running capture stay.
        let lives = Run::capture(&bed.rx, "--hook tc --tc-attach clsact --json");
        let pid = killed.pid();
        pids.extend([pid, lives.pid()]);
        killed.signal(libc::SIGKILL);
        assert_eq!(killed.end().code, None);
        let (_, filters, _) = traces(&bed);
        let handle = |pid: u32| format!("handle {pid:#x} ");
        assert_eq!(filters.matches(&handle(pid)).count(), 2, "outlives its process: {filters}");
        let next_run = Run::capture(&bed.rx, next);
        pids.push(next_run.pid());
        let (_, filters, _) = traces(&bed);
        assert!(!filters.contains(&handle(pid)), "{next}: {filters}");
        assert_eq!(filters.matches(&handle(lives.pid())).count(), 2, "{next}: {filters}");
        generate(&bed.tx, "--frames 100 --rate 10kpps");
        settle();
        next_run.stop().expect(0);
        let json = lives.stop().expect(0).json();
        assert_eq!(number(&json, "delivered"), 100, "{next}: {json}");
        assert_eq!(traces(&bed), nothing(), "{next}");
    }
    assert_eq!(records_of(&pids), Vec::<String>::new(), "what is written down goes, too");
}

#[test]
fn root_the_filters_of_a_killed_pattern_go_with_the_next_start() {
    let test = "root_the_filters_of_a_killed_pattern_go_with_the_next_start";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let pairs = bed.add_pairs(1, 3).unwrap();
    pairs.iter().for_each(|pair| pair.wait_for_carrier().unwrap());
    let filters = |pid: u32| {
        let of =
            |iface: &str, side: &str| sh(&bed.rx, &format!("tc filter show dev {iface} {side}"));
        let sides =
            ["wrx1", "wrx2", "wrx3"].map(|iface| of(iface, "ingress") + &of(iface, "egress"));
        sides.concat().matches(&format!("handle {pid:#x} ")).count()
    };
    let capture = || Run::capture_by(&bed.rx, weir("capture wrx? --engine bpf"));
    let mut killed = capture();
    let lives = capture();
    let pids = [killed.pid(), lives.pid()];
    killed.signal(libc::SIGKILL);
    assert_eq!(killed.end().code, None);
    assert_eq!(pids.map(filters), [6, 6]);
    // The lock file may be gone already: it belongs to no namespace, so any capture that starts removes it.
    let of_filters = records_of(&pids[..1]).into_iter().filter(|name| !name.starts_with("lock-"));
    assert_eq!(of_filters.count(), 2 * 4, "those of wrx0, too");
    let next = capture();
    assert_eq!(pids.map(filters), [0, 6]);
    assert_eq!(records_of(&pids[..1]), Vec::<String>::new());
    next.stop().expect(0);
    lives.stop().expect(0);
    assert_eq!(pids.map(filters), [0, 0]);
    assert_eq!(records_of(&pids), Vec::<String>::new());
}

/// Records about the filters of these processes. Other captures may have records, too.
fn records_of(pids: &[u32]) -> Vec<String> {
    let of_one = |record: &str, pid| {
        // The record of a source with many filters also names its lock, which is a file of its own.
        let place = record.split('@').next().unwrap_or_default();
        place.ends_with(&format!("-{pid}")) || place.starts_with(&format!("lock-{pid}-"))
    };
    let of_them = |record: &String| pids.iter().any(|pid| of_one(record, pid));
    files_in("/run/weir-tc").into_iter().filter(of_them).collect()
}

#[test]
fn root_what_is_written_down_about_a_namespace_goes_when_that_is_gone() {
    let test = "root_what_is_written_down_about_a_namespace_goes_when_that_is_gone";
    let Some(_alone) = ready(test, &[]) else { return };
    const FIRST: u64 = 0xEFFF_FFFC; // PROC_PID_INIT_INO, linux/proc_ns.h
    if fs::metadata("/proc/self/ns/pid").unwrap().ino() != FIRST {
        return weir_lab::testbed::skip(test, "another PID namespace hides who uses a namespace");
    }
    let (bed, gone) = (bed(), bed());
    let mut killed = Run::capture(&gone.rx, "--hook tc --tc-attach clsact");
    let pid = killed.pid();
    killed.signal(libc::SIGKILL);
    killed.end();
    assert_eq!(records_of(&[pid]).len(), 2);
    drop(gone);
    // A new namespace of another test may have the same inode number, for as long as that test takes.
    let start = Instant::now();
    while records_of(&[pid]) != Vec::<String>::new() {
        assert!(start.elapsed() < Duration::from_secs(150), "{:?}", records_of(&[pid]));
        Run::capture(&bed.rx, "").stop().expect(0);
    }
}

#[test]
fn root_filters_of_a_process_that_cannot_be_seen_are_left_alone() {
    let test = "root_filters_of_a_process_that_cannot_be_seen_are_left_alone";
    let Some(_alone) = ready(test, &["unshare"]) else { return };
    let bed = bed();
    let line = format!(
        "unshare --pid --fork --kill-child --mount-proc {} capture wrx0 --tc-attach clsact",
        env!("CARGO_BIN_EXE_weir")
    );
    let hidden = Run::capture_by(&bed.rx, common::program(&line));
    let (_, before, _) = traces(&bed);
    assert_eq!(before.matches("name weir_tc_").count(), 2, "{before}");
    for next in ["--hook tc", "--hook tc --tc-attach clsact"] {
        Run::capture(&bed.rx, next).stop().expect(0);
        assert_eq!(traces(&bed).1, before, "{next}");
    }
    drop(hidden);
    // The kernel kills the processes of that PID namespace; then the filters belong to no process.
    let start = Instant::now();
    while traces(&bed).1 == before {
        assert!(start.elapsed() < Duration::from_secs(10), "never swept");
        Run::capture(&bed.rx, "--hook tc").stop().expect(0);
    }
    soon_nothing(&bed, "after the sweep");
}

#[test]
fn root_an_interface_named_twice_is_one_source_with_a_filter_a_side() {
    let test = "root_an_interface_named_twice_is_one_source_with_a_filter_a_side";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let run = Run::capture(&bed.rx, "wrx0 --tc-attach clsact --json");
    let filters = traces(&bed).1;
    assert_eq!(filters.matches("name weir_tc_").count(), 2, "{filters}");
    let pids = [run.pid()];
    assert_eq!(records_of(&pids).len(), 2);
    generate(&bed.tx, "--frames 100 --rate 10kpps");
    settle();
    let json = run.stop().expect(0).json();
    closes(&json);
    // Both names are for the same feed, so each frame is delivered once.
    assert_eq!(number(&json, "delivered"), 100, "{json}");
    assert_eq!(traces(&bed), nothing());
    assert_eq!(records_of(&pids), Vec::<String>::new());
}

#[test]
fn root_filters_of_others_outlive_a_killed_clsact_capture_and_its_sweep() {
    let test = "root_filters_of_others_outlive_a_killed_clsact_capture_and_its_sweep";
    let Some(_alone) = ready(test, &[]) else { return };
    // Another program's filter after ours (priority 0: chosen by the kernel), and at priority 1, the first that we try.
    for (priority, next) in
        [(0, "--hook tc"), (1, "--hook tc --tc-attach clsact"), (1, "--hook xdp")]
    {
        let what = format!("their priority {priority}, then {next}");
        let bed = bed();
        let theirs = CountingFilter::attach_at(&bed.rx, false, priority);
        let there = |name: &str| traces(&bed).1.matches(name).count();
        let mut killed = Run::capture(&bed.rx, "--hook tc --tc-attach clsact");
        let ours = format!("handle {:#x} ", killed.pid());
        killed.signal(libc::SIGKILL);
        assert_eq!(killed.end().code, None);
        assert_eq!((there(&ours), there("name test_filter")), (2, 1), "{what}: after SIGKILL");
        generate(&bed.tx, "--frames 100 --rate 10kpps");
        settle();
        assert_eq!(theirs.count(), 100, "{what}: what stayed is in the way of their filter");

        let next_run = Run::capture(&bed.rx, &format!("{next} --json"));
        assert_eq!((there(&ours), there("name test_filter")), (0, 1), "{what}: after the sweep");
        generate(&bed.tx, "--frames 100 --rate 10kpps");
        settle();
        let json = next_run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 100, "{what}: {json}");
        assert_eq!(theirs.count(), 200, "{what}: their filter missed frames meanwhile");

        assert_eq!((there("weir_tc_"), there("name test_filter")), (0, 1), "{what}: at the end");
        generate(&bed.tx, "--frames 10 --rate 10kpps");
        settle();
        assert_eq!(theirs.count(), 210, "{what}: their filter went with ours");
    }
}

fn files_in(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn root_a_capture_that_cannot_start_leaves_nothing() {
    let Some(_alone) = ready("root_a_capture_that_cannot_start_leaves_nothing", &[]) else {
        return;
    };
    let bed = bed();
    // The capture attaches to the first interface before the second one refuses.
    let theirs = common::bpf::XdpPass::attach(&bed.tx);
    let sources = [&bed.rx, &bed.tx].map(|end| format!("netns:{}/{}", end.netns, end.iface));
    let command = common::weir(&format!("capture {} --hook xdp", sources.join(" ")));
    Run::start(&bed.rx, command).end().refused(&["already has an XDP program"]);
    assert_eq!(traces(&bed), nothing());
    drop(theirs);
}

#[test]
fn root_a_testbed_takes_its_namespaces_away() {
    let Some(_alone) = ready("root_a_testbed_takes_its_namespaces_away", &[]) else { return };
    let bed = bed();
    let names = [bed.tx.netns.clone(), bed.rx.netns.clone()];
    let run = Run::capture(&bed.rx, "--json");
    run.stop().expect(0);
    drop(bed);
    for name in names {
        assert!(!Path::new("/run/netns").join(&name).exists(), "{name}");
    }
}
