//! Simulated runs from seeds, which must not fail; and runs with a planted bug, which must fail.

use std::ops::ControlFlow;

use weir_simulator::{Planted, events_of, play, play_many, shrunk};

const SEEDS: u64 = 500;
const EVENTS: usize = 10_000;

#[test]
fn every_frame_is_accounted_for_whatever_happens() {
    let mut sum = [0; 4];
    play_many(0..=SEEDS - 1, EVENTS, |seed, result| {
        let all = result.unwrap_or_else(|failure| {
            panic!("weir lab simulate --seed {seed} --events {EVENTS} --shrink: {failure}")
        });
        let counts = [all.delivered, all.lapped, all.refused, all.refused_rings];
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        ControlFlow::Continue(())
    });
    assert!(sum.iter().all(|count| *count > 1000), "what no run came to: {sum:?}");
}

#[test]
fn a_seed_means_the_same_each_time() {
    let play = || play(&events_of(7, 2000), None);
    assert_eq!(play(), play());
    assert_ne!(events_of(7, 2000), events_of(8, 2000));
}

#[test]
fn every_planted_bug_is_found_and_shrunk() {
    // Enough seeds to find the rarest of the bugs.
    const SEEDS: u64 = 40;
    let mut missed = Vec::new();
    for planted in Planted::ALL {
        let found = (0..SEEDS).find_map(|seed| {
            let events = events_of(seed, 1000);
            let failure = play(&events, Some(planted)).err()?;
            Some((seed, events, failure))
        });
        let Some((seed, events, failure)) = found else {
            missed.push(planted);
            continue;
        };
        println!("{planted:?}: seed {seed}, {failure}");
        if planted == Planted::FilterLate {
            let (short, failure) = shrunk(&events, Some(planted)).expect("it fails again");
            assert!(short.len() < 20, "{} events: {failure}", short.len());
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
