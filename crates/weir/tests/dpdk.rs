//! The engine `dpdk` with DPDK's drivers that need no hardware. Only built with the feature `dpdk`.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::frames::{CTAG, STAG, Sender, assortment};
use common::tools::{all_read, bytes_of, in_time_order, read};
use common::{Ended, Run, bed, closes, folder, generate, number, path, ready, settle, sh, weir};
use serde_json::Value;
use weir_lab::generator::template::number_of;

/// The trace of `weir demo`, which the binary contains as well.
fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/trace.pcapng")
}

/// Runs `weir capture` in the namespace of the test; `timeout` kills it after 60 s.
fn capture(args: &str) -> std::process::Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60", env!("CARGO_BIN_EXE_weir"), "capture"]);
    command.args(args.split_whitespace()).output().expect("timeout runs")
}

#[track_caller]
fn json(output: &std::process::Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    // Standard output must contain the report only, though DPDK prints messages there by default.
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn made_up_frames_are_all_there() {
    let json = json(&capture("dpdk:net_null0,size=64 --frames 10k --json"));
    closes(&json);
    assert_eq!(number(&json, "delivered"), 10_000);
    assert_eq!(json["engine"], "dpdk");
}

#[test]
fn a_run_without_frames_ends_on_time_and_two_ports_are_two_sources() {
    let json = json(&capture("dpdk:net_ring0 dpdk:net_ring1 --duration 300ms --json"));
    closes(&json);
    assert_eq!(number(&json, "offered"), 0);
    assert_eq!(json["sources"].as_array().map(Vec::len), Some(2), "{json}");
}

#[test]
fn a_trace_comes_through_byte_for_byte() {
    let (_, expected) = read(&trace());
    let dir = folder();
    let (file, name) = path(&dir, "through.pcapng");
    let source = format!("dpdk:net_pcap0,rx_pcap={}", trace().display());
    let frames = expected.len();
    let args = format!("{source} --timestamp nic --frames {frames} --write {name} --json");
    let json = json(&capture(&args));
    closes(&json);
    let (_, got) = read(&file);
    assert_eq!(bytes_of(&got), bytes_of(&expected));
    for (got, expected) in got.iter().zip(&expected) {
        // The stamps of DPDK's pcap driver are in microseconds.
        assert_eq!(got.ts_ns, expected.ts_ns / 1000 * 1000);
    }
    all_read(&file, &got);
}

#[test]
fn frames_go_through_a_pipe_with_nothing_else_in_it() {
    let (_, expected) = read(&trace());
    let source = format!("dpdk:net_pcap0,rx_pcap={}", trace().display());
    let frames = expected.len();
    let output = capture(&format!("{source} --snaplen 40 --frames {frames} --write -"));
    assert!(output.status.success(), "{output:?}");
    let dir = folder();
    let (file, _) = path(&dir, "piped.pcapng");
    std::fs::write(&file, &output.stdout).expect("a file");
    let (_, got) = read(&file);
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(got.data, expected.data[..expected.data.len().min(40)]);
        assert_eq!(got.wire_len as usize, expected.data.len());
    }
    in_time_order(&got);
    assert_eq!(got.len(), frames);
}

