//! A guest's memory in huge pages that the administrator has reserved.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;

use weir_region::words::AWAKE;
use weir_ring::Writer;
use weir_vm::{GuestMemory, Pages, VmError, plug, unplug};

use common::{Guest, LIMIT, means, skip, spec, write};

const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// A region of 16 MiB.
const NEEDED: u64 = 8;

/// Reserved pages, which are given back when dropped.
struct HugePages {
    before: u64,
}

impl HugePages {
    fn reserve() -> Result<HugePages, String> {
        let number = || -> Option<u64> { fs::read_to_string(PAGES).ok()?.trim().parse().ok() };
        let before = number().ok_or("the kernel has no huge pages of 2 MiB")?;
        let pages = HugePages { before };
        fs::write(PAGES, (before + NEEDED).to_string()).map_err(|error| error.to_string())?;
        if number() < Some(before + NEEDED) {
            return Err("there are not enough huge pages".to_owned());
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(PAGES, self.before.to_string());
    }
}

#[test]
fn root_in_huge_pages_rings_lie_and_go_into_a_guest() {
    const TEST: &str = "root_in_huge_pages_rings_lie_and_go_into_a_guest";
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip(TEST, "needs root");
    }
    let _pages = match HugePages::reserve() {
        Ok(pages) => pages,
        Err(reason) => return skip(TEST, &reason),
    };
    let refused = GuestMemory::create(1 << 10, Pages::Reserved).unwrap_err();
    assert!(matches!(refused, VmError::NoMemory { .. }), "{refused}");

    let memory = GuestMemory::create(16, Pages::Reserved).unwrap();
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
        assert!(!guest.holds().is_empty());
        unplug(&mut guest.qmp, &mut plugged, LIMIT).unwrap();
        guest.wait_until_released();
    }
}
