//! How a capture can be ended, and its output when it ends.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::frames::{Sender, assortment, ipv4};
use common::tools::{all_read, read, statistics};
use common::{
    HOOKS, Run, bed, closes, dropped, folder, generate, number, path, ready, settle, weir,
};
use serde_json::Value;
use weir_lab::generator::template::number_of;

const TOOLS: [&str; 3] = ["capinfos", "tshark", "tcpdump"];

#[test]
fn root_a_number_of_frames_is_exact_in_the_file() {
    let Some(_alone) = ready("root_a_number_of_frames_is_exact_in_the_file", &TOOLS) else {
        return;
    };
    for hook in HOOKS {
        for frames in [1, 12_345] {
            let bed = bed();
            let dir = folder();
            let (file, name) = path(&dir, "exact.pcapng");
            let args = format!("{hook} --frames {frames} --write {name} --json");
            let capture = Run::capture(&bed.rx, &args);
            // The generator sends until the capture has ended.
            let generator =
                Run::start(&bed.tx, weir(&format!("gen {} --rate 200kpps", bed.tx.iface)));
            let json = capture.end().expect(0).json();
            drop(generator);
            closes(&json);
            assert_eq!(number(&json, "delivered"), frames, "{json}");
            let (_, got) = read(&file);
            assert_eq!(got.len() as u64, frames, "{hook}");
            assert_eq!(number_of(&got[0].data), Some(0), "{hook}: the first are missing");
            if frames == 1 {
                all_read(&file, &got);
            }
            assert_eq!(statistics(&file)[0].delivered, Some(frames));
        }
    }
}

#[test]
fn root_a_duration_ends_it() {
    let Some(_alone) = ready("root_a_duration_ends_it", &[]) else { return };
    let bed = bed();
    let mut tries = (0..3).map(|_| {
        let start = Instant::now();
        let json = Run::capture(&bed.rx, "--duration 700ms --json").end().expect(0).json();
        assert!(start.elapsed() >= Duration::from_millis(700));
        closes(&json);
        assert_eq!(number(&json, "offered"), 0, "{json}");
        let duration = json["duration_s"].as_f64().expect("a duration");
        assert!(duration >= 0.7, "{json}");
        duration
    });
    // On a busy machine the end may come later.
    assert!(tries.any(|duration| duration < 2.0), "longer, three times");
}

#[test]
fn root_a_signal_ends_it_with_a_whole_file_and_the_ledger() {
    let test = "root_a_signal_ends_it_with_a_whole_file_and_the_ledger";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "signal.pcapng");
        let mut capture = Run::capture(&bed.rx, &format!("--write {name}"));
        let generator = Run::start(&bed.tx, weir(&format!("gen {} --rate 50kpps", bed.tx.iface)));
        // More than a thousand frames.
        let has_frames = || fs::metadata(&file).is_ok_and(|file| file.len() > 200_000);
        capture.wait_for("frames", |_| has_frames());
        let start = Instant::now();
        capture.signal(signal);
        let ended = capture.end().expect(0);
        println!("signal {signal}: ended after {:?}", start.elapsed());
        drop(generator);
        let (_, frames) = read(&file);
        assert!(frames.len() > 1000, "{}", ended.text());
        all_read(&file, &frames);
        let received = statistics(&file)[0].received;
        // The report as text contains the same numbers.
        let text = ended.text().replace(' ', "");
        assert!(text.contains(&format!("offered{}\n", received.unwrap())), "{}", ended.text());
        assert!(text.contains(&format!("delivered{}\n", frames.len())), "{}", ended.text());
        assert!(ended.text().contains("offered = filtered + captured + drops"), "{}", ended.text());
    }
}

