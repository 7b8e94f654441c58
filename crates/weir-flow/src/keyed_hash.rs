//! The keyed hash of flow keys: AES-128, chained for keys of more than one block (CBC-MAC).
//!
//! If the hash of a table is known, an attacker can flood it with keys that all select the same two lines, so that
//! flows in these lines evict each other. Therefore the hash is a pseudo-random function: without its key nobody can
//! tell which flow keys collide. Fast mixers with a seed (wyhash and similar ones, also `FlowKey::symmetric_hash`) do
//! not claim this property, and for some of them methods are known that find keys which collide under every seed.
//!
//! An IPv4 flow is one block. It takes 10 instructions on processors with instructions for AES; SipHash-1-3 took 70.
//! CBC-MAC is a pseudo-random function as long as no message is a prefix of another message: the first block tells
//! how many blocks follow (in a table by interface, always two).
//!
//! Sources: FIPS 197; Bellare, Kilian and Rogaway, "The security of the cipher block chaining message authentication
//! code", Journal of Computer and System Sciences, 2000.

use std::hash::{BuildHasher, RandomState};

use aes::Aes128Enc;
pub use aes::Block;
use aes::cipher::{BlockCipherEncrypt, KeyInit};

/// The secret of a table.
#[derive(Clone)]
pub struct HashKey(Aes128Enc);

impl HashKey {
    /// Returns a secret from the random numbers of the operating system.
    #[must_use]
    pub fn random() -> HashKey {
        // The standard library gets its keys from the system. Their hashes of two numbers reveal nothing about the
        // keys.
        let state = RandomState::new();
        HashKey::of(u128::from(state.hash_one(0u64)) << 64 | u128::from(state.hash_one(1u64)))
    }

    fn of(key: u128) -> HashKey {
        HashKey(Aes128Enc::new(&key.to_le_bytes().into()))
    }

    /// Hashes messages: `blocks` contains their first blocks and receives their results, which [`hash`] reads.
    /// `others` returns the two blocks that follow in longer messages. Hashing several messages together, up to
    /// [`BATCH`], takes less time for each.
    #[inline(always)]
    pub fn hash_all<I>(&self, blocks: &mut [Block], others: impl Fn() -> I)
    where
        I: Iterator<Item = Option<[Block; 2]>>,
    {
        debug_assert!(blocks.len() <= BATCH);
        self.0.encrypt_blocks(blocks);
        if others().any(|others| others.is_some()) {
            self.hash_others(blocks, others);
        }
    }

    #[inline(never)]
    fn hash_others<I>(&self, blocks: &mut [Block], others: impl Fn() -> I)
    where
        I: Iterator<Item = Option<[Block; 2]>>,
    {
        let mut sums = [Block::default(); BATCH];
        for number in 0..2 {
            let longer =
                || others().enumerate().filter_map(|(at, others)| Some((at, others?[number])));
            let mut count = 0;
            for ((at, block), sum) in longer().zip(&mut sums) {
                *sum = xor(&blocks[at], &block);
                count += 1;
            }
            self.0.encrypt_blocks(&mut sums[..count]);
            for ((at, _), sum) in longer().zip(&sums) {
                blocks[at] = *sum;
            }
        }
    }
}

/// Most messages that are hashed at a time.
pub const BATCH: usize = 32;

#[inline(always)]
fn xor(one: &Block, other: &Block) -> Block {
    (number(one) ^ number(other)).to_le_bytes().into()
}

#[inline(always)]
fn number(block: &Block) -> u128 {
    u128::from_le_bytes((*block).into())
}

/// Returns the hash of the message that has this result.
#[inline(always)]
pub fn hash(result: &Block) -> u64 {
    number(result) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as standards print them.
    fn printed(hex: u128) -> u128 {
        hex.swap_bytes()
    }

    /// Source: NIST SP 800-38A, F.2.1 (CBC-AES128.Encrypt); its initialisation vector is a part of the first block.
    #[test]
    fn it_is_aes_in_cipher_block_chaining() {
        let key = HashKey::of(printed(0x2b7e1516_28aed2a6_abf71588_09cf4f3c));
        let text = [
            0x6bc1bee2_2e409f96_e93d7e11_7393172a ^ 0x00010203_04050607_08090a0b_0c0d0e0f,
            0xae2d8a57_1e03ac9c_9eb76fac_45af8e51,
            0x30c81c46_a35ce411_e5fbc119_1a0a52ef,
        ]
        .map(printed);
        let [first, second, third] = text.map(|block| Block::from(block.to_le_bytes()));
        let mut blocks = [first; 5];
        let others = [None, Some([second, third])];
        key.hash_all(&mut blocks, || others.into_iter().cycle().take(5));
        let short = 0x7649abac_8119b246_cee98e9b_12e9197d;
        let long = 0x73bed6b8_e3c1743b_7116e69e_22229516;
        let results = blocks.map(|block| u128::from_be_bytes(block.into()));
        assert_eq!(results, [short, long, short, long, short]);
        assert_eq!(hash(&blocks[0]), 0x7649abac_8119b246u64.swap_bytes());
    }

    #[test]
    fn keys_differ() {
        let blocks = [(); 2].map(|()| {
            let mut block = [Block::default()];
            HashKey::random().hash_all(&mut block, || [None].into_iter());
            block
        });
        assert_ne!(blocks[0], blocks[1]);
    }
}
