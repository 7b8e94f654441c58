use super::*;

mod full_disk;

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Field;
use proptest::prelude::*;
use weir_flow::{EndReason, Totals, community_id};
use weir_frame::flow::{FlowKey, has_ports};
use weir_frame::headers::{Addresses, protocol};

use crate::export::Owner;
use crate::json::addresses_text;

/// 2026-11-26 04:20:00 UTC.
const BEGUN_S: u64 = 1_795_666_800;

/// A clock that advances only by [`pass`](TestClock::pass). [`set`](TestClock::set) changes its wall-clock time alone.
#[derive(Clone, Default)]
struct TestClock(Arc<[AtomicI64; 2]>);

impl TestClock {
    fn clock(&self) -> Clock {
        let (started, clock) = (Instant::now(), self.clone());
        Box::new(move || {
            let [steady, set] = [0, 1].map(|at: usize| clock.0[at].load(Ordering::Relaxed));
            let wall = BEGUN_S.checked_add_signed(steady + set).unwrap();
            Now {
                wall: SystemTime::UNIX_EPOCH + Duration::from_secs(wall),
                steady: started + Duration::from_secs(steady.try_into().unwrap()),
            }
        })
    }

    fn pass(&self, seconds: i64) {
        self.0[0].fetch_add(seconds, Ordering::Relaxed);
    }

    fn set(&self, seconds: i64) {
        self.0[1].fetch_add(seconds, Ordering::Relaxed);
    }
}

/// The record with number `n`. All records differ.
fn record(n: u64) -> FlowRecord {
    let addresses = Addresses::V4 { src: (n as u32).into(), dst: [10, 0, 0, 2].into() };
    FlowRecord {
        key: FlowKey { addresses, src_port: n as u16, dst_port: 80, protocol: protocol::TCP },
        vlan: None,
        interface: 0,
        first_ns: n,
        last_ns: n + 7,
        forward: Totals { packets: n, bytes: 40 * n, tcp_flags: 2 },
        reverse: Totals::default(),
        icmp: None,
        reason: EndReason::Idle,
    }
}

fn batch(numbers: std::ops::Range<u64>) -> Batch {
    Batch { records: numbers.map(record).collect(), origins: Arc::default() }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

type Fields = Vec<(String, Field)>;

/// The rows of one file.
fn rows(path: &Path) -> Vec<Fields> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
    rows.map(|row| row.into_columns()).collect()
}

/// The numbers of the records in one file.
fn numbers(path: &Path) -> Vec<i64> {
    let number = |fields: &Fields| match fields[0] {
        (_, Field::Long(start)) => start,
        ref other => panic!("{other:?}"),
    };
    rows(path).iter().map(number).collect()
}

fn open(directory: &Path, config: Config, clock: &TestClock) -> Parquet {
    Parquet::with_clock(directory, config, clock.clock()).unwrap()
}

#[test]
fn a_file_is_closed_when_its_time_has_come() {
    let (scratch, clock) = (tempfile::tempdir().unwrap(), TestClock::default());
    let directory = scratch.path().join("flows");
    let mut parquet = open(&directory, Config::default(), &clock);
    // Without records, no file is created.
    clock.pass(100);
    parquet.tick().unwrap();
    assert_eq!(names(&directory), [""; 0]);
    clock.pass(-100);
    parquet.take(&batch(0..3)).unwrap();
    clock.pass(59);
    // A change of the wall clock does not close the file.
    clock.set(7_200);
    parquet.take(&batch(3..4)).unwrap();
    parquet.tick().unwrap();
    assert_eq!(names(&directory), [".flows-20261126T042000Z.parquet.part"]);
    assert_eq!(parquet.counts(), Counts::default());
    clock.pass(1);
    parquet.tick().unwrap();
    assert_eq!(names(&directory), ["flows-20261126T042000Z.parquet"]);
    assert_eq!(parquet.counts(), Counts { sent: 4, unsent: 0 });
    // A batch that comes when the file is due closes it, and goes to the next file.
    parquet.take(&batch(4..5)).unwrap();
    clock.pass(60);
    parquet.take(&batch(5..7)).unwrap();
    assert_eq!(parquet.counts(), Counts { sent: 5, unsent: 0 });
    parquet.finish().unwrap();
    parquet.finish().unwrap();
    assert_eq!(parquet.counts(), Counts { sent: 7, unsent: 0 });
    let files = ["20261126T042000Z", "20261126T062100Z", "20261126T062200Z"]
        .map(|time| format!("flows-{time}.parquet"));
    assert_eq!(names(&directory), files);
    let read = files.map(|file| numbers(&directory.join(file)));
    assert_eq!(read, [vec![0, 1, 2, 3], vec![4], vec![5, 6]]);
}

