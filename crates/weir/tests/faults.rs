//! What goes wrong outside: said plainly, with the way out, and without losing what was there.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::bpf::{CountingFilter, XdpPass};
use common::frames::{Sender, ipv4};
use common::tools::{all_read, read};
use common::{
    HOOKS, Run, bed, closes, folder, generate, number, path, program, ready, settle, sh, weir,
};
use weir_lab::Testbed;

const TOOLS: [&str; 3] = ["capinfos", "tshark", "tcpdump"];

fn capture(bed: &Testbed, args: &str) -> common::Ended {
    Run::start(&bed.rx, weir(&format!("capture {args}"))).end()
}

#[test]
fn root_a_missing_or_sleeping_interface_is_named() {
    let Some(_alone) = ready("root_a_missing_or_sleeping_interface_is_named", &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "untouched.pcapng");
    fs::write(&file, b"precious").unwrap();
    for hook in HOOKS {
        capture(&bed, &format!("nowhere0 {hook} --write {name}")).refused(&[
            "nowhere0",
            "no such interface",
            "ip -brief link",
        ]);
    }
    capture(&bed, "netns:nowhere/eth0").refused(&["nowhere", "ip netns"]);
    sh(&bed.rx, "ip link set wrx0 down");
    for hook in HOOKS {
        capture(&bed, &format!("wrx0 {hook} --write {name}"))
            .refused(&["wrx0 is down", "ip link set wrx0 up"]);
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious", "a refused capture replaced a file");
}

#[test]
fn root_an_interface_that_vanishes_leaves_its_frames_and_the_ledger() {
    let test = "root_an_interface_that_vanishes_leaves_its_frames_and_the_ledger";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    for hook in HOOKS {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "vanished.pcapng");
        let run = Run::capture(&bed.rx, &format!("{hook} --write {name} --json"));
        generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        sh(&bed.rx, "ip link delete wrx0");
        let ended = run.end().refused(&["wrx0", "vanished", "is kept"]);
        let json = ended.json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 1000, "{hook}: {json}");
        assert!(json["sources"][0]["error"].as_str().unwrap().contains("vanished"), "{json}");
        let (_, frames) = read(&file);
        assert_eq!(frames.len(), 1000, "{hook}");
        all_read(&file, &frames);
    }
}

#[test]
fn root_an_interface_that_goes_down_and_up_is_still_captured() {
    let test = "root_an_interface_that_goes_down_and_up_is_still_captured";
    let Some(_alone) = ready(test, &[]) else { return };
    for hook in HOOKS {
        let bed = bed();
        let run = Run::capture(&bed.rx, &format!("{hook} --json"));
        let sender = Sender::new(&bed.tx);
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
        sh(&bed.rx, "ip link set wrx0 down; sleep 0.15; ip link set wrx0 up; sleep 0.1");
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 20, "{hook}: {json}");
    }
}

