//! Writes flows as lines of JSON. docs/flows.md describes the fields.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use weir_flow::{FlowRecord, Totals, community_id};
use weir_frame::headers::{Addresses, protocol};

use crate::export::{Batch, Counts, Export, ExportError, Origin, Owner};
use crate::limits::FULL_TIME_MAX;
use crate::patience::Patience;
use crate::patient_writer::PatientWriter;

/// Bytes to write at once. If a pipe fails, all records of these bytes count as unsent.
const CHUNK_BYTES: usize = 1 << 16;

/// Writes a line of JSON for each record. If the disk is full, a write is tried again for [`FULL_TIME_MAX`].
pub struct JsonLines<W> {
    out: PatientWriter<W>,
    /// The file that `out` writes to, if it is a regular file.
    regular: Option<File>,
    /// Whether a line is to be begun first, because the file ends within one.
    is_in_line: bool,
    name: String,
    is_biflow: bool,
    counts: Counts,
}

impl JsonLines<File> {
    /// Creates an export that appends to `file`, which is open for appending. After a failed write, a regular file is
    /// cut back to its last whole line, and the lines in it count as sent. If `file` is also open for reading and ends
    /// within a line, a new line is begun.
    #[must_use]
    pub fn append(file: File, name: &str, is_biflow: bool) -> JsonLines<File> {
        let length = file.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
        let mut last = [b'\n'];
        if let Some(at) = length.and_then(|length| length.checked_sub(1)) {
            // An error is ignored: the file may be open for writing only.
            let _ = file.read_exact_at(&mut last, at);
        }
        let regular = length.and_then(|_| file.try_clone().ok());
        let is_in_line = last != [b'\n'];
        JsonLines { regular, is_in_line, ..JsonLines::new(file, name, is_biflow) }
    }
}

impl<W: Write + Send> JsonLines<W> {
    /// Creates an export that writes to `out`, which needs no buffer of its own; it is flushed after each chunk of
    /// lines. `name` is for messages: `standard output`. With `is_biflow`, lines have both directions.
    #[must_use]
    pub fn new(out: W, name: &str, is_biflow: bool) -> JsonLines<W> {
        let out = PatientWriter { inner: out, patience: Arc::default(), full_time: FULL_TIME_MAX };
        let (name, counts) = (name.to_owned(), Counts::default());
        JsonLines { out, regular: None, is_in_line: false, name, is_biflow, counts }
    }

    /// Sets how long a write is tried again while the disk is full.
    #[must_use]
    pub fn with_full_time(mut self, full_time: Duration) -> JsonLines<W> {
        self.out.full_time = full_time;
        self
    }

    /// Writes these lines. If that fails, the lines that are in a regular file count as sent. For other outputs, it is
    /// unknown which of them were read, so none does.
    fn write(&mut self, lines: &str, count: u64) -> Result<(), ExportError> {
        let mut written = 0;
        let Err(source) = self.write_counted(lines.as_bytes(), &mut written) else {
            self.counts.sent += count;
            return Ok(());
        };
        let written = &lines.as_bytes()[..written];
        let sent = self.regular.as_ref().map_or(0, |file| keep_whole_lines(file, written));
        self.counts.sent += sent;
        self.counts.unsent += count - sent;
        let what = format!(
            "{}: lines of flows cannot be written; see that its reader runs and its disk has space",
            self.name
        );
        Err(ExportError { what, source })
    }

