//! `weir block`: entries that end, feeds of a daemon by their names, and flows that raise alerts.

mod common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_lab::Testbed;

use common::daemon::{Daemon, NOBODY};
use common::frames::{Sender, ipv4, ipv6};
use common::{Ended, LIMIT, Run, bed, closes, folder, number, path, ready, settle, weir};

const CONFIG: &str = "[sources.lan]\nsource = \"wrx0\"\nusers = [\"root\", 65534]\nring_mib = 16\n";
/// The flows that `ipv4` and `ipv6` send.
const FOUR: &str = "udp 192.0.2.1:32768 192.0.2.2:9";
const SIX: &str = "udp [fd77::1]:32768 [fd77::2]:9";

/// An alert as Suricata writes it, for a packet with the ports of a reply to the frames that are sent.
fn alert(source: &str, destination: &str) -> String {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let (source, destination) = (address(source), address(destination));
    format!(
        "{{\"timestamp\":\"2020-01-01T00:00:00.000000+0000\",\"event_type\":\"alert\",\"src_ip\":\"{source}\",\
         \"src_port\":9,\"dest_ip\":\"{destination}\",\"dest_port\":32768,\"proto\":\"UDP\",\"alert\":{{\
         \"signature_id\":2001219,\"signature\":\"ET TEST \\u001b[2J something\",\"severity\":2}}}}\n"
    )
}

fn append(file: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(file).expect("a file");
    file.write_all(text.as_bytes()).expect("written");
}

/// A client of this user whose feed is named `ids`.
fn named_client(daemon: &Daemon, bed: &Testbed, user: u32) -> Run {
    let control = daemon.dir.path().join(format!("control-{user}"));
    let flags = format!("--follow --json --control {} --feed=ids:", control.display());
    Run::capture_by(&bed.rx, daemon.as_user(user, &format!("capture host:lan {flags}")))
}

/// `weir block` by this user.
fn block(daemon: &Daemon, bed: &Testbed, user: u32, flags: &str, entries: &[&str]) -> Ended {
    let mut command = daemon.as_user(user, &format!("block {flags}"));
    command.args(entries);
    Run::start(&bed.rx, command).end()
}

fn daemon(bed: &Testbed, engine: &str) -> Daemon {
    Daemon::start(bed, &format!("{CONFIG}engine = \"{engine}\"\n"), "")
}

/// Ten frames of each flow.
fn send(bed: &Testbed) {
    let sender = Sender::new(&bed.tx);
    for frame in [ipv4(60), ipv6(80)] {
        (0..10).for_each(|_| sender.send(&frame));
    }
    settle();
}

/// The counts of the named feed once the daemon has this many frames: captured and blocked ones.
fn counts(daemon: &Daemon, bed: &Testbed, frames: u64) -> [u64; 2] {
    let of = |status: &Value| {
        let clients = status["clients"].as_array().expect("clients");
        let own = clients.iter().find(|client| client["name"] == "ids").expect("it is named");
        ["captured", "blocked"].map(|count| number(&own["ledger"], count))
    };
    of(&daemon.wait_for(bed, |status| of(status).iter().sum::<u64>() >= frames))
}

fn wait_for_line(run: &mut Run, words: &str) {
    run.wait_for(words, |run| String::from_utf8_lossy(&run.stdout()).contains(words));
}

