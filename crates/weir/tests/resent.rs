//! `weir gen --file`: the frames of a file arrive at the other end byte for byte, or are reported as not sent.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::frames::{CTAG, assortment, ethernet, ipv4, tagged};
use common::tools::{bytes_of, read, tool};
use common::{Run, bed, closes, folder, generate, number, path, ready, settle, weir};
use weir_frame::pcapng::{self, Interface, LINKTYPE_ETHERNET, SectionInfo};
use weir_frame::record::Meta;
use weir_lab::Testbed;

const STEP_NS: u64 = 5_000_000;
const BEGIN_NS: u64 = 1_767_225_600_000_000_000;

/// Writes a pcapng file with these frames, one every 5 ms. The number beside a frame is how many bytes longer it was on
/// the wire.
fn write_ng(file: &Path, link_type: u16, frames: &[(Vec<u8>, u32)]) {
    let mut out = Vec::new();
    pcapng::write::section_header(&mut out, &SectionInfo::default());
    pcapng::write::interface(&mut out, &Interface { link_type, ..Interface::default() });
    for (index, (bytes, more)) in frames.iter().enumerate() {
        let ts_ns = BEGIN_NS + index as u64 * STEP_NS;
        let meta = Meta { ts_ns, wire_len: bytes.len() as u32 + more, ..Meta::default() };
        pcapng::write::frame(&mut out, &meta, bytes);
    }
    fs::write(file, out).unwrap();
}

/// Writes the same frames to a classic pcap file with stamps in microseconds.
fn write_classic(file: &Path, frames: &[Vec<u8>]) {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1] {
        out.extend(word.to_le_bytes());
    }
    for (index, frame) in frames.iter().enumerate() {
        let length = frame.len() as u32;
        for word in [1_767_225_600, index as u32 * 5000, length, length] {
            out.extend(word.to_le_bytes());
        }
        out.extend(frame);
    }
    fs::write(file, out).unwrap();
}

fn whole(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, u32)> {
    frames.iter().map(|frame| (frame.clone(), 0)).collect()
}

fn times(frames: &[Vec<u8>], loops: usize) -> Vec<Vec<u8>> {
    frames.iter().cycle().take(frames.len() * loops).cloned().collect()
}

/// Sends a file; returns the generator's report and the frames that arrived.
fn through(bed: &Testbed, args: &str) -> (serde_json::Value, Vec<Vec<u8>>) {
    through_with(bed, || generate(&bed.tx, args))
}

/// The same for a file with frames that cannot be sent: exit status 1, and a message with these words.
fn in_part(bed: &Testbed, args: &str, words: &[&str]) -> (serde_json::Value, Vec<Vec<u8>>) {
    through_with(bed, || part_of(bed, args, words))
}

fn part_of(bed: &Testbed, args: &str, words: &[&str]) -> serde_json::Value {
    let line = format!("gen {} --json {args}", bed.tx.iface);
    let ended = Run::start(&bed.tx, weir(&line)).end().expect(1);
    for word in words {
        assert!(ended.stderr.contains(word), "'{word}' is not in: {}", ended.stderr);
    }
    ended.json()
}

fn through_with(
    bed: &Testbed,
    send: impl FnOnce() -> serde_json::Value,
) -> (serde_json::Value, Vec<Vec<u8>>) {
    let dir = folder();
    let (file, name) = path(&dir, "got.pcapng");
    let capture = Run::capture(&bed.rx, &format!("--direction in --json --write {name}"));
    let sent = send();
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "offered"), number(&sent, "sent"), "{json} {sent}");
    (sent, bytes_of(&read(&file).1))
}

#[test]
fn root_a_file_arrives_byte_for_byte_in_order_and_as_often_as_asked() {
    let test = "root_a_file_arrives_byte_for_byte_in_order_and_as_often_as_asked";
    let Some(_alone) = ready(test, &[]) else { return };
    let (dir, frames) = (folder(), assortment());
    let (ng, ng_name) = path(&dir, "trace.pcapng");
    let (classic, classic_name) = path(&dir, "trace.pcap");
    write_ng(&ng, LINKTYPE_ETHERNET, &whole(&frames));
    write_classic(&classic, &frames);
    let bytes: u64 = frames.iter().map(|frame| frame.len() as u64 + 4).sum();
    for (name, loops) in [(&ng_name, 1), (&classic_name, 1), (&ng_name, 40)] {
        let bed = bed();
        let (sent, got) = through(&bed, &format!("--file {name} --loop {loops}"));
        let expected = times(&frames, loops as usize);
        assert_eq!(number(&sent, "sent"), expected.len() as u64, "{sent}");
        assert_eq!(number(&sent, "bytes"), bytes * loops, "{sent}");
        assert_eq!(number(&sent, "read"), expected.len() as u64, "{sent}");
        assert_eq!(number(&sent, "loops"), loops, "{sent}");
        assert!(got == expected, "{} frames of {}", got.len(), expected.len());
    }
    // A limit of frames ends the run before the end of the file.
    let (sent, got) = through(&bed(), &format!("--file {ng_name} --loop 3 --frames 40"));
    assert_eq!((number(&sent, "sent"), number(&sent, "attempted")), (40, 40), "{sent}");
    assert!(got[..] == times(&frames, 3)[..40]);
}

