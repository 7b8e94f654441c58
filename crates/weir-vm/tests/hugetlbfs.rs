//! A guest's memory in huge pages that the administrator has reserved.

mod common;

use weir_lab::testbed::{HugePages, require_root, skip};
use weir_region::limits::{REGION_BYTES_MAX, UNIT_BYTES};
use weir_region::words::AWAKE;
use weir_ring::Writer;
use weir_vm::{GuestMemory, Pages, VmError, plug, unplug};

use common::{Guest, LIMIT, means, spec, write};

/// Size of the region, in MiB.
const REGION_MIB: u64 = 16;
/// Size of a huge page, in MiB.
const PAGE_MIB: u64 = 2;
/// Huge pages for the region.
const NEEDED: u64 = REGION_MIB / PAGE_MIB;

#[test]
fn root_rings_in_reserved_pages_go_into_a_guest() {
    const TEST: &str = "root_rings_in_reserved_pages_go_into_a_guest";
    if !require_root(TEST) {
        return;
    }
    let reserved = match HugePages::reserve(NEEDED) {
        Ok(reserved) => reserved,
        Err(reason) => return skip(TEST, reason),
    };
    // The smallest size for which the free pages do not suffice, unless the largest region fits into them.
    let too_large_mib = (reserved.free() * PAGE_MIB + 1).next_power_of_two();
    if too_large_mib <= REGION_BYTES_MAX / UNIT_BYTES {
        let refused = GuestMemory::create(too_large_mib, Pages::Reserved).unwrap_err();
        assert!(matches!(refused, VmError::NoMemory { .. }), "{refused}");
    }

    let memory = GuestMemory::create(REGION_MIB, Pages::Reserved).unwrap();
    for _ in 0..2 {
        let rings = [(); 2].map(|()| memory.take_ring(&spec()).unwrap());
        assert_eq!(memory.rings(), 2);
        for ring in rings {
            assert!(ring.place().offset.is_multiple_of(PAGE_MIB << 20), "{:?}", ring.place());
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
