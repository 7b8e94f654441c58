//! Both implementations of a disk, `io_uring` and `pwrite`, on real file systems: the data that was written is read
//! back, for all sizes and orders.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use weir_disk::{ALIGN_BYTES, AnyDisk, Buffer, Bytes, Completed, Disk, Files, How, Ticket};
use weir_ring::memory::create_memfd;
use weir_ring::{Clock, Mapping, RingSpec, Words, WriterKind};

/// Reports that a test did not run: on standard error, and in the log that `WEIR_SKIP_LOG` names.
fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED {name}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        log.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// A directory on the file system of the build's target directory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn disks(directory: &Path) -> Vec<(&'static str, AnyDisk)> {
    let hows = [("io_uring", How::Uring), ("pwrite", How::Plain)];
    let open = |(name, how)| match weir_disk::open(directory, how) {
        Ok(disk) => Some((name, disk)),
        Err(error) => {
            skip(&format!("disks_by_{name}"), &error.to_string());
            None
        }
    };
    hows.into_iter().filter_map(open).collect()
}

/// Whether the directory is on tmpfs (in memory) or overlayfs (in a container).
fn is_in_memory(directory: &Path) -> bool {
    let kind = rustix::fs::statfs(directory).unwrap().f_type;
    [0x0102_1994, 0x794c_7630].contains(&kind)
}

fn buffer(pages: usize, byte: u8) -> Buffer {
    let mut buffer = Buffer::new(pages * ALIGN_BYTES);
    buffer.grow(pages * ALIGN_BYTES).fill(byte);
    buffer
}

fn all(disk: &mut AnyDisk) -> Vec<Completed> {
    let mut over = Vec::new();
    while disk.pending() > 0 {
        disk.completed(true, &mut over);
    }
    over
}

/// The memory of a ring. The words of its data contain the numbers 0, 1, 2 and so on.
fn ring() -> Arc<Mapping> {
    let spec = RingSpec {
        data_blocks: 4,
        interfaces: vec![weir_frame::pcapng::Interface::default()],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    let ring = create_memfd("disk-test", &spec).unwrap();
    let data = &ring.memory().words()[1 << 17..];
    data.iter().zip(0..).for_each(|(word, value)| word.store(value, Relaxed));
    Arc::clone(ring.memory())
}

fn ring_bytes(memory: &Mapping, at: usize, bytes: usize) -> Vec<u8> {
    let words = memory.words()[at / 8..(at + bytes) / 8].iter();
    words.flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect()
}

#[test]
fn ring_memory_is_written_without_a_copy_of_ones_own() {
    let (directory, memory) = (directory(), ring());
    for (name, mut disk) in disks(directory.path()) {
        let path = directory.path().join(name);
        let file = disk.create(&path, 0o600).unwrap();
        for block in 0..4 {
            let (at, bytes) = ((block + 1) << 20, 1 << 20);
            let bytes = Bytes::Ring { memory: Arc::clone(&memory), at, bytes };
            // Written in reverse order.
            disk.write(&file, (3 - block as u64) << 20, bytes, Ticket(block as u64));
        }
        let over = all(&mut disk);
        assert!(over.iter().all(|one| one.result.is_ok()), "{name}");
        // Other file systems on which projects are built support direct writes. The kernel allows them from
        // this memory, since it is not a device's.
        let goes_past_caches = file.is_direct() || is_in_memory(directory.path());
        assert!(goes_past_caches, "{name}: {:?}", disk.note());
        assert!(
            !disk.note().is_some_and(|note| note.contains("copied first")),
            "{:?}",
            disk.note()
        );
        let mut tickets: Vec<_> = over.iter().map(|one| one.ticket.0).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, [0, 1, 2, 3]);
        disk.files().sync(&file).unwrap();
        let expected: Vec<u8> =
            (1..=4).rev().flat_map(|block| ring_bytes(&memory, block << 20, 1 << 20)).collect();
        assert!(fs::read(&path).unwrap() == expected, "{name}");
    }
}

#[test]
fn where_direct_writes_are_refused_it_says_so_and_writes() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        return skip("where_direct_writes_are_refused_it_says_so_and_writes", "no /dev/shm");
    };
    for (name, mut disk) in disks(directory.path()) {
        let path = directory.path().join(name);
        let file = disk.create(&path, 0o600).unwrap();
        disk.write(&file, 0, Bytes::Own(buffer(3, 7)), Ticket(1));
        let over = all(&mut disk);
        assert!(over[0].result.is_ok(), "{name}: {:?}", over[0].result);
        assert_eq!(fs::read(&path).unwrap(), vec![7; 3 * ALIGN_BYTES]);
        // Newer kernels support direct writes on tmpfs.
        if !file.is_direct() {
            assert!(disk.note().unwrap().contains("page cache"), "{:?}", disk.note());
        }
    }
}

