//! DuckDB reads Parquet files that Weir wrote. If DuckDB is not installed, the test is skipped, and says so on stderr
//! and in the file that `WEIR_SKIP_LOG` names.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use weir_export::parquet::Config;
use weir_export::{Batch, Counts, Export, Origin, Owner, Parquet, json};
use weir_flow::{EndReason, FlowRecord, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::{Addresses, protocol};

const RECORDS: u64 = 8_000;
const FIRST_NS: u64 = 1_795_666_800_123_456_789;

/// Reads the directory's files with DuckDB. Prints the columns' types, sums, and every row, ordered by start time.
const SCRIPT: &str = r#"
import duckdb, json, sys

flows = f"read_parquet('{sys.argv[1]}/*.parquet')"
db = duckdb.connect()
db.execute("set timezone = 'Pacific/Auckland'")
types = dict(row[:2] for row in db.execute(f"describe select * from {flows}").fetchall())
sums = db.execute(f'''select count(*), sum(packets), sum(bytes), coalesce(sum(reverse_bytes), 0), max(bytes)
    from {flows}''').fetchone()
rows = db.execute(f'''select epoch_ns("start") as "start", epoch_ns("end") as "end", * exclude ("start", "end")
    from {flows} order by "start"''')
names = [column[0] for column in rows.description]
rows = [dict(zip(names, row)) for row in rows.fetchall()]
json.dump({"types": types, "sums": [int(sum) for sum in sums], "rows": rows}, sys.stdout)
"#;

/// Reports that `test` did not run, and why.
fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = File::options().create(true).append(true).open(log).expect("skip log");
        log.write_all(format!("{line}\n").as_bytes()).expect("skip log");
    }
}

/// Succeeds with DuckDB 2 or later. Earlier versions truncate times to microseconds.
const LOOK: &str = "import duckdb; assert int(duckdb.__version__.split('.')[0]) >= 2";

/// A Python that has DuckDB: the one that tests/setup.sh installs, or the first in PATH.
fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pythons = [root.join(".cache/tools/duckdb/bin/python"), "python3".into()];
    pythons.into_iter().find(|python| {
        let found = Command::new(python).args(["-c", LOOK]).output();
        found.is_ok_and(|found| found.status.success())
    })
}

/// Pseudo-random numbers, the same in every run. Source: SplitMix64, Steele, Lea and Flood, OOPSLA 2014.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Records in which every field takes many of its possible values. No two records have the same start time.
fn records() -> Vec<FlowRecord> {
    let mut numbers = Numbers(1);
    let reasons =
        [EndReason::Idle, EndReason::Active, EndReason::Forced, EndReason::LackOfResources];
    let protocols =
        [protocol::TCP, protocol::UDP, protocol::ICMP, protocol::ICMPV6, protocol::IGMP, 255];
    let mut make = |n: u64| {
        let mut any = || numbers.next();
        let addresses = match any() % 3 {
            0 => Addresses::V6 {
                src: (u128::from(any()) << 64 | 1).into(),
                dst: u128::from(any()).into(),
            },
            _ => Addresses::V4 { src: (any() as u32).into(), dst: (10 << 24 | 7).into() },
        };
        let protocol = protocols[numbers.below(6) as usize];
        let is_icmp = matches!(protocol, protocol::ICMP | protocol::ICMPV6);
        let mut totals = |shift: u64| Totals {
            packets: numbers.next() >> shift,
            bytes: numbers.next() >> shift,
            tcp_flags: numbers.next() as u8,
        };
        // The counts of the first record need all of their bits.
        let (forward, reverse) = (totals(if n == 0 { 0 } else { 30 }), totals(50));
        FlowRecord {
            key: FlowKey {
                addresses,
                src_port: numbers.next() as u16,
                dst_port: numbers.next() as u16,
                protocol,
            },
            vlan: (numbers.below(3) == 0).then(|| numbers.below(4095) as u16),
            interface: numbers.below(4) as u32,
            first_ns: FIRST_NS + n * 1_000_001,
            last_ns: FIRST_NS + n * 1_000_001 + numbers.below(1 << 40),
            forward,
            reverse,
            icmp: is_icmp.then(|| (numbers.next() as u8, numbers.next() as u8)),
            reason: reasons[numbers.below(4) as usize],
        }
    };
    (0..RECORDS).map(&mut make).collect()
}

/// Origins of three interfaces. The records name four, so the last one has no origin.
fn origins() -> Vec<Origin> {
    let owner = |kind: &str, name: &str, id: Option<&str>| Owner {
        kind: kind.into(),
        name: name.into(),
        id: id.map(str::to_owned),
    };
    let owners = [None, Some(owner("vm", "db", None)), Some(owner("pod", "n/wéb", Some("0f3a")))];
    let interfaces = ["eth0", "vnet3", "veth'7"].map(str::to_owned);
    let origins = interfaces.into_iter().zip(owners);
    origins.map(|(interface, owner)| Origin { interface, owner }).collect()
}

