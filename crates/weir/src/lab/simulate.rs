//! `weir lab simulate`: runs the simulator, and prints one line per run.

use std::ops::ControlFlow;

use anyhow::Result;
use weir_simulator::{Counts, Failure, events_of, play_many, shrunk};

use crate::cli::SimulateArgs;
use crate::{EXIT_FAILED, EXIT_RAN, signals};

/// Exit status if a check of the simulator failed.
const EXIT_BROKEN: u8 = 1;

/// Runs the command.
pub fn run(args: &SimulateArgs) -> Result<u8> {
    let seeds = match (args.seed, args.seeds) {
        (Some(seed), _) => seed..=seed,
        (None, seeds) => 0..=seeds.unwrap_or(1) - 1,
    };
    let (stop, events) = (signals::stop_flag()?, args.events as usize);
    let mut code = EXIT_RAN;
    play_many(seeds, events, |seed, result| {
        match result {
            Ok(counts) => println!("seed {seed}: ok, {}", text(&counts)),
            Err(failure) => {
                code = EXIT_BROKEN;
                println!("seed {seed}: FAILS at {failure}");
                if args.shrink {
                    shrink(&events_of(seed, events), &failure);
                }
            }
        }
        if !signals::is_set(&stop) {
            return ControlFlow::Continue(());
        }
        code = EXIT_FAILED;
        ControlFlow::Break(())
    });
    Ok(code)
}

fn text(counts: &Counts) -> String {
    let Counts { offered, captured, delivered, lapped, refused, feeds, lives, hostile, .. } =
        counts;
    format!(
        "{offered} frames offered, {captured} captured, {delivered} delivered, {lapped} lapped, {refused} refused; \
         {feeds} feeds of {lives} lives, {hostile} hostile rings"
    )
}

/// Prints the shortest found list of events that still fails.
fn shrink(events: &[weir_simulator::Event], failure: &Failure) {
    // Without this, the panic hook would print the same panic at each try.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let short = shrunk(events, None);
    std::panic::set_hook(hook);
    let Some((short, failure)) = short else {
        println!("  a second time it does not fail: {failure}");
        return;
    };
    println!("  {} events are enough, and fail at {failure}", short.len());
    short.iter().for_each(|event| println!("  {event:?}"));
}