#[test]
fn what_cannot_be_opened_says_why_and_what_to_do() {
    for (args, words) in [
        ("dpdk:net_nonsense0", ["net_nonsense0", "librte-net-"]),
        ("dpdk:net_null0,size=64,no=1", ["no", "docs/dpdk.md"]),
        ("dpdk:net_af_packet0,iface=nowhere0", ["nowhere0", "ip -brief link"]),
        ("dpdk:net_null0 --queues 1-2", ["--queues 1-2", "--queues 0-2"]),
        ("dpdk:net_null0 --direction in", ["--direction", "leave it out"]),
        ("dpdk:net_null0 --timestamp nic", ["--timestamp nic", "leave it out"]),
        ("dpdk:net_null0 dpdk:net_null0", ["net_null0", "named twice"]),
        ("dpdk:vdev:net_af_xdp0,iface=lo", ["--consume", "stack"]),
        ("dpdk:", ["write the name behind it", "dpdk:DEVICE"]),
    ] {
        let output = capture(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
        assert!(words.iter().all(|word| errors.contains(word)), "{args}: {errors}");
        assert!(output.stdout.is_empty() && !errors.contains("panicked"), "{output:?}");
    }
}

/// Checks a run for which `frames` numbered frames were sent, slowly enough that none may be lost: all of them
/// arrived, in order.
#[track_caller]
fn all_arrived(ended: Ended, file: &Path, frames: u64) {
    let json = ended.expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "offered"), frames, "{json}");
    assert_eq!(number(&json, "delivered"), frames, "{json}");
    let (_, got) = read(file);
    in_time_order(&got);
    let numbers: Vec<u64> = got.iter().filter_map(|frame| number_of(&frame.data)).collect();
    assert!(numbers.is_sorted() && numbers.len() as u64 == frames, "{} numbers", numbers.len());
}

#[test]
fn root_af_packet_counts_what_the_generator_sent() {
    let Some(_alone) = ready("root_af_packet_counts_what_the_generator_sent", &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "packet.pcapng");
    // The socket's buffer holds all frames, even if the polling thread runs late.
    let source = "dpdk:net_af_packet0,iface=wrx0,framecnt=8192";
    sh(&bed.rx, "ip link set wrx0 promisc on");
    let run = Run::capture_by(&bed.rx, weir(&format!("capture {source} --write {name} --json")));
    // DPDK's drivers keep their capabilities. Programs that they start must not gain others.
    for task in std::fs::read_dir(format!("/proc/{}/task", run.pid())).unwrap().flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    }
    // The interface was promiscuous before. DPDK must not change that.
    assert!(sh(&bed.rx, "ip link show wrx0").contains("PROMISC"));
    generate(&bed.tx, "--frames 5000 --rate 20kpps");
    settle();
    all_arrived(run.stop(), &file, 5000);
    assert!(sh(&bed.rx, "ip link show wrx0").contains("PROMISC"));
}

#[test]
fn root_af_packet_keeps_every_kind_of_frame() {
    let Some(_alone) = ready("root_af_packet_keeps_every_kind_of_frame", &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "kinds.pcapng");
    let source = "dpdk:net_af_packet0,iface=wrx0";
    let run = Run::capture_by(&bed.rx, weir(&format!("capture {source} --write {name} --json")));
    let sender = Sender::new(&bed.tx);
    let mut expected = assortment();
    expected.iter().for_each(|frame| sender.send(frame));
    settle();
    let json = run.stop().expect(0).json();
    closes(&json);
    // The driver itself reinserts the tag that the kernel has removed, always with the EtherType 0x8100.
    for frame in expected.iter_mut().filter(|frame| frame[12..14] == STAG.to_be_bytes()) {
        frame[12..14].copy_from_slice(&CTAG.to_be_bytes());
    }
    let (_, got) = read(&file);
    for (at, (got, expected)) in bytes_of(&got).iter().zip(&expected).enumerate() {
        let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
        assert_eq!(
            (got.len(), differs),
            (expected.len(), None),
            "frame {at}: {:?}",
            &expected[..22]
        );
    }
    assert_eq!(got.len(), expected.len());
}

#[test]
fn root_af_xdp_counts_what_the_generator_sent_and_leaves_nothing_behind() {
    let test = "root_af_xdp_counts_what_the_generator_sent_and_leaves_nothing_behind";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "xdp.pcapng");
    let source = "dpdk:net_af_xdp0,iface=wrx0";
    let command = weir(&format!("capture {source}"));
    Run::start(&bed.rx, command).end().refused(&["--consume", "stack"]);
    let run = Run::capture_by(
        &bed.rx,
        weir(&format!("capture {source} --consume --write {name} --json")),
    );
    generate(&bed.tx, "--frames 2000 --rate 10kpps");
    settle();
    all_arrived(run.stop(), &file, 2000);
    let left = sh(&bed.rx, "ip -d link show wrx0");
    assert!(!left.contains("xdp"), "{left}");
}
