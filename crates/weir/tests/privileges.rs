//! A running capture has given up its capabilities, and can end without them.

mod common;

use std::fs;

use common::bpf::attached;
use common::{Run, bed, closes, generate, number, ready, settle};

const NET_ADMIN: u64 = 1 << 12;
const BPF: u64 = 1 << 39;
const PERFMON: u64 = 1 << 38;
const NET_RAW: u64 = 1 << 13;
const SYS_ADMIN: u64 = 1 << 21;
const IPC_LOCK: u64 = 1 << 14;
/// Capabilities that opening an interface and changing its feeds need.
const CHANGES: u64 = BPF | PERFMON | NET_ADMIN | NET_RAW;

/// Names of a process's threads, each with the contents of its `status` file.
fn threads(pid: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let status = |task: fs::DirEntry| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).expect("it runs");
        (read("comm").trim().to_owned(), read("status"))
    };
    tasks.map(status).collect()
}

fn set(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    u64::from_str_radix(line.trim(), 16).expect("a set")
}

/// Passes if every thread has the capabilities `keep`, and none can gain others.
fn expect_only(pid: u32, keep: u64, what: &str) {
    let threads = threads(pid);
    assert!(threads.len() >= 2, "{what}: {threads:?}");
    for (name, status) in threads {
        for which in ["CapEff:", "CapPrm:"] {
            assert_eq!(set(&status, which), keep, "{what}: {name}: {status}");
        }
        for which in ["CapInh:", "CapAmb:"] {
            assert_eq!(set(&status, which), 0, "{what}: {name}: {status}");
        }
        assert!(status.contains("NoNewPrivs:\t1"), "{what}: {name}: {status}");
    }
}

#[test]
fn root_a_running_capture_has_no_capabilities_and_still_ends_tidily() {
    let test = "root_a_running_capture_has_no_capabilities_and_still_ends_tidily";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    for (flags, keep) in [
        ("--engine bpf --hook tc", 0),
        ("--engine bpf --hook tc --filter udp", 0),
        ("--engine bpf --hook xdp", 0),
        ("--engine bpf --consume", 0),
        // Removing a clsact filter needs this capability.
        ("--engine bpf --hook tc --tc-attach clsact", NET_ADMIN),
        ("--engine af_packet", 0),
        ("--engine af_packet --filter udp", 0),
        ("--engine af_xdp --consume", 0),
        ("--engine af_xdp --consume --copiers 2", 0),
        ("--engine pcap", 0),
        ("--no-promiscuous", 0),
        // The interface may vanish and has to be opened again.
        ("--follow", CHANGES | IPC_LOCK),
    ] {
        let run = Run::capture(&bed.rx, &format!("{flags} --json"));
        expect_only(run.pid(), keep, flags);
        generate(&bed.tx, "--frames 1000 --rate 50kpps");
        settle();
        expect_only(run.pid(), keep, flags);
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "offered"), 1000, "{flags}: {json}");
        assert_eq!(number(&json, "delivered"), 1000, "{flags}: {json}");
        assert_eq!(attached(&bed.rx), [0; 3], "{flags}: something stayed");
    }
}

#[test]
fn root_a_capture_that_can_be_changed_keeps_what_changes_need() {
    let test = "root_a_capture_that_can_be_changed_keeps_what_changes_need";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control");
    let path = path.to_str().expect("a path");
    let netns = &bed.rx.netns;
    for (end, source, keep) in [
        (&bed.rx, "wrx0 --engine bpf --hook tc".to_owned(), CHANGES),
        (&bed.rx, "wrx0 --engine af_packet".to_owned(), CHANGES),
        (&bed.rx, "wrx0 --engine af_xdp --consume".to_owned(), CHANGES),
        (&bed.tx, format!("netns:{netns}/wrx0 --engine bpf --hook tc"), CHANGES | SYS_ADMIN),
        (&bed.tx, format!("netns:{netns}/wrx*"), CHANGES | SYS_ADMIN),
    ] {
        let line = format!("capture {source} --control {path} --json");
        let run = Run::capture_by(end, common::weir(&line));
        expect_only(run.pid(), keep, &source);
        let change = common::weir(&format!("filter tcp --control {path}"));
        Run::start(&bed.rx, change).end().expect(0);
        generate(&bed.tx, "--frames 100 --rate 50kpps");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "filtered"), 100, "{source}: {json}");
        assert_eq!(attached(&bed.rx), [0; 3], "{source}: something stayed");
    }
}

#[test]
fn a_capture_of_a_file_or_of_made_frames_has_no_rights_at_all() {
    let mut command = common::weir("capture gen:size=64 --duration 60s --json");
    command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("weir");
    let begin = std::time::Instant::now();
    let done = |(_, status): &(String, String)| {
        set(status, "CapPrm:") == 0 && status.contains("NoNewPrivs:\t1")
    };
    while !threads(child.id()).iter().all(done) {
        assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{:?}", threads(child.id()));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    expect_only(child.id(), 0, "gen");
    // SAFETY: a signal to our own child, which is not waited for yet.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
