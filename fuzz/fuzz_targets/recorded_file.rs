//! A recorded file and its index, of any bytes: extracted frames are in order, and faults lead to notes, not to errors.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use weir_consumer::{ConsumerError, Count, Sink};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;
use weir_store::Names;
use weir_store::catalog::Catalog;
use weir_store::extract::{Options, Query, extract};

/// Checks that frames come in order, and that each interface was described before.
#[derive(Default)]
struct Check {
    interfaces: u32,
    frames: u64,
}

impl Sink for Check {
    fn describe(&mut self, number: u32, _: &Interface, _: &str) -> Result<(), ConsumerError> {
        assert_eq!(number, self.interfaces);
        self.interfaces += 1;
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        assert!(record.meta.interface_id < self.interfaces);
        self.frames += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn kept(&self) -> Count {
        Count::default()
    }
}

fuzz_target!(|input: (&[u8], &[u8], bool)| {
    let (file, index, is_open) = input;
    let directory = tempfile::tempdir().expect("a directory");
    let name = "20261126T092719.123456789Z_eth0_0.pcapng";
    let path =
        directory.path().join(if is_open { format!("{name}.open") } else { name.to_owned() });
    fs::write(path, file).expect("a file");
    if !index.is_empty() {
        fs::write(directory.path().join(format!("{name}.index")), index).expect("a file");
    }
    let catalog = Catalog::list(&[directory.path()]).expect("a directory");
    let mut check = Check::default();
    let options = Options { threads: 1, frames_max: u64::MAX, names: Names::default() };
    let (stats, result) = extract(&catalog, &Query::default(), &options, &mut check, &|| false);
    assert!(result.is_ok());
    assert_eq!(stats.frames, check.frames);
});
