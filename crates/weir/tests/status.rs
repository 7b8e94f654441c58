//! A capture that runs is asked how it goes: at its control socket, and by Prometheus.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Run, bed, closes, folder, generate, number, path, ready, settle, sh, weir};
use weir_lab::testbed::require_tool;

const ADDRESS: &str = "127.0.0.1:9101";

/// What a scraper gets.
fn scraped() -> String {
    let mut stream = TcpStream::connect(ADDRESS).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    text
}

/// The sum of all values of a metric.
fn value(text: &str, name: &str) -> u64 {
    let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    let mut lines = text.lines().filter(of).peekable();
    assert!(lines.peek().is_some(), "no {name} in {text}");
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
    lines.map(|line| value(line).expect(line)).sum()
}

/// Prometheus' own judgement, where it is installed.
fn check_with_promtool(answer: &str) {
    if !require_tool("root_a_running_capture_tells_how_it_goes", "promtool") {
        return;
    }
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool");
    child.stdin.take().expect("a pipe").write_all(body.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn root_a_running_capture_tells_how_it_goes() {
    let Some(_alone) = ready("root_a_running_capture_tells_how_it_goes", &[]) else { return };
    let bed = bed();
    sh(&bed.rx, "ip link set lo up");
    let dir = folder();
    let (_, control) = path(&dir, "control");
    let dumps = format!("{}/dumps/", dir.path().display());
    let args = format!(
        "--feed udp:udp --feed tcp:tcp --write {dumps} --control {control} --metrics {ADDRESS} --json"
    );
    let run = Run::capture(&bed.rx, &args);
    let status = |more: &str| {
        Run::start(&bed.rx, weir(&format!("status --control {control}{more}"))).end().expect(0)
    };
    let asked = [
        ("offered", "weir_feed_offered_frames_total"),
        ("filtered", "weir_feed_filtered_frames_total"),
        ("captured", "weir_feed_captured_frames_total"),
        ("bytes", "weir_feed_captured_bytes_total"),
        ("delivered", "weir_consumer_delivered_frames_total"),
        ("lapped", "weir_consumer_lapped_frames_total"),
    ];
    let mut before = [0; 6];
    let mut last = String::new();
    for round in 1..=2u64 {
        generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        // A recorder takes up to a second for a block that is not full, and tells 0.1 s later how far it is.
        let begin = Instant::now();
        loop {
            last = common::within(&bed.rx, scraped);
            let has_files = value(&last, "weir_recorder_files_total") > 0;
            if has_files && value(&last, "weir_consumer_lag_frames") == 0 {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{last}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let now = asked.map(|(_, name)| value(&last, name));
        check_with_promtool(&last);
        assert!(now.iter().zip(&before).all(|(now, before)| now >= before), "{now:?} {before:?}");
        before = now;
        let json = status(" --json").json();
        for ((field, _), now) in asked.iter().zip(now) {
            assert_eq!(number(&json, field), now, "{field}: {json}");
        }
        // Both feeds are offered each frame, and one takes it.
        assert_eq!(number(&json, "offered"), 2 * 1000 * round, "{json}");
        assert_eq!(number(&json, "delivered"), 1000 * round, "{json}");
        let source = &json["sources"][0];
        assert_eq!((&source["is_open"], &source["ended"]), (&true.into(), &false.into()), "{json}");
        assert!(json["rates"]["over_s"].as_f64().is_some_and(|over| over > 0.0), "{json}");
        assert_eq!(json["consumers"][0]["waiting"], 0, "{json}");
        assert!(number(&json["recorder"], "files") >= 1, "{json}");
    }
    assert_eq!(value(&last, "weir_source_open"), 1, "{last}");
    assert_eq!(value(&last, "weir_consumer_lag_frames"), 0, "{last}");
    assert!(last.contains("weir_source_info{source=\"wrx0\",captures=\"wrx0\",engine="), "{last}");
    assert!(
        last.contains("weir_feed_captured_frames_total{source=\"wrx0\",feed=\"udp\""),
        "{last}"
    );
    let text = status("").text();
    for words in [
        "wrx0: captured with ",
        "feed udp 'udp'; offered 2 000, filtered 0, blocked 0, captured 2 000, dropped 0",
        "feed tcp 'tcp'; offered 2 000, filtered 2 000",
        "record: 0 frames behind; delivered 2 000, lapped 0",
        "recorder: ",
    ] {
        assert!(text.contains(words), "'{words}' is not in:\n{text}");
    }
    // One that says nothing delays neither the others for long nor the end.
    let _hangs = common::within(&bed.rx, || TcpStream::connect(ADDRESS).expect("it listens"));
    let begin = Instant::now();
    let ended = run.stop().expect(0);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let json = ended.json();
    closes(&json);
    for ((field, _), before) in asked.iter().zip(before) {
        assert_eq!(number(&json, field), before, "{field}: {json}");
    }
    assert!(json.get("rates").is_none(), "{json}");
}

#[test]
fn an_address_that_cannot_be_listened_at_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let output = weir(&format!("capture gen: --metrics {address}")).output().expect("weir");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("--metrics {address}")), "{said}");
}
