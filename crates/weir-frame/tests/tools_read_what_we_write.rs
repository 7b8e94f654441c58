//! tcpdump, capinfos, tshark and editcap read files that Weir wrote, and Weir reads what editcap makes of them. A test
//! whose tool is not installed reports that on stderr and in the file of `WEIR_SKIP_LOG`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weir_frame::pcapng::{
    AddressName, Interface, LINKTYPE_ETHERNET, SectionInfo, Statistics, write,
};
use weir_frame::read::FrameReader;
use weir_frame::record::{Flags, Meta};

const FRAMES: u64 = 100;
const FIRST_NS: u64 = 1_700_000_000_123_456_789;

/// Reports that `test` did not run, and why.
fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = fs::File::options().create(true).append(true).open(log).expect("skip log");
        log.write_all(format!("{line}\n").as_bytes()).expect("skip log");
    }
}

/// Runs a tool, and returns its output. If the tool is not installed, reports that and returns `None`.
fn run(test: &str, tool: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let mut command = Command::new(tool);
    // The same time zone and decimal point on every machine.
    command.args(arguments).arg(file).env("LC_ALL", "C").env("TZ", "UTC").stdin(Stdio::null());
    let output = match command.output() {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            skip(test, &format!("{tool} is not installed"));
            return None;
        }
        Err(e) => panic!("{tool}: {e}"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} refused the file: {errors}");
    assert!(!errors.contains("invalid") && !errors.contains("damaged"), "{tool}: {errors}");
    Some(String::from_utf8(output.stdout).expect("tools print text"))
}

/// Frame `i`: UDP from port 1000 + `i`, of 42 to 240 bytes. Every third frame is truncated to at most 60 bytes.
fn frame(i: u64) -> (Meta, Vec<u8>) {
    let payload = (i * 2) as u16;
    let mut data = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    data.extend((28 + payload).to_be_bytes());
    data.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    data.extend((1000 + i as u16).to_be_bytes());
    data.extend(9u16.to_be_bytes());
    data.extend((8 + payload).to_be_bytes());
    data.extend([0, 0]);
    data.resize(42 + usize::from(payload), i as u8);
    let meta = Meta {
        interface_id: (i % 2) as u32,
        ts_ns: FIRST_NS + i * 1_001,
        wire_len: data.len() as u32,
        flags: i.is_multiple_of(2).then_some(Flags::INBOUND),
        queue: i.is_multiple_of(4).then_some(i as u32),
    };
    if i.is_multiple_of(3) {
        data.truncate(60);
    }
    (meta, data)
}

/// A file with the layout of the recorder's files: a header block filled up to 1 MiB, records, each followed by
/// padding of one of 40 lengths from the shortest on, and statistics.
fn weir_file(directory: &Path) -> PathBuf {
    let mut out = Vec::new();
    write::section_header(
        &mut out,
        &SectionInfo {
            hardware: Some("a machine".into()),
            os: Some("Linux 6.12".into()),
            userappl: Some("weir 0.1".into()),
        },
    );
    for name in ["eth0", "eth1"] {
        let interface = Interface {
            name: name.into(),
            description: Some("a link".into()),
            filter: Some("udp".into()),
            link_type: LINKTYPE_ETHERNET,
            snaplen: 65_535,
        };
        write::interface(&mut out, &interface);
        // After an interface, because editcap refuses a file with this block before the first one.
        let web = AddressName { address: [10, 0, 0, 2].into(), name: "web".into() };
        write::names(&mut out, &[web]);
    }
    let header_bytes = out.len() as u32;
    write::padding_block(&mut out, (1 << 20) - header_bytes);
    for i in 0..FRAMES {
        let (meta, data) = frame(i);
        write::frame(&mut out, &meta, &data);
        write::padding_block(&mut out, 12 + 4 * (i as u32 % 40));
    }
    for interface_id in [0, 1] {
        let stats = Statistics {
            interface_id,
            ts_ns: FIRST_NS + 1_000_000_000,
            start_ns: Some(FIRST_NS),
            end_ns: Some(FIRST_NS + 1_000_000_000),
            received: Some(57),
            interface_drops: Some(3),
            filter_accepted: Some(54),
            os_drops: Some(4),
            delivered: Some(50),
        };
        write::statistics(&mut out, &stats);
    }
    let path = directory.join("written.pcapng");
    fs::write(&path, out).expect("temporary file");
    path
}

#[test]
fn tshark_lists_the_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = weir_file(directory.path());
    let test = "tshark_lists_the_names";
    let Some(text) = run(test, "tshark", &["-q", "-z", "hosts", "-r"], &file) else { return };
    assert!(text.lines().any(|line| line == "10.0.0.2\tweb"), "{text}");
}

