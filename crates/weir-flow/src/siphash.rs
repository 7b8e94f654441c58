//! The keyed hash of flow keys: SipHash-1-3.
//!
//! A table whose hash is known can be flooded with keys that all come to the same two buckets, so that they evict each
//! other's and others' flows. SipHash is a pseudo-random function: who does not know its 128-bit key cannot tell which
//! keys collide. Fast mixers with a seed (wyhash and its kin, also `FlowKey::symmetric_hash`) do not claim that, and of
//! some it is known how to make keys that collide under every seed. One round a word and three at the end are what
//! Rust's own hash maps, Python and Ruby use for tables. A key of IPv4 is two words and a half: 6 rounds.
//!
//! Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", Indocrypt 2012.

use std::hash::{BuildHasher, RandomState};

/// The secret of a table.
#[derive(Clone, Copy)]
pub struct HashKey(pub [u64; 2]);

impl HashKey {
    /// One that nobody knows, from the operating system's random numbers.
    #[must_use]
    pub fn random() -> HashKey {
        // The standard library draws its keys from the system. Their hashes of two numbers tell nothing of them.
        let state = RandomState::new();
        HashKey([state.hash_one(0u64), state.hash_one(1u64)])
    }

    /// Hashes these words and `tail`, six bytes at most: a message of `8 * words.len() + 6` bytes.
    #[inline(always)]
    pub fn hash<const N: usize>(self, words: [u64; N], tail: u64) -> u64 {
        let [k0, k1] = self.0;
        let mut state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        for word in words {
            state = absorb(state, word);
        }
        let length = (N * 8 + TAIL_BYTES) as u64;
        state = absorb(state, length << 56 | tail & ((1 << (TAIL_BYTES * 8)) - 1));
        state[2] ^= 0xff;
        state = round(round(round(state)));
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

/// Bytes of the last, incomplete word.
const TAIL_BYTES: usize = 6;

#[inline(always)]
fn absorb(mut state: [u64; 4], word: u64) -> [u64; 4] {
    state[3] ^= word;
    state = round(state);
    state[0] ^= word;
    state
}

#[inline(always)]
fn round([mut v0, mut v1, mut v2, mut v3]: [u64; 4]) -> [u64; 4] {
    v0 = v0.wrapping_add(v1);
    v1 = v1.rotate_left(13) ^ v0;
    v0 = v0.rotate_left(32);
    v2 = v2.wrapping_add(v3);
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.wrapping_add(v3);
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.wrapping_add(v1);
    v1 = v1.rotate_left(17) ^ v2;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;

    proptest! {
        #[test]
        fn it_is_siphash_1_3(key in any::<[u64; 2]>(), words in any::<[u64; 5]>(), tail in any::<u64>()) {
            let of = |words: &[u64]| {
                let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes.extend(&tail.to_le_bytes()[..TAIL_BYTES]);
                SipHasher13::new_with_keys(key[0], key[1]).hash(&bytes)
            };
            prop_assert_eq!(HashKey(key).hash(words, tail), of(&words));
            prop_assert_eq!(HashKey(key).hash([words[0], words[1]], tail), of(&words[..2]));
        }
    }

    #[test]
    fn keys_differ() {
        assert_ne!(HashKey::random().0, HashKey::random().0);
    }
}