#[test]
fn what_is_preallocated_is_zeros_until_it_is_written_or_cut_off() {
    let directory = directory();
    for (name, mut disk) in disks(directory.path()) {
        let path = directory.path().join(name);
        let file = disk.create(&path, 0o600).unwrap();
        let (page, ahead) = (ALIGN_BYTES as u64, 1 << 20);
        disk.write(&file, 0, Bytes::Preallocate { bytes: ahead }, Ticket(1));
        let over = all(&mut disk);
        if let Err(error) = &over[0].result {
            assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{name}: {error}");
            let test = "what_is_preallocated_is_zeros_until_it_is_written_or_cut_off";
            skip(test, &format!("{name}: {error}"));
            continue;
        }
        disk.write(&file, page, Bytes::Own(buffer(1, 7)), Ticket(2));
        assert!(all(&mut disk)[0].result.is_ok(), "{name}");
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, ahead, "{name}");
        let not_zero = bytes.iter().filter(|byte| **byte != 0).count();
        assert_eq!((not_zero, bytes[ALIGN_BYTES]), (ALIGN_BYTES, 7), "{name}");
        disk.files().cut(&file, 2 * page).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 2 * page, "{name}");
        assert!(
            std::os::unix::fs::MetadataExt::blocks(&meta) * 512 < ahead,
            "{name}: it is given back"
        );
    }
}

#[test]
fn files_in_memory_are_not_preallocated() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        return skip("files_in_memory_are_not_preallocated", "no /dev/shm");
    };
    for (name, mut disk) in disks(directory.path()) {
        let path = directory.path().join(name);
        let file = disk.create(&path, 0o600).unwrap();
        disk.write(&file, 0, Bytes::Preallocate { bytes: 1 << 20 }, Ticket(1));
        let over = all(&mut disk);
        assert_eq!(over[0].result.as_ref().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "{name}");
    }
}

#[test]
fn a_failure_comes_back_with_its_memory() {
    let directory = directory();
    for (name, mut disk) in disks(directory.path()) {
        let file = disk.create(&directory.path().join(name), 0o600).unwrap();
        // Beyond the largest possible file size. Source: EFBIG in write(2).
        let far = i64::MAX as u64 / ALIGN_BYTES as u64 * ALIGN_BYTES as u64 - (1 << 20);
        disk.write(&file, far, Bytes::Own(buffer(2, 1)), Ticket(5));
        let [one] = &all(&mut disk)[..] else { panic!() };
        assert!(one.result.is_err() && one.ticket == Ticket(5), "{name}");
        let Bytes::Own(memory) = &one.bytes else { panic!() };
        assert_eq!(memory.as_slice(), vec![1; 2 * ALIGN_BYTES]);
    }
}

#[test]
fn a_disk_that_is_dropped_has_written_everything() {
    let directory = directory();
    for (name, mut disk) in disks(directory.path()) {
        let path = directory.path().join(name);
        let file = disk.create(&path, 0o600).unwrap();
        for at in 0..20 {
            disk.write(&file, at << 20, Bytes::Own(buffer(256, at as u8)), Ticket(at));
        }
        drop(disk);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 20 << 20);
        assert!(bytes.chunks(1 << 20).zip(0..).all(|(chunk, at)| chunk.iter().all(|b| *b == at)));
    }
}

#[test]
fn a_name_that_is_taken_is_left_alone() {
    let directory = directory();
    for (name, mut disk) in disks(directory.path()) {
        let (open, path) =
            (directory.path().join(format!("{name}.open")), directory.path().join(name));
        fs::write(&path, "another's").unwrap();
        drop(disk.create(&open, 0o600).unwrap());
        assert_eq!(
            disk.create(&open, 0o600).unwrap_err().kind(),
            std::io::ErrorKind::AlreadyExists
        );
        assert_eq!(
            disk.files().rename(&open, &path).unwrap_err().kind(),
            std::io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read(&path).unwrap(), b"another's");
        disk.files().remove(&path).unwrap();
        disk.files().rename(&open, &path).unwrap();
        assert!(path.exists() && !open.exists());
        let space = disk.files().space(directory.path()).unwrap();
        assert!(space.free > 0 && space.free <= space.total);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_writes_make_the_file_that_they_should(
        writes in prop::collection::vec((0..64_usize, 1..9_usize, any::<u8>()), 1..60),
        waits in prop::collection::vec(any::<bool>(), 60),
    ) {
        let directory = directory();
        for (name, mut disk) in disks(directory.path()) {
            let path = directory.path().join(name);
            let file = disk.create(&path, 0o600).unwrap();
            let mut model = Vec::new();
            let mut over = Vec::new();
            for ((at, pages, byte), wait) in writes.iter().zip(&waits) {
                // Concurrent writes must not overlap.
                while disk.pending() > 0 {
                    disk.completed(*wait, &mut over);
                }
                let (from, to) = (at * ALIGN_BYTES, (at + pages) * ALIGN_BYTES);
                model.resize(model.len().max(to), 0);
                model[from..to].fill(*byte);
                disk.write(&file, from as u64, Bytes::Own(buffer(*pages, *byte)), Ticket(0));
            }
            while disk.pending() > 0 {
                disk.completed(true, &mut over);
            }
            prop_assert!(over.iter().all(|one| one.result.is_ok()));
            prop_assert!(fs::read(&path).unwrap() == model, "{name}");
        }
    }
}
