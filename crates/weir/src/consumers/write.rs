//! `--write`: writes a pcapng file, one for each link type, rotating files, or a pipe.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result};
use weir_store::{FileWriter, FilesByLinkType};

use super::{Input, RunConsumer};
use crate::interruptible_writer::InterruptibleWriter;
use crate::privileges;

pub(super) fn open(input: &Input<'_>, path: &Path) -> Result<Box<dyn RunConsumer>> {
    let names = input.names;
    if path == Path::new("-") {
        let out = InterruptibleWriter::stdout(input.stop.clone()).context("standard output")?;
        return Ok(input.ordered(FileWriter::pipe(out, "standard output").with_names(names)));
    }
    if path.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
        let name = path.display().to_string();
        let says = || {
            if input.plan.talks {
                eprintln!("weir: {name}: waiting for a reader");
            }
        };
        let out = InterruptibleWriter::named_pipe(path, input.stop.clone(), says);
        let out = out.with_context(|| name.clone())?;
        return Ok(input.ordered(FileWriter::pipe(out, &name).with_names(names)));
    }
    let mode = input.plan.outputs.file_mode;
    if path.metadata().is_ok_and(|meta| !meta.is_file()) {
        return Ok(input.ordered(FileWriter::create(path, mode)?.with_names(names)));
    }
    let say = |paths: &[&Path]| {
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        eprintln!("weir: a file for each link type: {}", names.join(", "));
    };
    let rotation = input.plan.outputs.rotation;
    let create = || FilesByLinkType::rotating(path, mode, rotation, say);
    // Later files will be created after capabilities are dropped, so the first ones are also created without them.
    let files = if rotation.is_asked_for() { privileges::without(create)? } else { create()? };
    Ok(input.ordered(files.with_names(names)))
}