#[test]
fn root_an_alert_blocks_its_flow_at_the_host_and_others_go_on() {
    let test = "root_an_alert_blocks_its_flow_at_the_host_and_others_go_on";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    for engine in ["bpf", "af_packet"] {
        let bed = bed();
        let daemon = daemon(&bed, engine);
        let (ids, other) = (
            named_client(&daemon, &bed, 0),
            Run::capture_by(&bed.rx, daemon.as_user(0, "capture host:lan --json")),
        );
        let dir = folder();
        let (file, name) = path(&dir, "eve.json");
        // The file begins with an old alert, and ends with half a line.
        append(&file, &alert("fd77::2", "fd77::1"));
        append(&file, "{\"event_type\":\"dns\"}\nno event\n{\"event_");
        let line = format!("block --from {name} --follow --feed ids --for 1h");
        let mut blocks = Run::start(&bed.rx, daemon.as_user(0, &line));
        blocks.wait_for("that it reads", |run| run.stderr().contains("no events"));
        send(&bed);
        assert_eq!(counts(&daemon, &bed, 20), [20, 0], "{engine}");
        append(&file, "type\":\"alert\"}\n");
        append(&file, &alert("192.0.2.2", "192.0.2.1"));
        append(&file, &alert("192.0.2.2", "192.0.2.1"));
        wait_for_line(&mut blocks, FOUR);
        send(&bed);
        assert_eq!(counts(&daemon, &bed, 40), [30, 10], "{engine}");
        let shown = block(&daemon, &bed, 0, "--feed ids", &[]).expect(0).text();
        assert!(shown.starts_with(&format!("{FOUR} # for 59m")), "{shown}");
        // Rotation, as logrotate does it.
        fs::rename(&file, dir.path().join("eve.json.1")).expect("renamed");
        append(&file, &alert("fd77::2", "fd77::1"));
        wait_for_line(&mut blocks, SIX);
        send(&bed);
        assert_eq!(counts(&daemon, &bed, 60), [30, 30], "{engine}");
        let ended = blocks.stop().expect(0);
        let told = ended.text();
        assert_eq!(told.lines().count(), 2, "{told}");
        assert!(
            told.contains(&format!("{FOUR} # for 1h, 2001219 ET TEST [2J something\n")),
            "{told}"
        );
        for words in [
            "7 lines, 4 alerts, 2 entries blocked",
            "1 alert of what",
            "1 alert older",
            "2 lines not under",
        ] {
            assert!(ended.stderr.contains(words), "'{words}' is not in: {}", ended.stderr);
        }
        let json = other.stop().expect(0).json();
        closes(&json);
        assert_eq!((number(&json, "captured"), number(&json, "blocked")), (60, 0), "{json}");
        let json = ids.stop().expect(0).json();
        closes(&json);
        assert_eq!((number(&json, "captured"), number(&json, "blocked")), (30, 30), "{json}");
    }
}

#[test]
fn root_entries_that_end_are_captured_again_at_the_daemon_and_in_a_capture() {
    let test = "root_entries_that_end_are_captured_again_at_the_daemon_and_in_a_capture";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let daemon = daemon(&bed, "bpf");
    let _ids = named_client(&daemon, &bed, 0);
    let dir = folder();
    let (_, control) = path(&dir, "control");
    let capture = Run::capture(&bed.rx, &format!("--json --control {control}"));
    let of_capture = |args: &str, entries: &[&str]| {
        let mut command = weir(&format!("block --control {control} {args}"));
        command.args(entries);
        Run::start(&bed.rx, command).end()
    };
    let ledger = || {
        let status = weir(&format!("status --json --control {control}"));
        let json = Run::start(&bed.rx, status).end().expect(0).json();
        ["captured", "blocked"].map(|count| number(&json["feeds"][0], count))
    };
    // One of the two entries does not expire during the test.
    let said = block(&daemon, &bed, 0, "--feed ids --for 1h", &[SIX]).expect(0).text();
    assert_eq!(said, "ids: 1 entry is blocked now\n");
    of_capture("--for 1h", &[SIX]).expect(0);
    let begin = Instant::now();
    block(&daemon, &bed, 0, "--feed ids --for 3s", &[FOUR]).expect(0);
    of_capture("--for 3s", &[FOUR]).expect(0);
    send(&bed);
    // On a slower machine, the entry may have expired, so this cannot be checked.
    if begin.elapsed() < Duration::from_secs(2) {
        assert_eq!((counts(&daemon, &bed, 20), ledger()), ([0, 20], [0, 20]));
    }
    let is_alone =
        |text: String| text.starts_with(&format!("{SIX} # for ")) && text.lines().count() == 1;
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(begin.elapsed() < LIMIT, "{what}");
        }
    };
    until("it ends at the daemon", &|| {
        is_alone(block(&daemon, &bed, 0, "--feed ids", &[]).expect(0).text())
    });
    until("it ends in the capture", &|| is_alone(of_capture("", &[]).expect(0).text()));
    let before = (counts(&daemon, &bed, 20), ledger());
    send(&bed);
    let more = |[captured, blocked]: [u64; 2]| [captured + 10, blocked + 10];
    assert_eq!((counts(&daemon, &bed, 40), ledger()), (more(before.0), more(before.1)));
    let json = of_capture("--json", &[]).expect(0).json();
    let left = json["left_ms"][SIX].as_u64().expect("it is told");
    assert!((3_000_000..=3_600_000).contains(&left), "{json}");
    // Entries that will expire can be removed before they do.
    let said = block(&daemon, &bed, 0, "--feed ids --clear", &[]).expect(0).text();
    assert_eq!(said, "ids: nothing is blocked now\n");
    of_capture("--remove", &[SIX]).expect(0);
    let before = (counts(&daemon, &bed, 40), ledger());
    send(&bed);
    let all = |[captured, blocked]: [u64; 2]| [captured + 20, blocked];
    assert_eq!((counts(&daemon, &bed, 60), ledger()), (all(before.0), all(before.1)));
    closes(&capture.stop().expect(0).json());
}

