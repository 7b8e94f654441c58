//! Owners of the host's interfaces: the VM that has a tap open, or the namespace of a veth's peer.

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::frames::{Sender, ipv4};
use common::tools::tool;
use common::{LIMIT, Run, bed, closes, folder, number, path, ready, settle, sh, weir};
use serde_json::Value;
use weir_lab::Testbed;
use weir_lab::testbed::{End, Running, ifindex};

const QEMU: &str = "qemu-system-x86_64";

/// A paused VM with taps of these names in the namespace of the bed's receiver. Each tap has two queues, so the VM has
/// two descriptors for it.
fn start_vm(bed: &Testbed, name: &str, taps: &[&str]) -> Running {
    start_vm_at(&bed.rx, Some(name), taps)
}

/// The same in the namespace of `at`, with or without a name.
fn start_vm_at(at: &End, name: Option<&str>, taps: &[&str]) -> Running {
    let mut command = Command::new(QEMU);
    command.args(["-S", "-display", "none", "-nodefaults", "-machine", "none"]);
    name.iter().for_each(|name| _ = command.args(["-name", name]));
    for tap in taps {
        let netdev = format!("tap,id={tap},ifname={tap},queues=2,script=no,downscript=no");
        command.args(["-netdev", &netdev]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let vm = at.spawn(command).expect("qemu");
    taps.iter().for_each(|tap| _ = up(at, tap));
    vm
}

/// Waits until an interface exists, and sets it up.
fn up(end: &End, iface: &str) -> End {
    let find = || end.run(|| ifindex(iface)).expect("the namespace is there");
    wait_for("the interface", || find().is_ok());
    sh(end, &format!("ip link set {iface} up"));
    let own = End { iface: iface.to_owned(), ifindex: find().expect("just seen"), ..end.clone() };
    own.wait_for_carrier().expect("somebody is at the other end");
    own
}

/// A process in a new network namespace, which has no name.
fn start_process(bed: &Testbed) -> Running {
    let mut command = Command::new("unshare");
    command.args(["--net", "sleep", "1000"]).stdin(Stdio::null());
    let process = bed.rx.spawn(command).expect("unshare");
    let of_bed = bed.rx.run(|| fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
    let (own, pid) = (fs::read_link("/proc/self/ns/net").expect("/proc"), process.id());
    let netns = || fs::read_link(format!("/proc/{pid}/ns/net")).expect("it runs");
    wait_for("the new namespace", || netns() != own && netns() != of_bed);
    // Owners have the name of their process, which is still `unshare` for a moment.
    let name = || fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
    wait_for("its program", || name() == "sleep\n");
    process
}

/// Creates a veth pair from the bed's receiver into the namespace of a process; returns the near end.
fn lead_into(bed: &Testbed, near: &str, pid: u32) -> End {
    let line = format!(
        "ip link add {near} type veth peer name eth0 netns {pid} && \
         nsenter --net --target {pid} ip link set eth0 up"
    );
    sh(&bed.rx, &line);
    up(&bed.rx, near)
}

fn end(mut process: Running) {
    process.signal(libc::SIGKILL);
    process.wait().expect("it ends");
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "waited for {what}");
        sleep(Duration::from_millis(5));
    }
}

fn inode(pid: u32) -> String {
    fs::read_link(format!("/proc/{pid}/ns/net")).expect("it runs").display().to_string()
}

/// Captures an interface with each engine while ten frames are sent out of it. Checks that the file contains
/// `description`; returns the owner in the report.
fn owner(end: &End, description: &str) -> Value {
    let mut owner = Value::Null;
    for engine in ["bpf", "af_packet", "pcap", "af_xdp"] {
        // AF_XDP sees received frames only, so it gets none of these.
        let is_xdp = engine == "af_xdp";
        let (direction, sent) = if is_xdp { ("--consume", 0) } else { ("--direction out", 10) };
        let (dir, args) = (folder(), "--json --filter ip");
        let (_, file) = path(&dir, "out.pcapng");
        let line = format!("{args} --engine {engine} {direction} --write {file}");
        let run = Run::capture(end, &line);
        let sender = Sender::new(end);
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), sent, "{engine}: {json}");
        let source = &json["sources"][0];
        assert_eq!(source["engine"], engine, "{json}");
        owner = source["owner"].clone();
        let said = tool("capinfos", &["-I", &file]);
        let wanted = format!("Description = {description}");
        assert!(said.lines().any(|line| line.trim() == wanted), "{engine}: {wanted}\n{said}");
    }
    owner
}

