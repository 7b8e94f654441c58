use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use weir_ring::{Batch, Poll, Reader, Start};

use super::*;
use crate::limits::DEVICES_MAX;
use crate::testing::{FakeDevice, Host, MIB, REGION_BYTES, TOKEN, push};

const OTHER: Token = Token([9; 16]);

fn text_of(error: GuestError) -> String {
    error.to_string()
}

#[test]
fn the_devices_of_a_token_are_found_among_others() {
    let host = Host::new();
    let pci = host.pci.path();
    FakeDevice::with_header(pci, "0000:00:01.0", Kind::Region, OTHER, REGION_BYTES);
    FakeDevice::new(pci, "0000:00:02.0", 4 * MIB);
    let card = FakeDevice::new(pci, "0000:00:03.0", 4096);
    card.write("device", "0x1041\n");
    host.words.write("enable", "1\n");
    let devices = host.find();
    assert_eq!(devices.region_bytes(), REGION_BYTES);
    assert_eq!(host.region.read("enable"), "1");
    assert_eq!(host.words.read("enable"), "1\n", "enabled by another, and once is enough");
    assert_eq!(card.read("enable"), "0\n");
    let words = devices.words().unwrap();
    words.set_threshold(3, 17);
    words.set_position(3, 12);
    assert_eq!((host.threshold(3), host.position(3)), (17, 12));
    assert!(devices.bandwidth().is_cached(), "{:?}", devices.bandwidth());
    // The descriptor is open for reading only.
    assert!(rustix::io::write(devices.region_fd(), b"x").is_err());
}

#[test]
fn a_ring_at_a_place_is_read() {
    let host = Host::new();
    let (place, mut writer) = host.writer(2, 3 * MIB);
    push(&mut writer, 100);
    let ring = host.find().ring(&place).unwrap();
    let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
    let mut batch = Batch::new();
    assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(100));
    let ordinals =
        batch.records().map(|record| u64::from_le_bytes(record.frame.try_into().unwrap()));
    assert!(ordinals.eq(0..100));
    assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Empty);
    push(&mut writer, 1);
    assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
}

#[test]
fn rings_that_do_not_fit_are_refused() {
    let host = Host::new();
    let (place, writer) = host.writer(0, 3 * MIB);
    let devices = host.find();
    let of = |place: Place| devices.ring(&place).map(drop).unwrap_err();
    for place in [
        Place { offset: 0, ..place },
        Place { offset: REGION_BYTES - 4 * MIB, ..place },
        Place { offset: u64::MAX - MIB + 1, ..place },
        Place { slot: 63, ..place },
        Place { bytes: 0, ..place },
    ] {
        assert!(matches!(of(place), GuestError::Place { .. }), "{place:?}");
    }
    let short = of(Place { bytes: 4 * MIB, ..place });
    let is_short = |source: &RingError| matches!(source, RingError::TooSmall { .. });
    assert!(matches!(&short, GuestError::Ring { source, .. } if is_short(source)), "{short:?}");
    let none = of(Place { offset: 9 * MIB, ..place });
    let is_none = |source: &RingError| matches!(source, RingError::NotARing { .. });
    assert!(matches!(&none, GuestError::Ring { source, .. } if is_none(source)), "{none:?}");
    drop(writer);
}

#[test]
fn of_too_many_devices_some_are_looked_at() {
    let pci = tempfile::tempdir().unwrap();
    for number in 0..DEVICES_MAX + 10 {
        FakeDevice::new(pci.path(), &format!("0000:{number:02x}:00.0"), 0);
    }
    let error = Devices::find(pci.path(), TOKEN, Duration::ZERO).unwrap_err();
    let GuestError::NotFound { seen, .. } = error else { panic!("{error:?}") };
    assert_eq!(seen.len(), DEVICES_MAX);
}

