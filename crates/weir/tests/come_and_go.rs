//! Sources that come, go and fail while the others run.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::frames::{Sender, ipv4};
use common::tools::{all_read, read, statistics};
use common::{Run, bed, closes, folder, number, path, ready, settle, sh, weir};
use weir_lab::Testbed;
use weir_lab::testbed::{End, ifindex};

/// Creates a second link, with both ends in the receiver's network namespace.
fn second_link(bed: &Testbed) {
    sh(
        &bed.rx,
        "ip link add wrx1 type veth peer name wtx1; ip link set wrx1 up; ip link set wtx1 up",
    );
}

fn of_source<'a>(json: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let sources = json["sources"].as_array().expect("sources");
    sources.iter().find(|source| source["source"] == name).expect(name)
}

/// Creates the second link for the `life`th time, sends this many frames over it, and deletes it.
fn live(bed: &Testbed, run: &mut Run, life: usize, frames: usize) {
    second_link(bed);
    let there = |run: &Run| run.stderr().matches("wrx1: there; captured").count() == life;
    run.wait_for("that it is there", there);
    let index = bed.rx.run(|| ifindex("wtx1")).expect("the namespace is there");
    let (iface, ifindex) = ("wtx1".to_owned(), index.expect("it is there"));
    let end = End { iface, ifindex, ..bed.rx.clone() };
    end.wait_for_carrier().expect("it sees its peer");
    let sender = Sender::new(&end);
    (0..frames).for_each(|_| sender.send(&ipv4(60)));
    settle();
    sh(&bed.rx, "ip link delete wrx1");
    let gone = |run: &Run| run.stderr().matches("wrx1: vanished; waiting").count() == life;
    run.wait_for("that it is gone", gone);
}

#[test]
fn root_a_source_that_vanishes_ends_alone() {
    let test = "root_a_source_that_vanishes_ends_alone";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["bpf", "af_packet", "pcap"] {
        let bed = bed();
        second_link(&bed);
        let line = format!("capture wrx1 wrx0 --engine {engine} --filter ip --json");
        let mut run = Run::capture_by(&bed.rx, weir(&line));
        run.wait_for("both sources", |run| run.stderr().contains("weir: wrx0: "));
        let sender = Sender::new(&bed.tx);
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        sh(&bed.rx, "ip link delete wrx1");
        run.wait_for("word of it", |run| run.stderr().contains("the others go on"));
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
        let ended = run.stop().refused(&["wrx1", "vanished"]);
        let json = ended.json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 20, "{engine}: {json}");
        assert_eq!(number(of_source(&json, "wrx0"), "captured"), 20, "{engine}: {json}");
        assert_eq!(of_source(&json, "wrx0")["error"], serde_json::Value::Null);
        let gone = of_source(&json, "wrx1")["error"].as_str().expect("an error").to_owned();
        assert!(gone.contains("vanished"), "{gone}");
    }
}

#[test]
fn cpus_that_are_not_there_are_refused() {
    let refused = |list: &str, words: &[&str]| {
        let line = format!("capture gen: --frames 10 --cpus {list}");
        let output = weir(&line).output().expect("weir");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    refused("1000", &["--cpus 1000", "no CPU 1000"]);
    refused("3-1", &["--cpus", "0-3,8"]);
    let output = weir("capture gen: --frames 10 --cpus 0 --json").output().expect("weir");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn root_the_threads_of_a_source_run_where_they_are_told_to() {
    let test = "root_the_threads_of_a_source_run_where_they_are_told_to";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    for (engine, threads) in
        [("bpf", &["weir-source"][..]), ("af_xdp --consume", &["weir-source", "weir-copier"])]
    {
        let run = Run::capture(&bed.rx, &format!("--engine {engine} --cpus 0 --json"));
        let mut found = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", run.pid())).expect("tasks") {
            let task = task.expect("a task").path();
            let text = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
            if threads.contains(&text("comm").trim()) {
                assert!(text("status").contains("Cpus_allowed_list:\t0\n"), "{engine}");
                found += 1;
            }
        }
        assert_eq!(found, threads.len(), "{engine}");
        run.stop().expect(0);
    }
}

#[test]
fn root_an_interface_that_goes_down_is_waited_for() {
    let test = "root_an_interface_that_goes_down_is_waited_for";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["bpf", "af_packet"] {
        let bed = bed();
        let line = format!("capture wrx0 --engine {engine} --filter ip --json");
        let mut run = Run::capture_by(&bed.rx, weir(&line));
        let sender = Sender::new(&bed.tx);
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
        sh(&bed.rx, "ip link set wrx0 down");
        run.wait_for("word of it", |run| run.stderr().contains("wrx0: down; waiting"));
        sh(&bed.rx, "ip link set wrx0 up");
        run.wait_for("word of it", |run| run.stderr().contains("wrx0: up again"));
        bed.tx.wait_for_carrier().expect("it sees its peer");
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 20, "{engine}: {json}");
        let source = of_source(&json, "wrx0");
        assert_eq!((number(source, "lives"), number(source, "downs")), (1, 1), "{json}");
        assert_eq!(source["error"], serde_json::Value::Null);
    }
}

