//! `weir flows`: its exports, and its page and metrics while it counts.

mod common;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_lab::Testbed;
use weir_lab::testbed::{End, in_netns};

use common::daemon::Daemon;
use common::flows::{COLLECTOR_PORT, Collector, Flows, by_key, by_tshark, lines};
use common::{LIMIT, Run, bed, closes, folder, generate, number, path, ready, settle, sh, weir};

/// The records that the export with this name sent, and those that it did not send.
fn export(report: &Value, name: &str) -> (u64, u64) {
    let exports = report["flows"]["exports"].as_array().expect("exports");
    let one = exports.iter().find(|export| export["name"] == name);
    let one = one.unwrap_or_else(|| panic!("no export {name}: {report}"));
    (number(one, "sent"), number(one, "unsent"))
}

/// A testbed whose receiving end also has loopback up.
fn bed_with_loopback() -> Testbed {
    let bed = bed();
    sh(&bed.rx, "ip link set lo up");
    bed
}

/// Whether a capture has its programs at the interface, and no longer the program that takes nothing.
fn captures(end: &End) -> bool {
    let doctor = Run::start(end, weir(&format!("doctor {} --json", end.iface)));
    let json = doctor.end().json();
    let hooked = json["interfaces"][0]["facts"]["hooked"].as_array().expect("a list");
    hooked.iter().any(|program| program["name"] == "weir_tc_in")
}

fn packets(flows: &Flows) -> u64 {
    flows.values().map(|(packets, _)| packets).sum()
}

#[test]
fn root_nfdump_reads_of_traces_what_tshark_counts() {
    let test = "root_nfdump_reads_of_traces_what_tshark_counts";
    let Some(_alone) = ready(test, &["tshark", "nfcapd", "nfdump"]) else { return };
    let (bed, dir) = (bed_with_loopback(), folder());
    let (_, generated) = path(&dir, "generated.pcapng");
    let source = "gen:size=200,flows=3000,frames=20000";
    Run::start(&bed.rx, weir(&format!("capture {source} --write {generated}"))).end().expect(0);
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/trace.pcapng");
    let target = format!("ipfix://127.0.0.1:{COLLECTOR_PORT}");
    for file in [demo, &generated] {
        let expected = by_tshark(file);
        for args in ["", "--biflow", "--vlan --idle-timeout 100ms --active-timeout 200ms"] {
            let collector = Collector::start(&bed.rx);
            let line = format!("flows file:{file} --json --export {target} {args}");
            let ended = Run::start(&bed.rx, weir(&line)).end().expect(0);
            let (flows, report) = lines(&ended.stdout);
            assert_eq!(export(&report, &target), (flows.len() as u64, 0), "{report}");
            assert_eq!(collector.finish(), expected, "{file} {args}");
        }
    }
}

/// The HTTP response to this request, sent from the network namespace of the end.
fn get(end: &End, port: u16, target: &str) -> String {
    in_netns(&end.netns, || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let request = format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    })
    .expect("a namespace")
}

/// The value of a metric.
fn metric(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().parse::<f64>().expect("a number") as u64)
}

/// The port at which a run says that it serves its page.
fn page_port(run: &mut Run) -> u16 {
    let port = |run: &Run| {
        let text = run.stderr();
        let at = text.split("weir: http://127.0.0.1:").nth(1)?;
        at.split('/').next()?.parse().ok()
    };
    run.wait_for("that it has a page", |run| port(run).is_some());
    port(run).expect("a port")
}

