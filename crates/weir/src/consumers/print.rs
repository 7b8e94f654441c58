//! `--print`: one line per frame on standard output.

use anyhow::{Context, Result};
use weir_store::{PrintOptions, Printer};

use super::{Input, RunConsumer};
use crate::interruptible_writer::InterruptibleWriter;

pub(super) fn open(input: &Input<'_>, options: PrintOptions) -> Result<Box<dyn RunConsumer>> {
    let out = InterruptibleWriter::stdout(input.stop.clone()).context("standard output")?;
    Ok(input.ordered(Printer::new(out, "standard output", options)))
}
