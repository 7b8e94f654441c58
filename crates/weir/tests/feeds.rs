//! Filters in the kernel, and feeds: selections of one source's frames, each with its own rings.

mod common;

use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use common::frames::{CTAG, Sender, arp, assortment, ipv4, ipv6, tagged};
use common::tools::{bytes_of, read, tool};
use common::{
    HOOKS, LIMIT, Run, bed, closes, folder, number, path, ready, settle, sh, soaks, weir,
};
use serde_json::{Value, json};
use weir_frame::flow::shard_hash;
use weir_frame::headers::FrameView;
use weir_frame::shard::{Sample, Shard};
use weir_lab::testbed::{Testbed, volume};

/// `weir capture` of the bed's receiving end. `plain` is split at spaces; the arguments in `more` may contain spaces.
fn capture(bed: &Testbed, plain: &str, more: &[&str]) -> Run {
    let mut command = weir(&format!("capture {} --json {plain}", bed.rx.iface));
    command.args(more);
    Run::capture_by(&bed.rx, command)
}

/// The feed with this name in a report.
#[track_caller]
fn feed<'a>(json: &'a Value, name: &str) -> &'a Value {
    let feeds = json["feeds"].as_array().expect("feeds");
    feeds.iter().find(|feed| feed["feed"] == name).unwrap_or_else(|| panic!("no {name}: {json}"))
}

/// Passes if the ledger of every feed accounts for all of its frames, up to the consumer.
#[track_caller]
fn all_close(json: &Value) {
    closes(json);
    for feed in json["feeds"].as_array().expect("feeds") {
        let n = |name| number(feed, name);
        let drops = feed["drops"].as_object().expect("drops").values();
        let dropped: u64 = drops.map(|count| count.as_u64().expect("a count")).sum();
        assert_eq!(
            n("offered"),
            n("filtered") + n("blocked") + n("sampled") + n("captured") + dropped,
            "{feed}"
        );
        assert_eq!(n("captured"), n("delivered") + n("lapped"), "{feed}");
    }
}

#[test]
fn root_a_filter_takes_what_tcpdump_takes_by_every_way_in() {
    let test = "root_a_filter_takes_what_tcpdump_takes_by_every_way_in";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let frames = assortment();
    let filters = ["ip6", "vlan and ip", "arp or (vlan and arp)", "less 100", "ip[8] != 0"];
    let dir = folder();
    let all = path(&dir, "all.pcap");
    write_pcap(&all.0, &frames);
    let wanted = filters.map(|filter| {
        let (file, name) = path(&dir, "wanted.pcap");
        tool("tcpdump", &["-r", &all.1, "-w", &name, filter]);
        let mut wanted = bytes_of(&read(&file).1);
        wanted.sort();
        wanted
    });
    // A snaplen of 20: if the kernel cuts frames, it must still keep the bytes that the filters read, which are
    // beyond byte 20.
    let cut = ["--engine af_packet", "--engine pcap"].map(|hook| (hook, 20));
    for (hook, snaplen) in HOOKS.map(|hook| (hook, 262_144)).into_iter().chain(cut) {
        let bed = bed();
        let (file, name) = path(&dir, "kept.pcapng");
        let feed_of = |(at, filter)| format!("f{at}: {filter}, snaplen {snaplen}");
        let feeds: Vec<String> = filters.iter().enumerate().map(feed_of).collect();
        let more: Vec<&str> = feeds.iter().flat_map(|feed| ["--feed", feed]).collect();
        let run = capture(&bed, &format!("{hook} --ring-size 16MiB --write {name}"), &more);
        let sender = Sender::new(&bed.tx);
        frames.iter().for_each(|frame| sender.send(frame));
        settle();
        let json = run.stop().expect(0).json();
        all_close(&json);
        let (_, kept) = read(&file);
        for (at, wanted) in wanted.iter().enumerate() {
            let own = feed(&json, &format!("f{at}"));
            let id = number(own, "interface_id") as u32;
            let mine: Vec<_> = kept.iter().filter(|frame| frame.interface == id).cloned().collect();
            // Several rings are merged by time, so frames with almost the same time may be in another order.
            let mut mine = bytes_of(&mine);
            mine.sort();
            let mut wanted = wanted.clone();
            wanted.iter_mut().for_each(|bytes| bytes.truncate(snaplen));
            wanted.sort();
            assert_eq!(mine, wanted, "{hook}, '{}', {snaplen} bytes", filters[at]);
            assert_eq!(number(own, "filtered") as usize, frames.len() - wanted.len(), "{own}");
            // The socket's filter excludes frames that no feed wants; user space decides which feed wants a frame.
            let in_kernel = hook.starts_with("--engine bpf");
            let location = if in_kernel { "hook" } else { "user space, compiled" };
            assert_eq!(own["filter_location"], location, "{hook}");
        }
    }
}

