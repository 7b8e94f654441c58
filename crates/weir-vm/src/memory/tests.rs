use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use proptest::prelude::*;
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_region::Place;
use weir_region::places::NoPlace;
use weir_ring::{Clock, Poll, Reader, Start, Writer, WriterKind};

use super::*;

fn memory(mib: u64) -> GuestMemory {
    GuestMemory::create(mib, Pages::Now).unwrap()
}

fn spec(data_blocks: u64) -> RingSpec {
    let interface = Interface { link_type: 1, snaplen: 65535, ..Interface::default() };
    RingSpec {
        data_blocks,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    }
}

fn meta(ts_ns: u64) -> Meta {
    Meta { interface_id: 0, ts_ns, wire_len: 60, flags: None, queue: None }
}

/// Opens the memory again by the descriptor's number, as QEMU does.
fn open(fd: BorrowedFd<'_>, is_for_writing: bool) -> File {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::OpenOptions::new().read(true).write(is_for_writing).open(path).unwrap()
}

fn head(fd: BorrowedFd<'_>) -> Header {
    let mut line = [0; 64];
    open(fd, false).read_exact_at(&mut line, 0).unwrap();
    Header::decode(&line).unwrap()
}

#[test]
fn both_have_headers_modes_and_all_pages() {
    let memory = memory(8);
    let token = memory.token();
    let region = Header { kind: Kind::Region, token, bytes: 8 << 20 };
    assert_eq!(head(memory.region_fd()), region);
    assert_eq!(head(memory.words_fd()), Header { kind: Kind::Words, token, bytes: 4096 });
    for (fd, mode, bytes) in
        [(memory.region_fd(), 0o444, 8 << 20), (memory.words_fd(), 0o666, 4096)]
    {
        let stat = open(fd, false).metadata().unwrap();
        assert_eq!((stat.mode() & 0o7777, stat.size()), (mode, bytes));
        assert!(stat.blocks() * 512 >= bytes, "{} of {bytes} bytes are there", stat.blocks() * 512);
    }
    assert!((0..SLOTS_MAX).all(|slot| memory.threshold(slot) == AWAKE));
    assert_ne!(token, GuestMemory::create(8, Pages::Now).unwrap().token());
}

/// This includes root, for whom file modes are no obstacle. The test may run as root.
#[test]
fn nobody_cuts_either_short_and_nobody_writes_the_region() {
    let memory = memory(8);
    for fd in [memory.region_fd(), memory.words_fd()] {
        for bytes in [0, 1 << 30] {
            assert!(rustix::fs::ftruncate(fd, bytes).is_err());
        }
    }
    let region = memory.region_fd();
    assert_eq!(rustix::io::pwrite(region, &[1], 4096), Err(Errno::PERM));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(region, hole, 0, 4096), Err(Errno::PERM));
    let own = region.try_clone_to_owned().unwrap();
    // SAFETY: the mapping is refused; if it were not, it would be of memory that keeps its size.
    let mapped = unsafe { Mapping::map(own, 4096, weir_ring::memory::Access::Write) };
    assert!(mapped.is_err());
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for mib in [0, 4, 9, 12, 1 << 17, u64::MAX] {
        let refused = GuestMemory::create(mib, Pages::Now);
        assert!(matches!(refused, Err(VmError::RegionSize { .. })), "{mib}: {refused:?}");
    }
}

#[test]
fn a_ring_is_read_where_its_place_says() {
    let memory = memory(16);
    let first = memory.take_ring(&spec(4)).unwrap();
    let second = memory.take_ring(&spec(4)).unwrap();
    assert_eq!(first.place(), Place { offset: 1 << 20, bytes: 5 << 20, slot: 0 });
    assert_eq!(second.place(), Place { offset: 6 << 20, bytes: 5 << 20, slot: 1 });
    let mut writer = Writer::new(second.ring().clone());
    writer.push(&meta(7), b"frame");
    writer.publish();
    // As a guest: another mapping, read-only.
    let file = open(memory.region_fd(), false);
    let Place { offset, bytes, .. } = second.place();
    // SAFETY: the file is this test's and keeps its length; reached as `Words` only.
    let mapping =
        unsafe { Mapping::map_part(file.into(), offset, bytes, weir_ring::memory::Access::Read) }
            .unwrap();
    let mut reader = Reader::new(&Ring::open(Arc::new(mapping)).unwrap(), Start::Oldest).unwrap();
    let mut batch = weir_ring::Batch::new();
    assert!(matches!(reader.poll(&mut batch).unwrap(), Poll::Frames(1)));
    assert_eq!(first.ring().frames_written(), 0);
}

