//! Faults from outside are reported with a remedy, and earlier data is not lost.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::bpf::{CountingFilter, FullHook, XdpPass, attach_xdp_for_good};
use common::frames::{Sender, ipv4};
use common::tools::{all_read, read};
use common::{
    Ended, HOOKS, Run, bed, closes, folder, generate, number, path, program, ready, settle, sh,
    weir,
};
use weir_lab::Testbed;
use weir_lab::testbed::skip;

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
    let netns = &bed.rx.netns;
    for (source, words) in [
        ("nowhere0", format!("`ip -n {netns} -brief link`")),
        ("wrx0", format!("`ip -n {netns} link set wrx0 up`")),
    ] {
        capture(&bed, &format!("netns:{netns}/{source}"))
            .refused(&[&format!("netns:{netns}/{source}"), &words]);
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
fn root_every_source_that_fails_is_named() {
    let Some(_alone) = ready("root_every_source_that_fails_is_named", &[]) else { return };
    let bed = bed();
    let dir = folder();
    let names = ["one.pcap", "two.pcap"].map(|file| {
        let (file, name) = path(&dir, file);
        // The header of a classic pcap file, and the first 4 bytes of a frame's header.
        let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1, 0].map(u32::to_le_bytes);
        fs::write(file, header.concat()).unwrap();
        name
    });
    let [one, two] = &names;
    let ended = capture(&bed, &format!("file:{one} file:{two} --json")).expect(2);
    for name in &names {
        let said = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with("weir: "))
            .any(|line| line.contains(name) && line.contains("cut off"));
        assert!(said, "{name}: {}", ended.stderr);
    }
    // If the output fails as well, it is named in addition.
    let ended = capture(&bed, &format!("file:{one} gen: --no-wait --write /dev/full")).expect(2);
    for words in [&one[..], "No space left"] {
        assert!(ended.stderr.contains(words), "no '{words}': {}", ended.stderr);
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
        sh(&bed.rx, "ip link set wrx0 down; sleep 0.15; ip link set wrx0 up");
        bed.tx.wait_for_carrier().expect("it sees its peer");
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
    // A copy that the user nobody can run.
    let dir = folder();
    let (binary, name) = path(&dir, "weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &binary).unwrap();
    for path in [dir.path(), &binary] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    for args in HOOKS.into_iter().chain([""]) {
        let line = format!("{nobody} {name} capture wrx0 {args}");
        let ended = Run::start(&bed.rx, program(&line)).end();
        let ended = lacks_rights(ended, &["needs", "CAP_", "setcap"]);
        assert!(ended.stderr.lines().count() <= 3, "libbpf talks, too: {}", ended.stderr);
    }
    let line = format!("{nobody} {name} capture netns:{}/wrx0", bed.rx.netns);
    lacks_rights(Run::start(&bed.tx, program(&line)).end(), &["CAP_SYS_ADMIN"]);
}

/// Passes if the message says which rights are missing, and its last line names a source that needs none.
#[track_caller]
fn lacks_rights(ended: Ended, words: &[&str]) -> Ended {
    let ended = ended.refused(&["file:TRACE.pcapng"]);
    for word in words {
        assert!(ended.stderr.contains(word), "'{word}' is not in: {}", ended.stderr);
    }
    ended
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
            // The owner of the program is the test itself.
            &format!("process {} (", std::process::id()),
            "by BPF link ",
            "--hook tc",
        ]);
    }
    // The remedy in the message works.
    let run = Run::capture(&bed.rx, "--hook tc --json");
    assert_eq!(number(&generate(&bed.tx, "--frames 1000 --rate 100kpps"), "sent"), 1000);
    settle();
    let json = run.stop().expect(0).json();
    assert_eq!(number(&json, "delivered"), 1000, "{json}");
    drop(theirs);

    let ours = Run::capture(&bed.rx, "--hook xdp --json");
    let who = format!("another Weir captures there, process {}", ours.pid());
    capture(&bed, "wrx0 --hook xdp").refused(&["already has an XDP program", "weir_xdp", &who]);
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    assert_eq!(number(&ours.stop().expect(0).json(), "delivered"), 1000);

    // This program is not attached by a BPF link: the remedy is a command, which works from another namespace.
    let source = format!("netns:{}/wrx0", bed.rx.netns);
    for (mode, word) in [(0, "xdp"), (libbpf_sys::XDP_FLAGS_SKB_MODE, "xdpgeneric")] {
        attach_xdp_for_good(&bed.rx, mode);
        let line = format!("capture {source} --engine af_xdp --consume --duration 50ms");
        let refused = Run::start(&bed.tx, weir(&line)).end().expect(2);
        let way_out = format!("ip -n {} link set dev wrx0 {word} off", bed.rx.netns);
        assert!(refused.stderr.contains(&format!("`{way_out}`")), "{}", refused.stderr);
        assert!(refused.stderr.contains(&format!("{source} already has")), "{}", refused.stderr);
        let doctor = Run::start(&bed.rx, weir("doctor wrx0")).end();
        let remedy = format!("ip link set wrx0 {word} off");
        assert!(doctor.text().contains(&remedy), "{}", doctor.text());
        sh(&bed.tx, &way_out);
        Run::start(&bed.tx, weir(&line)).end().expect(0);
    }
}