/// Frames of many pages, only the Ethernet header of which is in the skb's linear part.
#[test]
fn root_a_filter_looks_into_frames_in_pages() {
    let test = "root_a_filter_looks_into_frames_in_pages";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let tcp_behind_options = |bytes| {
        let mut frame = ipv4(bytes);
        (frame[14], frame[23]) = (0x4f, 6);
        frame[74..78].copy_from_slice(&[0x80, 0, 0, 80]);
        frame
    };
    let mut frames =
        vec![ipv6(4500), ipv6(9014), tcp_behind_options(4600), tcp_behind_options(9014)];
    frames.extend([4400, 5014, 9014].map(ipv4));
    frames.extend([ipv4(4700), ipv6(8000)].map(|frame| tagged(&frame, CTAG, 0x2064)));
    // The filters read bytes in the headers, in other pages, across a page boundary, and beyond the end of some frames.
    let filters = [
        "tcp port 80",
        "udp port 9 and ip6",
        "vlan 100 and ip",
        "ether[5000] & 1 != 0",
        "ip[4078:4] & 16 != 0",
        "ip6[6] = 17 and ip6[8900] != 0",
        "greater 5000",
    ];
    let dir = folder();
    let sent = path(&dir, "sent.pcap");
    write_pcap(&sent.0, &frames);
    let bed = Testbed::builder().mtu(9000).build().expect("a testbed");
    let (file, name) = path(&dir, "kept.pcapng");
    let feed_of = |(at, filter)| format!("f{at}: {filter}");
    let feeds: Vec<String> = filters.iter().enumerate().map(feed_of).collect();
    let more: Vec<&str> = feeds.iter().flat_map(|feed| ["--feed", feed]).collect();
    let run = capture(&bed, &format!("--engine bpf --hook tc --write {name}"), &more);
    let sender = Sender::paged(&bed.tx);
    frames.iter().for_each(|frame| sender.send(frame));
    settle();
    let json = run.stop().expect(0).json();
    all_close(&json);
    let (_, kept) = read(&file);
    for (at, filter) in filters.iter().enumerate() {
        let own = feed(&json, &format!("f{at}"));
        let id = number(own, "interface_id") as u32;
        let mine: Vec<_> = kept.iter().filter(|frame| frame.interface == id).cloned().collect();
        let (wanted, wanted_name) = path(&dir, "wanted.pcap");
        tool("tcpdump", &["-Z", "root", "-r", &sent.1, "-w", &wanted_name, filter]);
        let wanted = bytes_of(&read(&wanted).1);
        assert!(!wanted.is_empty() && wanted.len() < frames.len(), "'{filter}' chooses nothing");
        assert_eq!(bytes_of(&mine), wanted, "'{filter}'");
        assert_eq!(own["filter_location"], "hook", "'{filter}'");
    }
}