#[test]
fn a_place_is_used_again_with_zeros_once_nobody_holds_it() {
    let memory = memory(8);
    let taken = memory.take_ring(&spec(4)).unwrap();
    let place = taken.place();
    let mut writer = Writer::new(taken.ring().clone());
    for ordinal in 0..10_000 {
        writer.push(&meta(ordinal), &[0xff; 600]);
    }
    assert_eq!(memory.rings(), 1);
    drop(taken);
    // The writer continues after the ring was dropped.
    writer.push(&meta(10_000), b"late");
    writer.publish();
    assert_eq!(memory.rings(), 1);
    let refused = memory.take_ring(&spec(4)).unwrap_err();
    let no_room = NoPlace::Room { need: 5 << 20, region: 8 << 20, longest: 2 << 20 };
    assert!(matches!(&refused, VmError::NoPlace(no_place) if *no_place == no_room), "{refused}");
    assert!(refused.to_string().contains("region_mib"), "{refused}");
    drop(writer);
    assert_eq!(memory.rings(), 0);
    let again = memory.take_ring(&spec(4)).unwrap();
    assert_eq!((again.place(), again.ring().frames_written()), (place, 0));
    let (data, memory_words) = (1 << 17, again.ring().memory().words());
    assert!(memory_words[data..].iter().all(|word| word.load(Ordering::Relaxed) == 0));
    drop(Writer::new(again.ring().clone()));
}

#[test]
fn an_impossible_ring_takes_no_place() {
    let memory = memory(8);
    assert!(matches!(memory.take_ring(&spec(5)), Err(VmError::Ring(_))));
    let mut long = spec(4);
    long.interfaces[0].filter = Some("x".repeat(1 << 17));
    assert!(matches!(memory.take_ring(&long), Err(VmError::Ring(_))));
    assert_eq!(memory.rings(), 0);
}

#[test]
fn a_ring_outlives_the_memory_it_was_taken_from() {
    let memory = memory(8);
    let taken = memory.take_ring(&spec(4)).unwrap();
    drop(memory);
    let mut writer = Writer::new(taken.ring().clone());
    writer.push(&meta(0), b"frame");
    writer.publish();
    assert_eq!(taken.ring().frames_written(), 1);
}

#[test]
fn the_guests_words_are_read() {
    let memory = memory(8);
    let qemu = open(memory.words_fd(), true);
    let write = |at, value: u64| qemu.write_all_at(&value.to_le_bytes(), at).unwrap();
    write(threshold_at(3), 17);
    write(position_at(3), 16);
    write(threshold_at(SLOTS_MAX - 1), 5);
    assert_eq!((memory.threshold(3), memory.position(3)), (17, Some(16)));
    assert_eq!((memory.threshold(2), memory.position(2)), (AWAKE, Some(0)));
    assert_eq!(memory.threshold(SLOTS_MAX - 1), 5);
}

#[test]
fn a_new_ring_finds_nobody_asleep() {
    let memory = memory(8);
    let qemu = open(memory.words_fd(), true);
    qemu.write_all_at(&[1; 16], threshold_at(0)).unwrap();
    let taken = memory.take_ring(&spec(4)).unwrap();
    let slot = taken.place().slot;
    assert_eq!((slot, memory.threshold(slot), memory.position(slot)), (0, AWAKE, Some(0)));
}

/// Needs no hugetlbfs: tests [`Book`] with pages of 2 MiB.
#[test]
fn on_huge_pages_places_are_whole_pages() {
    let page = 2 << 20;
    let book = Arc::new(Mutex::new(Book::new(32 << 20, page)));
    let take = |bytes: u64| Lease::take(&book, bytes.next_multiple_of(page)).unwrap();
    let leases = [take(5 << 20), take(9 << 20)];
    for lease in &leases {
        let Place { offset, bytes, .. } = lease.place();
        assert!(offset.is_multiple_of(page) && bytes.is_multiple_of(page), "{lease:?}");
    }
    assert_eq!(taken::lock(&book).rings(), 2);
    drop(leases);
    assert_eq!(taken::lock(&book).rings(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whichever rings are taken, held and dropped, in any order: each live ring has memory of its own.
    #[test]
    fn rings_that_live_never_share_memory(steps in prop::collection::vec(0u8..6, 1..40)) {
            let memory = memory(16);
        let (mut taken, mut writers) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                0..=2 => match memory.take_ring(&spec(4)) {
                    Ok(ring) => {
                        if step != 0 {
                            writers.push((ring.place(), Writer::new(ring.ring().clone())));
                        }
                        taken.push(ring);
                    }
                    Err(VmError::NoPlace(_)) => prop_assert_eq!(memory.rings(), 3),
                    Err(other) => return Err(TestCaseError::fail(other.to_string())),
                },
                3 | 4 => drop(taken.pop()),
                _ => drop(writers.pop()),
            }
            let mut offsets: Vec<u64> = taken.iter().map(|ring| ring.place().offset).collect();
            offsets.extend(writers.iter().map(|(place, _)| place.offset));
            offsets.sort_unstable();
            offsets.dedup();
            prop_assert_eq!(memory.rings(), offsets.len());
            // Each writer's frames are in its ring and in no other.
            for (at, (_, writer)) in writers.iter_mut().enumerate() {
                let before = writer.frames();
                writer.push(&meta(at as u64), b"frame");
                writer.publish();
                prop_assert_eq!(writer.ring().frames_written(), before + 1);
            }
        }
    }
}
