//! `weir flows`: what it counts, held against tshark, and what a quiet link shows.

mod common;

use std::collections::BTreeMap;

use serde_json::Value;

use common::frames::{Sender, arp};
use common::tools::tool;
use common::{Run, bed, closes, folder, generate, number, path, ready, settle, weir};

/// Addresses, ports (0 where there are none) and protocol of a flow.
type Key = (String, String, u64, u64, u64);
/// Packets, and bytes of IP, by flow.
type Flows = BTreeMap<Key, (u64, u64)>;

/// The lines of flows, and the report behind them.
fn lines(stdout: &[u8]) -> (Vec<Value>, Value) {
    let text = String::from_utf8(stdout.to_vec()).expect("text");
    let mut all: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let report = all.pop().expect("a report");
    assert!(all.iter().all(|line| line["event"] == "flow"), "{text}");
    (all, report)
}

/// Packets of all records of the same flow, with those of the other direction as a flow of its own.
fn by_key(lines: &[Value]) -> Flows {
    let mut flows = Flows::new();
    for line in lines {
        let text = |name: &str| line[name].as_str().expect(name).to_owned();
        let port = |name: &str| line[name].as_u64().unwrap_or_default();
        let (source, destination) = (text("src_ip"), text("dst_ip"));
        let (from, to) = (port("src_port"), port("dst_port"));
        let key = (source, destination, from, to, number(line, "proto"));
        let back = (key.1.clone(), key.0.clone(), to, from, key.4);
        for (key, counts) in [(key, line), (back, &line["reverse"])] {
            if counts["packets"].as_u64().is_some_and(|packets| packets > 0) {
                let own = flows.entry(key).or_default();
                own.0 += number(counts, "packets");
                own.1 += number(counts, "bytes");
            }
        }
    }
    flows
}

/// The same by tshark.
fn by_tshark(file: &str) -> Flows {
    let fields = [
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "tcp.srcport",
        "tcp.dstport",
        "udp.srcport",
        "udp.dstport",
        "ip.proto",
        "ipv6.nxt",
        "ip.len",
        "ipv6.plen",
    ];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    // The first of each: an ICMP error quotes the packet that it is about.
    let args =
        ["-r", file, "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", "-Y", "ip or ipv6"];
    let args: Vec<&str> = args.into_iter().chain(fields).collect();
    let mut flows = Flows::new();
    for line in tool("tshark", &args).lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let first = |places: [usize; 2]| places.map(|place| fields[place]).concat();
        let count = |text: &str| text.parse::<u64>().unwrap_or_default();
        let key = (
            first([0, 2]),
            first([1, 3]),
            count(&first([4, 6])),
            count(&first([5, 7])),
            count(&first([8, 9])),
        );
        let bytes = if fields[11].is_empty() { count(fields[10]) } else { count(fields[11]) + 40 };
        let own = flows.entry(key).or_default();
        *own = (own.0 + 1, own.1 + bytes);
    }
    flows
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
        // Short time-outs end flows many times: together their records have what tshark has.
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
    // Nothing comes any more that could tell the time.
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
