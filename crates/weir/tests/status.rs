//! The status of a running capture, from its control socket and as metrics for Prometheus.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::metrics::{address_of, read, scrape};
use common::{Run, bed, closes, folder, generate, number, path, ready, settle, sh, weir};
use weir_lab::testbed::require_tool;

const ADDRESS: &str = "127.0.0.1:9101";

/// The sum of all values of a metric.
fn value(text: &str, name: &str) -> u64 {
    let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    let mut lines = text.lines().filter(of).peekable();
    assert!(lines.peek().is_some(), "no {name} in {text}");
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
    lines.map(|line| value(line).expect(line)).sum()
}

/// Checks the metrics with promtool, if it is installed.
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
    let asked_as_daemon = Run::start(&bed.rx, weir(&format!("status --socket {control}"))).end();
    asked_as_daemon
        .refused(&["a capture listens at", &format!("`weir status --control {control}`")]);
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
        // A recorder waits up to 1 s for a block to fill, and updates its counts 0.1 s after that.
        let begin = Instant::now();
        loop {
            last = common::within(&bed.rx, || scrape(ADDRESS));
            let has_files = value(&last, "weir_recorder_files_total") > 0;
            if has_files && value(&last, "weir_consumer_lag_frames") == 0 {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{last}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let now = asked.map(|(_, name)| value(&last, name));
        read(&last);
        check_with_promtool(&last);
        assert!(now.iter().zip(&before).all(|(now, before)| now >= before), "{now:?} {before:?}");
        before = now;
        let json = status(" --json").json();
        for ((field, _), now) in asked.iter().zip(now) {
            assert_eq!(number(&json, field), now, "{field}: {json}");
        }
        // Each frame is offered to both feeds, and passes the filter of one.
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
    // A client of the metrics that sends nothing must not delay the end of the capture for long.
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
    assert!(said.contains("(Address already in use); is it an address of"), "{said}");
}

/// Scrapes until `is_there` accepts the metrics; returns them.
fn once(address: &str, is_there: impl Fn(&BTreeMap<String, u64>) -> bool) -> BTreeMap<String, u64> {
    let begin = Instant::now();
    loop {
        let answer = scrape(address);
        let values = read(&answer);
        if is_there(&values) {
            return values;
        }
        assert!(begin.elapsed() < common::LIMIT, "{answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_sources_of_one_name_are_one_metric() {
    // The first two sources end, and the third one continues.
    let sources = "gen:rate=1kpps,frames=300 gen:rate=1kpps,frames=300";
    let line = format!("capture {sources} gen:rate=1kpps --metrics 127.0.0.1:0 --json");
    let mut run = Run::here(weir(&line));
    let address = address_of(&mut run);
    run.wait_for("that it captures", |run| run.stderr().contains("weir: gen:"));
    let offered = |values: &BTreeMap<String, u64>| {
        let of = |name: &&String| name.starts_with("weir_feed_offered_frames_total{");
        let all: Vec<(String, u64)> =
            values.keys().filter(of).map(|name| (name.clone(), values[name])).collect();
        all
    };
    let is_sum = |(name, frames): &(String, u64)| name.contains("frames=300") && *frames == 600;
    let values = once(&address, |values| offered(values).iter().any(is_sum));
    let two = offered(&values);
    assert_eq!(two.len(), 2, "{two:?}");
    let open = values.iter().filter(|(name, _)| name.starts_with("weir_source_open{"));
    assert_eq!(open.map(|(_, open)| open).sum::<u64>(), 1, "{values:?}");
    let ended = run.stop().expect(0);
    let json = ended.json();
    closes(&json);
    let scraped: u64 = two.iter().map(|(_, count)| count).sum();
    assert!(number(&json, "offered") >= scraped, "{scraped} {json}");
    let one = json["sources"].as_array().expect("sources");
    assert!(one.iter().all(|one| number(one, "offered") > 0), "{json}");
}

#[test]
fn a_consumer_that_failed_is_told_of_while_the_others_go_on() {
    let dir = folder();
    let (_, control) = path(&dir, "control");
    let flags = format!("--control {control} --metrics 127.0.0.1:0 --json");
    let line = format!("capture gen:rate=10kpps --write /dev/full --count {flags}");
    let mut run = Run::here(weir(&line));
    let address = address_of(&mut run);
    run.wait_for("that it says so", |run| {
        let says = run.stderr();
        let said = says.lines().find(|line| line.contains("this consumer has ended"));
        said.is_some_and(|line| line.contains("write: ") && line.contains("No space left"))
    });
    let lost = "weir_consumer_dropped_frames_total{consumer=\"write\",place=\"store\"}";
    let values = once(&address, |values| values.get(lost).is_some_and(|lost| *lost > 100));
    for (name, value) in [
        ("weir_consumer_failed{consumer=\"write\"}", 1),
        ("weir_consumer_failed{consumer=\"count\"}", 0),
        ("weir_consumer_ended{consumer=\"write\"}", 1),
        ("weir_consumer_ended{consumer=\"count\"}", 0),
        ("weir_consumer_lag_frames{consumer=\"write\"}", 0),
        ("weir_consumer_delivered_frames_total{consumer=\"write\"}", 0),
        ("weir_consumer_dropped_frames_total{consumer=\"count\",place=\"store\"}", 0),
    ] {
        assert_eq!(values.get(name), Some(&value), "{name}: {values:?}");
    }
    let status =
        |more: &str| Run::here(weir(&format!("status --control {control}{more}"))).end().expect(0);
    let text = status("").text();
    let told = text.lines().find(|line| line.starts_with("write: ")).expect("the consumer");
    assert!(told.contains("ended (") && told.contains("No space left"), "{text}");
    let json = status(" --json").json();
    let write = &json["consumers"][0];
    assert!(write["error"].as_str().is_some_and(|why| why.contains("No space left")), "{json}");
    assert_eq!(number(&write["drops"], "store"), number(&json, "captured"), "{json}");
    assert_eq!(json["unexplained"], serde_json::Value::Null, "{json}");
    run.signal(libc::SIGUSR1);
    run.wait_for("the ledger", |run| run.stderr().contains("counts of a moment"));
    assert!(run.stderr().contains("  write has ended: "), "{}", run.stderr());
    let json = run.stop().expect(2).json();
    closes(&json);
    assert_eq!(number(&json["drops"], "store"), number(&json, "captured"), "{json}");
}