#[test]
fn root_frames_that_cannot_go_as_they_were_are_named() {
    let test = "root_frames_that_cannot_go_as_they_were_are_named";
    let Some(_alone) = ready(test, &[]) else { return };
    let dir = folder();
    let (file, name) = path(&dir, "odd.pcapng");
    let odd = [
        (ipv4(60), 0),
        (ipv4(1515), 0),                   // one more than MTU 1500 allows
        (tagged(&ipv4(1514), CTAG, 1), 0), // a tag is allowed on top
        (tagged(&ipv4(1515), CTAG, 1), 0),
        (ipv4(9014), 0),
        (vec![7; 13], 0),
        (vec![], 0),
        (ipv4(128), 900), // cut by a snaplen
        (ipv4(61), 0),
    ];
    write_ng(&file, LINKTYPE_ETHERNET, &odd);
    let words = [
        "6 of 9 frames were not sent",
        "3 longer than wtx0's MTU allows",
        "2 shorter than an Ethernet header",
        "1 cut by a snaplen",
    ];
    let (sent, got) = in_part(&bed(), &format!("--file {name}"), &words);
    let skipped = |reason| number(&sent["skipped"], reason);
    assert_eq!((number(&sent, "read"), number(&sent, "sent")), (9, 3), "{sent}");
    assert_eq!((skipped("too_long"), skipped("too_short")), (3, 2), "{sent}");
    assert_eq!((skipped("cut"), skipped("not_ethernet")), (1, 0), "{sent}");
    assert_eq!(got, [odd[0].0.clone(), odd[2].0.clone(), odd[8].0.clone()]);

    // With another link type no frame is sent, and even many loops end at once.
    write_ng(&file, 101, &odd);
    let words = ["9 of 9 frames were not sent: 9 not recorded on Ethernet"];
    let sent = part_of(&bed(), &format!("--file {name} --loop 4000000000"), &words);
    assert_eq!((number(&sent, "sent"), number(&sent, "attempted")), (0, 0), "{sent}");
    assert_eq!(number(&sent["skipped"], "not_ethernet"), 9, "{sent}");
}

#[test]
fn root_tcp_super_frames_are_segmented_to_the_mtu() {
    let test = "root_tcp_super_frames_are_segmented_to_the_mtu";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    let dir = folder();
    let (file, name) = path(&dir, "big.pcapng");
    let data: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
    let frames = [ipv4(60), tcp(&data), tagged(&tcp(&data[..3000]), CTAG, 7), ipv4(61)];
    write_ng(&file, LINKTYPE_ETHERNET, &whole(&frames));
    let bed = bed();
    let (sent, got) = through(&bed, &format!("--file {name} --loop 2"));
    // One super-frame becomes 14 segments of at most 1,460 bytes, the other one 3.
    assert_eq!((number(&sent, "read"), number(&sent, "segmented")), (8, 4), "{sent}");
    assert_eq!((number(&sent, "segments"), number(&sent, "sent")), (34, 38), "{sent}");
    assert_eq!((got[0].clone(), got[18].clone()), (frames[0].clone(), frames[3].clone()));
    let (whole_data, tagged_data) = (&got[1..15], &got[15..18]);
    assert!(whole_data.iter().all(|frame| (54..=1514).contains(&frame.len())));
    assert_eq!(whole_data.iter().flat_map(|frame| &frame[54..]).copied().collect::<Vec<_>>(), data);
    let tagged_data: Vec<_> = tagged_data.iter().flat_map(|frame| &frame[58..]).copied().collect();
    assert_eq!(tagged_data, data[..3000]);
    write_ng(&file, LINKTYPE_ETHERNET, &whole(&got[1..18]));
    let wrong = tool(
        "tshark",
        &[
            "-r",
            &name,
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "tcp.check_checksum:TRUE",
            "-Y",
            "ip.checksum.status != 1 or tcp.checksum.status != 1 or tcp.analysis.lost_segment",
        ],
    );
    assert_eq!(wrong, "");

    // A limit of frames ends the run within a super-frame, and the counts agree.
    let (sent, got) = through(&bed, &format!("--file {name} --frames 5"));
    assert_eq!((number(&sent, "sent"), got.len()), (5, 5), "{sent}");
    write_ng(&file, LINKTYPE_ETHERNET, &whole(&frames));
    let (sent, got) = through(&bed, &format!("--file {name} --frames 5"));
    assert_eq!((number(&sent, "read"), number(&sent, "segmented")), (2, 1), "{sent}");
    assert_eq!((number(&sent, "segments"), number(&sent, "sent"), got.len()), (4, 5, 5), "{sent}");
}

/// A TCP frame with this data as the stack passes it to a NIC that segments: without checksums.
fn tcp(data: &[u8]) -> Vec<u8> {
    let mut head = vec![0x45, 0];
    head.extend((40 + data.len() as u16).to_be_bytes());
    head.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    head.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 9, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    let mut frame = ethernet(0x0800, &head, 54);
    frame.extend(data);
    frame
}