#[test]
fn root_a_tap_is_of_the_vm_that_holds_it() {
    let test = "root_a_tap_is_of_the_vm_that_holds_it";
    let Some(_alone) = ready(test, &[QEMU, "capinfos"]) else { return };
    let bed = bed();
    let vm = start_vm(&bed, "guest=web1,debug-threads=on", &["wtap0"]);
    let pid = vm.id();
    let tap = up(&bed.rx, "wtap0");
    let owner = owner(&tap, &format!("VM web1 (qemu, {pid})"));
    assert_eq!((&owner["kind"], &owner["name"]), (&"vm".into(), &"web1".into()), "{owner}");
    assert_eq!(number(&owner, "pid"), u64::from(pid));
    let report = Run::capture(&tap, "--count").stop().expect(0).text();
    assert!(report.contains(&format!("  of VM web1 (qemu, {pid})\n")), "{report}");
    end(vm);
}

#[test]
fn root_a_tap_that_no_vm_holds_is_of_a_process_in_its_namespace() {
    let test = "root_a_tap_that_no_vm_holds_is_of_a_process_in_its_namespace";
    let Some(_alone) = ready(test, &[QEMU]) else { return };
    let bed = bed();
    let captured = || {
        let run = Run::start(&bed.rx, weir("capture wtap0 --json --duration 100ms"));
        run.end().expect(0).json()["sources"][0]["owner"].clone()
    };
    // A tap with the same name in another namespace is another interface.
    let far = start_vm_at(&bed.tx, Some("far"), &["wtap0"]);
    sh(&bed.rx, "ip tuntap add wtap0 mode tap multi_queue && ip link set wtap0 up");
    assert_eq!(captured(), Value::Null, "nobody holds it");
    let nameless = start_vm_at(&bed.rx, None, &["wtap0"]);
    let owner = captured();
    // The kernel cuts the name of a command to 15 characters.
    assert_eq!((&owner["kind"], &owner["name"]), (&"process".into(), &QEMU[..15].into()));
    assert_eq!(number(&owner, "pid"), u64::from(nameless.id()));
    [far, nameless].into_iter().for_each(end);
}

#[test]
fn root_a_veth_is_of_whoever_is_in_its_peers_namespace() {
    let test = "root_a_veth_is_of_whoever_is_in_its_peers_namespace";
    let Some(_alone) = ready(test, &["unshare", "nsenter", "capinfos"]) else { return };
    let bed = bed();
    let process = start_process(&bed);
    let pid = process.id();
    let near = lead_into(&bed, "wown0", pid);
    let of_process = owner(&near, &format!("process sleep ({pid})"));
    assert_eq!(of_process["kind"], "process", "{of_process}");
    assert_eq!(inode(pid), format!("net:[{}]", number(&of_process, "netns")));
    end(process);
    // The bed's namespaces have names.
    let of_name = owner(&bed.rx, &format!("netns {}", bed.tx.netns));
    assert_eq!((&of_name["kind"], &of_name["name"]), (&"netns".into(), &bed.tx.netns[..].into()));
}

/// The interfaces of a pattern that had frames: name and description from the file; name, frames and owner from the
/// report.
fn by_interface(json: &Value, file: &str) -> (Vec<String>, Vec<(String, u64, String)>) {
    let fields = ["-Tfields", "-eframe.interface_name", "-eframe.interface_description"];
    let read = tool("tshark", &[&["-r", file][..], &fields].concat());
    let mut said: Vec<String> = read.lines().map(str::to_owned).collect();
    said.sort();
    said.dedup();
    let all = json["feeds"][0]["interfaces"].as_array().expect("interfaces");
    let row = |own: &Value| {
        let text = |of: &Value| of.as_str().unwrap_or("-").to_owned();
        let owner = format!("{} {}", text(&own["owner"]["kind"]), text(&own["owner"]["name"]));
        (text(&own["name"]), number(own, "captured"), owner)
    };
    (said, all.iter().map(row).collect())
}

