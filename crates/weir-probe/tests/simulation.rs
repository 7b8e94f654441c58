//! The core against a world made of numbers: thousands of runs, each from a seed, with failures at any effect.
//!
//! A run that fails says its seed; `SEED=17 cargo test -p weir-probe --test simulation` repeats that one.

mod world;

use world::World;

const RUNS: u64 = 2000;
/// Runs that once failed.
const KNOWN: [u64; 1] = [66_283];
const EVENTS: u64 = 300;

#[test]
fn whatever_comes_and_goes_every_effect_is_answered_and_every_ledger_closes() {
    let one = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let all = one.map_or_else(|| (0..RUNS).chain(KNOWN).collect(), |seed: u64| vec![seed]);
    for seed in all {
        // Cheaper than to catch a panic, and all that is needed to repeat it.
        let note = Note(seed);
        let mut world = World::new(seed);
        for _ in 0..EVENTS {
            world.event();
        }
        world.finish();
        std::mem::forget(note);
    }
}

/// Says the seed if it is dropped by a panic.
struct Note(u64);

impl Drop for Note {
    fn drop(&mut self) {
        eprintln!("SEED={}", self.0);
    }
}