#[test]
fn root_a_driver_that_refuses_xdp_is_worked_around() {
    let test = "root_a_driver_that_refuses_xdp_is_worked_around";
    let Some(_alone) = ready(test, &["ethtool"]) else { return };
    let bed = bed();
    // For XDP, veth needs a receive queue for every transmit queue of its peer.
    sh(&bed.rx, "ip link add odd0 numrxqueues 1 type veth peer name odd1 numtxqueues 2");
    sh(&bed.rx, "ip link set odd0 up; ip link set odd1 up; ethtool -L odd1 tx 2");
    for hook in ["--hook xdp", "--consume"] {
        capture(&bed, &format!("odd0 {hook}")).refused(&[
            "the driver of odd0 refused native XDP",
            "ethtool -L odd0",
            "--hook tc",
        ]);
    }
    // The remedy in the message works.
    Run::start(&bed.rx, weir("capture odd0 --hook tc --duration 100ms")).end().expect(0);
}

#[test]
fn root_a_full_hook_leaves_the_capture_to_the_other_engine() {
    let test = "root_a_full_hook_leaves_the_capture_to_the_other_engine";
    let Some(_alone) = ready(test, &[]) else { return };
    for side in [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS] {
        let bed = bed();
        let full = FullHook::fill(&bed.rx, side);
        let run = Run::capture(&bed.rx, "--json");
        let said = run.stderr();
        for words in ["wrx0: af_packet at socket: bpf cannot be used", "takes no program"] {
            assert!(said.contains(words), "'{words}' is not in: {said}");
        }
        generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 1000, "{json}");
        // With `--engine bpf` or `--hook tc` given explicitly, there is an error with a remedy instead.
        for asked in ["--engine bpf", "--hook tc"] {
            capture(&bed, &format!("wrx0 {asked}"))
                .refused(&["of wrx0 takes no program", "--engine af_packet"]);
        }
        drop(full);
    }
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
        ("--ring-size 0", &["too small", "at least"][..]),
        ("--ring-size 1MiB", &["too small", "at least"]),
        ("--ring-size 1000000", &["too small", "at least"]),
        ("--consume --hook tc", &["--consume", "--hook tc"]),
        ("--hook xdp --direction out", &["--direction out", "--hook tc"]),
        ("--print --write -", &["--print", "--write -"]),
        ("--write - --rotate-size 4MiB", &["--rotate-size", "--write NAME.pcapng"]),
    ] {
        let ended = capture(&bed, &format!("wrx0 {args}")).refused(words);
        assert!(ended.stdout.is_empty(), "{args}: {}", ended.text());
    }
    // More memory than any machine has. The kernel would allocate rings until no memory is left for other programs.
    for size in ["1000000GiB", "16000000000GiB"] {
        capture(&bed, &format!("wrx0 --ring-size {size}")).refused(&["--ring-size", "free here"]);
    }
}