/// Writes a pcap file with these frames, without Weir's own writer.
fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let mut file = vec![];
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    for (number, frame) in frames.iter().enumerate() {
        for word in [1_700_000_000, number as u32, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    std::fs::write(path, file).expect("a file");
}

#[test]
fn root_feeds_have_each_its_share_and_its_ledger() {
    let test = "root_feeds_have_each_its_share_and_its_ledger";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["--engine bpf --hook tc", "--engine af_packet"] {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "feeds.pcapng");
        let feeds = [
            "six: ip6, snaplen 40",
            "four: ip",
            "some: ip, sample 10",
            "again: ip",
            "sent: , out",
            "all:",
        ];
        let more: Vec<&str> = feeds.iter().flat_map(|feed| ["--feed", feed]).collect();
        let run = capture(&bed, &format!("{engine} --write {name}"), &more);
        let (there, back) = (Sender::new(&bed.tx), Sender::new(&bed.rx));
        (0..95).for_each(|_| there.send(&ipv4(60)));
        (0..20).for_each(|_| there.send(&ipv6(80)));
        (0..7).for_each(|_| back.send(&arp()));
        settle();
        let json = run.stop().expect(0).json();
        all_close(&json);
        let counts = |name: &str| {
            let feed = feed(&json, name);
            ["offered", "filtered", "sampled", "captured"].map(|count| number(feed, count))
        };
        assert_eq!(counts("six"), [122, 102, 0, 20], "{engine}");
        assert_eq!(counts("four"), [122, 27, 0, 95]);
        assert_eq!(counts("sent"), [122, 115, 0, 7]);
        assert_eq!(counts("all"), [122, 0, 0, 122]);
        // Each CPU's ring counts separately, and keeps the first of every ten of its frames.
        let [offered, filtered, sampled, some] = counts("some");
        assert_eq!((offered, filtered, sampled + some), (122, 27, 95));
        assert!((10..=20).contains(&some), "{some}");
        assert_eq!(feed(&json, "again")["shares"], "four");
        assert_eq!(counts("again"), counts("four"));
        let (interfaces, frames) = read(&file);
        assert_eq!(interfaces.len(), 5, "feeds that are alike share one");
        let of = |name: &str| {
            let id = number(feed(&json, name), "interface_id") as u32;
            let own = frames.iter().filter(move |frame| frame.interface == id);
            own.map(|frame| (frame.data.len(), frame.wire_len)).collect::<Vec<_>>()
        };
        assert_eq!(of("six"), vec![(40, 80); 20]);
        assert_eq!(of("four"), vec![(60, 60); 95]);
        assert_eq!(of("sent").len(), 7);
        assert_eq!(of("all").len(), 122);
    }
}

#[test]
fn root_more_feeds_than_a_hook_has_places_are_derived() {
    let test = "root_more_feeds_than_a_hook_has_places_are_derived";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    // The feeds differ in the frame lengths that they accept. The program of the longest filter exceeds the range of
    // the kernel's jumps.
    let mut feeds: Vec<String> =
        (0..20).map(|number| format!("f{number}: ip and less {}", 60 + number)).collect();
    let long = vec!["host 10.0.0.1"; 1200].join(" or ");
    feeds[3] = format!("f3: less 63 and not ({long})");
    let more: Vec<&str> = feeds.iter().flat_map(|feed| ["--feed", feed]).collect();
    let run = capture(&bed, "--ring-size 8MiB", &more);
    let sender = Sender::new(&bed.tx);
    (60..80).for_each(|bytes| sender.send(&ipv4(bytes)));
    settle();
    let json = run.stop().expect(0).json();
    all_close(&json);
    let locations: Vec<&str> = json["feeds"]
        .as_array()
        .expect("feeds")
        .iter()
        .map(|feed| feed["filter_location"].as_str().expect("a location"))
        .collect();
    for (number, location) in locations.iter().enumerate() {
        let own = feed(&json, &format!("f{number}"));
        assert_eq!(own["captured"].as_u64(), Some(number as u64 + 1), "{own}");
        assert_eq!(own["drops"].get("relay").is_some(), *location != "hook", "{own}");
    }
    assert_eq!(
        locations.iter().filter(|location| **location == "hook").count(),
        15,
        "{locations:?}"
    );
}

/// A client of a capture's control socket. Its protocol: docs/filters.md.
struct Client(UnixStream);

impl Client {
    fn new(path: &Path) -> Client {
        Client(UnixStream::connect(path).expect("a capture listens"))
    }

