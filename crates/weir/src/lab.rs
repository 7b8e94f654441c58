//! `weir lab`: checks and measurements.

use anyhow::Result;

use crate::cli::{LabArgs, LabCommand};
use crate::report::error_text;
use crate::{EXIT_FAILED, EXIT_RAN};

/// Runs the command.
pub fn run(args: &LabArgs) -> Result<u8> {
    match args.command {
        LabCommand::LoadBpf => Ok(load_bpf()),
    }
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
