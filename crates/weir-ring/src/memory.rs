//! Creates and maps the memory of a ring, and restricts who may write it.
//!
//! | memory | protected from other writers by |
//! |---|---|
//! | memfd, also of reserved huge pages | `F_SEAL_FUTURE_WRITE`: the writer's mapping stays, no new one can be made |
//! | file on tmpfs or hugetlbfs | file mode; readers get a descriptor opened read-only |
//! | mmapable BPF array | `BPF_MAP_FREEZE`: only BPF programs can still write (`weir-capture`) |
//!
//! If the owner takes memory away, a process that reads it is killed by SIGBUS. So memory from another process is
//! mapped only if its owner cannot do that, or if the caller trusts the owner ([`Trust`]):
//!
//! | the owner could | prevented by |
//! |---|---|
//! | shorten it | `F_SEAL_SHRINK`; a BPF array cannot change its size |
//! | punch a hole into it | `F_SEAL_WRITE` or `F_SEAL_FUTURE_WRITE`, also for huge pages |
//! | omit pages, which the reader would allocate and be charged for | every page must be there already |
//! | add pages, which the reader would be charged for | `F_SEAL_GROW` |
//!
//! A guest reads rings in a device that its host has plugged in; see [`attach_part`].

mod mapping;
mod placement;

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::RingError;
use crate::geometry::{BLOCK_BYTES, Geometry};
use crate::header::{self, RingSpec};
use crate::{Ring, Words};
use mapping::reserve;
pub use mapping::{Access, Mapping};
pub use placement::{HUGE_PAGE_BYTES, Pages, Placement, prefer_node};

/// Owners whose memory is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Any owner, but only memory that its owner cannot take away: a memfd with all seals and all its pages, or a
    /// frozen BPF array.
    Anybody,
    /// An owner that is trusted not to take the memory away. This also allows files in a file system.
    Owner,
}

/// Creates a ring in a new memfd, sealed so that the returned mapping stays the only writable one.
///
/// # Errors
/// [`RingError`] if a ring cannot have this spec, or if memory is missing.
pub fn create_memfd(name: &str, spec: &RingSpec) -> Result<Ring<Mapping>, RingError> {
    create_memfd_with(name, spec, Placement::default())
}

/// Does the same as [`create_memfd`], with pages of this kind on this NUMA node.
///
/// # Errors
/// The errors of [`create_memfd`], and [`RingError::NoHugePages`].
pub fn create_memfd_with(
    name: &str,
    spec: &RingSpec,
    placement: Placement,
) -> Result<Ring<Mapping>, RingError> {
    let bytes = Geometry::new(spec.data_blocks)?.total_bytes();
    let mapping = create_region(name, bytes, placement)?;
    let geometry = header::format(mapping.words(), spec)?;
    Ring::new(Arc::new(mapping), geometry)
}

/// Creates zeroed memory in a new memfd, for rings that are [parts](Mapping::part) of this memory. The memfd is sealed,
/// so the returned mapping stays the only writable one, and the size and the pages cannot change.
///
/// # Errors
/// [`RingError`] if memory is missing; [`RingError::NoHugePages`].
pub fn create_region(name: &str, bytes: u64, placement: Placement) -> Result<Mapping, RingError> {
    let mapping = map_new_memfd(name, placement.pages.file_bytes(bytes), placement)
        .map_err(|error| placement.pages.explain(bytes, error))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&mapping, seals).map_err(RingError::os("sealing a memfd"))?;
    Ok(mapping)
}