#[test]
fn tcpdump_prints_every_frame_to_the_nanosecond() {
    let directory = tempfile::tempdir().unwrap();
    let file = weir_file(directory.path());
    let arguments = ["--nano", "-tt", "-nn", "-r"];
    let test = "tcpdump_prints_every_frame_to_the_nanosecond";
    let Some(text) = run(test, "tcpdump", &arguments, &file) else { return };
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len() as u64, FRAMES);
    for (i, line) in lines.iter().enumerate() {
        let ns = FIRST_NS + i as u64 * 1_001;
        let start = format!(
            "{}.{:09} IP 10.0.0.1.{} > 10.0.0.2.9:",
            ns / 1_000_000_000,
            ns % 1_000_000_000,
            1000 + i
        );
        assert!(line.starts_with(&start), "{line}");
    }
}

#[test]
fn capinfos_counts_frames_and_reads_the_headers() {
    let directory = tempfile::tempdir().unwrap();
    let file = weir_file(directory.path());
    let test = "capinfos_counts_frames_and_reads_the_headers";
    let Some(text) = run(test, "capinfos", &["-M"], &file) else { return };
    for wanted in
        ["Number of packets:   100", "a machine", "Linux 6.12", "weir 0.1", "Name = eth1", "udp"]
    {
        assert!(text.contains(wanted), "{wanted:?} is missing in\n{text}");
    }
}

#[test]
fn tshark_shows_lengths_interfaces_times_and_no_other_rows() {
    let directory = tempfile::tempdir().unwrap();
    let file = weir_file(directory.path());
    let fields = ["frame.time_epoch", "frame.len", "frame.cap_len", "frame.interface_name"];
    let mut arguments = vec!["-n", "-T", "fields"];
    arguments.extend(fields.iter().flat_map(|f| ["-e", f]));
    arguments.push("-r");
    let test = "tshark_shows_lengths_interfaces_times_and_no_other_rows";
    let Some(text) = run(test, "tshark", &arguments, &file) else { return };
    let wanted: Vec<String> = (0..FRAMES)
        .map(|i| {
            let (meta, data) = frame(i);
            let (s, ns) = (meta.ts_ns / 1_000_000_000, meta.ts_ns % 1_000_000_000);
            format!("{s}.{ns:09}\t{}\t{}\teth{}", meta.wire_len, data.len(), meta.interface_id)
        })
        .collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn what_editcap_makes_of_our_file_is_read_with_the_same_frames() {
    let directory = tempfile::tempdir().unwrap();
    let file = weir_file(directory.path());
    let test = "what_editcap_makes_of_our_file_is_read_with_the_same_frames";
    for (format, ns_per_tick) in [("pcap", 1000), ("nsecpcap", 1), ("pcapng", 1)] {
        let made = directory.path().join(format);
        let arguments = ["-F", format, file.to_str().expect("a plain path")];
        if run(test, "editcap", &arguments, &made).is_none() {
            return;
        }
        let mut reader = FrameReader::open(fs::File::open(made).unwrap()).unwrap();
        for i in 0..FRAMES {
            let (meta, data) = frame(i);
            let read = reader.next().unwrap().expect("as many frames as were written");
            assert_eq!(read.ts_ns, meta.ts_ns / ns_per_tick * ns_per_tick);
            assert_eq!((read.wire_len, read.data), (meta.wire_len, &data[..]));
            if format == "pcapng" {
                assert_eq!((read.interface, read.flags), (meta.interface_id, meta.flags));
            }
        }
        assert!(reader.next().unwrap().is_none());
    }
}

#[test]
fn a_modified_pcap_is_refused_with_a_way_out_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let file = weir_file(directory.path());
    let test = "a_modified_pcap_is_refused_with_a_way_out_that_works";
    let (modified, mended) = (directory.path().join("modified"), directory.path().join("mended"));
    let arguments = ["-F", "modpcap", file.to_str().expect("a plain path")];
    if run(test, "editcap", &arguments, &modified).is_none() {
        return;
    }
    let refusal = FrameReader::open(fs::File::open(&modified).unwrap()).unwrap_err().to_string();
    assert!(refusal.contains("editcap -F pcapng IN OUT"), "{refusal}");
    run(test, "editcap", &["-F", "pcapng", modified.to_str().expect("a plain path")], &mended);
    let mut reader = FrameReader::open(fs::File::open(mended).unwrap()).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().data, frame(0).1);
}