/// A memory cgroup with a limit, a child of the test's own cgroup; removed when dropped.
struct SmallGroup(PathBuf);

impl SmallGroup {
    /// `None` if the memory controller of cgroups version 1 is not mounted at its usual place.
    fn make(bytes: u64) -> Option<SmallGroup> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let below = own.lines().find_map(|line| line.split_once(":memory:/"))?.1;
        let name = format!("weir-test-{}", std::process::id());
        let group = Path::new("/sys/fs/cgroup/memory").join(below).join(name);
        fs::create_dir(&group).ok()?;
        let group = SmallGroup(group);
        fs::write(group.0.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for SmallGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn root_the_limit_of_a_cgroup_is_heeded() {
    let test = "root_the_limit_of_a_cgroup_is_heeded";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let Some(group) = SmallGroup::make(100 << 20) else {
        return weir_lab::testbed::skip(test, "no memory controller of cgroups version 1");
    };
    let capture_in = |args: &str| {
        let (group, weir) = (group.0.display(), env!("CARGO_BIN_EXE_weir"));
        let line = format!("echo $$ > {group}/cgroup.procs && exec {weir} capture wrx0 {args}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]);
        Run::start(&bed.rx, shell).end()
    };
    capture_in("--ring-size 128MiB").refused(&["--ring-size", "memory.limit_in_bytes"]);
    // The rings alone would fit, but not together with the memory of a packet socket.
    capture_in("--ring-size 80MiB --engine af_packet --duration 100ms")
        .refused(&["113 MiB", "memory.limit_in_bytes"]);
    capture_in("--ring-size 32MiB --engine bpf --duration 100ms").expect(0);
}

#[test]
fn root_odd_ring_sizes_work() {
    let Some(_alone) = ready("root_odd_ring_sizes_work", &[]) else { return };
    let bed = bed();
    for size in ["65MiB", "9000000", "100MiB"] {
        let run = Run::capture(&bed.rx, &format!("--ring-size {size} --json"));
        let sent = number(&generate(&bed.tx, "--frames 20k --rate 100kpps"), "sent");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "offered"), sent, "{size}: {json}");
    }
}

/// A small tmpfs, unmounted when dropped.
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
    let ended = run.end().refused(&["full.pcapng", "No space left", "free space"]);
    let json = ended.json();
    closes(&json);
    let (_, frames) = read(&file);
    // Copied to another file system, since this one has no room for tshark's output.
    let aside = folder();
    let (copy, _) = path(&aside, "full.pcapng");
    fs::copy(&file, &copy).unwrap();
    all_read(&copy, &frames);
    assert!(frames.len() > 1000, "{} frames in 3 MiB", frames.len());
    assert_eq!(frames.len() as u64, number(&json, "delivered"), "{json}");
    assert!(number(&json["drops"], "store") > 0, "{json}");
    // The reported rates count exactly the frames in the file.
    let value = |name: &str| json[name].as_f64().expect(name);
    let bits = frames.iter().map(|frame| f64::from(frame.wire_len) * 8.0).sum::<f64>();
    assert!((value("gbps") * value("duration_s") * 1e9 / bits - 1.0).abs() < 1e-6, "{json}");
    let says = format!("the {} frames before", frames.len());
    assert!(ended.stderr.contains(&says), "not '{says}': {}", ended.stderr);
}

#[test]
fn root_a_disk_that_is_full_in_the_middle_keeps_what_the_files_before_have() {
    let test = "root_a_disk_that_is_full_in_the_middle_keeps_what_the_files_before_have";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let disk = SmallDisk::mount("3m");
    let (_, name) = path(&disk.0, "full.pcapng");
    let run = Run::capture(&bed.rx, &format!("--write {name} -C 1 --json"));
    generate(&bed.tx, "--frames 10k --rate 100kpps --size 1518");
    let ended = run.end().refused(&["full.pcapng3", "No space left", "free space"]);
    let json = ended.json();
    closes(&json);
    let names = ["full.pcapng", "full.pcapng1", "full.pcapng2", "full.pcapng3"];
    let frames = names.map(|name| read(&disk.0.path().join(name)).1.len() as u64);
    assert!(frames.iter().all(|frames| *frames > 0), "{frames:?}");
    assert_eq!(frames.iter().sum::<u64>(), number(&json, "delivered"), "{json}");
    assert!(number(&json["drops"], "store") > 0, "{json}");
}

