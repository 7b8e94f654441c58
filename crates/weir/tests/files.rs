//! Files and pipes contain the captured frames byte for byte and in time order, and every tool can read them.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::bpf::Tagger;
use common::frames::{CTAG, STAG, Sender, assortment, ipv4, ipv6, tagged};
use common::tools::{Got, all_read, bytes_of, in_time_order, read, statistics, tool};
use common::{
    HOOKS, Run, bed, closes, folder, generate, number, path, patient, ready, settle, weir,
};
use weir_frame::record::Flags;
use weir_lab::Testbed;
use weir_lab::generator::template::{DESTINATION_MAC, SOURCE_MAC, Template, number_of};

const TOOLS: [&str; 3] = ["capinfos", "tshark", "tcpdump"];

type Through = (serde_json::Value, Vec<String>, Vec<Got>);

/// Captures into a file while `send` sends; returns the report, the names of interfaces, and the frames. Checks that
/// all tools find the same frames.
fn through_a_file(bed: &Testbed, args: &str, send: impl FnOnce()) -> Through {
    through(bed, args, send, true)
}

fn through(bed: &Testbed, args: &str, send: impl FnOnce(), with_tools: bool) -> Through {
    let dir = folder();
    let (file, name) = path(&dir, "capture.pcapng");
    let capture = Run::capture(&bed.rx, &format!("{args} --json --write {name}"));
    send();
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    let (names, frames) = read(&file);
    in_time_order(&frames);
    if with_tools {
        all_read(&file, &frames);
    }
    let delivered = number(&json, "delivered");
    assert_eq!(frames.len() as u64, delivered, "{json}");
    let statistics = statistics(&file);
    assert_eq!(statistics.len(), 1, "one interface, one statistics block");
    assert_eq!(statistics[0].received, Some(number(&json, "offered")));
    assert_eq!(statistics[0].delivered, Some(delivered));
    (json, names, frames)
}

fn send_all(bed: &Testbed, frames: &[Vec<u8>]) {
    let sender = Sender::new(&bed.tx);
    frames.iter().for_each(|frame| sender.send(frame));
}

#[track_caller]
fn same(hook: &str, got: &[Vec<u8>], expected: &[Vec<u8>]) {
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got, expected, "{hook}: frame {index} of {} bytes", expected.len());
    }
    assert_eq!(got.len(), expected.len(), "{hook}");
}

#[test]
fn root_every_kind_of_frame_is_kept_byte_for_byte_at_every_hook() {
    let test = "root_every_kind_of_frame_is_kept_byte_for_byte_at_every_hook";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    for hook in HOOKS {
        // With and without GRO, since GRO makes frames take another path through the driver.
        for gro in [false, true] {
            let bed = Testbed::builder().gro(gro).build().unwrap();
            let sent = assortment();
            let (_, names, frames) = through(&bed, hook, || send_all(&bed, &sent), gro);
            same(hook, &bytes_of(&frames), &sent);
            assert_eq!(names, ["wrx0"]);
            assert!(frames.iter().all(|frame| frame.wire_len as usize == frame.data.len()));
        }
    }
}

#[test]
fn root_a_tag_beside_the_bytes_is_put_back_at_every_hook() {
    let test = "root_a_tag_beside_the_bytes_is_put_back_at_every_hook";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let inner = [ipv4(60), ipv6(61), ipv4(1500), tagged(&ipv4(67), CTAG, 0x0007)];
    for hook in HOOKS {
        let bed = bed();
        for (protocol, tci) in [(CTAG, 0xe001), (STAG, 0x2fff)] {
            let tagger = Tagger::attach(&bed.tx, protocol, tci);
            let send = || send_all(&bed, &inner);
            // A filter must see the tag as well.
            let hook = if protocol == STAG { &format!("{hook} --filter vlan") } else { hook };
            let (json, _, frames) = through(&bed, hook, send, protocol == STAG);
            drop(tagger);
            let expected: Vec<_> = inner.iter().map(|f| tagged(f, protocol, tci)).collect();
            same(&format!("{hook} {protocol:x} {tci:x}"), &bytes_of(&frames), &expected);
            assert!(frames.iter().all(|frame| frame.wire_len as usize == frame.data.len()));
            let bytes: usize = expected.iter().map(Vec::len).sum();
            assert_eq!(number(&json, "bytes"), bytes as u64, "{hook}: {json}");
        }
    }
}

