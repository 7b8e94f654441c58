//! Contents of a capture file, as other programs and our reader see them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use weir_frame::read::FrameReader;
use weir_frame::record::Flags;

use super::slurp;

/// A frame of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub ts_ns: u64,
    pub wire_len: u32,
    pub interface: u32,
    pub flags: Option<Flags>,
    pub data: Vec<u8>,
}

impl Got {
    pub fn has(&self, flag: Flags) -> bool {
        self.flags.is_some_and(|flags| flags.has(flag))
    }
}

/// Names of a file's interfaces, and all of its frames, as Weir's own reader reads them.
pub fn read(path: &Path) -> (Vec<String>, Vec<Got>) {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = FrameReader::open(file).expect("a capture file");
    let mut frames = Vec::new();
    while let Some(frame) = reader.next().unwrap_or_else(|error| panic!("{error}")) {
        frames.push(Got {
            ts_ns: frame.ts_ns,
            wire_len: frame.wire_len,
            interface: frame.interface,
            flags: frame.flags,
            data: frame.data.to_vec(),
        });
    }
    let names = reader.interfaces().iter().map(|interface| interface.name.clone()).collect();
    (names, frames)
}

/// Just the frames' bytes.
pub fn bytes_of(frames: &[Got]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| frame.data.clone()).collect()
}

/// Passes if the times never go back.
#[track_caller]
pub fn in_time_order(frames: &[Got]) {
    for pair in frames.windows(2) {
        assert!(pair[0].ts_ns <= pair[1].ts_ns, "{} then {}", pair[0].ts_ns, pair[1].ts_ns);
    }
}

/// Passes if capinfos, tshark and tcpdump read the file without a warning and find exactly these frames.
#[track_caller]
pub fn all_read(path: &Path, frames: &[Got]) {
    let text = path.to_str().expect("a plain path");
    let count = tool("capinfos", &["-Mcr", text]).replace(|c: char| !c.is_ascii_digit(), " ");
    let count = count.split_whitespace().last().expect("capinfos counts").to_owned();
    assert_eq!(count, frames.len().to_string(), "capinfos {text}");

    let copy = path.with_extension("copy.pcap");
    let copy_text = copy.to_str().expect("a plain path");
    tool("tshark", &["-r", text, "-F", "nsecpcap", "-w", copy_text]);
    same("tshark", &pcap(&copy), frames);
    let nano = "--time-stamp-precision=nano";
    // Without `-Z root`, tcpdump would change to a user that cannot write here.
    tool("tcpdump", &["-r", text, nano, "-Z", "root", "-w", copy_text]);
    same("tcpdump", &pcap(&copy), frames);
    fs::remove_file(copy).expect("ours to remove");
}

#[track_caller]
fn same(tool: &str, found: &[(u64, u32, Vec<u8>)], frames: &[Got]) {
    assert_eq!(found.len(), frames.len(), "{tool}");
    for (index, (found, frame)) in found.iter().zip(frames).enumerate() {
        let expected = (frame.ts_ns, frame.wire_len, frame.data.clone());
        assert_eq!(found, &expected, "{tool}, frame {index}");
    }
}

/// Runs a tool, which must succeed and must not report a damaged file; returns its output.
#[track_caller]
pub fn tool(name: &str, args: &[&str]) -> String {
    let mut command = Command::new(name);
    command.args(args).env("LC_ALL", "C").env("TZ", "UTC").stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|error| panic!("{name}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?}: {errors}");
    for complaint in ["cut short", "damaged", "invalid", "truncated", "corrupt"] {
        assert!(!errors.contains(complaint), "{name} {args:?}: {errors}");
    }
    String::from_utf8(output.stdout).expect("tools print text")
}

/// Frames of a classic pcap file, read without Weir's own reader: time, length on the wire, bytes.
pub fn pcap(path: &Path) -> Vec<(u64, u32, Vec<u8>)> {
    let bytes = slurp(path);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!(word(0), 0xa1b2_3c4d, "{} is not a nanosecond pcap file", path.display());
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let ts_ns = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
        let (caplen, wire_len) = (word(at + 8) as usize, word(at + 12));
        frames.push((ts_ns, wire_len, bytes[at + 16..at + 16 + caplen].to_vec()));
        at += 16 + caplen;
    }
    frames
}

/// The Interface Statistics Block of one interface.
#[derive(Debug, PartialEq, Eq)]
pub struct Statistics {
    pub interface: u32,
    pub received: Option<u64>,
    pub os_drops: Option<u64>,
    pub delivered: Option<u64>,
}

/// The statistics blocks at the end of a file. Fails if a block is incomplete, or if other blocks follow them.
#[track_caller]
pub fn statistics(path: &Path) -> Vec<Statistics> {
    let bytes = slurp(path);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let length = word(at + 4) as usize;
        assert!(length >= 12 && at + length <= bytes.len(), "a cut block at {at}");
        assert_eq!(word(at + length - 4) as usize, length, "the block at {at}");
        match word(at) {
            5 => found.push(one_statistics(&bytes[at..at + length])),
            // Padding in a file of the recorder.
            weir_frame::pcapng::PADDING_TYPE => {}
            kind => assert!(found.is_empty(), "block type {kind} at {at}, after the statistics"),
        }
        at += length;
    }
    found
}

fn one_statistics(block: &[u8]) -> Statistics {
    let u16_at = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
    let mut statistics =
        Statistics { interface: u32_at(8), received: None, os_drops: None, delivered: None };
    let mut at = 20;
    while u16_at(at) != 0 {
        match u16_at(at) {
            4 => statistics.received = Some(u64_at(at + 4)),
            7 => statistics.os_drops = Some(u64_at(at + 4)),
            8 => statistics.delivered = Some(u64_at(at + 4)),
            _ => {}
        }
        at += 4 + usize::from(u16_at(at + 2)).next_multiple_of(4);
    }
    statistics
}
