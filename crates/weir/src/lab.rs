//! `weir lab`: checks and measurements.

use anyhow::Result;

use crate::cli::{LabArgs, LabCommand};
use crate::{EXIT_FAILED, EXIT_RAN};

/// Runs the command.
pub fn run(args: &LabArgs) -> Result<u8> {
    match args.command {
        LabCommand::LoadBpf => Ok(load_bpf()),
    }
}

fn load_bpf() -> u8 {
    let mut code = EXIT_RAN;
    for (name, result) in weir_capture::bpf::load_all() {
        match result {
            Ok(()) => println!("loaded {name}"),
            Err(error) => {
                println!("refused {name}: {error}");
                code = EXIT_FAILED;
            }
        }
    }
    code
}