#[test]
fn root_a_damaged_file_is_sent_to_the_damage_and_says_so() {
    let test = "root_a_damaged_file_is_sent_to_the_damage_and_says_so";
    let Some(_alone) = ready(test, &[]) else { return };
    let dir = folder();
    let (file, name) = path(&dir, "cut.pcapng");
    let frames = assortment();
    write_ng(&file, LINKTYPE_ETHERNET, &whole(&frames));
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 7]).unwrap();
    let bed = bed();
    let line = format!("gen {} --json --loop 2 --file {name}", bed.tx.iface);
    let ended = Run::start(&bed.tx, weir(&line)).end();
    let sent = ended.json();
    assert_eq!(number(&sent, "sent"), frames.len() as u64 - 1, "{sent}");
    assert_eq!(number(&sent, "loops"), 0, "{sent}");
    ended.refused(&[&name, "before that place were sent"]);

    for (args, words) in
        [("--file /nowhere", ["/nowhere", "cannot be opened"]), ("--file /tmp", ["/tmp", "folder"])]
    {
        let line = format!("gen {} {args}", bed.tx.iface);
        Run::start(&bed.tx, weir(&line)).end().refused(&words);
    }
    for args in ["--file a --size 64", "--speed real", "--loop 2"] {
        let ended = Run::start(&bed.tx, weir(&format!("gen {} {args}", bed.tx.iface))).end();
        assert!(ended.expect(2).stderr.contains("--file"), "{args}");
    }
    let both = format!("gen {} --file a --rate 1Mpps --speed real", bed.tx.iface);
    let refusal = Run::start(&bed.tx, weir(&both)).end().expect(2).stderr;
    assert!(refusal.contains("--rate") && refusal.contains("--speed"), "{refusal}");
}

#[test]
fn root_a_file_keeps_a_rate_of_frames_or_bits_whatever_its_stamps_say() {
    let test = "root_a_file_keeps_a_rate_of_frames_or_bits_whatever_its_stamps_say";
    let Some(_alone) = ready(test, &[]) else { return };
    let (dir, frames) = (folder(), assortment());
    let (file, name) = path(&dir, "trace.pcapng");
    write_ng(&file, LINKTYPE_ETHERNET, &whole(&frames));
    let bits = 8.0 * frames.iter().map(|frame| frame.len() as f64 + 4.0).sum::<f64>();
    let mean = bits / frames.len() as f64;
    for (rate, pps) in [("2kpps", 2_000.0), ("20kpps", 20_000.0), ("8Mbps", 8e6 / mean)] {
        let args = format!("--file {name} --rate {rate} --loop 100000 --duration 500ms");
        let sent = generate(&bed().tx, &args);
        let seconds = |field: &str| sent[field].as_f64().unwrap();
        // Exact to the frame even on a busy machine, because time that could not be made up for is reported. A rate in
        // bits is met only by whole passes of the file, and the run may end within a pass.
        let all = number(&sent, "attempted") as f64 + seconds("given_up_s") * pps;
        let slack = if rate.ends_with("bps") { frames.len() as f64 } else { 1.0 };
        assert!((all - pps * 0.5).abs() <= slack, "{rate}: {all} {sent}");
    }
    // The first frame is sent at once, the third after 0.2 s.
    let (sent, got) = through(&bed(), &format!("--file {name} --rate 10pps --frames 3"));
    assert!(sent["duration_s"].as_f64().unwrap() >= 0.2, "{sent}");
    assert!(got == frames[..3]);
}

#[test]
fn root_real_time_takes_the_time_of_the_trace() {
    let test = "root_real_time_takes_the_time_of_the_trace";
    let Some(_alone) = ready(test, &[]) else { return };
    let (dir, frames) = (folder(), assortment());
    let (file, name) = path(&dir, "trace.pcapng");
    write_ng(&file, LINKTYPE_ETHERNET, &whole(&frames));
    let real = Duration::from_nanos((frames.len() as u64 - 1) * STEP_NS);
    // Lower bounds only, because a busy machine may be late by any time.
    for (speed, factor, loops) in [("real", 1.0, 1u32), ("2x", 2.0, 2), ("0.5x", 0.5, 1)] {
        let least = real.mul_f64(f64::from(loops) / factor);
        let start = Instant::now();
        let (sent, got) = through(&bed(), &format!("--file {name} --speed {speed} --loop {loops}"));
        let said = Duration::from_secs_f64(sent["duration_s"].as_f64().unwrap());
        assert!(said >= least && start.elapsed() >= said, "{speed}: {said:?} {least:?}");
        assert!(got == times(&frames, loops as usize), "{speed}");
    }
    // The second frame is due after 500 s, so the run ends before it.
    let late = format!("--file {name} --speed 0.00001x --duration 200ms");
    let sent = generate(&bed().tx, &late);
    assert_eq!((number(&sent, "sent"), number(&sent, "read")), (1, 1), "{sent}");
}