/// A file system that is larger than the free space of the disk below it, as on a thin volume.
struct ThinDisk {
    mounted: tempfile::TempDir,
    _below: SmallDisk,
}

impl ThinDisk {
    /// `None`: this machine has no loop devices, or no ext4.
    fn mount() -> Option<ThinDisk> {
        let below = SmallDisk::mount("6m");
        let (file, image) = path(&below.0, "image");
        fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
        let mounted = folder();
        let make = "mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1,nodiscard";
        let line = format!("{make} {image} && mount -o loop {image} {}", mounted.path().display());
        let done = Command::new("sh").args(["-c", &line]).output().unwrap();
        done.status.success().then_some(ThinDisk { mounted, _below: below })
    }
}

impl Drop for ThinDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.mounted.path()).output();
    }
}

#[test]
fn root_a_disk_that_cannot_keep_what_it_took_is_an_error() {
    let test = "root_a_disk_that_cannot_keep_what_it_took_is_an_error";
    let Some(_alone) = ready(test, &["mkfs.ext4"]) else { return };
    let Some(disk) = ThinDisk::mount() else {
        return skip(test, "no ext4 on a loop device here");
    };
    let (_, name) = path(&disk.mounted, "thin.pcapng");
    // The run ends well before the kernel writes the data back.
    let source = "gen:size=1518 --frames 10k --json";
    let ended = Run::start(&bed().rx, weir(&format!("capture {source} --write {name}"))).end();
    let json =
        ended.refused(&["thin.pcapng", "could not keep", "10000 frames", "free space"]).json();
    closes(&json);
    // The same with files that follow each other (`-C`).
    drop(disk);
    let Some(disk) = ThinDisk::mount() else { return };
    let (_, name) = path(&disk.mounted, "thin.pcapng");
    let ended = Run::start(&bed().rx, weir(&format!("capture {source} -C 1 --write {name}"))).end();
    ended.refused(&["thin.pcapng", "could not keep", "free space"]);
}

#[test]
fn root_outputs_that_cannot_be_written_say_why() {
    let Some(_alone) = ready("root_outputs_that_cannot_be_written_say_why", &[]) else { return };
    let bed = bed();
    capture(&bed, "wrx0 --write /nowhere/at/all.pcapng").refused(&[
        "/nowhere/at/all.pcapng",
        "No such file",
        "mkdir -p /nowhere/at",
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

#[test]
fn root_lines_that_nobody_could_keep_are_not_delivered() {
    let test = "root_lines_that_nobody_could_keep_are_not_delivered";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let disk = SmallDisk::mount("64k");
    let (file, name) = path(&disk.0, "lines");
    for out in ["/dev/full", &name] {
        let line = format!("exec {} capture wrx0 --print >{out}", env!("CARGO_BIN_EXE_weir"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]);
        let run = Run::capture_by(&bed.rx, shell);
        generate(&bed.tx, "--frames 10k --rate 100kpps");
        let ended = run.end().refused(&["standard output", "No space left", "print elsewhere"]);
        let lines = if out == name { fs::read_to_string(&file).unwrap() } else { String::new() };
        let whole = lines.matches('\n').count();
        assert!((out == name) == (whole > 100), "{whole} lines in {out}");
        let count = |name: &str| {
            let mut says = ended.stderr.lines().filter_map(|line| line.trim().strip_prefix(name));
            says.next_back().expect(name).replace(' ', "").parse::<usize>().expect(name)
        };
        assert_eq!(count("delivered "), whole, "{}", ended.stderr);
        let lost = count("drop store ") + count("lapped ");
        assert_eq!(count("captured ") - lost, whole, "{}", ended.stderr);
        assert!(!ended.stderr.contains("unexplained"), "{}", ended.stderr);
    }
}
