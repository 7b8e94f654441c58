//! `weir lab disk`: measures the capacity of a disk and of these CPUs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use weir_lab::bench::sizing::{self, Options};

use crate::cli::DiskArgs;
use crate::{EXIT_FAILED, EXIT_RAN, signals};

/// Runs the command. After a signal, prints the rounds so far.
pub fn run(args: &DiskArgs) -> Result<u8> {
    let options = Options {
        weir: std::env::current_exe().context("finding this program's own file")?,
        directory: args.directory.clone(),
        guest_kernel: args.guest_kernel.clone(),
        rounds: args.rounds,
        seconds: args.seconds.as_secs_f64(),
        block_bytes: args.block_sizes.clone(),
        drives: args.drives.clone(),
    };
    let stop = signals::stop_flag()?;
    let sizing = sizing::run(&options, &stop, &|text| eprintln!("weir: {text}"))?;
    match &args.json {
        Some(path) if path == Path::new("-") => println!("{}", sizing.json()),
        Some(path) => {
            print!("{}", sizing.text());
            fs::write(path, sizing.json() + "\n")
                .with_context(|| format!("writing {}", path.display()))?;
        }
        None => print!("{}", sizing.text()),
    }
    Ok(if sizing.interrupted { EXIT_FAILED } else { EXIT_RAN })
}
