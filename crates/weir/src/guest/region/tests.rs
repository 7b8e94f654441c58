use std::fs;

use weir_guest::Devices;
use weir_region::Place;
use weir_ring::wake::Sleeper;

use super::*;

#[allow(dead_code)]
#[path = "../../../../weir-guest/src/testing.rs"]
mod testing;
use testing::{Host, MIB, REGION_BYTES, TOKEN};

fn region(host: &Host) -> GuestRegion {
    GuestRegion { pci: host.pci.path().to_owned(), state: Mutex::default() }
}

fn at(place: Place) -> InRegion {
    InRegion { token: TOKEN.to_string(), region_bytes: REGION_BYTES, place }
}

/// The number of descriptors and mappings of the folder's files in this process.
fn held(host: &Host) -> usize {
    let folder = host.pci.path().to_str().unwrap().to_owned();
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own = links.filter_map(|link| fs::read_link(link.path()).ok());
    let own = own.filter(|path| path.starts_with(&folder)).count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    own + maps.lines().filter(|line| line.contains(&folder)).count()
}

#[test]
fn a_hundred_feeds_that_came_and_went_leave_nothing_behind() {
    let host = Host::new();
    let before = held(&host);
    let region = region(&host);
    let (first, _writer) = host.writer(0, MIB);
    let (second, _other) = host.writer(1, 8 * MIB);
    let with_host = held(&host);
    for _ in 0..100 {
        let rings = [first, second].map(|place| Region::ring(&region, &at(place)).unwrap());
        for (place, ring) in [first, second].into_iter().zip(&rings) {
            let sleeper = Sleeper::new(1).unwrap();
            let number = region.attach(&at(place), ring, sleeper.waker().unwrap(), 0).unwrap();
            region.detach(number);
        }
        drop(rings);
        region.let_go(&at(first));
        assert!(held(&host) > with_host, "the second feed still has them");
        region.let_go(&at(second));
        assert_eq!(held(&host), with_host);
    }
    assert!(with_host > before);
}

#[test]
fn what_a_hostile_host_names_is_refused_and_costs_nothing() {
    let host = Host::new();
    let region = region(&host);
    let (place, _writer) = host.writer(0, MIB);
    let nothing = held(&host);
    let refused = |at: &InRegion| Region::ring(&region, at).map(drop).unwrap_err().to_string();
    assert!(refused(&InRegion { token: "x".into(), ..at(place) }).contains("32 hexadecimal"));
    let said = refused(&InRegion { token: "0".repeat(32), ..at(place) });
    assert!(said.contains("did not appear"), "{said}");
    assert_eq!(held(&host), nothing);
    for wrong in [
        Place { offset: REGION_BYTES, ..place },
        Place { offset: u64::MAX - MIB + 1, ..place },
        Place { bytes: u64::MAX, ..place },
        Place { slot: u32::MAX, ..place },
    ] {
        let said = refused(&at(wrong));
        assert!(said.contains("cannot be"), "{said}");
    }
    // There is no ring at this place.
    let said = refused(&at(Place { offset: 8 * MIB, ..place }));
    assert!(said.contains("cannot be read"), "{said}");
    Region::ring(&region, &at(place)).unwrap();
    region.let_go(&at(place));
    assert_eq!(held(&host), nothing);
}
