//! Any bytes are the index of a recorded file, whose pieces are in order and not empty, or an error.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use weir_store::index;

fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.pcapng.index");
    // The bytes alone, and after a correct header.
    fs::write(&path, bytes).expect("a file");
    let _ = index::read(&path);
    let file = directory.path().join("a.pcapng");
    drop(index::Writer::create(&path, &file, 0o600).expect("an index"));
    let mut whole = fs::read(&path).expect("a file");
    whole.extend_from_slice(bytes);
    fs::write(&path, whole).expect("a file");
    let index = index::read(&path).expect("its header is right");
    assert!(index.pieces.is_sorted_by_key(|piece| piece.at));
    assert!(index.pieces.iter().all(|piece| piece.bytes > 0));
});