/// A process in another PID namespace has user id 0 and can open the socket, but does not count as root.
#[test]
fn root_who_is_root_of_a_container_changes_no_feed_of_root() {
    let test = "root_who_is_root_of_a_container_changes_no_feed_of_root";
    let Some(_alone) = ready(test, &["setpriv", "unshare"]) else { return };
    let bed = bed();
    let daemon = daemon(&bed, "bpf");
    let ids = named_client(&daemon, &bed, 0);
    let inside = |entries: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork"]).arg(daemon.dir.path().join("weir"));
        command.args(["block", "--feed", "ids", "--socket"]).arg(daemon.socket()).args(entries);
        Run::start(&bed.rx, command).end()
    };
    for entries in [&[][..], &[FOUR]] {
        inside(entries).refused(&["you have no feed named 'ids'"]);
    }
    send(&bed);
    assert_eq!(counts(&daemon, &bed, 20), [20, 0]);
    block(&daemon, &bed, 0, "--feed ids", &[FOUR]).expect(0);
    ids.stop().expect(0);
}

#[test]
fn root_another_users_feed_has_no_name() {
    let test = "root_another_users_feed_has_no_name";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let daemon = daemon(&bed, "af_packet");
    let _ids = named_client(&daemon, &bed, 0);
    let by_nobody = |flags: &str, entries: &[&str]| block(&daemon, &bed, NOBODY, flags, entries);
    for (flags, entries) in [("", &[FOUR][..]), ("--remove", &[FOUR]), ("", &[]), ("--clear", &[])]
    {
        let denied = by_nobody(&format!("--feed ids {flags}"), entries);
        let missing = by_nobody(&format!("--feed none {flags}"), entries);
        assert_eq!(denied.stderr, missing.stderr.replace("none", "ids"));
        denied.refused(&["you have no feed named 'ids'"]);
    }
    let status =
        Run::start(&bed.rx, daemon.as_user(NOBODY, "status --json")).end().expect(0).json();
    assert_eq!(status["clients"], Value::Array(Vec::new()), "{status}");
    send(&bed);
    assert_eq!(counts(&daemon, &bed, 20), [20, 0]);
    // Root may change another user's feeds. The folder is opened for the control socket of that user's capture.
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(daemon.dir.path(), open).expect("permissions");
    let theirs = named_client(&daemon, &bed, NOBODY);
    let said = block(&daemon, &bed, 0, "--feed ids --json", &[FOUR]).expect(0).json();
    assert_eq!(number(&said, "feeds"), 2, "{said}");
    let said = by_nobody("--feed ids --json", &[SIX]).expect(0).json();
    assert_eq!(number(&said, "feeds"), 1, "{said}");
    send(&bed);
    assert_eq!(counts(&daemon, &bed, 40), [30, 10]);
    let json = theirs.stop().expect(0).json();
    assert_eq!((number(&json, "captured"), number(&json, "blocked")), (0, 20), "{json}");
}

#[test]
fn root_a_daemon_that_is_started_again_blocks_what_has_time_left() {
    let test = "root_a_daemon_that_is_started_again_blocks_what_has_time_left";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let mut daemon = daemon(&bed, "bpf");
    let dir = folder();
    let (file, name) = path(&dir, "eve.json");
    // Neither the file nor the feed is there yet.
    let line = format!("block --from {name} --follow --feed ids --what source --for 1h");
    let mut blocks = Run::start(&bed.rx, daemon.as_user(0, &line));
    blocks.wait_for("that it waits", |run| run.stderr().contains("no feed named 'ids'"));
    append(&file, &alert("192.0.2.1", "192.0.2.2"));
    let ids = named_client(&daemon, &bed, 0);
    wait_for_line(&mut blocks, "192.0.2.1 # for 1h");
    send(&bed);
    assert_eq!(counts(&daemon, &bed, 20), [10, 10]);
    daemon.run().signal(libc::SIGKILL);
    blocks.wait_for("that it has noticed", |run| run.stderr().contains("no daemon answers"));
    daemon.restart(&bed);
    // No alert is raised again: `weir block` adds the entry by itself.
    let begin = Instant::now();
    while block(&daemon, &bed, 0, "--feed ids", &[]).stdout.is_empty() {
        assert!(begin.elapsed() < LIMIT, "{}", blocks.stderr());
    }
    send(&bed);
    assert_eq!(counts(&daemon, &bed, 20), [10, 10]);
    // A later feed with this name gets the entry, too.
    drop(ids);
    daemon.wait_for_clients(&bed, 0);
    let ids = named_client(&daemon, &bed, 0);
    while block(&daemon, &bed, 0, "--feed ids", &[]).stdout.is_empty() {
        assert!(begin.elapsed() < LIMIT, "{}", blocks.stderr());
    }
    assert_eq!(blocks.stop().expect(0).text().lines().count(), 1);
    drop(ids);
}

