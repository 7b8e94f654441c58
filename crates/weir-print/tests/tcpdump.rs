//! Compares our lines with those of `tcpdump -nn`: for frames made here, and for traces from other projects.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use frames::{SYN, dns, ethernet, udp, v4};
use weir_frame::read::FrameReader;
use weir_print::{Frame, Options, write_line};

mod frames;

/// Reports that a test did not run, also in the log that the summary of the run reads.
fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED {name}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        log.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Returns tcpdump's lines, with absolute sequence numbers and without times. `None` if tcpdump is not installed.
fn tcpdump(path: &Path) -> Option<Vec<String>> {
    let mut command = Command::new("tcpdump");
    command.args(["-nnSt", "-r"]).arg(path).stderr(Stdio::null());
    let text = command.output().ok()?.stdout;
    // Further lines of the same frame are indented.
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let lines = lines.filter(|line| !line.starts_with(b"\t") && !line.starts_with(b" "));
    Some(lines.map(|line| String::from_utf8_lossy(line).into_owned()).collect())
}

fn ours(path: &Path) -> Vec<String> {
    let file = std::fs::File::open(path).expect("the trace");
    let (mut lines, mut text) = (Vec::new(), Vec::new());
    let Ok(mut reader) = FrameReader::open(file) else { return lines };
    while let Ok(Some(frame)) = reader.next() {
        let (link_type, data, wire_len) = (frame.link_type, frame.data, frame.wire_len);
        text.clear();
        write_line(
            &mut text,
            &Frame { link_type, data, wire_len, flags: None },
            &Options::default(),
        );
        let line = std::str::from_utf8(&text).expect("ASCII");
        lines.push(line.to_owned());
    }
    lines
}

/// Removes the VLAN tags, which tcpdump prints only with -e.
fn without_tags(mut line: &str) -> &str {
    while let Some(rest) = line.strip_prefix("vlan ") {
        let rest = rest.split_once(", p ").map_or("", |(_, rest)| rest);
        let rest = rest.split_once(", ").map_or("", |(_, rest)| rest);
        line = rest.strip_prefix("DEI, ").unwrap_or(rest);
    }
    line
}

/// The comparable fields, by name: addresses with ports, and numbers behind their words.
fn fields(line: &str) -> BTreeMap<&'static str, &str> {
    let mut fields = BTreeMap::new();
    if let Some((hosts, _)) = line.split_once(": ") {
        fields.insert("hosts", hosts);
    }
    for name in
        ["Flags [", ", seq ", ", ack ", ", win ", ", id ", "UDP, length ", "who-has ", "is-at "]
    {
        if let Some((_, rest)) = line.split_once(name) {
            fields.insert(name, rest.split([',', ']', ' ']).next().unwrap_or_default());
        }
    }
    if line.contains("Flags [")
        && let Some((_, rest)) = line.rsplit_once("], length ").or(line.split_once(", length "))
    {
        fields.insert("length", rest.split([':', ' ']).next().unwrap_or_default());
    }
    fields
}

/// The first field that both lines have and that differs.
fn differs(theirs: &str, ours: &str) -> Option<String> {
    let ours_found = fields(ours);
    let differ = |(name, value): (&'static str, &str)| {
        let other = ours_found.get(name).copied()?;
        (other != value).then(|| format!("{name}: {value}, not {other}"))
    };
    fields(theirs).into_iter().find_map(differ)
}

/// Whether the lines differ because tcpdump prints less, or takes the frame for something else.
fn is_known(theirs: &str, ours: &str) -> bool {
    // Of fragments, tcpdump prints only the protocol number; of packets whose length field is 0, nothing more.
    theirs.contains("ip-proto-") || theirs.contains("bad-len 0")
    // Cisco HDLC with the link type of PPP; damaged headers, for which the words differ.
        || theirs.contains("unknown PPP") || theirs.contains("nvalid") || ours.contains("[bad")
}

/// A pcap file of frames of one link type.
fn trace(path: &Path, link_type: u32, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    let words = |file: &mut Vec<u8>, words: &[u32]| {
        words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    };
    words(&mut file, &[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link_type]);
    for frame in frames {
        words(&mut file, &[0, 0, frame.len() as u32, frame.len() as u32]);
        file.extend(frame);
    }
    std::fs::write(path, file).expect("the trace");
}

/// An IPv6 packet from fe80::1 to ff02::2.
fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 255];
    packet.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    packet.extend(payload);
    packet
}

fn icmp(kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    [&[kind, code, 0, 0][..], rest].concat()
}