#[test]
fn root_the_json_report_has_its_fields() {
    let Some(_alone) = ready("root_the_json_report_has_its_fields", &[]) else { return };
    let bed = bed();
    let capture = Run::capture(&bed.rx, "--engine bpf --hook tc --json");
    let sent = generate(&bed.tx, "--frames 100 --rate 10kpps --size 128");
    settle();
    let ended = capture.stop().expect(0);
    assert_eq!(ended.text().lines().count(), 1, "nothing but the report: {}", ended.text());
    let json = ended.json();
    closes(&json);
    let text = |name: &str| json[name].as_str().unwrap_or_else(|| panic!("no {name}: {json}"));
    assert_eq!((text("source"), text("engine"), text("hook")), ("wrx0", "bpf", "tc"));
    for (name, value) in
        [("offered", 100), ("filtered", 0), ("captured", 100), ("lapped", 0), ("delivered", 100)]
    {
        assert_eq!(number(&json, name), value, "{name}: {json}");
    }
    assert_eq!(number(&json, "bytes"), 100 * 124, "{json}");
    assert!(json["drops"].is_object() && dropped(&json) == 0, "{json}");
    assert!(json["missed_before"].is_u64() || json["missed_before"].is_null(), "{json}");
    let (seconds, mpps, gbps) = ("duration_s", "mpps", "gbps");
    let float = |name: &str| json[name].as_f64().unwrap_or_else(|| panic!("no {name}: {json}"));
    assert!((float(mpps) * float(seconds) * 1e6 - 100.0).abs() < 0.01, "{json}");
    assert!((float(gbps) * float(seconds) * 1e9 - 124.0 * 800.0).abs() < 1.0, "{json}");
    let source = &json["sources"][0];
    assert!(source["why"].as_str().is_some_and(|why| !why.is_empty()), "{json}");
    assert_eq!(number(source, "offered"), 100, "{json}");
    assert_eq!(source["error"], Value::Null, "{json}");
    // The report of the generator.
    assert_eq!((number(&sent, "sent"), number(&sent, "bytes")), (100, 12_800), "{sent}");
    assert!(sent["duration_s"].is_f64() && sent["mpps"].is_f64() && sent["gbps"].is_f64());
}

#[test]
fn root_loss_is_an_exit_status_where_it_is_asked_for() {
    let Some(_alone) = ready("root_loss_is_an_exit_status_where_it_is_asked_for", &[]) else {
        return;
    };
    for (args, loses, code) in
        [("--fail-on-loss", false, 0), ("--fail-on-loss", true, 1), ("", true, 0)]
    {
        let bed = bed();
        // The usual rings hold all frames.
        let ring = if loses { "--ring-size 8MiB" } else { "" };
        let mut capture = Run::capture(&bed.rx, &format!("--json {ring} {args}"));
        if loses {
            capture.signal(libc::SIGSTOP);
        }
        generate(&bed.tx, "--frames 200k --rate 200kpps");
        settle();
        capture.signal(libc::SIGCONT);
        let ended = capture.stop().expect(code);
        let json = ended.json();
        closes(&json);
        assert_eq!(number(&json, "lapped") > 0, loses, "{json}");
        assert_eq!(ended.stderr.contains("were lost (--fail-on-loss)"), code == 1);
    }
}

#[test]
fn root_printing_makes_a_line_of_every_frame() {
    let Some(_alone) = ready("root_printing_makes_a_line_of_every_frame", &[]) else { return };
    for hook in HOOKS {
        let bed = bed();
        let capture = Run::capture(&bed.rx, &format!("{hook} --print -e"));
        let sent = assortment();
        let sender = Sender::new(&bed.tx);
        sent.iter().for_each(|frame| sender.send(frame));
        settle();
        let ended = capture.stop().expect(0);
        let text = ended.text();
        // Leave out the date, which is printed at midnight.
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), sent.len(), "{hook}: {text}");
        for (line, frame) in lines.into_iter().zip(&sent) {
            // Records of XDP have no direction, because XDP sees received frames only. libpcap does not report it.
            let silent = ["xdp", "consume", "pcap"].iter().any(|word| hook.contains(word));
            let way = if silent { "-" } else { "In" };
            assert!(line.split(' ').nth(1) == Some(way), "{hook}: {line}");
            assert!(line.contains(&frame.len().to_string()), "{hook}: {line}");
        }
        assert!(ended.stderr.contains("offered = filtered + captured + drops"), "{}", ended.stderr);
    }
}