#[test]
fn root_each_interface_of_a_pattern_has_its_owner() {
    let test = "root_each_interface_of_a_pattern_has_its_owner";
    let Some(_alone) = ready(test, &[QEMU, "unshare", "nsenter", "tshark"]) else { return };
    for engine in ["af_packet", "bpf"] {
        let (bed, dir) = (bed(), folder());
        let (web, process) = (start_vm(&bed, "web1", &["wtap0", "wtap1"]), start_process(&bed));
        let db = start_vm(&bed, "guest=db2", &["wtap2"]);
        let near = lead_into(&bed, "wown0", process.id());
        let (_, file) = path(&dir, "out.pcapng");
        let line = format!(
            "capture w* --engine {engine} --direction out --filter ip --json --write {file}"
        );
        let run = Run::capture_by(&bed.rx, weir(&line));
        let taps = ["wtap0", "wtap1", "wtap2"].map(|tap| up(&bed.rx, tap));
        for (frames, end) in (1..).zip(taps.iter().chain([&near, &bed.rx])) {
            let sender = Sender::new(end);
            (0..frames).for_each(|_| sender.send(&ipv4(60)));
        }
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        let (said, rows) = by_interface(&json, &file);
        let (web_pid, db_pid, pid) = (web.id(), db.id(), process.id());
        let mut wanted = vec![
            format!("wtap0\tVM web1 (qemu, {web_pid})"),
            format!("wtap1\tVM web1 (qemu, {web_pid})"),
            format!("wtap2\tVM db2 (qemu, {db_pid})"),
            format!("wown0\tprocess sleep ({pid})"),
            format!("wrx0\tnetns {}", bed.tx.netns),
        ];
        wanted.sort();
        assert_eq!(said, wanted, "{engine}");
        for (name, frames, owner) in [
            ("wtap0", 1, "vm web1"),
            ("wtap1", 2, "vm web1"),
            ("wtap2", 3, "vm db2"),
            ("wown0", 4, "process sleep"),
            ("wrx0", 5, &format!("netns {}", bed.tx.netns)),
        ] {
            let row = (name.to_owned(), frames, owner.to_owned());
            assert!(rows.contains(&row), "{engine}: {row:?} is not in {rows:?}");
        }
        [web, db, process].into_iter().for_each(end);
    }
}

#[test]
fn root_the_owner_of_an_interface_that_joins_later_is_found_and_no_frame_is_lost() {
    let test = "root_the_owner_of_an_interface_that_joins_later_is_found_and_no_frame_is_lost";
    let Some(_alone) = ready(test, &["unshare", "nsenter", "tshark"]) else { return };
    for engine in ["af_packet", "bpf"] {
        let (bed, dir) = (bed(), folder());
        let process = start_process(&bed);
        let (_, file) = path(&dir, "out.pcapng");
        let line = format!(
            "capture wown* --engine {engine} --direction out --filter ip --json --write {file}"
        );
        let mut run = Run::capture_by(&bed.rx, weir(&line));
        // As a container engine does: it creates the link, then moves its other end.
        sh(&bed.rx, "ip link add wown0 type veth peer name wfar0 && ip link set wown0 up");
        run.wait_for("that it joins", |run| run.stderr().contains("wown0"));
        let pid = process.id();
        sh(&bed.rx, &format!("ip link set wfar0 netns {pid}"));
        sh(&bed.rx, &format!("nsenter --net --target {pid} ip link set wfar0 up"));
        let sender = Sender::new(&up(&bed.rx, "wown0"));
        // Send during the search for the owner, which ends within 2.5 s.
        let (begin, mut sent) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_millis(2_500) {
            sender.send(&ipv4(60));
            sent += 1;
            sleep(Duration::from_millis(1));
        }
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        let (said, rows) = by_interface(&json, &file);
        let owned = format!("wown0\tprocess sleep ({pid})");
        assert!(said.contains(&owned) && said.len() <= 2, "{engine}: {said:?}");
        assert_eq!(rows, [("wown0".to_owned(), sent, "process sleep".to_owned())], "{engine}");
        assert_eq!(number(&json, "delivered"), sent, "{engine}: {json}");
        end(process);
    }
}