/// Packets of IP of many kinds.
fn packets() -> Vec<Vec<u8>> {
    let quoted = v4(17, 0, &udp(5, 53, b"data"));
    let error =
        |kind, code, word: [u8; 4]| v4(1, 0, &icmp(kind, code, &[&word[..], &quoted].concat()));
    let quoted_v6 = v6(17, &udp(5, 53, b"data"));
    let target = [&[0; 4][..], &quoted_v6[8..24]].concat();
    let (mut reset, mut data, mut none) = (SYN, SYN, SYN);
    reset[13] = 0x14;
    data[13] = 0x18;
    // For port 80 tcpdump prints more.
    data[3] = 81;
    none[13] = 0;
    let inner = v4(6, 0, &SYN);
    let answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\x01";
    let mail = b"\xc0\x0c\0\x0f\0\x01\0\0\0\x05\0\x07\0\x0a\x02mx\xc0\x0c";
    let both = [&answer[..], mail].concat();
    vec![
        v4(6, 0, &SYN),
        v4(6, 0x4000, &reset),
        v4(6, 0, &none),
        v4(6, 0, &[&data[..], b"some data"].concat()),
        v4(17, 0, &udp(9000, 7777, b"data")),
        v4(17, 0, &udp(5, 53, &dns(0x0100, [1, 0, 0, 0], b""))),
        v4(17, 0, &udp(53, 5, &dns(0x8180, [1, 1, 0, 0], answer))),
        v4(17, 0, &udp(53, 5, &dns(0x8580, [1, 2, 0, 0], &both))),
        v4(17, 0, &udp(53, 5, &dns(0x8183, [1, 0, 0, 0], b""))),
        v4(17, 0, &udp(5353, 5353, &dns(0, [1, 0, 0, 0], b""))),
        v4(1, 0, &icmp(8, 0, &[0, 1, 0, 2])),
        v4(1, 0, &icmp(0, 0, &[0, 1, 0, 2])),
        error(3, 0, [0; 4]),
        error(3, 1, [0; 4]),
        error(3, 2, [0; 4]),
        error(3, 3, [0; 4]),
        error(3, 4, [0, 0, 5, 0]),
        error(3, 13, [0; 4]),
        error(5, 1, [10, 0, 0, 3]),
        error(11, 0, [0; 4]),
        error(11, 1, [0; 4]),
        v4(2, 0, &[0x16, 0, 0, 0, 224, 0, 0, 251]),
        v4(4, 0, &inner),
        v4(41, 0, &v6(6, &SYN)),
        v4(47, 0, &[&[0, 0, 8, 0][..], &inner].concat()),
        v4(47, 0, &[&[0x30, 0, 8, 0, 0, 0, 0, 9, 0, 0, 0, 4][..], &inner].concat()),
        v4(50, 0, &[0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        v6(6, &SYN),
        v6(17, &udp(9000, 7777, b"data")),
        v6(0, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(9000, 7777, b"data")].concat()),
        v6(58, &icmp(128, 0, &[0, 1, 0, 2])),
        v6(58, &icmp(129, 0, &[0, 1, 0, 2])),
        v6(58, &icmp(133, 0, &[0; 4])),
        v6(58, &icmp(135, 0, &target)),
        v6(58, &icmp(136, 0, &target)),
        v6(58, &icmp(1, 4, &[&[0; 4][..], &quoted_v6].concat())),
        v6(58, &icmp(1, 0, &[&[0; 4][..], &quoted_v6].concat())),
        v6(58, &icmp(2, 0, &[&[0, 0, 5, 0][..], &quoted_v6].concat())),
        v6(58, &icmp(3, 0, &[&[0; 4][..], &quoted_v6].concat())),
    ]
}

/// Frames of Ethernet without IP, or with headers before it.
fn frames() -> Vec<Vec<u8>> {
    let inner = v4(6, 0, &SYN);
    let arp = |operation, target: &[u8; 6]| {
        let head = [0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1];
        ethernet(0x0806, &[&head[..], target, &[10, 0, 0, 2]].concat())
    };
    let mut stp = vec![0x42, 0x42, 3, 0, 0, 0, 0, 0x81];
    stp.extend([0x80, 0, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0]);
    stp.extend([0x80, 1, 2, 0, 0, 0, 0, 8, 0x80, 5, 0, 0, 20, 0, 2, 0, 15, 0]);
    let mut rapid = stp.clone();
    rapid[5] = 2;
    rapid[6] = 2;
    rapid[7] = 0x3c;
    rapid.push(0);
    let lldp = [2, 7, 4, 2, 0, 0, 0, 0, 1, 4, 2, 7, b'1', 6, 2, 0, 120, 10, 2, b's', b'w', 0, 0];
    vec![
        arp(1, &[0; 6]),
        arp(1, &[0xff; 6]),
        arp(2, &[2, 0, 0, 0, 0, 2]),
        ethernet(stp.len() as u16, &stp),
        ethernet(rapid.len() as u16, &rapid),
        ethernet(0x88cc, &lldp),
        ethernet(0x8847, &[&[0, 1, 0x81, 64][..], &inner].concat()),
        ethernet(0x8100, &[&[0x60, 5, 8, 0][..], &inner].concat()),
        ethernet(0x88a8, &[&[0, 7, 0x81, 0, 0x10, 5, 8, 0][..], &inner].concat()),
    ]
}

#[test]
fn frames_of_every_protocol_have_tcpdumps_lines() {
    let folder = tempfile::tempdir().unwrap();
    let behind = |head: &'static [u8]| packets().into_iter().map(move |p| [head, &p].concat());
    let with_ports = packets().into_iter().filter(|packet| packet[0] == 0x45);
    for (link_type, frames) in [
        (1, frames()),
        (1, packets().iter().filter(|p| p[0] == 0x45).map(|p| ethernet(0x0800, p)).collect()),
        (101, packets()),
        (0, with_ports.map(|packet| [&[2, 0, 0, 0][..], &packet].concat()).collect()),
        (9, behind(&[0xff, 3, 0, 0x21]).filter(|frame| frame[4] == 0x45).collect()),
        (113, behind(&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0]).take(27).collect()),
    ] {
        let path = folder.path().join("trace");
        trace(&path, link_type, &frames);
        let Some(theirs) = tcpdump(&path) else {
            return skip("frames_of_every_protocol_have_tcpdumps_lines", "no tcpdump");
        };
        let ours = ours(&path);
        assert_eq!((theirs.len(), ours.len()), (frames.len(), frames.len()), "{link_type}");
        let both = theirs.iter().map(|line| line.trim_end()).zip(&ours);
        let differ = both.filter(|(theirs, ours)| *theirs != without_tags(ours));
        assert_eq!(differ.collect::<Vec<_>>(), [], "link type {link_type}");
    }
}

