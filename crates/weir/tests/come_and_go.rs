//! Sources that come, go and fail while the others run.

mod common;

use common::frames::{Sender, ipv4};
use common::{Run, bed, closes, number, ready, settle, sh, weir};
use weir_lab::Testbed;

/// A second link, both ends in the receiver's namespace.
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
