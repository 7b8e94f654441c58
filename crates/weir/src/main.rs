//! The `weir` binary: flags and wiring. It touches no frame bytes.

// This module is first, because all other modules use its print macros.
#[macro_use]
mod out;

mod attach;
mod block;
mod capture;
mod change;
mod cli;
mod consumers;
mod control;
mod daemon;
mod demo;
mod doctor;
mod ending;
mod error_words;
mod extcap;
mod extract;
mod feeds;
mod flows;
mod generate;
mod guest;
mod index;
mod interfaces;
mod interruptible_writer;
mod journal;
mod lab;
mod limits;
mod metrics;
mod pages;
mod pipes;
mod plan;
mod privileges;
mod readiness;
mod refusals;
mod report;
mod run;
mod run_result;
mod serve;
mod signals;
mod so_far;
mod source_name;
mod sources;
mod status;
mod tagged;
mod units;
mod usage_hints;
mod vm;

use std::process::ExitCode;

/// The command ran, and `--fail-on-loss` found no loss.
const EXIT_RAN: u8 = 0;
/// Frames were lost and `--fail-on-loss` was given, or `index --check` found something to do.
const EXIT_LOSS: u8 = 1;
/// The command could not run, or failed before its end.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    // Filters are compiled in a child process, which runs this same program.
    if let Some(code) = weir_filter_compile::child() {
        return code;
    }
    let result = match cli::parse() {
        Ok(cli) => run(cli.command),
        // clap also returns the help and the version as errors, which go to standard output.
        Err(error) => {
            match cli::replacement(&error) {
                Some(text) => eprintln!("error: {text}"),
                None => out::printed(error.print()),
            }
            if let Some(hint) = cli::hint(&error) {
                eprintln!("weir: {hint}");
            }
            Ok(error.exit_code() as u8)
        }
    };
    // Both errors are printed: that of the command, and that of writing its report.
    let mut code = EXIT_RAN;
    for result in [result, out::finish().map(|()| EXIT_RAN)] {
        code = code.max(result.unwrap_or_else(|error| {
            eprintln!("weir: {}", error_words::words(&error));
            EXIT_FAILED
        }));
    }
    ExitCode::from(code)
}

fn run(command: cli::Command) -> anyhow::Result<u8> {
    if !matches!(command, cli::Command::Lab(_)) {
        weir_capture::bpf::quiet_libbpf();
    }
    signals::take_file_size_limit_as_error()?;
    let sized = |result: anyhow::Result<u8>, input: &cli::InputArgs| {
        result.map_err(|error| usage_hints::with_size_as_given(error, input.buffer_size))
    };
    match command {
        cli::Command::Capture(args) if args.list_interfaces => interfaces::run(args.input.json),
        cli::Command::Capture(args) => {
            let result = capture::run(&args).map_err(usage_hints::with_sources_of_all);
            sized(result, &args.input)
        }
        cli::Command::Extract(args) => extract::run(&args),
        cli::Command::Index(args) => index::run(&args),
        cli::Command::Flows(args) => {
            let result = flows::run(&args).map_err(usage_hints::with_sources_of_all);
            sized(result, &args.input)
        }
        cli::Command::Attach(args) => sized(attach::run(&args), &args.input),
        cli::Command::Serve(args) => serve::run(&args),
        cli::Command::Guest(args) => guest::run(&args),
        cli::Command::Status(args) => status::run(&args),
        cli::Command::Vm(args) => vm::run(&args),
        cli::Command::Run(args) => run::run(&args),
        cli::Command::Filter(args) => change::set_filter(&args),
        cli::Command::Trigger(args) => change::trigger(&args),
        cli::Command::Block(args) => block::run(&args),
        cli::Command::Gen(args) => generate::run(&args),
        cli::Command::Demo(args) => demo::run(&args),
        cli::Command::Doctor(args) => doctor::run(&args),
        cli::Command::Lab(args) => lab::run(&args),
        cli::Command::Extcap(args) => extcap::run(&args),
        cli::Command::Pages(args) => pages::run(&args),
    }
}