/// Maps a new memfd, and allocates all its pages.
fn map_new_memfd(
    name: &str,
    bytes: u64,
    Placement { pages, node }: Placement,
) -> Result<Mapping, RingError> {
    let huge = match pages {
        Pages::Reserved => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        Pages::Now | Pages::WhenTouched => MemfdFlags::empty(),
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
    let fd = rustix::fs::memfd_create(name, flags).map_err(RingError::os("creating a memfd"))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(|errno| {
        RingError::os(match errno {
            rustix::io::Errno::FBIG => {
                "sizing ring memory, for which the limit of file sizes (ulimit -f) also holds; raise it"
            }
            _ => "sizing ring memory",
        })(errno)
    })?;
    // SAFETY: the descriptor is new, and no other process has it until the caller seals it, which keeps its size. All
    // other code reaches ring memory as `Words`.
    let mapping = unsafe { Mapping::map(fd, bytes, Access::Write) }?;
    if let Some(node) = node {
        mapping.prefer_node(node);
    }
    if pages == Pages::Now {
        mapping.make_huge_pages()?;
    }
    if pages != Pages::WhenTouched {
        // All pages are allocated now, because a page that a reader allocates would be charged to the reader.
        reserve(mapping.as_fd(), 0, bytes)?;
        mapping.populate();
    }
    Ok(mapping)
}

/// Creates a ring in a new file, which should be on tmpfs or hugetlbfs. The file must not exist. Its mode lets the
/// owner write and the group read.
///
/// # Errors
/// [`RingError`] if a ring cannot have this spec, the file exists, or the file system has not enough free space.
pub fn create_file(path: &Path, spec: &RingSpec) -> Result<Ring<Mapping>, RingError> {
    let bytes = Geometry::new(spec.data_blocks)?.total_bytes();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(path)
        .map_err(|source| RingError::Os { doing: "creating a ring file", source })?;
    // A file on hugetlbfs has whole huge pages only. The block size of this file system is the size of a huge page.
    let page = rustix::fs::fstatfs(&file).map_err(RingError::os("asking a file system"))?.f_bsize;
    let bytes = bytes.next_multiple_of((page as u64).max(4096));
    let make = || {
        reserve(file.as_fd(), 0, bytes)?;
        let own = file.try_clone().map_err(io_error)?.into();
        // SAFETY: only the file's owner, whose process this is, may write the file and so truncate it: its mode lets
        // others at most read it. Ring memory is accessed only as `Words`.
        let mapping = unsafe { Mapping::map(own, bytes, Access::Write) }?;
        mapping.populate();
        let geometry = header::format(mapping.words(), spec)?;
        Ring::new(Arc::new(mapping), geometry)
    };
    make().inspect_err(|_| drop(std::fs::remove_file(path)))
}

fn io_error(source: std::io::Error) -> RingError {
    RingError::Os { doing: "duplicating a descriptor", source }
}

/// Opens a ring file read-only. Whoever may write the file is trusted: truncating the file would kill the processes
/// that read it.
///
/// # Errors
/// As [`attach`].
pub fn open_file(path: &Path) -> Result<Ring<Mapping>, RingError> {
    let file = OpenOptions::new()
        .read(true)
        .open(path)
        .map_err(|source| RingError::Os { doing: "opening a ring file", source })?;
    attach(file.into(), Trust::Owner)
}

/// Attaches read-only to a ring that another process owns.
///
/// # Errors
/// [`RingError::NotSealed`] and [`RingError::Sparse`] for memory that its owner could take away, or that the reader
/// would be charged for, unless the owner is trusted; [`RingError::TooSmall`] for a truncated file; else the errors of
/// [`header::read`].
pub fn attach(fd: OwnedFd, trust: Trust) -> Result<Ring<Mapping>, RingError> {
    // Seals are checked before the size is read: they are permanent, so the size cannot change afterwards.
    if trust == Trust::Anybody {
        check_owner(fd.as_fd())?;
    }
    let stat = rustix::fs::fstat(&fd).map_err(RingError::os("asking for the ring's size"))?;
    // BPF arrays are anonymous inodes without a size. For them mmap fails if the range is longer than the array.
    let size = is_regular(&stat).then_some(stat.st_size as u64);
    let check = |need: u64| match size {
        Some(have) if have < need => Err(RingError::TooSmall { have, need }),
        _ => Ok(()),
    };
    check(u64::from(BLOCK_BYTES))?;
    let head = fd.try_clone().map_err(io_error)?;
    let hugetlb = rustix::fs::fstatfs(&fd).is_ok_and(|fs| fs.f_type == HUGETLBFS_MAGIC);
    let round = |bytes: u64| match size {
        Some(size) if hugetlb => size,
        _ => bytes,
    };
    // SAFETY: the memory is long enough (checked above, or refused by mmap), and keeps its pages: a memfd because of
    // its seals, a BPF array always (`check_owner`), other memory because the caller trusts its owner. It is accessed
    // only as `Words`.
    let first = unsafe { Mapping::map(head, round(u64::from(BLOCK_BYTES)), Access::Read) }?;
    let geometry = header::read(first.words())?.geometry;
    drop(first);
    check(geometry.total_bytes())?;
    // SAFETY: as for `first`; the length has just been checked again.
    let mapping = unsafe { Mapping::map(fd, round(geometry.total_bytes()), Access::Read) }?;
    Ring::new(Arc::new(mapping), geometry)
}

/// Attaches read-only to a ring in a part of a device's memory, which has at most `bytes` from `offset` on.
///
/// The memory is that of a PCI device, as a file of sysfs (`resource2`). Only root can take this memory away, by
/// removing the device, so no owner has to be trusted. Before a process of Weir removes a device, it notifies the
/// readers.
///
/// # Errors
/// [`RingError::NotSealed`] for any other memory, unless the owner is trusted; else as [`attach`].
pub fn attach_part(
    fd: OwnedFd,
    offset: u64,
    bytes: u64,
    trust: Trust,
) -> Result<Ring<Mapping>, RingError> {
    let on = rustix::fs::fstatfs(&fd).map_err(RingError::os("asking for the ring's memory"))?;
    if trust == Trust::Anybody && on.f_type != SYSFS_MAGIC {
        return Err(RingError::NotSealed);
    }
    let stat = rustix::fs::fstat(&fd).map_err(RingError::os("asking for the ring's size"))?;
    let (have, need) = (stat.st_size as u64, offset.saturating_add(bytes));
    if have < need || bytes < u64::from(BLOCK_BYTES) {
        return Err(RingError::TooSmall { have, need });
    }
    // SAFETY: a device's memory has the size that sysfs reports, as long as the device exists; or the caller trusts the
    // owner of the file. The memory is accessed only as `Words`.
    let mapping = unsafe { Mapping::map_part(fd, offset, bytes, Access::Read) }?;
    Ring::open(Arc::new(mapping))
}

fn is_regular(stat: &rustix::fs::Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
}

/// Checks that the owner of this memory cannot do anything that kills its readers.
fn check_owner(fd: BorrowedFd<'_>) -> Result<(), RingError> {
    let stat = rustix::fs::fstat(fd).map_err(RingError::os("asking for the ring's memory"))?;
    if !is_regular(&stat) {
        return if is_frozen_array(fd) { Ok(()) } else { Err(RingError::NotSealed) };
    }
    // A file in a file system never has these seals. `st_nlink` also excludes linked files; an unlinked file looks like
    // a memfd.
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    let is_fixed = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
    if stat.st_nlink != 0
        || !is_fixed
        || !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
    {
        return Err(RingError::NotSealed);
    }
    // `fstat` is called again, because only now, after the seals were seen, can the number of pages not change any
    // more.
    let stat = rustix::fs::fstat(fd).map_err(RingError::os("asking for the ring's memory"))?;
    let (have, need) = (stat.st_blocks as u64 * 512, stat.st_size as u64);
    if have < need {
        return Err(RingError::Sparse { have, need });
    }
    Ok(())
}

/// Whether this is a BPF array that user space can no longer write. The pages of such an array are allocated when it is
/// created, and stay.
///
/// The kernel reports this in `/proc`, where no other process can forge it. Without `/proc`, no memory counts as a BPF
/// array.
fn is_frozen_array(fd: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let number = fd.as_raw_fd();
    let link = std::fs::read_link(format!("/proc/thread-self/fd/{number}"));
    if !link.is_ok_and(|link| link.as_os_str() == "anon_inode:bpf-map") {
        return false;
    }
    let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{number}"));
    let text = text.unwrap_or_default();
    let says = |key: &str, value: &str| {
        text.lines()
            .any(|line| line.split_once(':').is_some_and(|(k, v)| k == key && v.trim() == value))
    };
    // BPF_MAP_TYPE_ARRAY. Source: linux/bpf.h; kernel/bpf/syscall.c, bpf_map_show_fdinfo.
    says("map_type", "2") && says("frozen", "1")
}

/// Source: linux/magic.h.
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;
/// Source: linux/magic.h.
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x958458f6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{meta, spec};
    use crate::{Batch, Poll, Reader, Start, Writer};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags};
    use std::ffi::c_void;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering::Relaxed;

    /// Tries to map a descriptor writable.
    fn map_writable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose the place, so no other mapping is touched.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, fd, 0) }?;
        // SAFETY: the page that was just mapped; nothing refers to it.
        unsafe { rustix::mm::munmap(base, 4096) }
    }

    #[test]
    fn a_sealed_ring_has_one_writable_mapping_and_no_other_way_in() {
        let ring = create_memfd("weir-test", &spec(4)).unwrap();
        let fd = ring.memory().as_fd();
        assert_eq!(map_writable(fd), Err(Errno::PERM));
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert_eq!(map_writable(again.as_fd()), Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 1 << 30), Err(Errno::PERM));
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(fd, hole, 0, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
        // A reader's mapping cannot be made writable afterwards.
        let read = attach(fd.try_clone_to_owned().unwrap(), Trust::Anybody).unwrap();
        let base = read.memory().words().as_ptr().cast_mut().cast::<c_void>();
        let prot = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: the first page of a mapping that is alive. The test expects a refusal, and if it
        // were granted, nothing would store to it.
        assert_eq!(unsafe { rustix::mm::mprotect(base, 4096, prot) }, Err(Errno::ACCESS));
        // The writer's own mapping is still writable.
        let mut writer = Writer::new(ring);
        writer.push(&meta(0), b"frame");
        writer.publish();
        assert_eq!(read.frames_written(), 1);
    }

    #[test]
    fn memory_that_its_owner_could_take_away_is_refused() {
        let made = create_memfd("weir-test", &spec(4)).unwrap();
        let bytes: Vec<u8> = (made.memory().words().iter())
            .flat_map(|word| word.load(std::sync::atomic::Ordering::Relaxed).to_le_bytes())
            .collect();
        let with = |flags: MemfdFlags, seals: SealFlags| {
            let fd =
                rustix::fs::memfd_create("weir-test", MemfdFlags::ALLOW_SEALING | flags).unwrap();
            // Whole huge pages.
            rustix::fs::ftruncate(&fd, (bytes.len() as u64).next_multiple_of(2 << 20)).unwrap();
            if flags.is_empty() {
                rustix::fs::ftruncate(&fd, bytes.len() as u64).unwrap();
                assert_eq!(rustix::io::pwrite(&fd, &bytes, 0).unwrap(), bytes.len());
            }
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let all = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE, SealFlags::FUTURE_WRITE];
        for mask in 0..16u32 {
            let some = all.iter().enumerate().filter(|(bit, _)| mask & 1 << bit != 0);
            let seals = some.fold(SealFlags::empty(), |seals, (_, seal)| seals | *seal);
            let result = attach(with(MemfdFlags::empty(), seals), Trust::Anybody);
            let wanted = mask & 3 == 3 && mask & 12 != 0;
            match result {
                Ok(_) => assert!(wanted, "{seals:?}"),
                Err(error) => {
                    assert!(!wanted && matches!(error, RingError::NotSealed), "{seals:?}")
                }
            }
            assert!(attach(with(MemfdFlags::empty(), seals), Trust::Owner).is_ok(), "{seals:?}");
        }
        // A memfd of huge pages without any page is refused for a missing seal, or else as sparse.
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        let huge = attach(with(MemfdFlags::HUGETLB, fixed), Trust::Anybody);
        assert!(matches!(huge, Err(RingError::NotSealed)));
        let huge = with(MemfdFlags::HUGETLB, fixed | SealFlags::FUTURE_WRITE);
        assert!(matches!(attach(huge, Trust::Anybody), Err(RingError::Sparse { .. })));
        // Files: with a link, unlinked, and one that never had a link.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("ring");
        std::fs::write(&path, &bytes).unwrap();
        let open = || OwnedFd::from(std::fs::File::open(&path).unwrap());
        let (linked, unlinked) = (open(), open());
        assert!(matches!(attach(linked, Trust::Anybody), Err(RingError::NotSealed)));
        assert!(attach(open(), Trust::Owner).is_ok());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(attach(unlinked, Trust::Anybody), Err(RingError::NotSealed)));
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        assert!(matches!(attach(file.into(), Trust::Anybody), Err(RingError::NotSealed)));
        // Descriptors that are not memory.
        let (read, _write) = rustix::pipe::pipe().unwrap();
        assert!(matches!(attach(read, Trust::Anybody), Err(RingError::NotSealed)));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        assert!(matches!(attach(event, Trust::Anybody), Err(RingError::NotSealed)));
    }

    #[test]
    fn pages_that_a_reader_would_have_to_pay_for_are_refused() {
        let made = create_memfd("weir-test", &spec(4)).unwrap();
        let fd = rustix::fs::memfd_create("weir-test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 5 << 20).unwrap();
        let head: Vec<u8> = (made.memory().words().iter().take(BLOCK_BYTES as usize / 8))
            .flat_map(|word| word.load(std::sync::atomic::Ordering::Relaxed).to_le_bytes())
            .collect();
        rustix::io::pwrite(&fd, &head, 0).unwrap();
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        let own = fd.try_clone().unwrap();
        match attach(own, Trust::Anybody) {
            Err(RingError::Sparse { have, need }) => assert_eq!((have, need), (1 << 20, 5 << 20)),
            other => panic!("{:?}", other.err()),
        }
        assert!(attach(fd, Trust::Owner).is_ok());
    }

    #[test]
    fn a_new_ring_is_in_huge_pages_where_the_machine_has_them_for_writer_and_reader() {
        let ring = create_memfd("weir-huge", &spec(4)).unwrap();
        let read = attach(ring.memory().as_fd().try_clone_to_owned().unwrap(), Trust::Anybody);
        let read = read.unwrap();
        // A reader's page tables are filled when it reads.
        let words = read.memory().words().iter();
        assert_ne!(words.fold(0, |all, word| all | word.load(Relaxed)), 0);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of = |ring: &Ring<Mapping>| {
            let begin = format!("{:x}-", ring.memory().words().as_ptr().addr());
            let lines = maps.lines().skip_while(|line| !line.starts_with(&begin));
            let huge = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
            let huge = huge.into_iter().find(|words| words[0] == "ShmemPmdMapped:").unwrap();
            huge[1].parse::<u64>().unwrap()
        };
        match [of(&ring), of(&read)] {
            [0, _] => crate::testing::skip(
                "a_new_ring_is_in_huge_pages_where_the_machine_has_them_for_writer_and_reader",
                "no huge pages: a kernel before 6.1 or without them, or memory is in small pieces",
            ),
            huge => assert!(huge[0] == huge[1] && huge[0] <= 4096, "{huge:?} KiB"),
        }
    }

    fn round_trip(path: &Path) {
        let ring = create_file(path, &spec(4)).unwrap();
        assert!(matches!(create_file(path, &spec(4)), Err(RingError::Os { .. })), "not twice");
        let mut writer = Writer::new(ring);
        for ordinal in 0..10 {
            writer.push(&meta(ordinal), b"frame");
        }
        writer.close();
        let ring = open_file(path).unwrap();
        assert!(!ring.memory().is_writable());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(10));
        assert!(batch.records().enumerate().all(|(i, record)| record.meta == meta(i as u64)));
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Closed);
    }

    #[test]
    fn a_file_on_tmpfs_holds_a_ring() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        round_trip(&dir.path().join("ring"));
    }

    #[test]
    fn a_file_cut_short_is_refused_and_a_failed_one_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        assert!(matches!(create_file(&path, &spec(3)), Err(RingError::BadBlockCount { .. })));
        drop(create_file(&path, &spec(4)).unwrap());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for (bytes, need) in [(5 << 20, None), ((5 << 20) - 1, Some(5 << 20)), (8, Some(1 << 20))] {
            file.set_len(bytes).unwrap();
            match (open_file(&path), need) {
                (Ok(_), None) => {}
                (Err(RingError::TooSmall { have, need: found }), Some(need)) => {
                    assert_eq!((have, found), (bytes, need));
                }
                (result, _) => panic!("{bytes} bytes: {:?}", result.err()),
            }
        }
        // Too long for any interface's header: the file must not stay behind.
        let path = dir.path().join("long");
        let mut long = spec(4);
        long.interfaces[0].filter = Some("x".repeat(65_535));
        assert!(matches!(create_file(&path, &long), Err(RingError::HeaderTooLong { .. })));
        assert!(!path.exists());
    }

    #[test]
    fn a_ring_that_finds_no_reserved_pages_says_how_many_it_wanted() {
        let refused = std::io::Error::from_raw_os_error(libc::ENOMEM);
        let error = RingError::Os { doing: "mapping ring memory", source: refused };
        let error = Pages::Reserved.explain(5 << 20, error);
        let text = error.to_string();
        for word in ["3 huge pages of 2 MiB", "vm.nr_hugepages"] {
            assert!(text.contains(word), "'{word}' is not in: {text}");
        }
        let other = || RingError::Os { doing: "x", source: std::io::ErrorKind::Other.into() };
        assert!(matches!(Pages::Reserved.explain(1, other()), RingError::Os { .. }));
        let refused = std::io::Error::from_raw_os_error(libc::ENOMEM);
        let error = RingError::Os { doing: "x", source: refused };
        assert!(matches!(Pages::Now.explain(1, error), RingError::Os { .. }));
    }

    #[test]
    fn a_ring_prefers_a_node_and_does_without_it() {
        for node in [0, 1023, u32::MAX] {
            let placement = Placement { node: Some(node), ..Placement::default() };
            let ring = create_memfd_with("weir-test", &spec(4), placement).unwrap();
            assert_eq!(ring.geometry().data_blocks, 4);
        }
    }

    /// A ring of reserved huge pages, mapped by its writer and by another process.
    fn in_reserved_pages() {
        let reserved = Placement { pages: Pages::Reserved, node: Some(0) };
        let ring = create_memfd_with("weir-test", &spec(4), reserved).unwrap();
        let fd = || ring.memory().as_fd().try_clone_to_owned().unwrap();
        assert_eq!(rustix::fs::fstatfs(fd()).unwrap().f_type, HUGETLBFS_MAGIC);
        assert_eq!(map_writable(fd().as_fd()), Err(Errno::PERM));
        let read = attach(fd(), Trust::Anybody).unwrap();
        let mut reader = Reader::new(&read, Start::Oldest).unwrap();
        let error = create_memfd_with("weir-test", &spec(8), reserved).err();
        assert!(matches!(error, Some(RingError::NoHugePages { pages: 5, .. })), "{error:?}");
        let mut writer = Writer::new(ring);
        writer.push(&meta(0), b"frame");
        writer.close();
        assert_eq!(reader.poll(&mut Batch::new()).unwrap(), Poll::Frames(1));
    }

    #[test]
    fn root_rings_lie_in_reserved_huge_pages() {
        const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let skip =
            |reason: &str| crate::testing::skip("root_rings_lie_in_reserved_huge_pages", reason);
        let Ok(setting) = std::fs::File::open(PAGES) else { return skip("no 2 MiB pages") };
        // This setting belongs to the whole machine, so tests that change it run one at a time.
        rustix::fs::flock(&setting, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let before: u64 = std::fs::read_to_string(PAGES).unwrap().trim().parse().unwrap();
        if std::fs::write(PAGES, (before + 3).to_string()).is_err() {
            return skip("needs root, to reserve huge pages");
        }
        let dir = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "hugetlbfs", "-o", "pagesize=2M", "weir-test"])
            .arg(dir.path())
            .status();
        let result = mount.is_ok_and(|status| status.success()).then(|| {
            let result = std::panic::catch_unwind(|| {
                round_trip(&dir.path().join("ring"));
                std::fs::remove_file(dir.path().join("ring")).unwrap();
                in_reserved_pages();
            });
            let _ = std::process::Command::new("umount").arg(dir.path()).status();
            result
        });
        std::fs::write(PAGES, before.to_string()).unwrap();
        match result {
            None => skip("hugetlbfs cannot be mounted here"),
            Some(result) => result.unwrap(),
        }
    }
}
