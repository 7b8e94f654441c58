use weir_frame::record::{self, Flags, Meta};

use super::words;
use crate::sync::{AtomicU64, Ordering};
use crate::testing::zeroed;

/// Lengths of frames around those at which the copy takes another path, and some usual lengths.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=200).chain([511, 512, 513, 1514, 1515, 4097, 9014])
}

fn filled(words: usize, byte: u8) -> Vec<AtomicU64> {
    let memory = zeroed(words);
    memory.iter().for_each(|word| word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed));
    memory
}

fn bytes(words: &[AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
}

#[test]
fn a_record_is_stored_whole_and_nothing_beside_it() {
    for caplen in lengths() {
        // The frame contains neither the byte of the memory around it, 0xff, nor that of the padding, 0.
        let frame: Vec<u8> = (0..caplen).map(|i| (i % 250) as u8 + 1).collect();
        for (flags, queue, at) in [(None, None, 8), (Some(Flags::INBOUND), None, 12)]
            .into_iter()
            .chain([(None, None, 4), (Some(Flags(7)), Some(3), 16), (None, Some(9), 20)])
        {
            let meta = Meta { interface_id: 5, ts_ns: 1 << 40 | 77, wire_len: 9999, flags, queue };
            let mut want = vec![0xff; at];
            record::append(&mut want, &meta, &frame);
            for store in [super::store_record, words::store_record] {
                let memory = filled(1200, 0xff);
                store(&memory, at as u32, &meta, &frame);
                let got = bytes(&memory);
                assert!(got[..want.len()] == want, "{caplen} bytes at {at}, {meta:?}");
                // `words::store_record` stores the last word whole. The bytes after that word must not be changed.
                let behind = want.len().next_multiple_of(8);
                assert!(got[behind..].iter().all(|&byte| byte == 0xff), "{caplen} bytes at {at}");
            }
        }
    }
}

#[test]
fn whole_words_are_loaded_and_no_more_than_both_have() {
    let memory: Vec<AtomicU64> = (0..400).map(|i| AtomicU64::new(i * 0x0101_0101_0101)).collect();
    for load in [super::load, words::load] {
        for (count, from) in (0..=70).chain([256, 399]).flat_map(|count| [(count, 0), (count, 1)]) {
            let mut own = vec![u64::MAX; 402];
            load(&mut own[1..=count], &memory[from..]);
            let want = memory[from..].iter().take(count).map(|word| word.load(Ordering::Relaxed));
            assert!(own[1..].iter().copied().take(want.len()).eq(want), "{count} words");
            assert!(
                own[0] == u64::MAX
                    && own[1 + count.min(400 - from)..].iter().all(|&w| w == u64::MAX)
            );
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn processors_without_avx_copy_the_same() {
    for length in lengths().filter(|&length| length >= 64) {
        let from: Vec<u8> = (0..length).map(|i| (i * 7 % 251) as u8).collect();
        let mut to = vec![0; length + 2];
        super::vector::copy_without_avx(&mut to[1..=length], &from);
        assert!(to[1..=length] == from && (to[0], to[length + 1]) == (0, 0), "{length} bytes");
    }
}