    fn ask(&mut self, request: &Value) -> Value {
        let text = request.to_string();
        self.0.write_all(&(text.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(text.as_bytes()).unwrap();
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut answer).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    fn filter(&mut self, feed: &str, filter: &str) -> Value {
        let params = json!({ "feed": feed, "filter": filter });
        self.ask(&json!({ "jsonrpc": "2.0", "id": 7, "method": "set_filter", "params": params }))
    }
}

#[test]
fn root_a_filter_is_changed_often_under_load_and_no_frame_is_lost() {
    let test = "root_a_filter_is_changed_often_under_load_and_no_frame_is_lost";
    let Some(_alone) = ready(test, &[]) else { return };
    for (engine, times) in [
        ("--engine bpf --hook tc --direction in", 100),
        ("--engine bpf --hook tc --tc-attach clsact", 50),
        ("--engine bpf --consume", 100),
        ("--engine af_packet", 100),
        ("--engine af_xdp --consume", 100),
    ] {
        let times = if soaks() { 10 * times } else { volume(times) };
        let bed = bed();
        let dir = folder();
        let (socket, name) = path(&dir, "control");
        let feeds = ["--feed", "both: udp", "--feed", "none: tcp"];
        let run = capture(&bed, &format!("{engine} --control {name}"), &feeds);
        let mut client = Client::new(&socket);
        // At full speed: frames that the capture is too slow for are counted as drops.
        let generator = weir(&format!("gen {} --json", bed.tx.iface));
        let generator = Run::start(&bed.tx, generator);
        for turn in 0..times as usize {
            // Every generated frame matches each of these filters.
            let filter = ["udp", "ip", "udp or tcp", "ip and not tcp"][turn % 4];
            let answer = client.filter("both", filter);
            assert_eq!(answer["result"]["feeds"], 1, "{answer}");
            if turn % 8 == 0 {
                // No generated frame matches these.
                let filter = ["tcp", "arp and udp", "ip6 and tcp"][turn % 3];
                let answer = client.filter("none", filter);
                assert_eq!(answer["id"], 7, "{answer}");
            }
        }
        let sent = generator.stop().expect(0).json();
        settle();
        let json = run.stop().expect(0).json();
        all_close(&json);
        assert!(number(&sent, "sent") > 1000, "next to nothing was sent: {sent}");
        let count = |name: &str, what: &str| number(feed(&json, name), what);
        assert!(count("both", "offered") >= number(&sent, "sent"), "{json}");
        let others = count("both", "offered") - number(&sent, "sent");
        let dropped = number(
            &json["feeds"][0]["drops"],
            if engine.contains("bpf") { "reentry" } else { "kernel" },
        );
        println!(
            "{engine}: {times} swaps, {} frames at {:.2} Mpps; {dropped} dropped, {} lapped",
            sent["sent"],
            sent["mpps"].as_f64().expect("a rate"),
            number(&json, "lapped")
        );
        assert!(count("both", "captured") + dropped >= number(&sent, "sent"), "{json}");
        assert!(count("none", "captured") <= others, "{json}");
    }
}

/// Waits until each feed of the capture with this control socket was offered so many frames.
fn wait_until_offered(bed: &Testbed, control: &str, frames: u64) {
    let begin = Instant::now();
    loop {
        let status = weir(&format!("status --json --control {control}"));
        let json = Run::start(&bed.rx, status).end().expect(0).json();
        let feeds = json["feeds"].as_array().expect("feeds");
        if feeds.iter().all(|feed| number(feed, "offered") >= frames) {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "{json}");
    }
}

#[test]
fn root_what_changes_is_what_comes_after() {
    let test = "root_what_changes_is_what_comes_after";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["--engine bpf", "--engine af_packet", "--engine af_xdp --consume"] {
        let bed = bed();
        let dir = folder();
        let (_, name) = path(&dir, "control");
        let run = capture(&bed, &format!("{engine} --control {name}"), &[]);
        let sender = Sender::new(&bed.tx);
        // A filter may be one argument or several.
        let change = |words: &[&str], says: &str| {
            let mut command = weir(&format!("filter --control {name}"));
            command.args(words);
            assert_eq!(Run::start(&bed.rx, command).end().expect(0).text(), says);
        };
        let mut sent = 0;
        let mut send = || {
            (0..10).for_each(|_| sender.send(&ipv4(60)));
            (0..3).for_each(|_| sender.send(&ipv6(80)));
            sent += 13;
            wait_until_offered(&bed, &name, sent);
        };
        send();
        change(&["ip6", "and", "not", "tcp"], "'ip6 and not tcp' is in force\n");
        send();
        change(&[""], "every frame is taken\n");
        send();
        let json = run.stop().expect(0).json();
        all_close(&json);
        assert_eq!(number(&json, "captured"), 13 + 3 + 13, "{engine}: {json}");
        let location = if engine.contains("bpf") { "hook" } else { "user space, compiled" };
        assert_eq!(json["feeds"][0]["filter_location"], location, "{json}");
        assert!(!Path::new(&name).exists(), "the socket is left behind");
    }
}

#[test]
fn root_what_one_source_refuses_changes_none() {
    let test = "root_what_one_source_refuses_changes_none";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (socket, name) = path(&dir, "control");
    let line = format!("capture --json --control {name} gen:rate=1kpps {}", bed.rx.iface);
    let run = Run::capture_by(&bed.rx, weir(&line));
    let mut client = Client::new(&socket);
    assert_eq!(client.filter("", "ip")["result"]["feeds"], 2);
    // A filter that works in user space, but is too long for the hook.
    let long: Vec<String> = (20..320).map(|at| format!("ether[{at}] = {}", at % 250)).collect();
    let answer = client.filter("", &long.join(" or "));
    let message = answer["error"]["message"].as_str().expect("a refusal");
    for words in ["wrx0 refuses the change, so nothing has changed", "the kernel does not take"] {
        assert!(message.contains(words), "'{words}' is not in: {message}");
    }
    let json = run.stop().expect(0).json();
    all_close(&json);
    let feeds = json["feeds"].as_array().expect("feeds");
    let now: Vec<_> = feeds.iter().map(|feed| (&feed["filter"], number(feed, "changes"))).collect();
    assert_eq!(now, [(&json!("ip"), 3), (&json!("ip"), 1)], "{json}");
}

#[test]
fn root_one_filter_is_all_in_the_kernel() {
    let test = "root_one_filter_is_all_in_the_kernel";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["--engine bpf", "--consume", "--engine af_packet", "--engine af_xdp --consume"] {
        let bed = bed();
        let run = capture(&bed, &format!("{engine} --filter ip6"), &[]);
        let sender = Sender::new(&bed.tx);
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        (0..3).for_each(|_| sender.send(&ipv6(80)));
        settle();
        let json = run.stop().expect(0).json();
        all_close(&json);
        let count = |name| number(&json, name);
        assert_eq!((count("captured"), count("filtered")), (3, 10), "{engine}: {json}");
        assert_eq!(json["feeds"][0]["filter_location"], "hook", "{engine}: {json}");
    }
}

#[test]
fn root_what_is_no_filter_and_no_feed_says_so() {
    let test = "root_what_is_no_filter_and_no_feed_says_so";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let refused = |more: &[&str], words: &[&str]| {
        let mut command = weir(&format!("capture {} --frames 1", bed.rx.iface));
        command.args(more);
        Run::start(&bed.rx, command).end().refused(words);
    };
    refused(&["--filter", "tcp prt 80"], &["prt", "character 5"]);
    refused(&["--filter", "host 10.0.0.1 and"], &["something is missing"]);
    let mut unnamed = weir(&format!("capture {}", bed.rx.iface));
    unnamed.args(["--feed", "tcp port 80"]);
    let ended = Run::start(&bed.rx, unnamed).end().expect(2);
    assert!(ended.stderr.contains("NAME: FILTER"), "{ended:?}");
    refused(&["--feed", "a: tcp", "--feed", "a: udp"], &["two feeds are called 'a'"]);
    refused(&["--feed", "a: tcp", "--filter", "udp"], &["--filter is for a run without --feed"]);
    refused(&["--feed", "a: tcp prt"], &["prt"]);
    refused(&["--engine", "pcap", "--feed", "a: , in", "--feed", "b: , out"], &["one direction"]);
    let dir = folder();
    let (file, name) = path(&dir, "file");
    std::fs::write(&file, "mine").unwrap();
    refused(&["--control", &name], &["there already"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let ask = |args: &str, words: &[&str]| {
        Run::start(&bed.rx, weir(args)).end().refused(words);
    };
    ask(&format!("filter tcp --control {name}.not"), &["no capture listens there"]);
    let (socket, name) = path(&dir, "control");
    let run = capture(&bed, &format!("--control {name}"), &["--feed", "web: tcp"]);
    refused(&["--control", &name], &["there already"]);
    ask(&format!("filter tcp --control {name}"), &["--feed NAME", "there are: web"]);
    ask(&format!("filter tcp_ --control {name} --feed web"), &["tcp_"]);
    // A message that is not a request gets an error as the answer; bytes that are not a message end this connection
    // only.
    let mut client = Client::new(&socket);
    assert_eq!(client.ask(&json!("hello"))["error"]["code"], -32600);
    assert_eq!(client.ask(&json!({ "method": "shutdown" }))["error"]["code"], -32600);
    client.0.write_all(&u32::MAX.to_be_bytes()).unwrap();
    assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0, "it hangs up");
    assert_eq!(Client::new(&socket).filter("web", "udp")["result"]["feeds"], 1);
    assert_eq!(sh(&bed.rx, &format!("stat -c %a {name}")).trim(), "600");
    // The report contains the filter in force at the end; refused filters have changed nothing.
    let json = run.stop().expect(0).json();
    let own = feed(&json, "web");
    assert_eq!((&own["filter"], number(own, "changes")), (&json!("udp"), 1), "{json}");
    assert!(!socket.exists());
}

#[test]
fn root_every_frame_is_in_one_shard_and_both_directions_in_the_same() {
    let test = "root_every_frame_is_in_one_shard_and_both_directions_in_the_same";
    let Some(_alone) = ready(test, &[]) else { return };
    // With shards only, the BPF program looks up the feed of a frame; with other feeds, it tries every feed.
    let engines = ["--engine bpf --hook tc", "--engine bpf --consume", "--engine af_packet"];
    for (engine, samples) in engines.iter().flat_map(|engine| [(engine, 0), (engine, 1)]) {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "shards.pcapng");
        let iface = &bed.rx.iface;
        let shards: Vec<String> = (1..=4).map(|number| format!("{iface}@{number}/4")).collect();
        let mut command =
            weir(&format!("capture --json --write {name} --ring-size 16MiB {engine}"));
        command.args(&shards).args(["--feed", "all:"]);
        command.args(["--feed", "some: udp, flows 8"].iter().take(2 * samples));
        let run = Run::capture_by(&bed.rx, command);
        // The link to an emulated receiver refuses some frames.
        let sent =
            number(&common::generate(&bed.tx, "--frames 20k --rate 100kpps --flows 500"), "sent");
        let (there, back) = (Sender::new(&bed.tx), Sender::new(&bed.rx));
        // ARP has no flow key, so these frames belong to the first shard.
        (0..3).for_each(|_| there.send(&arp()));
        if !engine.contains("consume") {
            assortment().iter().for_each(|frame| back.send(frame));
        }
        settle();
        let json = run.stop().expect(0).json();
        all_close(&json);
        let (interfaces, frames) = read(&file);
        assert_eq!(interfaces.len(), 4 + 4 * samples, "{interfaces:?}");
        let feeds = json["feeds"].as_array().expect("feeds");
        let captured = |name: &str| {
            let own = feeds.iter().filter(move |feed| feed["feed"] == name);
            own.map(|feed| number(feed, "captured")).collect::<Vec<_>>()
        };
        let all = captured("all");
        assert_eq!(all.iter().sum::<u64>(), number(&feeds[0], "offered"), "{json}");
        assert!(sent > 1000 && number(&feeds[0], "offered") >= sent, "{sent}: {json}");
        assert!(all.iter().all(|count| *count > sent * 3 / 20), "{sent}: {all:?}");
        let some = captured("some").iter().sum::<u64>();
        let expected = [0..1, sent * 6 / 100..sent * 21 / 100][samples].clone();
        assert!(expected.contains(&some), "{some} frames of an eighth of the flows");
        for frame in &frames {
            let id = u64::from(frame.interface);
            let of = |feed: &&Value| number(feed, "interface_id") == id;
            let feed = feeds.iter().find(of).expect("a feed");
            let shard: Shard = feed["part"].as_str().expect("a part").parse().expect("a shard");
            let hash = shard_hash(&FrameView::parse(&frame.data));
            assert!(shard.takes(hash), "{engine}: {shard} has {:02x?}", frame.data);
            let sample = Sample { one_in: NonZero::new(8).unwrap() };
            assert!(feed["feed"] == "all" || sample.takes(hash), "{engine}: {:02x?}", frame.data);
        }
    }
}

// A program without filters is loaded by libbpf, and with several shards it is the one with the largest stack.
#[test]
fn root_shards_without_a_filter_are_captured_by_bpf() {
    let test = "root_shards_without_a_filter_are_captured_by_bpf";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["--engine bpf --hook tc", "--engine bpf --hook xdp", "--engine bpf --consume"] {
        let bed = bed();
        let iface = &bed.rx.iface;
        let mut command = weir(&format!("capture --json --ring-size 16MiB {engine}"));
        command.args([format!("{iface}@1/2"), format!("{iface}@2/2")]);
        let run = Run::capture_by(&bed.rx, command);
        // The link to an emulated receiver refuses some frames.
        let sent = number(&common::generate(&bed.tx, "--frames 2000 --flows 500"), "sent");
        settle();
        let json = run.stop().expect(0).json();
        all_close(&json);
        let feeds = json["feeds"].as_array().expect("feeds");
        let captured: Vec<u64> = feeds.iter().map(|feed| number(feed, "captured")).collect();
        assert_eq!(captured.iter().sum::<u64>(), number(&feeds[0], "offered"), "{engine}: {json}");
        assert!(sent > 200 && number(&feeds[0], "offered") >= sent, "{engine}, {sent}: {json}");
        assert!(
            captured.len() == 2 && captured.iter().all(|count| *count > sent * 3 / 20),
            "{captured:?}"
        );
    }
}

#[test]
fn root_a_queue_is_a_source() {
    let test = "root_a_queue_is_a_source";
    let Some(_alone) = ready(test, &[]) else { return };
    let iface = "wrx0";
    // Not at TC: there the queue is known only if the driver records it, and veth does not.
    for (engine, queues) in
        [("--engine bpf --hook xdp", [0, 1]), ("--engine af_xdp --consume", [0, 0])]
    {
        // All queues of the interface are named, since the kernel chooses the queue of a frame.
        let bed = Testbed::builder().gro(true).queues(queues[1] + 1).build().expect("a testbed");
        assert_eq!(bed.rx.iface, iface);
        let mut sources: Vec<String> = queues.map(|queue| format!("{iface}@q{queue}")).into();
        sources.dedup();
        let mut command = weir(&format!("capture --json {engine}"));
        command.args(&sources);
        let run = Run::capture_by(&bed.rx, command);
        let sender = Sender::new(&bed.tx);
        (0..20).for_each(|_| sender.send(&ipv4(60)));
        settle();
        let json = run.stop().expect(0).json();
        all_close(&json);
        let feeds = json["feeds"].as_array().expect("feeds");
        let captured: u64 = feeds.iter().map(|feed| number(feed, "captured")).sum();
        assert_eq!((feeds.len(), captured), (sources.len(), 20), "{engine}: {json}");
    }
    let bed = bed();
    // If the driver may not record the queue, the report contains a warning.
    for (source, are_told) in [("wrx0@q0", true), ("wrx0", false)] {
        let ended = Run::start(&bed.rx, weir(&format!("capture {source} --json --duration 50ms")));
        let json = ended.end().expect(0).json();
        let notes = json["sources"][0]["notes"].as_array().expect("notes");
        let tells = |note: &Value| {
            let note = note.as_str().expect("a note");
            note.starts_with("warning: @q captures nothing") && note.contains("--hook xdp")
        };
        assert_eq!(notes.iter().any(tells), are_told, "{json}");
    }
    let refused = |args: &str, words: &[&str]| {
        Run::start(&bed.rx, weir(&format!("capture {args} --frames 1"))).end().refused(words);
    };
    refused("wrx0@q0 --engine af_packet", &["which queue", "the engine bpf knows it"]);
    refused("wrx0@q0 wrx0@q1 --engine af_xdp --consume", &["--queues"]);
    for hook in ["tc", "xdp"] {
        refused(&format!("wrx0@q0 wrx0@q99 --hook {hook}"), &["wrx0@q99", " RX queue"]);
    }
}

#[test]
fn root_what_is_blocked_is_left_out_and_counted_and_the_traffic_goes_on() {
    let test = "root_what_is_blocked_is_left_out_and_counted_and_the_traffic_goes_on";
    let Some(_alone) = ready(test, &[]) else { return };
    for engine in ["--engine bpf --hook tc", "--engine bpf --consume", "--engine af_packet"] {
        let bed = bed();
        let dir = folder();
        let (_, name) = path(&dir, "control");
        let feeds = ["--feed", "some: ip", "--feed", "all:"];
        let run = capture(&bed, &format!("{engine} --control {name}"), &feeds);
        let block = |args: &str, entries: &[&str]| {
            let mut command = weir(&format!("block --control {name} {args}"));
            command.args(entries);
            Run::start(&bed.rx, command).end()
        };
        let (sender, frames) = (Sender::new(&bed.tx), [ipv4(60), ipv6(80), arp()]);
        let mut sent = 0;
        let mut send = || {
            frames.iter().for_each(|frame| (0..10).for_each(|_| sender.send(frame)));
            sent += 30;
            wait_until_offered(&bed, &name, sent);
        };
        let source = |frame: &[u8]| std::net::Ipv4Addr::from(*frame[26..].first_chunk().unwrap());
        let four = source(&frames[0]);
        let six = std::net::Ipv6Addr::from(*frames[1][38..].first_chunk::<16>().unwrap());
        send();
        // 10,000 entries that match no frame, and one that does.
        let (list, file) = path(&dir, "list");
        let others: Vec<String> =
            (0..10_000).map(|n| format!("198.18.{}.{} # bench", n / 256, n % 256)).collect();
        std::fs::write(&list, others.join("\n")).unwrap();
        let said = block(&format!("--feed some --file {file}"), &[&four.to_string()]).expect(0);
        assert_eq!(said.text(), "some: 10 001 entries are blocked now\n");
        let said = block("--feed all --json", &[&format!("{six}/128")]).expect(0).json();
        assert_eq!(said, json!({ "feeds": 1, "blocked": [six.to_string()], "changed": 1 }));
        send();
        let shown = block("--feed some", &[]).expect(0).text();
        assert_eq!(shown.lines().count(), 10_001, "{engine}");
        assert!(shown.lines().any(|line| line == four.to_string()));
        let said = block("--feed some --remove", &[&four.to_string(), "9.9.9.9"]).expect(0);
        let expected = "some: 10 000 entries are blocked now (1 of 2 was not in the list)\n";
        assert_eq!(said.text(), expected);
        send();
        // Errors in a file are reported with the line number, before the capture is asked.
        std::fs::write(&list, "# none\n\n").unwrap();
        block(&format!("--feed all --file {file}"), &[]).refused(&["no entries", "list"]);
        std::fs::write(&list, "10.0.0.1\n\n10.0.0.1/8\n").unwrap();
        block(&format!("--feed all --file {file}"), &[]).refused(&["list:3: ", "10.0.0.0/8"]);
        block("--feed all --remove", &[]).refused(&["which entries", "--clear"]);
        let clear = ["--clear"];
        let said = block("--feed some", &clear).expect(0);
        assert_eq!(said.text(), "some: nothing is blocked now\n");
        block("--feed all", &["10.0.0.1/8"]).refused(&["10.0.0.0/8"]);
        block("--feed all", &["nobody"]).refused(&["nothing to block"]);
        let json = run.stop().expect(0).json();
        all_close(&json);
        let counts = |name: &str| {
            ["offered", "filtered", "blocked", "captured"]
                .map(|count| number(feed(&json, name), count))
        };
        assert_eq!(counts("some"), [90, 60, 10, 20], "{engine}: {json}");
        assert_eq!(counts("all"), [90, 0, 20, 70], "{engine}: {json}");
    }
}

#[test]
fn root_a_socket_left_by_a_killed_capture_makes_way_and_a_living_one_does_not() {
    let test = "root_a_socket_left_by_a_killed_capture_makes_way_and_a_living_one_does_not";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (socket, name) = path(&dir, "control");
    let mut killed = capture(&bed, &format!("--control {name}"), &[]);
    killed.signal(libc::SIGKILL);
    drop(killed);
    assert!(socket.exists(), "nobody took it away");
    // 17 feeds, so that one is derived in user space: changes must reach it as well.
    let feeds: Vec<String> =
        (0..17).map(|number| format!("f{number}: less {}", 60 + number)).collect();
    let more: Vec<&str> = feeds.iter().flat_map(|feed| ["--feed", feed]).collect();
    let run = capture(&bed, &format!("--control {name} --ring-size 8MiB"), &more);
    let mut client = Client::new(&socket);
    assert_eq!(client.filter("f16", "ip6")["result"]["feeds"], 1);
    let params = json!({ "feed": "f16", "add": ["2001:db8::/32"] });
    let answer =
        client.ask(&json!({ "jsonrpc": "2.0", "id": 1, "method": "block", "params": params }));
    assert_eq!(answer["result"]["blocked"], json!(["2001:db8::/32"]), "{answer}");
    let sender = Sender::new(&bed.tx);
    (0..4).for_each(|_| sender.send(&ipv4(60)));
    (0..5).for_each(|_| sender.send(&ipv6(80)));
    settle();
    let json = run.stop().expect(0).json();
    all_close(&json);
    let derived = feed(&json, "f16");
    assert!(
        derived["filter_location"].as_str().is_some_and(|location| location.starts_with("user")),
        "{derived}"
    );
    let left = number(derived, "captured") + number(derived, "blocked");
    assert_eq!((left, number(derived, "filtered")), (5, 4), "{derived}");
    assert_eq!(number(feed(&json, "f0"), "captured"), 4);
}

#[test]
fn root_a_limit_of_frames_is_of_all_feeds_together() {
    let test = "root_a_limit_of_frames_is_of_all_feeds_together";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let run = capture(&bed, "--frames 30", &["--feed", "a: ip", "--feed", "b: ip, snaplen 20"]);
    let sender = Sender::new(&bed.tx);
    (0..50).for_each(|_| sender.send(&ipv4(60)));
    let json = run.end().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "delivered"), 30);
}
