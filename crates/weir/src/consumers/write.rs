//! `--write`: a pcapng file, or one for each link type, or a pipe.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result};
use weir_frame::pcapng::Interface;
use weir_store::{FileWriter, FilesByLinkType};

use super::{Input, RunConsumer};
use crate::interruptible_writer::InterruptibleWriter;

pub(super) fn open(input: &Input<'_>, path: &Path) -> Result<Box<dyn RunConsumer>> {
    if path == Path::new("-") {
        let out = InterruptibleWriter::stdout(input.stop.clone()).context("standard output")?;
        return input.ordered(FileWriter::pipe(out, "standard output", input.interfaces)?);
    }
    if path.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
        let name = path.display().to_string();
        let says = || eprintln!("weir: {name}: waiting for a reader");
        let out = InterruptibleWriter::named_pipe(path, input.stop.clone(), says);
        return input.ordered(FileWriter::pipe(
            out.with_context(|| name.clone())?,
            &name,
            input.interfaces,
        )?);
    }
    let mode = input.plan.outputs.file_mode;
    let is_file = path.metadata().map_or(true, |meta| meta.is_file());
    if !is_file || have_one_link_type(input.interfaces) {
        return input.ordered(FileWriter::create(path, input.interfaces, mode)?);
    }
    let files = FilesByLinkType::create(path, input.interfaces, mode)?;
    let names: Vec<_> = files.paths().map(|path| path.display().to_string()).collect();
    eprintln!("weir: a file for each link type: {}", names.join(", "));
    input.ordered(files)
}

fn have_one_link_type(interfaces: &[Interface]) -> bool {
    interfaces.windows(2).all(|two| two[0].link_type == two[1].link_type)
}
