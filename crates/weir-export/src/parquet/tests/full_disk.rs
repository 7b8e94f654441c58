//! Export to disks that are full.

use super::*;

use crate::patience::EndAtOnce;
use crate::testing;

/// The numbers of all records in the directory's Parquet files, sorted.
fn all_numbers(directory: &Path) -> Vec<i64> {
    let files = names(directory).into_iter().filter(|name| name.ends_with(".parquet"));
    let mut read: Vec<_> = files.flat_map(|name| numbers(&directory.join(name))).collect();
    read.sort_unstable();
    read
}

#[test]
fn root_a_disk_that_stays_full_costs_what_was_not_renamed_and_no_more() {
    let test = "parquet::tests::full_disk::root_a_disk_that_stays_full_costs_what_was_not_renamed_and_no_more";
    let Some(scratch) = testing::disk(test, 1) else { return };
    let clock = TestClock::default();
    let config = Config { file_records: 1000, full_time: Duration::ZERO, ..Config::default() };
    let mut parquet = open(scratch.path(), config, &clock);
    let (mut given, mut failure) = (0, None);
    while failure.is_none() && given < 1_000_000 {
        failure = parquet.take(&batch(given..given + 1024)).err();
        given += 1024;
    }
    let failure = failure.expect("a megabyte is too little");
    assert_eq!(failure.source.kind(), io::ErrorKind::StorageFull, "{failure}");
    assert!(failure.what.contains("; free space there, or name"), "{failure}");
    let Counts { sent, unsent } = parquet.counts();
    assert_eq!(sent + unsent, given);
    assert!(sent >= 5000 && sent % 1000 == 0, "{sent}");
    assert!(names(scratch.path()).iter().all(|name| name.ends_with(".parquet")));
    let read = all_numbers(scratch.path());
    assert!(read.into_iter().eq(0..sent as i64), "what was sent can be read, and only that");
}

#[test]
fn root_a_disk_that_is_full_for_a_moment_costs_nothing() {
    let test = "parquet::tests::full_disk::root_a_disk_that_is_full_for_a_moment_costs_nothing";
    let Some(scratch) = testing::disk(test, 8) else { return };
    let (clock, other) = (TestClock::default(), scratch.path().join("other"));
    // This file leaves less space than a group of records takes.
    fs::write(&other, vec![7; 7 << 20]).unwrap();
    let mut parquet = open(scratch.path(), Config::default(), &clock);
    let on_full = move || fs::remove_file(&other).expect("it is told once");
    let patience = Arc::new(Patience::new(EndAtOnce::default(), on_full));
    parquet.set_patience(Arc::clone(&patience));
    let records = GROUP_RECORDS as u64 + 5_000;
    parquet.take(&batch(0..records)).unwrap();
    assert_eq!(patience.full(), 1);
    parquet.finish().unwrap();
    assert_eq!(parquet.counts(), Counts { sent: records, unsent: 0 });
    assert_eq!(names(scratch.path()), ["flows-20261126T042000Z.parquet"]);
    assert!(all_numbers(scratch.path()).into_iter().eq(0..records as i64));
}