#[test]
fn root_alerts_of_a_file_and_of_standard_input_are_blocked_at_once() {
    let test = "root_alerts_of_a_file_and_of_standard_input_are_blocked_at_once";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let dir = folder();
    let ((file, name), (_, control)) = (path(&dir, "eve.json"), path(&dir, "control"));
    let capture = Run::capture(&bed.rx, &format!("--json --control {control}"));
    // Hostile lines come first: one is too long, one has only NUL bytes, one is nested deeply.
    let hostile =
        ["[".repeat(2 << 20), "\0".repeat(1000), format!("{{\"a\":{}", "[".repeat(100_000))];
    append(&file, &format!("{}\n{}", hostile.join("\n"), alert("192.0.2.2", "192.0.2.1")));
    append(&file, alert("fd77::2", "fd77::1").trim_end());
    let of = |line: &str| {
        let mut shell = Command::new("sh");
        let line = line.replacen("weir", env!("CARGO_BIN_EXE_weir"), 1);
        shell.args(["-c", &line]);
        Run::start(&bed.rx, shell).end()
    };
    let ended =
        of(&format!("weir block --from {name} --control {control} --max-severity 1")).expect(0);
    assert!(ended.stderr.contains("2 alerts left out by the rules"), "{}", ended.stderr);
    let ended =
        of(&format!("weir block --from {name} --control {control} --signature test --json"))
            .expect(0);
    let last = ended.json();
    let count = |name: &str| number(&last, name);
    assert_eq!([count("lines"), count("alerts"), count("blocked")], [5, 2, 2], "{last}");
    assert_eq!([count("not_understood"), count("too_long")], [2, 1], "{last}");
    let first: Value =
        serde_json::from_str(ended.text().lines().next().expect("lines")).expect("JSON");
    assert_eq!((&first["entry"], &first["for_ms"]), (&FOUR.into(), &600_000.into()), "{first}");
    send(&bed);
    of(&format!("weir block --clear --control {control}")).expect(0);
    of(&format!("weir block --from - --what destination --control {control} < {name}")).expect(0);
    let shown = of(&format!("weir block --control {control}")).expect(0).text();
    assert!(shown.contains("192.0.2.1 # for ") && shown.contains("fd77::1 # for "), "{shown}");
    send(&bed);
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!((number(&json, "captured"), number(&json, "blocked")), (0, 40), "{json}");
    for (line, words) in [
        (format!("--from {name}.not --control {control}"), "--follow waits for it"),
        (format!("--from {} --control {control}", dir.path().display()), "no regular file"),
        (format!("--from {name} --control {control}"), "no capture listens there"),
        (format!("--from {name} --socket {control} --feed ids"), "no daemon answers"),
        (format!("10.0.0.1 --for 1h --socket {control} --feed ids"), "no daemon answers"),
    ] {
        of(&format!("weir block {line}")).refused(&[words]);
    }
    for (line, words) in [
        (format!("10.0.0.1 --for 500ms --control {control}"), "not 1s to 720h"),
        (format!("10.0.0.1 --for 721h --control {control}"), "not 1s to 720h"),
        (format!("10.0.0.1 --remove --for 1h --control {control}"), "cannot be used with"),
        ("10.0.0.1".to_owned(), "--control PATH, the socket of a running capture, or --feed NAME"),
        (format!("--follow --control {control}"), "--from <PATH>"),
    ] {
        let ended = of(&format!("weir block {line}")).expect(2);
        assert!(ended.stderr.contains(words), "'{words}' is not in: {}", ended.stderr);
    }
}