    /// Writes `bytes`, and adds to `written` how many the writer took.
    fn write_counted(&mut self, bytes: &[u8], written: &mut usize) -> io::Result<()> {
        if self.is_in_line {
            self.out.write_all(b"\n")?;
            self.is_in_line = false;
        }
        while *written < bytes.len() {
            match self.out.write(&bytes[*written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => *written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.flush()
    }
}

/// Cuts the last line off a file if it is not whole; `written` was appended last. Returns the number of whole lines in
/// `written`.
fn keep_whole_lines(mut file: &File, written: &[u8]) -> u64 {
    let whole = written.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let half = (written.len() - whole) as u64;
    // An append leaves the position at its end. If the file is longer, another process has appended to it since, and
    // nothing is cut. If the file cannot be cut, the next run begins a new line.
    if half > 0
        && let (Ok(end), Ok(meta)) = (file.stream_position(), file.metadata())
        && meta.len() == end
    {
        let _ = file.set_len(end - half);
    }
    written.iter().filter(|byte| **byte == b'\n').count() as u64
}

impl<W: Write + Send> Export for JsonLines<W> {
    fn name(&self) -> String {
        self.name.clone()
    }

    /// Writes a line for each record of this batch.
    ///
    /// # Errors
    /// The writer's error, as the source. If the reader of a pipe has gone, that is
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
    fn take(&mut self, batch: &Batch) -> Result<(), ExportError> {
        let (mut lines, mut count) = (String::new(), 0);
        for (at, record) in batch.records.iter().enumerate() {
            lines += &line(record, batch.origin(record), self.is_biflow);
            count += 1;
            let is_last = at + 1 == batch.records.len();
            if lines.len() >= CHUNK_BYTES || is_last {
                self.write(&lines, count).inspect_err(|_| {
                    self.counts.unsent += (batch.records.len() - at - 1) as u64;
                })?;
                lines.clear();
                count = 0;
            }
        }
        Ok(())
    }

    fn set_patience(&mut self, patience: Arc<Patience>) {
        self.out.patience = patience;
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

/// Fields of a line.
#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    start: String,
    end: String,
    interface: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<LineOwner<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    src_ip: String,
    dst_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_port: Option<u16>,
    proto: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_type: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_code: Option<u8>,
    #[serde(flatten)]
    forward: LineCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    reverse: Option<LineCounts>,
    end_reason: &'static str,
    community_id: String,
}

/// Fields of an interface's owner.
#[derive(Serialize)]
struct LineOwner<'a> {
    kind: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

impl<'a> LineOwner<'a> {
    fn new(owner: &'a Owner) -> LineOwner<'a> {
        LineOwner { kind: &owner.kind, name: &owner.name, id: owner.id.as_deref() }
    }
}

/// Counts of one direction of a flow.
#[derive(Serialize)]
struct LineCounts {
    packets: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_flags: Option<String>,
}

impl LineCounts {
    fn new(totals: &Totals, is_tcp: bool) -> LineCounts {
        let Totals { packets, bytes, tcp_flags } = *totals;
        LineCounts { packets, bytes, tcp_flags: is_tcp.then(|| flags_text(tcp_flags)) }
    }
}

/// Returns the TCP flags that are set as letters, in the order `CEUAPRSF`.
#[must_use]
pub fn flags_text(flags: u8) -> String {
    let letters = (0..8).rev().zip("CEUAPRSF".chars());
    letters.filter(|(bit, _)| flags & (1 << bit) != 0).map(|(_, letter)| letter).collect()
}

/// Formats nanoseconds since the Unix epoch as RFC 3339, in UTC and with nine decimals. The latest possible time is in
/// April 2262.
#[must_use]
pub fn time_text(ns: u64) -> String {
    DateTime::from_timestamp_nanos(ns.try_into().unwrap_or(i64::MAX))
        .to_rfc3339_opts(SecondsFormat::Nanos, true)
}

/// Formats the source and destination address of a flow.
#[must_use]
pub fn addresses_text(addresses: &Addresses) -> [String; 2] {
    match addresses {
        Addresses::V4 { src, dst } => [src.to_string(), dst.to_string()],
        Addresses::V6 { src, dst } => [src.to_string(), dst.to_string()],
    }
}

/// Formats a record as a line, with its line break. Without an `origin`, `interface` is null.
#[must_use]
pub fn line(record: &FlowRecord, origin: Option<&Origin>, is_biflow: bool) -> String {
    let FlowRecord { key, vlan, first_ns, last_ns, forward, reverse, icmp, reason, .. } = record;
    let is_tcp = key.protocol == protocol::TCP;
    let has_ports = key.has_known_ports();
    let [src_ip, dst_ip] = addresses_text(&key.addresses);
    let line = Line {
        event: "flow",
        start: time_text(*first_ns),
        end: time_text(*last_ns),
        interface: origin.map(|origin| origin.interface.as_str()),
        owner: origin.and_then(|origin| origin.owner.as_ref()).map(LineOwner::new),
        vlan: *vlan,
        src_ip,
        dst_ip,
        src_port: has_ports.then_some(key.src_port),
        dst_port: has_ports.then_some(key.dst_port),
        proto: key.protocol,
        icmp_type: icmp.map(|(kind, _)| kind),
        icmp_code: icmp.map(|(_, code)| code),
        forward: LineCounts::new(forward, is_tcp),
        reverse: is_biflow.then(|| LineCounts::new(reverse, is_tcp)),
        end_reason: reason.name(),
        community_id: community_id(key, *icmp),
    };
    serde_json::to_string(&line).expect("numbers and strings serialize") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Read;
    use std::path::Path;
    use weir_flow::EndReason;
    use weir_frame::flow::FlowKey;

    use crate::patience::EndAtOnce;
    use crate::testing;

    fn record() -> FlowRecord {
        let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        FlowRecord {
            key: FlowKey { addresses, src_port: 1000, dst_port: 80, protocol: protocol::TCP },
            vlan: None,
            interface: 0,
            first_ns: 1_500_000_000_000_000_001,
            last_ns: 1_500_000_001_000_000_000,
            forward: Totals { packets: 2, bytes: 80, tcp_flags: 0b1_0010 },
            reverse: Totals { packets: 1, bytes: 40, tcp_flags: 0b1_0001 },
            icmp: None,
            reason: EndReason::Idle,
        }
    }

    fn origin(owner: Option<Owner>) -> Origin {
        Origin { interface: "eth0".into(), owner }
    }

    fn batch(records: Vec<FlowRecord>) -> Batch {
        Batch { records, origins: Arc::new(vec![origin(None)]) }
    }

    fn shown(record: &FlowRecord, origin: Option<&Origin>, is_biflow: bool) -> serde_json::Value {
        serde_json::from_str(&line(record, origin, is_biflow)).unwrap()
    }

    #[test]
    fn a_line_has_what_its_flow_has_and_nothing_else() {
        let record = record();
        let wanted = serde_json::json!({
            "event": "flow", "start": "2017-07-14T02:40:00.000000001Z", "end": "2017-07-14T02:40:01.000000000Z",
            "interface": "eth0", "src_ip": "10.0.0.1", "dst_ip": "10.0.0.2", "src_port": 1000, "dst_port": 80,
            "proto": 6, "packets": 2, "bytes": 80, "tcp_flags": "AS",
            "reverse": {"packets": 1, "bytes": 40, "tcp_flags": "AF"}, "end_reason": "idle",
            "community_id": community_id(&record.key, None),
        });
        assert_eq!(shown(&record, Some(&origin(None)), true), wanted);
        let key = FlowKey { protocol: protocol::UDP_LITE, ..record.key };
        let text = line(&FlowRecord { key, ..record }, None, false);
        assert!(text.contains("\"src_port\":1000,\"dst_port\":80"), "{text}");
        let fragment = FlowKey { protocol: protocol::UDP, src_port: 0, dst_port: 0, ..record.key };
        let text = line(&FlowRecord { key: fragment, ..record }, None, false);
        assert!(!text.contains("src_port") && !text.contains("dst_port"), "{text}");
        let icmp = FlowKey { protocol: protocol::ICMP, src_port: 0, dst_port: 0, ..record.key };
        let shown = shown(&FlowRecord { key: icmp, icmp: Some((8, 0)), ..record }, None, false);
        assert!(shown.get("reverse").is_none() && shown.get("src_port").is_none(), "{shown}");
        assert_eq!(
            (&shown["icmp_type"], &shown["interface"]),
            (&8.into(), &serde_json::Value::Null)
        );
    }

    #[test]
    fn an_owner_has_an_id_only_where_it_has_one() {
        let vm = Owner { kind: "vm".into(), name: "db \"1\"".into(), id: None };
        let line = shown(&record(), Some(&origin(Some(vm.clone()))), false);
        assert_eq!(line["owner"], serde_json::json!({"kind": "vm", "name": "db \"1\""}));
        let pod = Owner { kind: "pod".into(), id: Some("f00".into()), ..vm };
        let line = shown(&record(), Some(&origin(Some(pod))), false);
        let wanted = serde_json::json!({"kind": "pod", "name": "db \"1\"", "id": "f00"});
        assert_eq!(line["owner"], wanted);
        assert!(shown(&record(), Some(&origin(None)), false).get("owner").is_none());
    }

    #[test]
    fn each_record_of_a_batch_is_a_line() {
        let mut out = Vec::new();
        let mut lines = JsonLines::new(&mut out, "memory", true);
        let records: Vec<_> = (0..1000).map(|n| FlowRecord { first_ns: n, ..record() }).collect();
        lines.take(&batch(records.clone())).unwrap();
        lines.take(&batch(vec![])).unwrap();
        lines.finish().unwrap();
        assert_eq!(lines.counts(), Counts { sent: 1000, unsent: 0 });
        let wanted: String =
            records.iter().map(|record| line(record, Some(&origin(None)), true)).collect();
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    #[test]
    fn a_reader_that_has_gone_is_told_of_and_every_record_counted() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let mut lines = JsonLines::new(pipe, "standard output", false);
        lines.take(&batch(vec![record()])).unwrap();
        let mut first = [0; 1];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"{");
        drop(reader);
        let failed = lines.take(&batch(vec![record(); 1000])).unwrap_err();
        assert_eq!(failed.source.kind(), io::ErrorKind::BrokenPipe);
        assert!(failed.what.starts_with("standard output: "), "{failed}");
        assert_eq!(lines.counts(), Counts { sent: 1, unsent: 1000 });
    }

    /// Takes so many bytes.
    struct Short(usize);

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_went_out_before_a_failure_is_sent() {
        let mut lines =
            JsonLines::new(Short(2 * CHUNK_BYTES), "file", false).with_full_time(Duration::ZERO);
        lines.take(&batch(vec![record(); 1000])).unwrap_err();
        let Counts { sent, unsent } = lines.counts();
        assert_eq!(sent + unsent, 1000);
        assert!((100..500).contains(&sent), "{sent}");
    }

    #[test]
    fn root_a_disk_that_is_full_for_a_moment_costs_no_line() {
        let test = "json::tests::root_a_disk_that_is_full_for_a_moment_costs_no_line";
        let Some(scratch) = testing::disk(test, 1) else { return };
        let (path, other) = (scratch.path().join("flows.json"), scratch.path().join("other"));
        // Less than the lines take.
        fs::write(&other, vec![7; (1 << 20) - (200 << 10)]).unwrap();
        let mut lines = JsonLines::append(appending(&path), "json:flows.json", false);
        let on_full = move || fs::remove_file(&other).expect("it is told once");
        let patience = Arc::new(Patience::new(EndAtOnce::default(), on_full));
        lines.set_patience(Arc::clone(&patience));
        lines.take(&batch(vec![record(); 2_000])).unwrap();
        lines.finish().unwrap();
        assert_eq!((lines.counts(), patience.full()), (Counts { sent: 2_000, unsent: 0 }, 1));
        let wanted = line(&record(), Some(&origin(None)), false).repeat(2_000);
        assert!(fs::read_to_string(&path).unwrap() == wanted, "each line once, and whole");
    }

    fn appending(path: &Path) -> File {
        OpenOptions::new().read(true).create(true).append(true).open(path).unwrap()
    }

    #[test]
    fn root_a_disk_that_stays_full_leaves_whole_lines_and_counts_them() {
        let test = "json::tests::root_a_disk_that_stays_full_leaves_whole_lines_and_counts_them";
        let Some(scratch) = testing::disk(test, 1) else { return };
        let path = scratch.path().join("flows.json");
        let append = || {
            let lines = JsonLines::append(appending(&path), "json:flows.json", false);
            lines.with_full_time(Duration::ZERO)
        };
        let (mut first, mut sum) = (append(), 0);
        first.take(&batch(vec![record(); 10_000])).unwrap_err();
        sum += first.counts().sent;
        assert_eq!(first.counts().unsent, 10_000 - sum);
        let own = line(&record(), Some(&origin(None)), false);
        // All lines that fit are there.
        assert_eq!(sum, (1 << 20) / own.len() as u64);
        assert!(fs::read_to_string(&path).unwrap() == own.repeat(sum as usize));
        // Nothing of the next run fits.
        let mut second = append();
        second.take(&batch(vec![record(); 10])).unwrap_err();
        assert_eq!(second.counts(), Counts { sent: 0, unsent: 10 });
        assert!(fs::read_to_string(&path).unwrap() == own.repeat(sum as usize));
    }

    #[test]
    fn after_half_a_line_of_another_run_a_line_begins() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("flows.json");
        let own = line(&record(), Some(&origin(None)), false);
        for (before, between) in [("", ""), ("whole\n", ""), ("{\"half\": 1", "\n")] {
            fs::write(&path, before).unwrap();
            let mut lines = JsonLines::append(appending(&path), "json:flows.json", false);
            lines.take(&batch(vec![record(); 2])).unwrap();
            lines.take(&batch(vec![record()])).unwrap();
            assert_eq!(lines.counts(), Counts { sent: 3, unsent: 0 });
            let wanted = format!("{before}{between}{}", own.repeat(3));
            assert_eq!(fs::read_to_string(&path).unwrap(), wanted);
        }
    }
}