#[test]
fn files_and_groups_end_where_they_are_full() {
    let (scratch, clock) = (tempfile::tempdir().unwrap(), TestClock::default());
    let group = GROUP_RECORDS as u64;
    let config = Config { file_records: 2 * group + 10, ..Config::default() };
    let mut parquet = open(scratch.path(), config, &clock);
    // The second batch ends where a group ends; the last batch is larger than a file.
    let ends = [0, 5, group, group + 1, 6 * group + 77];
    for ends in ends.windows(2) {
        parquet.take(&batch(ends[0]..ends[1])).unwrap();
    }
    assert_eq!(parquet.counts(), Counts { sent: 6 * group + 30, unsent: 0 });
    parquet.finish().unwrap();
    assert_eq!(parquet.counts(), Counts { sent: 6 * group + 77, unsent: 0 });
    let files =
        ["", "-2", "-3", "-4"].map(|suffix| format!("flows-20261126T042000Z{suffix}.parquet"));
    let mut found = names(scratch.path());
    found.sort_by_key(|name| name.len());
    assert_eq!(found, files);
    let full = vec![group, group, 10];
    let groups = [full.clone(), full.clone(), full, vec![47]];
    let mut all = Vec::new();
    for (file, groups) in files.iter().zip(groups) {
        let path = scratch.path().join(file);
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let sizes = reader.metadata().row_groups().iter().map(|group| group.num_rows() as u64);
        assert_eq!(sizes.collect::<Vec<_>>(), groups, "{file}");
        all.extend(numbers(&path));
    }
    assert!(all.iter().copied().eq(0..all.len() as i64), "each record once, in order");
    assert_eq!(all.len() as u64, 6 * group + 77);
}

#[test]
fn no_file_is_overwritten() {
    let (scratch, clock) = (tempfile::tempdir().unwrap(), TestClock::default());
    let path = |name: &str| scratch.path().join(name);
    fs::write(path("flows-20261126T042000Z.parquet"), "mine").unwrap();
    // A file left by a crash.
    fs::write(path(".flows-20261126T042000Z-2.parquet.part"), "left").unwrap();
    let mut one = open(scratch.path(), Config::default(), &clock);
    let mut other = open(scratch.path(), Config::default(), &clock);
    one.take(&batch(0..1)).unwrap();
    other.take(&batch(1..2)).unwrap();
    // Names that were free when the two files were begun.
    fs::write(path("flows-20261126T042000Z-3.parquet"), "late").unwrap();
    fs::write(path("flows-20261126T042000Z-4.parquet"), "late").unwrap();
    one.finish().unwrap();
    other.finish().unwrap();
    let kept = ["flows-20261126T042000Z.parquet", ".flows-20261126T042000Z-2.parquet.part"];
    let late = ["flows-20261126T042000Z-3.parquet", "flows-20261126T042000Z-4.parquet"];
    let texts = kept.iter().chain(&late).map(|name| fs::read_to_string(path(name)).unwrap());
    assert_eq!(texts.collect::<Vec<_>>(), ["mine", "left", "late", "late"]);
    assert_eq!(numbers(&path("flows-20261126T042000Z-5.parquet")), [0]);
    assert_eq!(numbers(&path("flows-20261126T042000Z-6.parquet")), [1]);
    assert_eq!(names(scratch.path()).len(), 6);
}

#[test]
fn what_is_not_whole_has_no_name_that_readers_look_for() {
    let (scratch, clock) = (tempfile::tempdir().unwrap(), TestClock::default());
    let mut parquet = open(scratch.path(), Config::default(), &clock);
    assert_eq!(names(scratch.path()), [""; 0]);
    parquet.take(&batch(0..2 * GROUP_RECORDS as u64)).unwrap();
    let part = scratch.path().join(".flows-20261126T042000Z.parquet.part");
    assert!(fs::metadata(&part).unwrap().len() > 100_000, "groups go out while a file grows");
    assert_eq!(names(scratch.path()), [".flows-20261126T042000Z.parquet.part"]);
    // Dropped without `finish`, as when a thread panics.
    drop(parquet);
    assert_eq!(names(scratch.path()), [""; 0]);
}

#[test]
fn files_are_their_owners_unless_said_otherwise() {
    use std::os::unix::fs::PermissionsExt;
    let (scratch, clock) = (tempfile::tempdir().unwrap(), TestClock::default());
    let modes = [Config::default().mode, 0o640];
    for mode in modes {
        let mut parquet = open(scratch.path(), Config { mode, ..Config::default() }, &clock);
        parquet.take(&batch(0..1)).unwrap();
        parquet.finish().unwrap();
    }
    let mode_of = |name: &String| {
        fs::metadata(scratch.path().join(name)).unwrap().permissions().mode() & 0o777
    };
    let mut found: Vec<_> = names(scratch.path()).iter().map(mode_of).collect();
    found.sort_unstable();
    assert_eq!(found, [0o600, 0o640]);
}