#[test]
fn root_missing_rights_say_which_and_how_to_get_them() {
    let test = "root_missing_rights_say_which_and_how_to_get_them";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    // Where nobody can run it.
    let dir = folder();
    let (binary, name) = path(&dir, "weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &binary).unwrap();
    for path in [dir.path(), &binary] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    for args in HOOKS.into_iter().chain([""]) {
        let line = format!("{nobody} {name} capture wrx0 {args}");
        let ended = Run::start(&bed.rx, program(&line)).end().refused(&["needs", "CAP_", "setcap"]);
        assert!(ended.stderr.lines().count() <= 3, "libbpf talks, too: {}", ended.stderr);
    }
    let line = format!("{nobody} {name} capture netns:{}/wrx0", bed.rx.netns);
    Run::start(&bed.tx, program(&line)).end().refused(&["CAP_SYS_ADMIN"]);
}

#[test]
fn root_somebody_elses_xdp_program_is_named_and_left_alone() {
    let test = "root_somebody_elses_xdp_program_is_named_and_left_alone";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let theirs = XdpPass::attach(&bed.rx);
    for hook in ["--hook xdp", "--consume"] {
        capture(&bed, &format!("wrx0 {hook}")).refused(&[
            "wrx0 already has an XDP program",
            "test_xdp_pass",
            "--hook tc",
        ]);
    }
    // The way out that it names works.
    let run = Run::capture(&bed.rx, "--hook tc --json");
    assert_eq!(number(&generate(&bed.tx, "--frames 1000 --rate 100kpps"), "sent"), 1000);
    settle();
    let json = run.stop().expect(0).json();
    assert_eq!(number(&json, "delivered"), 1000, "{json}");
    drop(theirs);

    let ours = Run::capture(&bed.rx, "--hook xdp --json");
    capture(&bed, "wrx0 --hook xdp").refused(&["already has an XDP program", "weir_xdp"]);
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    assert_eq!(number(&ours.stop().expect(0).json(), "delivered"), 1000);
}

#[test]
fn root_other_tc_filters_go_on_and_what_they_drop_is_seen() {
    let test = "root_other_tc_filters_go_on_and_what_they_drop_is_seen";
    let Some(_alone) = ready(test, &[]) else { return };
    for attach in ["best", "clsact"] {
        for drop_all in [false, true] {
            let bed = bed();
            let theirs = CountingFilter::attach(&bed.rx, drop_all);
            generate(&bed.tx, "--frames 100 --rate 100kpps");
            settle();
            assert_eq!(theirs.count(), 100, "the test's own filter");
            let run = Run::capture(&bed.rx, &format!("--hook tc --tc-attach {attach} --json"));
            generate(&bed.tx, "--frames 1000 --rate 100kpps");
            settle();
            let json = run.stop().expect(0).json();
            closes(&json);
            assert_eq!(number(&json, "delivered"), 1000, "{attach}: {json}");
            assert_eq!(theirs.count(), 1100, "{attach}: their filter missed frames meanwhile");
            generate(&bed.tx, "--frames 10 --rate 100kpps");
            settle();
            assert_eq!(theirs.count(), 1110, "{attach}: their filter went with ours");
        }
    }
}

#[test]
fn root_impossible_options_say_what_is_possible() {
    let Some(_alone) = ready("root_impossible_options_say_what_is_possible", &[]) else { return };
    let bed = bed();
    for (args, words) in [
        ("--snaplen 0", &["--snaplen 0", "1 or more"][..]),
        ("--ring-size 0", &["too small", "at least"]),
        ("--ring-size 1MiB", &["too small", "at least"]),
        ("--ring-size 1000000", &["too small", "at least"]),
        ("--consume --hook tc", &["--consume", "--hook tc"]),
        ("--hook xdp --direction out", &["--direction out", "--hook tc"]),
        ("--print --write x", &["--print", "--write -"]),
        ("--write /tmp", &["/tmp", "folder"]),
    ] {
        let ended = capture(&bed, &format!("wrx0 {args}")).refused(words);
        assert!(ended.stdout.is_empty(), "{args}: {}", ended.text());
    }
    // More than any machine has. The kernel would give the rings until nothing is left for others.
    for size in ["1000000GiB", "16000000000GiB"] {
        capture(&bed, &format!("wrx0 --ring-size {size}")).refused(&["--ring-size", "free here"]);
    }
}

#[test]
fn root_odd_ring_sizes_work() {
    let Some(_alone) = ready("root_odd_ring_sizes_work", &[]) else { return };
    let bed = bed();
    for size in ["65MiB", "9000000", "100MiB"] {
        let run = Run::capture(&bed.rx, &format!("--ring-size {size} --json"));
        generate(&bed.tx, "--frames 20k --rate 100kpps");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "offered"), 20_000, "{size}: {json}");
    }
}

/// A small file system of its own, taken down when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> SmallDisk {
        let disk = SmallDisk(folder());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "weir-test"]);
        assert!(mount.arg(disk.0.path()).status().unwrap().success(), "mounting a tmpfs");
        disk
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn root_a_full_disk_keeps_every_frame_that_fitted() {
    let Some(_alone) = ready("root_a_full_disk_keeps_every_frame_that_fitted", &TOOLS) else {
        return;
    };
    let bed = bed();
    let disk = SmallDisk::mount("3m");
    let (file, name) = path(&disk.0, "full.pcapng");
    let run = Run::capture(&bed.rx, &format!("--write {name} --json"));
    generate(&bed.tx, "--frames 10k --rate 100kpps --size 1518");
    let ended = run.end().refused(&["full.pcapng", "No space left", "free space", "--snaplen"]);
    let json = ended.json();
    closes(&json);
    let (_, frames) = read(&file);
    // tshark's copy would not fit beside it.
    let aside = folder();
    let (copy, _) = path(&aside, "full.pcapng");
    fs::copy(&file, &copy).unwrap();
    all_read(&copy, &frames);
    assert!(frames.len() > 1000, "{} frames in 3 MiB", frames.len());
    assert_eq!(frames.len() as u64, number(&json, "delivered"), "{json}");
    assert!(number(&json["drops"], "store") > 0, "{json}");
    let says = format!("the {} frames before", frames.len());
    assert!(ended.stderr.contains(&says), "not '{says}': {}", ended.stderr);
}

#[test]
fn root_outputs_that_cannot_be_written_say_why() {
    let Some(_alone) = ready("root_outputs_that_cannot_be_written_say_why", &[]) else { return };
    let bed = bed();
    capture(&bed, "wrx0 --write /nowhere/at/all.pcapng").refused(&[
        "/nowhere/at/all.pcapng",
        "No such file",
        "--write",
    ]);
    capture(&bed, "wrx0 --write /proc/weir.pcapng").refused(&["/proc/weir.pcapng"]);
    if Path::new("/dev/full").exists() {
        let run = Run::capture(&bed.rx, "--write /dev/full --json");
        generate(&bed.tx, "--frames 100 --rate 10kpps");
        let json = run.end().refused(&["/dev/full", "No space left"]).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 0, "{json}");
    }
}
