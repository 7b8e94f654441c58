//! The `weir` binary: flags and wiring. It touches no frame bytes.

// First, so that all others print with it.
#[macro_use]
mod out;

mod capture;
mod cli;
mod consume;
mod demo;
mod generate;
mod lab;
mod report;
mod signals;
mod source_name;
mod sources;
mod units;

use std::process::ExitCode;

use clap::Parser;

/// It ran, and `--fail-on-loss` found nothing.
const EXIT_RAN: u8 = 0;
/// Frames were lost and `--fail-on-loss` was given.
const EXIT_LOSS: u8 = 1;
/// It could not run, or not to the end.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    let command = cli::Cli::parse().command;
    if !matches!(command, cli::Command::Lab(_)) {
        weir_capture::bpf::quiet_libbpf();
    }
    let result = match command {
        cli::Command::Capture(args) => capture::run(&args),
        cli::Command::Gen(args) => generate::run(&args),
        cli::Command::Demo(args) => demo::run(&args),
        cli::Command::Lab(args) => lab::run(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("weir: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}