#[test]
fn root_a_tag_beside_the_bytes_is_put_back_on_the_way_out() {
    let test = "root_a_tag_beside_the_bytes_is_put_back_on_the_way_out";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "out.pcapng");
    // Snaplens that cut before, within and after the tag (bytes 12 to 15), and one that cuts nothing.
    for snaplen in [12, 13, 15, 16, 17, 18, 262_144] {
        let args = format!("--hook tc --direction out --snaplen {snaplen} --write {name}");
        let capture = Run::capture(&bed.tx, &args);
        let tagger = Tagger::attach(&bed.tx, STAG, 0x4321);
        let sent = [ipv4(60), ipv4(61), ipv6(700)];
        send_all(&bed, &sent);
        drop(tagger);
        settle();
        capture.stop().expect(0);
        let (_, frames) = read(&file);
        let expected: Vec<_> = sent.iter().map(|frame| tagged(frame, STAG, 0x4321)).collect();
        for (got, expected) in frames.iter().zip(&expected) {
            assert_eq!(got.data, expected[..expected.len().min(snaplen)], "snaplen {snaplen}");
            assert_eq!(got.wire_len as usize, expected.len());
            assert!(got.has(Flags::OUTBOUND));
        }
        assert_eq!(frames.len(), 3);
        if snaplen > 96 {
            all_read(&file, &frames);
        }
    }
}

#[test]
fn root_jumbo_frames_are_whole_at_every_hook() {
    let test = "root_jumbo_frames_are_whole_at_every_hook";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let sent: Vec<_> =
        [2047, 2048, 2049, 2050, 4096, 8999, 9013, 9014].map(ipv4).into_iter().collect();
    // A capture with several copiers refuses this MTU: the chunks of a frame must all be read by the same copier.
    for hook in HOOKS.into_iter().filter(|hook| !hook.contains("--copiers")) {
        let bed = Testbed::builder().gro(true).mtu(9000).build().unwrap();
        let (_, _, frames) = through_a_file(&bed, hook, || send_all(&bed, &sent));
        same(hook, &bytes_of(&frames), &sent);
    }
    // Sizes that only links such as loopback carry.
    let sent: Vec<_> = [10_239, 10_240, 10_241, 65_000].map(ipv4).into_iter().collect();
    let bed = Testbed::builder().gro(true).mtu(65_000).build().unwrap();
    let (_, _, frames) = through_a_file(&bed, HOOKS[0], || send_all(&bed, &sent));
    same("tc, MTU 65000", &bytes_of(&frames), &sent);
}

#[test]
fn root_a_frame_cut_to_the_snaplen_keeps_its_length_at_every_hook() {
    let test = "root_a_frame_cut_to_the_snaplen_keeps_its_length_at_every_hook";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let sent = [ipv4(60), ipv4(1514), ipv6(97), tagged(&ipv4(300), CTAG, 5), ipv4(95)];
    for hook in HOOKS {
        let bed = bed();
        for snaplen in [1, 7, 14, 96, 1514] {
            let args = format!("{hook} --snaplen {snaplen}");
            // The tools are slow, and for them the file is the same at every hook.
            let with_tools = hook == HOOKS[0] && [1, 14, 96].contains(&snaplen);
            let send = || send_all(&bed, &sent);
            let (json, _, frames) = through(&bed, &args, send, with_tools);
            assert_eq!(frames.len(), sent.len(), "{args}");
            for (got, sent) in frames.iter().zip(&sent) {
                assert_eq!(got.data, sent[..sent.len().min(snaplen)], "{args}");
                assert_eq!(got.wire_len as usize, sent.len(), "{args}");
            }
            let bytes: usize = sent.iter().map(Vec::len).sum();
            assert_eq!(number(&json, "bytes"), bytes as u64, "{args}: {json}");
        }
    }
}