#[test]
fn a_directory_that_has_gone_costs_what_was_not_renamed_and_no_more() {
    let (scratch, clock) = (tempfile::tempdir().unwrap(), TestClock::default());
    let directory = scratch.path().join("flows");
    let config = Config { file_records: 100, ..Config::default() };
    let mut parquet = open(&directory, config, &clock);
    parquet.take(&batch(0..130)).unwrap();
    assert_eq!(parquet.counts(), Counts { sent: 100, unsent: 0 });
    fs::rename(&directory, scratch.path().join("moved")).unwrap();
    // The first 70 records fill the open file, which can no longer be renamed.
    let failed = parquet.take(&batch(130..1000)).unwrap_err();
    assert_eq!(failed.source.kind(), io::ErrorKind::NotFound);
    let text = failed.to_string();
    assert!(text.starts_with(&directory.display().to_string()), "{text}");
    assert!(text.ends_with("make that directory (again), or name another"), "{text}");
    assert_eq!(parquet.counts(), Counts { sent: 100, unsent: 900 });
    // The next record needs a new file, for which there is no directory, either.
    parquet.take(&batch(1000..1001)).unwrap_err();
    assert_eq!(parquet.counts(), Counts { sent: 100, unsent: 901 });
    parquet.finish().unwrap();
    let moved = scratch.path().join("moved").join("flows-20261126T042000Z.parquet");
    assert_eq!(numbers(&moved).len(), 100);
    fs::create_dir(&directory).unwrap();
    parquet.take(&batch(1001..1003)).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    clock.pass(60);
    parquet.tick().unwrap_err();
    assert_eq!(parquet.counts(), Counts { sent: 100, unsent: 903 });
}

#[test]
fn a_directory_that_cannot_be_written_to_is_told_of_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let failed = |path: &Path| {
        let Err(failed) = Parquet::open(path, Config::default()) else { panic!("{path:?}") };
        (failed.source.kind(), failed.to_string())
    };
    let (kind, text) = failed(&scratch.path().join("no").join("flows"));
    assert_eq!(kind, io::ErrorKind::NotFound, "{text}");
    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    let (kind, text) = failed(&file);
    assert!(kind == io::ErrorKind::NotADirectory && text.ends_with("name a directory"), "{text}");
}

