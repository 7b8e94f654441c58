//! Interfaces named by a pattern: one source for all of them, and separate counts for each.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use common::tools::{read, tool};
use common::{Run, bed, closes, folder, number, path, ready, settle, sh, weir};
use serde_json::Value;
use weir_lab::generator::mix::{self, MixOptions};
use weir_lab::testbed::End;

/// Links in addition to the testbed's own.
const LINKS: u32 = 200;
/// Time limit for the start. The aim is 1 s; a debug build on a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Sends this many frames out of an end.
fn send(tx: &End, frames: u64) {
    let never = AtomicBool::new(false);
    let options = MixOptions { rate_pps: 1e5, frames: Some(frames), duration: None };
    let sent = tx.run(|| mix::run(&tx.iface, &options, &never)).unwrap().unwrap().sent;
    assert_eq!(sent, frames);
}

/// The interfaces of the only feed, by name: offered frames, captured frames, and id in the file.
fn interfaces(json: &Value) -> BTreeMap<&str, (u64, u64, Option<u64>)> {
    let all = json["feeds"][0]["interfaces"].as_array().expect("interfaces");
    let one = |own: &'_ Value| {
        let id = own["interface_id"].as_u64();
        (number(own, "offered"), number(own, "captured"), id)
    };
    all.iter().map(|own| (own["name"].as_str().expect("a name"), one(own))).collect()
}

/// The number of rings in memory files (memfd) that a process has mapped.
fn rings(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("a running process");
    let own = maps.lines().filter(|line| line.contains("memfd:weir-ring"));
    own.filter_map(|line| line.split_whitespace().nth(4)).collect::<BTreeSet<_>>().len()
}

#[test]
fn root_any_is_one_source_with_exact_counts_of_each_interface() {
    let test = "root_any_is_one_source_with_exact_counts_of_each_interface";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    // By default, one socket and one ring serve all interfaces.
    assert_eq!(any_is_one_source(""), 1);
}

#[test]
fn root_any_by_bpf_is_one_source_with_exact_counts_of_each_interface() {
    let test = "root_any_by_bpf_is_one_source_with_exact_counts_of_each_interface";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    // The rings of `bpf` are BPF array maps, one for each CPU.
    assert_eq!(any_is_one_source("--engine bpf"), 0);
}

/// Checks a capture of `any`; returns its number of rings in memory files.
fn any_is_one_source(engine: &str) -> usize {
    let bed = bed();
    let pairs = bed.add_pairs(1, LINKS).unwrap();
    pairs.iter().for_each(|pair| pair.wait_for_carrier().unwrap());
    let dir = folder();
    let (file, name) = path(&dir, "any.pcapng");
    let begin = Instant::now();
    let line = format!("capture any {engine} --direction in --json --write {name}");
    let mut capture = Run::capture_by(&bed.rx, weir(&line));
    let took = begin.elapsed();
    println!("{} interfaces are captured after {took:?}", LINKS + 2);
    assert!(took < START_LIMIT, "{took:?}");
    let descriptors = fs::read_dir(format!("/proc/{}/fd", capture.pid())).unwrap().count();
    assert!(descriptors < 100, "{descriptors} descriptors");
    let memory_files = rings(capture.pid());
    let mut sent = BTreeMap::new();
    let mut send_on = |tx: &End, frames| {
        send(tx, frames);
        sent.insert(tx.iface.replace("wtx", "wrx"), frames);
    };
    send_on(&bed.tx, 500);
    pairs.iter().zip(0..).for_each(|(pair, n)| send_on(&pair.tx, 3 + n % 7));
    let late = bed.add_pairs(900, 1).unwrap().swap_remove(0);
    capture.wait_for("the new interface", |run| run.stderr().contains("any: wrx900 joined"));
    late.wait_for_carrier().unwrap();
    send_on(&late.tx, 77);
    sh(&bed.rx, "ip link delete wrx7");
    capture.wait_for("its end", |run| run.stderr().contains("any: wrx7 left"));
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    let found = interfaces(&json);
    assert_eq!(found.len(), LINKS as usize + 3, "the pairs, wrx0, wrx900 and lo");
    let (names, frames) = read(&file);
    assert_eq!(names[0], "any");
    let mut in_file = vec![0u64; names.len()];
    frames.iter().for_each(|frame| in_file[frame.interface as usize] += 1);
    assert_eq!(in_file[0], 0, "no frame is of the pattern");
    for (name, &sent) in &sent {
        let (offered, captured, id) = found[name.as_str()];
        assert_eq!((offered, captured), (sent, sent), "{name}");
        let id = id.expect("it has frames") as usize;
        assert_eq!(&names[id], name);
        // An interface whose owner is found after its first frame has a second id from then on.
        let own = names.iter().zip(&in_file).filter(|(own, _)| *own == name);
        assert_eq!((name, own.map(|(_, count)| count).sum::<u64>()), (name, sent));
    }
    assert_eq!(sent.values().sum::<u64>(), number(&json, "captured"));
    let left = json["feeds"][0]["interfaces"].as_array().unwrap();
    let left: Vec<_> = left.iter().filter(|own| own["is_member"] == false).collect();
    assert_eq!((left.len(), left[0]["name"].as_str()), (1, Some("wrx7")));
    // As tshark reads the file.
    let text = file.to_str().unwrap();
    let by_tshark = tool("tshark", &["-r", text, "-T", "fields", "-e", "frame.interface_name"]);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    by_tshark.lines().for_each(|line| *lines.entry(line.to_owned()).or_default() += 1);
    assert_eq!(lines, sent);
    memory_files
}

#[test]
fn root_a_pattern_in_another_namespace_prints_and_reports_each_interface() {
    let test = "root_a_pattern_in_another_namespace_prints_and_reports_each_interface";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let pairs = bed.add_pairs(1, 2).unwrap();
    pairs.iter().for_each(|pair| pair.wait_for_carrier().unwrap());
    let source = format!("netns:{}/wrx*", bed.rx.netns);
    let captured = format!("capture {source} --print --direction in --feed few:arp --feed all:");
    let refused = Run::start(&bed.tx, weir(&format!("capture {source} --engine pcap"))).end();
    refused.refused(&["--engine af_packet"]);
    for engine in ["", "--engine bpf"] {
        let mut capture = Run::capture_by(&bed.tx, weir(&format!("{captured} {engine}")));
        capture.wait_for("the names", |run| {
            run.stderr().contains("3 interfaces at the start: wrx0, wrx1, wrx2")
        });
        send(&bed.tx, 30);
        send(&pairs[1].tx, 40);
        settle();
        let ended = capture.stop().expect(0);
        let text = ended.text();
        let printed = |name: &str| {
            let name = format!(" netns:{}/{name}[all] ", bed.rx.netns);
            text.lines().filter(|line| line.contains(&name)).count()
        };
        assert_eq!((printed("wrx0"), printed("wrx1"), printed("wrx2")), (30, 0, 40), "{text}");
        let rows: Vec<&str> = ended
            .stderr
            .lines()
            .filter(|line| line.contains(&format!("{}/wrx2 ", bed.rx.netns)))
            .collect();
        assert_eq!(rows.len(), 2, "a row in each feed: {}", ended.stderr);
        assert!(ended.stderr.contains("one more had no frames"), "{}", ended.stderr);
    }
}