#[test]
fn root_numbered_frames_are_all_in_the_file_once() {
    let test = "root_numbered_frames_are_all_in_the_file_once";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    for hook in HOOKS {
        let bed = bed();
        // An AF_XDP socket has room for 8192 frames: at this rate its copier may stand still for 400 ms.
        let rate = if hook.contains("af_xdp") { "20kpps" } else { "100kpps" };
        let args = format!("--frames 20k --rate {rate} --flows 100 --size 129");
        let mut sent = 0;
        let generate = || sent = number(&generate(&bed.tx, &args), "sent");
        let (json, _, frames) = through_a_file(&bed, &patient(hook), generate);
        assert_eq!(number(&json, "lapped"), 0, "{json}");
        assert_eq!(number(&json, "late"), 0, "{json}");
        let numbers = frames.iter().map(|frame| number_of(&frame.data));
        let numbers: BTreeSet<u64> = numbers.map(|n| n.expect("a generated frame")).collect();
        assert_eq!(frames.len() as u64, sent, "{hook}");
        // A busy link may refuse some of the 20,000 frames. Refused frames have numbers, too.
        let ends = (numbers.first(), numbers.last());
        assert!(sent < 20_000 || ends == (Some(&0), Some(&19_999)), "{hook}: {ends:?}");
        assert!(sent > 19_000 && ends.1 < Some(&20_000), "{hook}: {sent}, {ends:?}");
        assert_eq!(numbers.len() as u64, sent, "{hook}");
        assert!(frames.iter().all(|frame| frame.data.len() == 125), "{hook}");
    }
}

#[test]
fn root_a_pipe_feeds_other_tools() {
    let test = "root_a_pipe_feeds_other_tools";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    for reader in ["tcpdump -nn -r -", "tshark -n -r -"] {
        let bed = bed();
        let dir = folder();
        let (_, log) = path(&dir, "log");
        let mut shell = Command::new("bash");
        // With pipefail, a failure of either `weir` or the reader fails the test.
        shell.args(["-c", "set -o pipefail; \"$0\" \"$@\""]).arg("bash").arg("-c");
        shell.arg(format!(
            "set -o pipefail; {} capture {} --write - --frames 40 --json 2>{log} | {reader}",
            env!("CARGO_BIN_EXE_weir"),
            bed.rx.iface
        ));
        let mut run = Run::start(&bed.rx, shell);
        run.wait_for("the capture", |_| {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains(": bpf"))
        });
        generate(&bed.tx, "--frames 40 --rate 1kpps");
        let ended = run.end().expect(0);
        let text = ended.text();
        let lines = text.lines().filter(|line| line.contains("192.0.2.1")).count();
        assert_eq!(lines, 40, "{reader}: {text}{}", ended.stderr);
        // The report is on standard error, since standard output carries the frames.
        let log = std::fs::read_to_string(&log).unwrap();
        let json: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        closes(&json);
        assert_eq!(number(&json, "delivered"), 40);
    }
}

#[test]
fn root_interfaces_of_one_run_have_their_names_and_one_order() {
    let test = "root_interfaces_of_one_run_have_their_names_and_one_order";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let (one, two) = (bed(), bed());
    let ends = [&one.tx, &one.rx, &two.rx];
    let sources = ends.map(|end| format!("netns:{}/{}", end.netns, end.iface));
    let dir = folder();
    let (file, name) = path(&dir, "several.pcapng");
    let command = weir(&format!("capture {} --hook tc --write {name} --json", sources.join(" ")));
    let capture = Run::capture_by(&one.rx, command);
    let (left, right) = (Sender::new(&one.tx), Sender::new(&two.tx));
    let back = Sender::new(&one.rx);
    for _ in 0..1000 {
        left.send(&ipv4(60));
        right.send(&ipv4(70));
        back.send(&ipv4(80));
    }
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "captured"), 5000, "{json}");
    assert_eq!(json["sources"].as_array().map(Vec::len), Some(3), "{json}");
    let (names, frames) = read(&file);
    assert_eq!(names, sources);
    assert_eq!(number(&json, "late"), 0, "{json}");
    in_time_order(&frames);
    all_read(&file, &frames);
    let count = |interface: u32, bytes: usize, flag: Flags| {
        let is = |frame: &&Got| {
            frame.interface == interface && frame.data.len() == bytes && frame.has(flag)
        };
        frames.iter().filter(is).count()
    };
    assert_eq!(count(0, 60, Flags::OUTBOUND), 1000);
    assert_eq!(count(1, 60, Flags::INBOUND), 1000);
    assert_eq!(count(0, 80, Flags::INBOUND), 1000);
    assert_eq!(count(1, 80, Flags::OUTBOUND), 1000);
    assert_eq!(count(2, 70, Flags::INBOUND), 1000);
    // On a link, a frame is sent before it is received.
    let way = |interface: u32, bytes: usize| {
        let times =
            frames.iter().filter(move |f| f.interface == interface && f.data.len() == bytes);
        times.map(|frame| frame.ts_ns).collect::<Vec<_>>()
    };
    assert!(way(0, 60).iter().zip(way(1, 60)).all(|(&out, came)| out <= came));
    // Each source has its own ledger, and tshark reads the same names.
    for (source, offered) in [(0, 2000), (1, 2000), (2, 1000)] {
        assert_eq!(number(&json["sources"][source], "offered"), offered, "{json}");
    }
    let by_tshark = tool("tshark", &["-r", &name, "-T", "fields", "-e", "frame.interface_name"]);
    let names: BTreeSet<&str> = by_tshark.lines().collect();
    assert_eq!(names, sources.iter().map(String::as_str).collect());
    let statistics = statistics(&file);
    let received: Vec<_> = statistics.iter().map(|s| (s.interface, s.received)).collect();
    assert_eq!(received, [(0, Some(2000)), (1, Some(2000)), (2, Some(1000))]);
}

