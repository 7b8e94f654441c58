//! A guest's memory in huge pages that the administrator has reserved.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use weir_region::words::AWAKE;
use weir_ring::Writer;
use weir_vm::{GuestMemory, VmError, plug, unplug};

use common::{Guest, LIMIT, means, skip, spec, write};

const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// A region of 16 MiB, and the words.
const NEEDED: u64 = 8 + 1;

/// A hugetlbfs with its pages; both are given back when dropped.
struct HugePages {
    folder: TempDir,
    before: u64,
}

impl HugePages {
    fn reserve() -> Result<HugePages, String> {
        let number = || -> Option<u64> { fs::read_to_string(PAGES).ok()?.trim().parse().ok() };
        let before = number().ok_or("the kernel has no huge pages of 2 MiB")?;
        let folder = TempDir::with_prefix("weir-vm-huge-").map_err(|error| error.to_string())?;
        let pages = HugePages { folder, before };
        fs::write(PAGES, (before + NEEDED).to_string()).map_err(|error| error.to_string())?;
        if number() < Some(before + NEEDED) {
            return Err("there are not enough huge pages".to_owned());
        }
        let mut mount = Command::new("mount");
        mount.args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none"]).arg(pages.path());
        match mount.status() {
            Ok(status) if status.success() => Ok(pages),
            other => Err(format!("hugetlbfs cannot be mounted: {other:?}")),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
        let _ = fs::write(PAGES, self.before.to_string());
    }
}

#[test]
fn root_on_hugetlbfs_rings_lie_in_huge_pages_and_go_into_a_guest() {
    const TEST: &str = "root_on_hugetlbfs_rings_lie_in_huge_pages_and_go_into_a_guest";
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip(TEST, "needs root");
    }
    let pages = match HugePages::reserve() {
        Ok(pages) => pages,
        Err(reason) => return skip(TEST, &reason),
    };
    let folder = pages.path();
    let refused = GuestMemory::create(folder, "guest", 1 << 10, None).unwrap_err();
    assert!(matches!(refused, VmError::NoMemory { .. }), "{refused}");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);

    let memory = GuestMemory::create(folder, "guest", 16, None).unwrap();
    assert_eq!(memory.words_bytes(), 2 << 20);
    for _ in 0..2 {
        let rings = [(); 2].map(|()| memory.take_ring(&spec()).unwrap());
        assert_eq!(memory.rings(), 2);
        for ring in rings {
            assert!(ring.place().offset.is_multiple_of(2 << 20), "{:?}", ring.place());
            let mut writer = Writer::new(ring.ring().clone());
            write(&mut writer, 100_000);
            assert_eq!(ring.ring().frames_written(), 100_000);
            assert_eq!(memory.threshold(ring.place().slot), AWAKE);
        }
        assert_eq!(memory.rings(), 0);
    }

    if let Some(means) = means(TEST) {
        let mut guest = Guest::boot(&means, "pc", "", "while :; do usleep 100000; done");
        let mut plugged = plug(&mut guest.qmp, &memory).unwrap();
        assert!(!guest.holds(folder).is_empty());
        unplug(&mut guest.qmp, &mut plugged, LIMIT).unwrap();
        guest.wait_until_released(folder);
    }
    drop(memory);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
}