#[test]
fn a_writer_that_is_killed_leaves_whole_files() {
    const DIRECTORY: &str = "WEIR_TEST_WRITES_UNTIL_IT_IS_KILLED";
    let config = Config { file_records: 500, ..Config::default() };
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let mut parquet = Parquet::open(Path::new(&directory), config).unwrap();
        for n in 0..10_000 {
            parquet.take(&batch(n * 70..(n + 1) * 70)).unwrap();
        }
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parquet::tests::a_writer_that_is_killed_leaves_whole_files"])
        .env(DIRECTORY, scratch.path())
        .spawn()
        .unwrap();
    while names(scratch.path()).iter().filter(|name| name.ends_with(".parquet")).count() < 20 {
        assert!(child.try_wait().unwrap().is_none(), "it wrote less than it should have");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (whole, parts): (Vec<_>, Vec<_>) =
        names(scratch.path()).into_iter().partition(|name| name.ends_with(".parquet"));
    assert!(parts.len() <= 1, "{parts:?}");
    let mut read: Vec<_> =
        whole.iter().flat_map(|name| numbers(&scratch.path().join(name))).collect();
    read.sort_unstable();
    assert!(read.into_iter().eq(0..500 * whole.len() as i64), "{whole:?}");
}

fn any_record() -> impl Strategy<Value = FlowRecord> {
    let addresses = prop_oneof![
        any::<[[u8; 4]; 2]>()
            .prop_map(|[src, dst]| Addresses::V4 { src: src.into(), dst: dst.into() }),
        any::<[[u8; 16]; 2]>()
            .prop_map(|[src, dst]| Addresses::V6 { src: src.into(), dst: dst.into() }),
    ];
    let proto = prop_oneof![Just(protocol::TCP), Just(protocol::ICMP), any::<u8>()];
    let key = (addresses, any::<[u16; 2]>(), proto).prop_map(|(addresses, ports, protocol)| {
        FlowKey { addresses, src_port: ports[0], dst_port: ports[1], protocol }
    });
    let totals = (any::<u64>(), any::<u64>(), any::<u8>())
        .prop_map(|(packets, bytes, tcp_flags)| Totals { packets, bytes, tcp_flags });
    let reason = prop_oneof![
        Just(EndReason::Idle),
        Just(EndReason::Active),
        Just(EndReason::Forced),
        Just(EndReason::LackOfResources)
    ];
    (
        key,
        any::<Option<u16>>(),
        0..4_u32,
        any::<[u64; 2]>(),
        [totals.clone(), totals],
        any::<Option<(u8, u8)>>(),
        reason,
    )
        .prop_map(
            |(key, vlan, interface, [first_ns, last_ns], [forward, reverse], icmp, reason)| {
                FlowRecord {
                    key,
                    vlan,
                    interface,
                    first_ns,
                    last_ns,
                    forward,
                    reverse,
                    icmp,
                    reason,
                }
            },
        )
}

/// The fields that a reader should see for a record.
fn fields(record: &FlowRecord, origin: Option<&Origin>, is_biflow: bool) -> Fields {
    let key = &record.key;
    let text = |text: Option<&str>| text.map_or(Field::Null, |text| Field::Str(text.to_owned()));
    let time = |ns: u64| Field::Long(ns.try_into().unwrap_or(i64::MAX));
    let byte = |byte: Option<u8>| byte.map_or(Field::Null, Field::UByte);
    let short = |short: Option<u16>| short.map_or(Field::Null, Field::UShort);
    let port = |port: u16| {
        short((has_ports(key.protocol) && (key.src_port, key.dst_port) != (0, 0)).then_some(port))
    };
    let is_tcp = key.protocol == protocol::TCP;
    let reverse = |field: Field| if is_biflow { field } else { Field::Null };
    let [src, dst] = addresses_text(&key.addresses);
    let owner = origin.and_then(|origin| origin.owner.as_ref());
    let (forward, back) = (&record.forward, &record.reverse);
    let fields = [
        ("start", time(record.first_ns)),
        ("end", time(record.last_ns)),
        ("interface", text(origin.map(|origin| origin.interface.as_str()))),
        ("vlan", short(record.vlan)),
        ("src_ip", text(Some(&src))),
        ("dst_ip", text(Some(&dst))),
        ("src_port", port(key.src_port)),
        ("dst_port", port(key.dst_port)),
        ("proto", Field::UByte(key.protocol)),
        ("icmp_type", byte(record.icmp.map(|icmp| icmp.0))),
        ("icmp_code", byte(record.icmp.map(|icmp| icmp.1))),
        ("packets", Field::ULong(forward.packets)),
        ("bytes", Field::ULong(forward.bytes)),
        ("tcp_flags", byte(is_tcp.then_some(forward.tcp_flags))),
        ("reverse_packets", reverse(Field::ULong(back.packets))),
        ("reverse_bytes", reverse(Field::ULong(back.bytes))),
        ("reverse_tcp_flags", reverse(byte(is_tcp.then_some(back.tcp_flags)))),
        ("end_reason", text(Some(record.reason.name()))),
        ("community_id", text(Some(&community_id(key, record.icmp)))),
        ("owner_kind", text(owner.map(|owner| owner.kind.as_str()))),
        ("owner_name", text(owner.map(|owner| owner.name.as_str()))),
        ("owner_id", text(owner.and_then(|owner| owner.id.as_deref()))),
    ];
    fields.map(|(name, field)| (name.to_owned(), field)).into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_record_is_read_back_as_it_was(
        records in prop::collection::vec(any_record(), 1..200),
        is_biflow: bool,
        batch_records in 1..50_usize,
        file_records in 20..100_u64,
    ) {
        let (scratch, clock) = (tempfile::tempdir().unwrap(), TestClock::default());
        let owner = |id: Option<&str>| Owner {
            kind: "pod".into(), name: "default/wéb 'ü\"\n".into(), id: id.map(str::to_owned),
        };
        let owners = [None, Some(owner(None)), Some(owner(Some("0f")))];
        let origins: Vec<_> = owners
            .into_iter()
            .enumerate()
            .map(|(n, owner)| Origin { interface: format!("eth{n}"), owner })
            .collect();
        let config = Config { is_biflow, file_records, ..Config::default() };
        let mut parquet = open(scratch.path(), config, &clock);
        let origins = Arc::new(origins);
        for records in records.chunks(batch_records) {
            let batch = Batch { records: records.to_vec(), origins: Arc::clone(&origins) };
            parquet.take(&batch).unwrap();
            clock.pass(1);
        }
        parquet.finish().unwrap();
        prop_assert_eq!(parquet.counts(), Counts { sent: records.len() as u64, unsent: 0 });
        let wanted: Vec<_> = records
            .iter()
            .map(|record| fields(record, origins.get(record.interface as usize), is_biflow))
            .collect();
        let mut files = names(scratch.path());
        // Files of the same second have the suffixes none, -2, -3 and so on.
        files.sort_by_key(|name| {
            let (time, suffix) = name.trim_end_matches(".parquet").split_at(22);
            (time.to_owned(), suffix.trim_start_matches('-').parse::<u32>().unwrap_or(1))
        });
        let read: Vec<_> =
            files.iter().flat_map(|name| rows(&scratch.path().join(name))).collect();
        prop_assert_eq!(read, wanted);
    }
}
