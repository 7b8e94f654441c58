//! `weir flows`: its counts, compared with those of tshark, and its reports on a quiet link.

mod common;

use std::fs;

use serde_json::Value;

use common::flows::{Flows, by_key, by_tshark, lines};
use common::frames::{Sender, arp};
use common::{Run, bed, closes, folder, generate, number, path, ready, settle, weir};

#[test]
fn flows_of_generated_frames_of_a_daemon_are_timed_by_the_frames() {
    let dir = folder();
    let [config, socket] = ["weir.toml", "socket"].map(|name| dir.path().join(name));
    let source = "gen:size=100,flows=10,rate=2kpps";
    fs::write(&config, format!("[sources.made]\nsource = '{source}'\neverybody = true\n")).unwrap();
    let [config, socket] = [config, socket].map(|path| path.display().to_string());
    let mut daemon = Run::here(weir(&format!("serve --config {config} --socket {socket}")));
    daemon.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
    let line = format!("flows host:made --socket {socket} --json --duration 2s");
    let (flows, report) = lines(&Run::here(weir(&line)).end().expect(0).stdout);
    closes(&report);
    assert_eq!(flows.len(), 10, "{report}");
    for steps in ["clock_steps_ahead", "clock_steps_back"] {
        assert_eq!(number(&report["flows"], steps), 0, "{report}");
    }
    daemon.stop();
}

#[test]
fn root_flows_of_traces_are_those_of_tshark() {
    let test = "root_flows_of_traces_are_those_of_tshark";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    let (bed, dir) = (bed(), folder());
    let (_, generated) = path(&dir, "generated.pcapng");
    let source = "gen:size=200,flows=300,frames=20000";
    let made = Run::start(&bed.rx, weir(&format!("capture {source} --write {generated}")));
    made.end().expect(0);
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/trace.pcapng");
    for file in [demo, &generated] {
        let expected = by_tshark(file);
        assert!(expected.len() >= 9, "{file}: {expected:?}");
        // With short time-outs a flow has several records, whose sums must equal tshark's counts.
        for args in
            ["", "--biflow", "--idle-timeout 100ms --active-timeout 200ms", "--flows-max 1024"]
        {
            let run = Run::start(&bed.rx, weir(&format!("flows file:{file} --json {args}")));
            let ended = run.end().expect(0);
            let (flows, report) = lines(&ended.stdout);
            closes(&report);
            assert_eq!(by_key(&flows), expected, "{file} {args}");
            let own = &report["flows"];
            assert_eq!(number(own, "records"), flows.len() as u64, "{report}");
            let others: u64 = own["not_flows"]
                .as_object()
                .expect("counts")
                .values()
                .filter_map(Value::as_u64)
                .sum();
            let packets: u64 = expected.values().map(|(packets, _)| packets).sum();
            assert_eq!(packets + others, number(&report, "delivered"), "{report}");
        }
    }
}

/// Writes a pcap file of this link type with one UDP packet from 10.0.0.1 to 10.0.0.9, 32 bytes long.
fn write_packet(file: &std::path::Path, link_type: u32) {
    // The file header (version 2.4), then the packet's header: time, bytes kept, bytes on the wire.
    let words = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link_type, 1_700_000_000, 0, 32, 32];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    bytes.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 9]);
    bytes.extend([0, 53, 0x30, 0x39, 0, 12, 0, 0, 0, 0, 0, 0]);
    std::fs::write(file, bytes).expect("a file");
}

#[test]
fn packets_without_ethernet_are_flows_and_other_link_types_are_counted() {
    let dir = folder();
    let (file, name) = path(&dir, "raw.pcap");
    // LINKTYPE_RAW and LINKTYPE_IPV4, whose packets are IP; LINKTYPE_LINUX_SLL, which is not evaluated.
    for (link_type, is_ip) in [(101, true), (228, true), (113, false)] {
        write_packet(&file, link_type);
        let output = weir(&format!("flows file:{name} --json")).output().expect("it runs");
        let (flows, report) = lines(&output.stdout);
        closes(&report);
        let key = ("10.0.0.1".to_owned(), "10.0.0.9".to_owned(), 53, 12_345, 17);
        let expected = if is_ip { [(key, (1, 32))].into() } else { Flows::new() };
        assert_eq!(by_key(&flows), expected, "{link_type}: {report}");
        let others = number(&report["flows"]["not_flows"], "other_link_type");
        assert_eq!(others, u64::from(!is_ip), "{link_type}: {report}");
    }
}

#[test]
fn the_clock_does_not_move_the_time_of_made_up_frames() {
    // At this rate the run waits for frames hundreds of times.
    let source = "gen:size=64,flows=10,frames=1000,rate=1kpps";
    let output = weir(&format!("flows {source} --json")).output().expect("it runs");
    let (flows, report) = lines(&output.stdout);
    closes(&report);
    assert_eq!(number(&report["flows"], "clock_steps_back"), 0, "{report}");
    assert_eq!(number(&report["flows"], "clock_steps_ahead"), 0, "{report}");
    assert_eq!(flows.len(), 10, "{report}");
}