#[test]
fn the_trace_of_the_demo_has_the_fields_that_tcpdump_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weir/demo/trace.pcapng");
    let Some(theirs) = tcpdump(&path) else {
        return skip("the_trace_of_the_demo_has_the_fields_that_tcpdump_shows", "no tcpdump");
    };
    let ours = ours(&path);
    assert_eq!(theirs.len(), ours.len());
    for (theirs, ours) in theirs.iter().zip(&ours) {
        assert_eq!(differs(theirs, without_tags(ours)), None, "{theirs}\n{ours}");
    }
}

#[test]
fn traces_of_others_have_the_fields_that_tcpdump_shows() {
    let test = "traces_of_others_have_the_fields_that_tcpdump_shows";
    let Some(folder) = std::env::var_os("WEIR_TRACES").map(PathBuf::from) else {
        return skip(test, "WEIR_TRACES names no folder of traces: make soak");
    };
    let (mut traces, mut lines, mut agree, mut same) = (0, 0, 0, 0);
    let (mut wrong, mut left_out) = (Vec::new(), Vec::new());
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in &paths {
        let Some(theirs) = tcpdump(path) else { return skip(test, "no tcpdump") };
        let ours = ours(path);
        // This is no trace, but the README of the folder.
        if theirs.is_empty() && ours.is_empty() {
            continue;
        }
        traces += 1;
        // tcpdump has printed a line break, or we have read a damaged file further than tcpdump.
        if theirs.len() != ours.len() {
            left_out.push(format!("{}: {}, not {}", path.display(), theirs.len(), ours.len()));
            continue;
        }
        for (theirs, ours) in theirs.iter().zip(&ours) {
            let ours = without_tags(ours);
            lines += 1;
            same += usize::from(theirs.starts_with(ours));
            match differs(theirs, ours).filter(|_| !is_known(theirs, ours)) {
                None => agree += 1,
                Some(what) => {
                    wrong.push(format!("{}\n {what}\n {theirs}\n {ours}", path.display()))
                }
            }
        }
    }
    println!(
        "{traces} traces, {} of them left out for their number of lines; {lines} lines, {agree} agree in every field \
         that both have, {same} word by word",
        left_out.len()
    );
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(lines > 100_000 && same * 100 > lines * 90, "{same} of {lines}");
    // The limit is low: otherwise most traces could be left out unnoticed.
    assert!(left_out.len() * 20 <= traces, "left out: {left_out:#?}");
}
