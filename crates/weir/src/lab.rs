//! `weir lab`: checks and measurements.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use weir_lab::bench::{self, Options, SoakOptions, Verdict};

use crate::cli::{BenchArgs, LabArgs, LabCommand, SoakArgs};
use crate::report::error_text;
use crate::{EXIT_FAILED, EXIT_RAN, signals};

/// Runs the command.
pub fn run(args: &LabArgs) -> Result<u8> {
    match &args.command {
        LabCommand::LoadBpf => Ok(load_bpf()),
        LabCommand::Bench(args) => measure(args),
        LabCommand::Soak(args) => soak(args),
    }
}

fn measure(args: &BenchArgs) -> Result<u8> {
    let options = Options {
        weir: std::env::current_exe().context("finding this program's own file")?,
        quick: args.quick,
        rounds: args.rounds,
        seconds: args.seconds.map(|length| length.as_secs_f64()),
        only: args.only,
    };
    let stop = signals::stop_flag()?;
    let report = bench::run(&options, &stop, &|text| eprintln!("weir: {text}"))?;
    match &args.json {
        Some(path) if path == Path::new("-") => println!("{}", report.json()),
        Some(path) => {
            print!("{}", report.text());
            fs::write(path, report.json() + "\n")
                .with_context(|| format!("writing {}", path.display()))?;
        }
        None => print!("{}", report.text()),
    }
    Ok(EXIT_RAN)
}

fn soak(args: &SoakArgs) -> Result<u8> {
    let weir = std::env::current_exe().context("finding this program's own file")?;
    let options = SoakOptions { weir, seconds: args.seconds.as_secs_f64() };
    let stop = signals::stop_flag()?;
    let checks = bench::soak(&options, &stop, &mut |check| println!("{}", check.line()))?;
    let failed = checks.iter().any(|check| check.verdict == Verdict::Fails);
    Ok(if failed || signals::is_set(&stop) { EXIT_FAILED } else { EXIT_RAN })
}

fn load_bpf() -> u8 {
    let mut results: Vec<(&str, Option<String>)> = Vec::new();
    for (name, result) in weir_capture::bpf::load_all() {
        results.push((name, result.err().map(|error| error_text(&error))));
    }
    let generator = weir_lab::generator::load_check();
    results.push(("weir_gen, weir_sink", generator.err().map(|error| error_text(&error))));
    let mut code = EXIT_RAN;
    for (name, refusal) in results {
        match refusal {
            None => println!("loaded {name}"),
            Some(error) => {
                println!("refused {name}: {error}");
                code = EXIT_FAILED;
            }
        }
    }
    code
}