/// Traces of nDPI, which tests/traces.sh downloads. `WEIR_TRACES` names their folder.
#[test]
fn traces_of_others_have_the_packets_and_bytes_that_tshark_counts() {
    let test = "traces_of_others_have_the_packets_and_bytes_that_tshark_counts";
    let named = std::env::var_os("WEIR_TRACES").filter(|folder| !folder.is_empty());
    let Some(folder) = named else {
        return weir_lab::testbed::skip(test, "WEIR_TRACES names no folder of traces: make soak");
    };
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file"));
    let (mut compared, mut differ) = (0, Vec::new());
    for file in files {
        let file = file.path().to_str().expect("a path").to_owned();
        let line = format!("flows file:{file} --json --idle-timeout 0s --active-timeout 0s");
        let output = weir(&line).output().expect("it runs");
        // Some traces were damaged on purpose and are not valid capture files.
        if output.status.code() != Some(0) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("is not read here") || said.contains("byte "), "{file}: {said}");
            continue;
        }
        let (flows, report) = lines(&output.stdout);
        closes(&report);
        // Ports are compared in another test: tshark reassembles fragments and shows the ports of the whole packet.
        let by_addresses = |flows: Flows| {
            let mut sums = std::collections::BTreeMap::new();
            for ((source, destination, ..), (packets, bytes)) in flows {
                let sum: &mut (u64, u64) = sums.entry((source, destination)).or_default();
                *sum = (sum.0 + packets, sum.1 + bytes);
            }
            sums
        };
        let mut expected = by_addresses(by_tshark(&file));
        let mut is_more = false;
        for (addresses, counts) in by_addresses(by_key(&flows)) {
            let left = expected.remove(&addresses);
            is_more |= left != Some(counts);
        }
        // For frames whose IP header is inconsistent, tshark shows addresses, some of them empty.
        let left: u64 = expected.values().map(|(packets, _)| packets).sum();
        if is_more || left != number(&report["flows"]["not_flows"], "malformed") {
            differ.push(file);
        }
        compared += 1;
    }
    println!("{compared} traces compared");
    assert!(compared > 0 && differ.is_empty(), "{differ:#?}");
}

#[test]
fn root_flows_of_a_link_end_while_it_is_quiet() {
    let test = "root_flows_of_a_link_end_while_it_is_quiet";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let iface = &bed.rx.iface;
    let mut run = Run::start(
        &bed.rx,
        weir(&format!("flows {iface} --json --direction in --idle-timeout 500ms")),
    );
    run.wait_for("that it captures", |run| run.stderr().contains(&format!("weir: {iface}: ")));
    let sent = generate(&bed.tx, "--frames 20k --rate 100kpps --flows 100");
    Sender::new(&bed.tx).send(&arp());
    // No more frames arrive, so the flows must end without the time of a later frame.
    let is_idle = |run: &Run| {
        let text = String::from_utf8_lossy(&run.stdout()).into_owned();
        text.matches("\"end_reason\":\"idle\"").count() >= 100
    };
    run.wait_for("that flows have ended", is_idle);
    let ended = run.stop().expect(0);
    let (flows, report) = lines(&ended.stdout);
    closes(&report);
    let udp: Vec<Value> = flows.into_iter().filter(|flow| flow["proto"] == 17).collect();
    let counts = by_key(&udp);
    assert_eq!(counts.len(), 100, "{counts:?}");
    assert_eq!(counts.values().map(|(packets, _)| packets).sum::<u64>(), number(&sent, "sent"));
    assert!(
        udp.iter().all(|flow| flow["interface"] == **iface && flow["community_id"].is_string())
    );
    assert_eq!(number(&report["flows"]["not_flows"], "arp"), 1, "{report}");
}

#[test]
fn root_flows_are_a_table_for_people_and_bad_wishes_say_what_to_do() {
    let test = "root_flows_are_a_table_for_people_and_bad_wishes_say_what_to_do";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/trace.pcapng");
    let run = Run::start(&bed.rx, weir(&format!("flows file:{demo} --top 2")));
    let text = run.end().expect(0).text();
    let table: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("start (UTC)")).collect();
    assert_eq!(table.len(), 3, "{text}");
    assert!(text.contains("offered = filtered + captured + drops"), "{text}");
    let refused = |args: &str, words: &[&str]| {
        Run::start(&bed.rx, weir(&format!("flows file:{demo} {args}"))).end().refused(words);
    };
    refused("--flows-max 7", &["--flows-max", "1024"]);
    refused("--idle-timeout 1us", &["--idle-timeout", "100ms", "0s"]);
    settle();
}