#[test]
fn root_full_speed_on_two_cpus_is_merged_in_time_order() {
    let test = "root_full_speed_on_two_cpus_is_merged_in_time_order";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let (one, two) = (bed(), bed());
    let sources = [&one, &two].map(|bed| format!("netns:{}/{}", bed.rx.netns, bed.rx.iface));
    let dir = folder();
    let (file, name) = path(&dir, "two.pcapng");
    let command = weir(&format!("capture {} --write {name} --json", sources.join(" ")));
    let capture = Run::capture_by(&one.rx, command);
    let generators = [(&one, 0), (&two, 1)].map(|(bed, cpu)| {
        let args = format!("gen {} --frames 50k --rate 50kpps --cpu {cpu} --json", bed.tx.iface);
        Run::start(&bed.tx, weir(&args))
    });
    let sent: u64 =
        generators.into_iter().map(|one| number(&one.end().expect(0).json(), "sent")).sum();
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    let (_, frames) = read(&file);
    assert_eq!(frames.len() as u64 + number(&json, "lapped"), sent, "{json}");
    println!("late {}, lapped {}", json["late"], json["lapped"]);
    let back = frames.windows(2).filter(|pair| pair[0].ts_ns > pair[1].ts_ns).count();
    assert!(back as u64 <= number(&json, "late"), "{back} steps back, {json}");
    for interface in 0..2 {
        let own = frames.iter().filter(|frame| frame.interface == interface);
        let numbers: Vec<_> = own.map(|frame| number_of(&frame.data)).collect();
        assert!(numbers.is_sorted(), "interface {interface}");
    }
}

#[test]
fn root_frames_recorded_from_two_cpus_are_extracted_as_they_were_sent() {
    let test = "root_frames_recorded_from_two_cpus_are_extracted_as_they_were_sent";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    const FRAMES: u64 = 50_000;
    let beds = [bed(), bed()];
    let names = beds.each_ref().map(|bed| format!("netns:{}/{}", bed.rx.netns, bed.rx.iface));
    let dir = folder();
    let [recorded, extracted] = ["recorded", "extracted.pcapng"].map(|name| dir.path().join(name));
    let line = format!("capture {} --write {}/ --json", names.join(" "), recorded.display());
    let capture = Run::capture_by(&beds[0].rx, weir(&line));
    // Each generator has its own frame size and CPU.
    let sizes = [300, 700];
    let generators = [0, 1].map(|number| {
        let (to, size) = (&beds[number].tx, sizes[number]);
        let line = format!(
            "gen {} --frames {FRAMES} --rate 50kpps --size {size} --flows 3 --cpu {number}",
            to.iface
        );
        Run::start(to, weir(&line))
    });
    generators.into_iter().for_each(|one| drop(one.end().expect(0)));
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "lapped"), 0, "{json}");
    let line = format!("extract {} --write {}", recorded.display(), extracted.display());
    let output = weir(&line).output().expect("weir");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (_, frames) = read(&extracted);
    in_time_order(&frames);
    all_read(&extracted, &frames);
    for size in sizes {
        let template = Template::new(size - 4, 3, SOURCE_MAC, DESTINATION_MAC);
        let own = frames.iter().filter(|frame| frame.data.len() == size - 4);
        let mut next = 0;
        for frame in own.filter(|frame| number_of(&frame.data).is_some()) {
            assert!(frame.data == template.frame(next), "frame {next} of {size} bytes");
            next += 1;
        }
        assert_eq!(next, FRAMES, "{size}");
    }
}