#[test]
fn root_flows_of_a_link_are_exported_and_shown_while_they_are_counted() {
    let test = "root_flows_of_a_link_are_exported_and_shown_while_they_are_counted";
    let Some(_alone) = ready(test, &[]) else { return };
    let (bed, dir) = (bed_with_loopback(), folder());
    let ((_, json), (_, parquet)) = (path(&dir, "flows.json"), path(&dir, "parquet"));
    let iface = &bed.rx.iface;
    // No collector listens at port 9.
    let targets =
        [format!("json:{json}"), format!("parquet:{parquet}"), "ipfix://127.0.0.1:9".into()];
    let exports = targets.each_ref().map(|target| format!("--export {target}")).join(" ");
    let line = format!("flows {iface} --direction in --json --http 127.0.0.1:0 {exports}");
    let mut run = Run::start(&bed.rx, weir(&line));
    run.wait_for("that it captures", |run| run.stderr().contains(&format!("weir: {iface}: ")));
    let port = page_port(&mut run);
    let sent = number(&generate(&bed.tx, "--frames 20k --rate 100kpps --flows 100"), "sent");
    let metrics = || get(&bed.rx, port, "/metrics");
    let shows = |text: &str| metric(text, "weir_flows_delivered_frames_total ") == Some(sent);
    run.wait_for("that metrics have every frame", |_| shows(&metrics()));
    let text = metrics();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert_eq!(metric(&text, "weir_flows_table_flows "), Some(100), "{text}");
    assert_eq!(metric(&text, "weir_flows_lapped_frames_total "), Some(0), "{text}");
    let view = get(&bed.rx, port, "/view.json");
    let view: Value =
        serde_json::from_str(view.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert_eq!(view["flows"].as_array().map(Vec::len), Some(100), "{view}");
    assert_eq!(view["sources"][0]["name"], **iface, "{view}");
    let page = get(&bed.rx, port, "/");
    assert!(page.contains("<html") && !page.contains("https://"), "{page}");
    let ended = run.stop().expect(0);
    let (flows, report) = lines(&ended.stdout);
    closes(&report);
    let expected = by_key(&flows);
    assert_eq!((expected.len(), packets(&expected)), (100, sent));
    assert_eq!(export(&report, "standard output"), (100, 0), "{report}");
    assert_eq!(export(&report, &targets[0]), (100, 0), "{report}");
    assert_eq!(export(&report, &targets[1]), (100, 0), "{report}");
    assert_eq!(export(&report, &targets[2]), (0, 100), "{report}");
    let written: Vec<Value> = fs::read_to_string(&json)
        .expect("lines")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(by_key(&written), expected);
    let files: Vec<_> = fs::read_dir(&parquet).expect("a directory").flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(files[0].file_name().to_string_lossy().ends_with(".parquet"), "{files:?}");
}

#[test]
fn root_a_collector_that_takes_nothing_costs_no_frame() {
    let test = "root_a_collector_that_takes_nothing_costs_no_frame";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed_with_loopback();
    let iface = &bed.rx.iface;
    // The kernel accepts the connection, and nothing ever reads from it.
    let listener = in_netns(&bed.rx.netns, || std::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a namespace").expect("a port");
    let target = format!("ipfix+tcp://{}", listener.local_addr().expect("an address"));
    // Every frame is a new flow, and the table holds 1,024 flows: almost every new flow ends another one.
    let line = format!(
        "flows {iface} --direction in --json --flows-max 1024 --snaplen 128 --export {target} --top 0"
    );
    let mut run = Run::start(&bed.rx, weir(&line));
    run.wait_for("that it captures", |run| run.stderr().contains(&format!("weir: {iface}: ")));
    let sent = number(&generate(&bed.tx, "--frames 300k --rate 100kpps --flows multi"), "sent");
    settle();
    let stopped = Instant::now();
    let ended = run.stop().expect(0);
    assert!(stopped.elapsed() < Duration::from_secs(40), "{:?}", stopped.elapsed());
    let report = ended.json();
    closes(&report);
    assert_eq!(number(&report, "offered"), sent, "{report}");
    let (had, not) = export(&report, &target);
    assert_eq!(had + not, number(&report["flows"], "records"), "{report}");
    assert!(not > 0, "{report}");
    drop(listener);
}

#[test]
fn root_flows_of_what_a_daemon_captures_say_whose_they_are() {
    let test = "root_flows_of_what_a_daemon_captures_say_whose_they_are";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let mut daemon = Daemon::of_lan(&bed, "");
    let command = daemon.weir("flows host:lan --biflow --json --idle-timeout 500ms");
    let mut run = Run::capture_by(&bed.rx, command);
    daemon.wait_for_clients(&bed, 1);
    let sent = number(&generate(&bed.tx, "--frames 20k --rate 100kpps --flows 50"), "sent");
    run.wait_for("that flows have ended", |run| {
        String::from_utf8_lossy(&run.stdout()).matches("\"proto\":17").count() >= 50
    });
    let ended = run.stop().expect(0);
    let (flows, report) = lines(&ended.stdout);
    closes(&report);
    let udp: Vec<Value> = flows.into_iter().filter(|flow| flow["proto"] == 17).collect();
    let counts = by_key(&udp);
    assert_eq!((counts.len(), packets(&counts)), (50, sent));
    // The other end of the pair is in another namespace, which is the owner.
    assert!(
        udp.iter()
            .all(|flow| flow["owner"]["kind"] == "netns" && flow["owner"]["name"] == *bed.tx.netns),
        "{:?}",
        udp.first()
    );
    daemon.run.take().expect("it runs").stop().expect(0);
}

#[test]
fn root_a_terminal_has_the_live_table_and_then_the_report() {
    let test = "root_a_terminal_has_the_live_table_and_then_the_report";
    let Some(_alone) = ready(test, &["script"]) else { return };
    let bed = bed();
    let weir = env!("CARGO_BIN_EXE_weir");
    let iface = &bed.rx.iface;
    let screen = |more: &str| {
        let line = format!(
            "stty cols 100 rows 30; {weir} flows {iface} --direction in --duration 4s {more}"
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("TERM", "xterm");
        let mut run = Run::start(&bed.rx, command);
        // The run prints nothing before its screen that the test could wait for.
        run.wait_for("its program at the interface", |_| captures(&bed.rx));
        generate(&bed.tx, "--frames 20k --rate 100kpps --flows 7");
        run.end().expect(0).text()
    };
    let (enter, leave) = ("\x1b[?1049h", "\x1b[?1049l");
    let text = screen("");
    let (before, rest) = text.split_once(enter).unwrap_or_else(|| panic!("no screen: {text:?}"));
    let (table, report) = rest.split_once(leave).unwrap_or_else(|| panic!("it stays: {rest:?}"));
    assert!(!before.contains("captured"), "{before:?}");
    assert!(table.contains("Talkers") && table.contains("192.0.2.1:9"), "{table:?}");
    assert!(report.contains("7 flows, 7 records") && !report.contains(enter), "{report:?}");
    let plain = screen("--plain");
    assert!(!plain.contains(enter) && plain.contains("7 flows, 7 records"), "{plain:?}");
}

#[test]
fn a_table_that_ends_all_at_once_is_exported_whole() {
    let dir = folder();
    let (_, json) = path(&dir, "flows.json");
    let (_, trace) = path(&dir, "trace.pcapng");
    // More records than the queue of an export holds.
    let made = "gen:size=64,flows=150000,frames=150000,rate=200kpps";
    let capture = weir(&format!("capture {made} --write {trace}")).output().expect("it runs");
    assert!(capture.status.success(), "{capture:?}");
    // Whether all records were exported.
    let is_whole = |source: &str| {
        let line = format!("flows {source} --top 0 --json --export json:{json}");
        let output = weir(&line).output().expect("it runs");
        let (flows, report) = lines(&output.stdout);
        closes(&report);
        let exports =
            ["standard output", &format!("json:{json}")].map(|name| export(&report, name));
        assert_eq!(exports[0].0, flows.len() as u64, "{}", report["flows"]);
        let is_whole = exports == [(150_000, 0); 2];
        assert!(!is_whole || packets(&by_key(&flows)) == number(&report, "delivered"), "{report}");
        let mode = fs::metadata(&json).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it says who talks to whom");
        is_whole
    };
    assert!(is_whole(&format!("file:{trace}")));
    // At the end of what is captured live, the exports have 5 s, which are too few on a busy machine.
    assert!((0..3).any(|_| is_whole(made)), "not whole, three times");
}

#[test]
fn a_reader_that_goes_takes_no_flow_from_the_other_exports() {
    let dir = folder();
    let (_, json) = path(&dir, "flows.json");
    let line = format!(
        "flows gen:size=64,flows=500,rate=20kpps --json --export json:{json} --flows-max 1024 --idle-timeout 0s \
         --active-timeout 200ms"
    );
    let mut child =
        weir(&line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut first = String::new();
    stdout.read_line(&mut first).expect("a line");
    assert!(first.contains("\"event\":\"flow\""), "{first}");
    drop(stdout);
    let begin = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begin.elapsed() >= LIMIT {
            child.kill().expect("it can be killed");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(&json).expect("lines");
    // Flows that were still in the table when the reader closed the pipe.
    assert!(text.contains("\"end_reason\":\"forced\""), "{} lines", text.lines().count());
}

#[test]
fn a_pipe_that_nobody_reads_holds_no_run() {
    let dir = folder();
    let (_, pipe) = path(&dir, "pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("coreutils");
    assert!(made.success());
    // The pipe is opened for reading, and never read.
    let reader =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).expect("a pipe");
    let frames = "gen:size=64,flows=2000,rate=20kpps";
    let line = format!("flows {frames} --duration 1s --json --export json:{pipe}");
    let begin = Instant::now();
    let output = weir(&line).output().expect("it runs");
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    let (flows, report) = lines(&output.stdout);
    let (sent, unsent) = export(&report, &format!("json:{pipe}"));
    assert_eq!(sent + unsent, flows.len() as u64, "{report}");
    assert!(unsent > 0, "{report}");
    drop(reader);
}

#[test]
fn root_parquet_files_are_tried_without_the_rights_that_are_given_up() {
    let test = "root_parquet_files_are_tried_without_the_rights_that_are_given_up";
    let Some(_alone) = ready(test, &[]) else { return };
    let dir = folder();
    let (_, theirs) = path(&dir, "theirs");
    fs::create_dir(&theirs).expect("a directory");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o750)).expect("permissions");
    std::os::unix::fs::chown(&theirs, Some(65_534), Some(65_534)).expect("another owner");
    let line = format!("flows gen:frames=10 --export parquet:{theirs}");
    let output = weir(&line).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(&theirs) && text.contains("Permission denied"), "{text}");
}

#[test]
fn root_flows_in_the_kernel_are_those_of_captured_frames() {
    let test = "root_flows_in_the_kernel_are_those_of_captured_frames";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed_with_loopback();
    let iface = &bed.rx.iface;
    for hook in ["tc", "xdp"] {
        let args = "--direction in --json --idle-timeout 500ms --http 127.0.0.1:0";
        let line = format!("flows {iface} --in-kernel --hook {hook} {args}");
        let mut counting = Run::start(&bed.rx, weir(&line));
        counting.wait_for("that it counts", |run| run.stderr().contains("flow-table at"));
        let captured =
            Run::capture_by(&bed.rx, weir(&format!("flows {iface} --direction in --json")));
        let sent = number(&generate(&bed.tx, "--frames 20k --rate 100kpps --flows 100"), "sent");
        let port = page_port(&mut counting);
        counting.wait_for("that flows end while nothing comes", |run| {
            String::from_utf8_lossy(&run.stdout()).matches("\"end_reason\":\"idle\"").count() >= 100
        });
        let shows = |text: &str| metric(text, "weir_flows_delivered_frames_total ") == Some(sent);
        counting
            .wait_for("that metrics have every frame", |_| shows(&get(&bed.rx, port, "/metrics")));
        let (flows, report) = lines(&counting.stop().expect(0).stdout);
        assert_eq!(number(&report, "offered"), sent, "{report}");
        assert_eq!(number(&report, "delivered"), sent, "{report}");
        assert_eq!(number(&report["drops"], "records"), 0, "{report}");
        assert_eq!(report["unexplained"], 0, "{report}");
        let (expected, _) = lines(&captured.stop().expect(0).stdout);
        assert_eq!(by_key(&flows), by_key(&expected), "{hook}");
        assert!(flows.iter().all(|flow| flow["owner"]["name"] == *bed.tx.netns), "{flows:?}");
    }
    let refused = |args: &str, words: &[&str]| {
        Run::start(&bed.rx, weir(&format!("flows {args} --in-kernel"))).end().refused(words);
    };
    refused(&format!("{iface} --filter udp"), &["--filter", "--in-kernel"]);
    refused(&format!("{iface} --biflow"), &["biflow", "captured frames"]);
    refused("gen:frames=1", &["gen:frames=1", "eth0"]);
    refused("nosuch0", &["nosuch0"]);
}

#[test]
fn exports_that_cannot_be_say_what_to_do() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/trace.pcapng");
    for (args, words) in [
        ("--export netflow://a", &["--export", "ipfix://", "parquet:", "json:"][..]),
        ("--export parquet:/nowhere/at/all/flows", &["/nowhere/at/all"]),
        ("--export json:/nowhere/at/all", &["json:/nowhere/at/all"]),
        ("--http 203.0.113.7:80", &["--http", "203.0.113.7:80"]),
        ("--export json:/tmp/a --export json:/tmp/a", &["twice"]),
    ] {
        let output = weir(&format!("flows file:{demo} {args}")).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{args}: {text}");
    }
}