#[test]
fn what_is_wrong_with_each_device_is_said() {
    let pci = tempfile::tempdir().unwrap();
    let find = || Devices::find(pci.path(), TOKEN, Duration::from_millis(20)).unwrap_err();
    let none = text_of(find());
    assert!(
        none.contains("region and words (token 0707") && none.contains("no such device"),
        "{none}"
    );
    assert!(none.contains("acpiphp"), "{none}");
    let of =
        |address| FakeDevice::with_header(pci.path(), address, Kind::Region, TOKEN, REGION_BYTES);
    FakeDevice::with_header(pci.path(), "0000:00:01.0", Kind::Region, OTHER, REGION_BYTES);
    of("0000:00:02.0").set_bar(REGION_BYTES / 2);
    of("0000:00:03.0").set_bar(0);
    of("0000:00:04.0").set_bar(64);
    of("0000:00:05.0").bar().write_all_at(b"x", 0).unwrap();
    of("0000:00:06.0").bar().set_len(64).unwrap();
    std::fs::remove_file(pci.path().join("0000:00:07.0/resource2")).unwrap_err();
    of("0000:00:07.0").write("enable", "1");
    std::fs::remove_file(pci.path().join("0000:00:07.0/resource2")).unwrap();
    let error = find();
    let text = text_of(error);
    for part in [
        "0000:00:01.0: it has another token, 0909",
        "0000:00:02.0: its header says 16777216 bytes, and its memory (BAR 2) has 8388608",
        "0000:00:03.0: its memory (BAR 2) has no address yet",
        "0000:00:04.0: its memory (BAR 2) has 64 bytes",
        "0000:00:05.0: its memory is not a Weir daemon's: it does not begin as",
        "0000:00:06.0: its memory (BAR 2) has 64 bytes",
        "0000:00:07.0: opening `resource2` failed: No such file",
        "pref64-reserve",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // Now one of the two devices is found.
    of("0000:00:08.0");
    let text = text_of(find());
    assert!(text.starts_with("the host's words (token"), "{text}");
    let missing = pci.path().join("nowhere");
    let error = Devices::find(&missing, TOKEN, Duration::ZERO).unwrap_err();
    assert!(matches!(error, GuestError::NoPci { .. }), "{error:?}");
}

#[test]
fn who_may_not_map_is_told_to_be_root() {
    let denied = || std::io::ErrorKind::PermissionDenied.into();
    let whys = [
        DeviceError::File { doing: "opening", file: pci::BAR, source: denied() },
        DeviceError::Map(RingError::Os { doing: "mapping ring memory", source: denied() }),
    ];
    for why in whys {
        let seen = vec![SeenDevice { address: "0000:00:05.0".into(), why }];
        let (missing, waited) = ("the host's region", Duration::ZERO);
        let text = text_of(GuestError::NotFound { missing, token: TOKEN, waited, seen });
        assert!(text.contains("run as root, and without kernel lockdown"), "{text}");
    }
}

#[test]
fn devices_that_are_slow_to_appear_are_waited_for() {
    let host = Host::new();
    host.region.set_bar(0);
    let header = Header { kind: Kind::Words, token: TOKEN, bytes: WORDS_BYTES }.encode();
    host.words.bar().write_all_at(&[0xff; 64], 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            host.region.set_bar(REGION_BYTES);
            thread::sleep(Duration::from_millis(30));
            host.words.bar().write_all_at(&header, 0).unwrap();
        });
        let begin = Instant::now();
        Devices::find(host.pci.path(), TOKEN, Duration::from_secs(20)).unwrap();
        let took = begin.elapsed();
        assert!((Duration::from_millis(50)..Duration::from_secs(10)).contains(&took), "{took:?}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn hostile_headers_are_errors(
        kind in any::<u8>(), bytes in prop_oneof![Just(REGION_BYTES), Just(WORDS_BYTES), any::<u64>()],
        at in 0usize..64, byte in any::<u8>(),
    ) {
        let host = Host::new();
        let mut line = Header { kind: Kind::Region, token: TOKEN, bytes: REGION_BYTES }.encode();
        (line[8], line[at]) = (kind, byte);
        line[32..40].copy_from_slice(&bytes.to_le_bytes());
        host.region.bar().write_all_at(&line, 0).unwrap();
        match Devices::find(host.pci.path(), TOKEN, Duration::ZERO) {
            Ok(devices) => prop_assert_eq!(devices.region_bytes(), REGION_BYTES),
            Err(error) => {
                let is_said = matches!(error, GuestError::NotFound { .. });
                prop_assert!(is_said);
            }
        }
    }

    #[test]
    fn hostile_rings_are_errors(changes in prop::collection::vec((0u64..0x1200, any::<u64>()), 1..8)) {
        let host = Host::new();
        let (place, mut writer) = host.writer(0, MIB);
        push(&mut writer, 10);
        let words = host.region.map(place.offset, place.bytes);
        for (at, value) in changes {
            // These offsets are in the ring's own words and the beginning of its index.
            words.words()[(0x1_0000 + at) as usize / 8].store(value, Ordering::Relaxed);
        }
        if let Ok(ring) = host.find().ring(&place)
            && let Ok(mut reader) = Reader::new(&ring, Start::Oldest)
        {
            let mut batch = Batch::new();
            (0..20).for_each(|_| drop(reader.poll(&mut batch)));
        }
    }
}

#[test]
fn an_uncached_mapping_is_told_with_the_way_out() {
    let of = |megabytes: f64| Bandwidth { bytes_per_second: megabytes * 1e6 };
    for cached in [1_000.0, 12_000.0] {
        assert!(of(cached).is_cached() && of(cached).note().is_none(), "{cached}");
    }
    // The bandwidth if each read of 8 bytes goes to memory.
    for uncached in [0.0, 31.0, 105.0] {
        let said = of(uncached).note().unwrap_or_default();
        assert!(said.contains(&format!("{uncached} MB/s")) && said.contains("--snaplen"), "{said}");
    }
}
