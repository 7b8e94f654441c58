//! A hostile host chooses the contents of a guest's devices, and the places that it names in them: headers, BARs
//! and rings are found, read or refused. No panic, no hang, no access beyond a BAR.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/weir-guest/src/testing.rs"]
mod testing;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use testing::{Host, MIB, REGION_BYTES, TOKEN, push};
use weir_guest::Devices;
use weir_region::limits::WORDS_BYTES;
use weir_region::{Header, Kind, Place, Token};
use weir_ring::{Batch, Reader, Start};

/// Bytes of a ring that are fuzzed: its header area, and its own words with the beginning of the index.
const RING_BYTES: usize = 0x1_2000;

struct State {
    host: Host,
    place: Place,
    /// The bytes at the beginning of the ring.
    ring: Vec<u8>,
}

thread_local! {
    static STATE: State = {
        let host = Host::new();
        let (place, mut writer) = host.writer(0, MIB);
        push(&mut writer, 10);
        let mut ring = vec![0; RING_BYTES];
        host.region.bar().read_exact_at(&mut ring, place.offset).unwrap();
        State { host, place, ring }
    };
}

fuzz_target!(|bytes: &[u8]| {
    STATE.with(|state| {
        let State { host, place, ring } = state;
        let [how, edits @ ..] = bytes else { return };
        let (region, words) = (host.region.bar(), host.words.bar());
        let header = |kind, bytes| Header { kind, token: TOKEN, bytes }.encode();
        region.write_all_at(&header(Kind::Region, REGION_BYTES), 0).unwrap();
        words.write_all_at(&header(Kind::Words, WORDS_BYTES), 0).unwrap();
        region.write_all_at(ring, place.offset).unwrap();
        let mut other = *place;
        for edit in edits.chunks_exact(11).take(32) {
            let at = u64::from(u16::from_le_bytes([edit[1], edit[2]]));
            let value: [u8; 8] = edit[3..].try_into().unwrap();
            match edit[0] % 6 {
                0 => region.write_all_at(&value, at % 56).unwrap(),
                1 => words.write_all_at(&value, at % 56).unwrap(),
                2 => region.write_all_at(&value, place.offset + 0x1_0000 + at % 0x1200).unwrap(),
                3 => region.write_all_at(&value, place.offset + at % 0xfff0).unwrap(),
                4 => other.offset = u64::from_le_bytes(value),
                _ => (other.bytes, other.slot) = (u64::from_le_bytes(value), u32::from(edit[1])),
            }
        }
        let text = String::from_utf8_lossy(edits);
        let _ = text.parse::<Token>();
        // The kernel writes this file; other contents must only not lead to a panic.
        let says_bars = how & 1 == 1;
        if says_bars {
            host.region.write("resource", &text);
        } else {
            host.region.set_bar(REGION_BYTES);
        }
        match Devices::find(host.pci.path(), TOKEN, Duration::ZERO) {
            Ok(devices) if !says_bars => {
                for place in [*place, other] {
                    let Ok(ring) = devices.ring(&place) else { continue };
                    let Ok(mut reader) = Reader::new(&ring, Start::Oldest) else { continue };
                    let mut batch = Batch::new();
                    (0..4).for_each(|_| drop(reader.poll(&mut batch)));
                }
                let _ = devices.words().map(|words| words.set_threshold(1, 7));
            }
            Ok(_) => {}
            Err(error) => assert!(error.to_string().len() < 4096, "{error}"),
        }
    });
});