/// The row that DuckDB should read for a record: the record's line of JSON, but with times and flags as numbers, and
/// with reverse counts and the owner as columns.
fn row(record: &FlowRecord, origin: Option<&Origin>, is_biflow: bool) -> Map<String, Value> {
    let line = serde_json::from_str(&json::line(record, origin, is_biflow)).unwrap();
    let Value::Object(mut row) = line else { panic!("{line}") };
    assert_eq!(row.remove("event"), Some("flow".into()));
    row["start"] = record.first_ns.into();
    row["end"] = record.last_ns.into();
    let is_tcp = row.remove("tcp_flags").is_some();
    let flags = |totals: &Totals| if is_tcp { totals.tcp_flags.into() } else { Value::Null };
    row.insert("tcp_flags".into(), flags(&record.forward));
    let (owner, reverse) = (row.remove("owner"), row.remove("reverse"));
    for (group, values, names) in [
        ("owner", owner, ["kind", "name", "id"]),
        ("reverse", reverse, ["packets", "bytes", "tcp_flags"]),
    ] {
        let values = values.unwrap_or_default();
        for name in names {
            let value = values.get(name).cloned().unwrap_or_default();
            row.insert(format!("{group}_{name}"), value);
        }
    }
    if is_biflow {
        row["reverse_tcp_flags"] = flags(&record.reverse);
    }
    for name in ["vlan", "src_port", "dst_port", "icmp_type", "icmp_code"] {
        row.entry(name).or_insert(Value::Null);
    }
    row
}

/// Writes the records, reads them with DuckDB, and compares every row with its record.
fn round_trip(python: &Path, is_biflow: bool) {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("flows");
    let config = Config { is_biflow, file_records: 2_500, ..Config::default() };
    let mut parquet = Parquet::open(&directory, config).unwrap();
    let (records, origins) = (records(), Arc::new(origins()));
    for records in records.chunks(1024) {
        let batch = Batch { records: records.to_vec(), origins: Arc::clone(&origins) };
        parquet.take(&batch).unwrap();
    }
    // DuckDB does not read the file that is not complete yet, since its name does not end in `.parquet`.
    let whole = read(python, &directory);
    assert_eq!(whole["sums"][0], 7_500);
    parquet.finish().unwrap();
    assert_eq!(parquet.counts(), Counts { sent: RECORDS, unsent: 0 });
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 4);

    let read = read(python, &directory);
    let sum = |count: fn(&FlowRecord) -> u64| {
        records.iter().map(|record| u128::from(count(record))).sum::<u128>()
    };
    let reverse = if is_biflow { sum(|record| record.reverse.bytes) } else { 0 };
    let (packets, bytes) =
        (sum(|record| record.forward.packets), sum(|record| record.forward.bytes));
    let most = records[0].forward.bytes;
    assert!(most > 1 << 62, "{most}");
    assert_eq!(read["sums"], json!([RECORDS, packets, bytes, reverse, most]));
    let types = read["types"].as_object().unwrap();
    // The names of the columns with this type, sorted because the map is.
    let typed = |wanted: &str| -> Vec<&str> {
        types.iter().filter(|(_, found)| *found == wanted).map(|(name, _)| name.as_str()).collect()
    };
    let text = ["community_id", "dst_ip", "end_reason", "interface", "owner_id", "owner_kind"];
    assert_eq!(typed("VARCHAR"), [&text[..], &["owner_name", "src_ip"]].concat());
    assert_eq!(typed("TIMESTAMPTZ_NS"), ["end", "start"]);
    assert_eq!(typed("UBIGINT"), ["bytes", "packets", "reverse_bytes", "reverse_packets"]);
    assert_eq!(typed("USMALLINT"), ["dst_port", "src_port", "vlan"]);
    let bytes = ["icmp_code", "icmp_type", "proto", "reverse_tcp_flags", "tcp_flags"];
    assert_eq!(typed("UTINYINT"), bytes);

    let rows = read["rows"].as_array().unwrap();
    assert_eq!(rows.len(), records.len());
    for (found, record) in rows.iter().zip(&records) {
        let wanted = row(record, origins.get(record.interface as usize), is_biflow);
        assert_eq!(found.as_object().unwrap(), &wanted);
    }
}

fn read(python: &Path, directory: &Path) -> Value {
    let output = Command::new(python).args(["-c", SCRIPT]).arg(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn duckdb_reads_every_row() {
    let Some(python) = python() else {
        return skip(
            "duckdb_reads_every_row",
            "no Python here has duckdb 2 or later (tests/setup.sh test)",
        );
    };
    round_trip(&python, true);
    round_trip(&python, false);
}