#[test]
fn root_a_reader_that_has_seen_enough_ends_it_quietly() {
    let Some(_alone) = ready("root_a_reader_that_has_seen_enough_ends_it_quietly", &[]) else {
        return;
    };
    for output in ["--write -", "--print", "--print --json"] {
        let bed = bed();
        let dir = folder();
        let (log, name) = path(&dir, "log");
        let mut shell = std::process::Command::new("bash");
        shell.arg("-c").arg(format!(
            "{} capture {} {output} --fail-on-loss 2>{name} | head -c 100 | wc -c; \
             echo ${{PIPESTATUS[0]}}",
            env!("CARGO_BIN_EXE_weir"),
            bed.rx.iface
        ));
        let mut run = Run::start(&bed.rx, shell);
        let log = || std::fs::read_to_string(&log).unwrap_or_default();
        run.wait_for("the capture", |_| log().contains(": bpf"));
        // More frames than the buffers between capture and `head` hold.
        let generator = Run::start(&bed.tx, weir(&format!("gen {} --rate 20kpps", bed.tx.iface)));
        let ended = run.end().expect(0);
        drop(generator);
        assert_eq!(ended.text(), "100\n0\n", "{output}: {}{}", ended.stderr, log());
        for word in ["panicked", "were lost", "os error"] {
            assert!(!log().contains(word), "{output}: {}", log());
        }
    }
}

#[test]
fn root_nobody_listening_ends_nothing() {
    let Some(_alone) = ready("root_nobody_listening_ends_nothing", &["nohup"]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "unheard.pcapng");
    // Standard output and standard error are pipes whose reader ends at once. The capture writes to them every second.
    let mut shell = std::process::Command::new("bash");
    shell.arg("-c").arg(format!(
        "nohup {} capture {} --write {name} --duration 5s 2>&1 | head -c 5 >&2; \
         echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_weir"),
        bed.rx.iface
    ));
    let mut run = Run::start(&bed.rx, shell);
    run.wait_for("the capture", |run| run.stderr().starts_with("weir:"));
    std::thread::sleep(Duration::from_millis(1500));
    generate(&bed.tx, "--frames 100 --rate 10kpps");
    let ended = run.end().expect(0);
    assert_eq!(ended.text(), "0\n", "{}", ended.stderr);
    assert_eq!(read(&file).1.len(), 100);
    assert_eq!(statistics(&file)[0].received, Some(100));
}

#[test]
fn root_a_hang_up_is_ignored_under_nohup() {
    let Some(_alone) = ready("root_a_hang_up_is_ignored_under_nohup", &["nohup"]) else { return };
    let bed = bed();
    let mut command = std::process::Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_weir")).args(["capture", &bed.rx.iface, "--json"]);
    let mut run = Run::capture_by(&bed.rx, command);
    run.signal(libc::SIGHUP);
    settle();
    generate(&bed.tx, "--frames 100 --rate 10kpps");
    settle();
    assert_eq!(number(&run.stop().expect(0).json(), "delivered"), 100);
}

#[test]
fn root_a_second_signal_does_not_wait() {
    let Some(_alone) = ready("root_a_second_signal_does_not_wait", &[]) else { return };
    let bed = bed();
    // Nobody reads this pipe, so the regular end of the capture blocks.
    let mut shell = std::process::Command::new("bash");
    shell.arg("-c").arg(format!(
        "exec 3> >(sleep 30 >/dev/null); exec {} capture {} --write /dev/fd/3",
        env!("CARGO_BIN_EXE_weir"),
        bed.rx.iface
    ));
    let mut capture = Run::capture_by(&bed.rx, shell);
    let sender = Sender::new(&bed.tx);
    for _ in 0..200 {
        sender.send(&ipv4(1514));
    }
    settle();
    capture.signal(libc::SIGINT);
    // A second signal within 0.5 s is ignored as a duplicate. After 1 s the capture no longer waits for the reader.
    std::thread::sleep(Duration::from_millis(550));
    let begin = Instant::now();
    while !capture.has_ended() && begin.elapsed() < Duration::from_secs(5) {
        capture.signal(libc::SIGINT);
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = capture.end_within(Duration::ZERO);
    assert_eq!(ended.code, None, "it ends by the signal: {ended:?}");
}

#[test]
fn root_signals_that_come_together_are_one_wish() {
    let test = "root_signals_that_come_together_are_one_wish";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    for signals in [[libc::SIGTERM, libc::SIGTERM], [libc::SIGINT, libc::SIGTERM]] {
        let dir = folder();
        let (file, name) = path(&dir, "twice.pcapng");
        let mut capture = Run::capture(&bed.rx, &format!("--write {name} --json"));
        generate(&bed.tx, "--frames 100 --rate 10kpps");
        settle();
        for signal in signals {
            capture.signal(signal);
        }
        let ended = capture.end().expect(0);
        assert_eq!(number(&ended.json(), "delivered"), 100);
        assert_eq!(statistics(&file)[0].received, Some(100), "the file was not ended");
    }
}