#[test]
fn root_a_daemon_tells_whose_an_interface_of_the_host_is() {
    let test = "root_a_daemon_tells_whose_an_interface_of_the_host_is";
    let Some(_alone) = ready(test, &[QEMU]) else { return };
    let (bed, dir) = (bed(), folder());
    let vm = start_vm(&bed, "web1", &["wtap0"]);
    let (config, config_text) = path(&dir, "weir.toml");
    fs::write(config, "[sources.vm]\nsource = \"wtap0\"\neverybody = true\n").expect("a file");
    let (_, socket) = path(&dir, "s");
    let mut daemon =
        Run::start(&bed.rx, weir(&format!("serve --config {config_text} --socket {socket}")));
    daemon.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
    let run = Run::capture_by(&bed.rx, weir(&format!("capture host:vm --socket {socket} --json")));
    let status = weir(&format!("status --socket {socket} --json"));
    let status = Run::start(&bed.rx, status).end().expect(0).json();
    let json = run.stop().expect(0).json();
    for owner in [&status["sources"][0]["owner"], &json["sources"][0]["owner"]] {
        assert_eq!((&owner["kind"], &owner["name"]), (&"vm".into(), &"web1".into()), "{status}");
    }
    daemon.stop().expect(0);
    end(vm);
}

#[test]
fn root_who_may_not_look_at_other_processes_is_told_nothing() {
    let test = "root_who_may_not_look_at_other_processes_is_told_nothing";
    let Some(_alone) = ready(test, &[QEMU, "setpriv"]) else { return };
    let bed = bed();
    let vm = start_vm(&bed, "web1", &["wtap0"]);
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=+net_raw,+net_admin",
    ]);
    command.args(["--ambient-caps=+net_raw,+net_admin", env!("CARGO_BIN_EXE_weir")]);
    command.args(["capture", "wtap0", "--engine", "af_packet", "--json"]);
    let json = Run::capture_by(&bed.rx, command).stop().expect(0).json();
    assert_eq!(json["sources"][0]["owner"], Value::Null, "{json}");
    let json = Run::capture_by(&bed.rx, weir("capture wtap0 --json")).stop().expect(0).json();
    assert_eq!(json["sources"][0]["owner"]["name"], "web1", "{json}");
    end(vm);
}

#[test]
fn root_the_taps_of_a_vm_are_a_source() {
    let test = "root_the_taps_of_a_vm_are_a_source";
    let Some(_alone) = ready(test, &[QEMU]) else { return };
    for engine in ["af_packet", "bpf"] {
        let bed = bed();
        // A tap that exists before and after the VMs that open it.
        sh(&bed.rx, "ip tuntap add wkept0 mode tap multi_queue && ip link set wkept0 up");
        let web = start_vm(&bed, "guest=web1", &["wtap0", "wtap1"]);
        let db = start_vm(&bed, "web10", &["wtap2"]);
        let taps = ["wtap0", "wtap1", "wtap2"].map(|tap| up(&bed.rx, tap));
        let line = format!("capture vm:web1 --engine {engine} --direction out --filter ip --json");
        let mut run = Run::capture_by(&bed.rx, weir(&line));
        let send = |end: &End, frames: usize| {
            let sender = Sender::new(end);
            (0..frames).for_each(|_| sender.send(&ipv4(60)));
        };
        taps.iter().zip([1, 2, 4]).for_each(|(tap, frames)| send(tap, frames));
        settle();
        [web, db].into_iter().for_each(end);
        // The kept tap joins when a VM with this name opens it, leaves with that VM, and does not join for another VM.
        let says = |run: &Run, times| run.stderr().matches("wkept0").count() >= times;
        let web = start_vm(&bed, "web1", &["wkept0"]);
        run.wait_for("that it joins", |run| says(run, 1));
        send(&up(&bed.rx, "wkept0"), 8);
        settle();
        end(web);
        run.wait_for("that it leaves", |run| says(run, 2));
        let db = start_vm(&bed, "web10", &["wkept0"]);
        send(&up(&bed.rx, "wkept0"), 16);
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 1 + 2 + 8, "{engine}: {json}");
        assert_eq!(json["sources"][0]["source"], "vm:web1", "{engine}: {json}");
        end(db);
    }
}

#[test]
fn root_a_vm_that_is_not_there_names_those_that_are() {
    let test = "root_a_vm_that_is_not_there_names_those_that_are";
    let Some(_alone) = ready(test, &[QEMU]) else { return };
    let bed = bed();
    let vm = start_vm(&bed, "web1", &["wtap0"]);
    let none = Run::start(&bed.rx, weir("capture vm:none --count")).end();
    none.refused(&["vm:none: no such machine", "web1"]);
    let far = Run::start(&bed.tx, weir("capture vm:web1 --count")).end();
    far.refused(&["another network namespace", &format!("netns:{}/", vm.id())]);
    end(vm);
}