#[test]
fn root_an_interface_is_followed_from_before_it_is_there_through_two_lives() {
    let test = "root_an_interface_is_followed_from_before_it_is_there_through_two_lives";
    let Some(_alone) = ready(test, &["capinfos", "tshark"]) else { return };
    // The missing interface may come first or second. The second one could also be the first word of a filter.
    for (engine, sources) in [("bpf", "wrx1 wrx0"), ("af_packet", "wrx0 wrx1")] {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "followed.pcapng");
        let line = format!(
            "capture {sources} --follow --engine {engine} --filter ip --write {name} --count --json"
        );
        let mut run = Run::capture_by(&bed.rx, weir(&line));
        run.wait_for("the other source", |run| run.stderr().contains("weir: wrx0: "));
        run.wait_for("word of it", |run| run.stderr().contains("wrx1: not there; waiting"));
        for life in 1..=2 {
            live(&bed, &mut run, life, 10);
        }
        let sender = Sender::new(&bed.tx);
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 30, "{engine}: {json}");
        let source = of_source(&json, "wrx1");
        assert_eq!((number(source, "lives"), number(source, "captured")), (2, 20), "{json}");
        assert_eq!(source["error"], serde_json::Value::Null, "{json}");
        let feeds = json["feeds"].as_array().expect("feeds");
        let feed = feeds.iter().find(|feed| feed["source"] == "wrx1").expect("its feed");
        assert_eq!(number(feed, "delivered"), 20, "{json}");
        // Both lives of the interface are one interface in the file.
        let (_, frames) = read(&file);
        assert_eq!(frames.len(), 30);
        all_read(&file, &frames);
        assert_eq!(statistics(&file).len(), 2, "an interface a source");
    }
}

/// The number of rings of a process: the memfds that it has mapped.
fn rings_of(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
    let inodes = maps.lines().filter(|line| line.contains("memfd:"));
    let inodes: BTreeSet<&str> = inodes.filter_map(|line| line.split_whitespace().nth(4)).collect();
    inodes.len()
}

#[test]
fn root_a_consumer_that_stands_still_holds_few_lives_of_an_interface_that_comes_and_goes() {
    let test =
        "root_a_consumer_that_stands_still_holds_few_lives_of_an_interface_that_comes_and_goes";
    let Some(_alone) = ready(test, &["mkfifo"]) else { return };
    let bed = bed();
    let dir = folder();
    let (_, pipe) = path(&dir, "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let line = format!(
        "capture wrx1 --follow --engine af_packet --ring-size 4MiB --filter ip --write {pipe} --json"
    );
    let mut run = Run::start(&bed.rx, weir(&line));
    // A reader that reads nothing.
    let mut reader = std::fs::File::open(&pipe).expect("the pipe");
    run.wait_for("word of it", |run| run.stderr().contains("wrx1: not there; waiting"));
    let lives = 14;
    for life in 1..=lives {
        // More frames than a pipe holds.
        live(&bed, &mut run, life, 1000);
    }
    run.wait_for("word of it", |run| run.stderr().contains("a past life were let go"));
    // Rings of lives that the consumer has joined, of lives that it has not joined, and of the one where it stalls.
    let rings = rings_of(run.pid());
    assert!(rings <= 4 + 4 + 1, "{rings} rings");
    let read = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let json = run.stop().expect(0).json();
    assert!(read.join().expect("no panic").expect("the pipe") > 0);
    closes(&json);
    let feed = &json["feeds"][0];
    assert_eq!(number(feed, "captured"), 1000 * lives as u64, "{json}");
    assert!(number(feed, "lapped") >= 4000, "{json}");
    assert_eq!(number(feed, "delivered") + number(feed, "lapped"), 1000 * lives as u64, "{json}");
}
