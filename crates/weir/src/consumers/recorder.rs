//! `--write DIR/`: the recorder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use signal_hook::consts::SIGUSR2;
use signal_hook::flag::register;
use weir_consumer::Consumer;
use weir_disk::{AnyDisk, How};
use weir_store::Recorder;
use weir_store::recorder::settings::Compression;
use weir_store::recorder::{RecorderReport, Settings};

use crate::cli::RotateArgs;
use crate::error_words::without_number;
use crate::privileges;

use super::{Input, RunConsumer};

pub(super) fn open(input: &Input<'_>, directories: &[PathBuf]) -> Result<Box<dyn RunConsumer>> {
    for directory in directories {
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).context(not_made(directory));
            }
            _ => {}
        }
        if let Some(file) = file_named(directory) {
            bail!(
                "{}: {} is a file; leave the slash out to overwrite it, or name another directory",
                directory.display(),
                file.display()
            );
        }
    }
    let disk = weir_disk::open(&directories[0], How::Best);
    let disk = disk.with_context(|| directories[0].display().to_string())?;
    let rotate = input.plan.outputs.rotate;
    let RotateArgs { rotate_time, quota, .. } = rotate;
    let defaults = Settings::default();
    // Compression leaves one CPU to the capture.
    let threads = thread::available_parallelism().map_or(1, |count| count.get().max(2) - 1);
    let settings = Settings {
        directories: directories.to_vec(),
        file_mode: input.plan.outputs.file_mode,
        file_bytes: rotate.size().unwrap_or(defaults.file_bytes),
        file_time: rotate_time,
        quota,
        compression: input.plan.outputs.compress.map(|level| Compression { level, threads }),
        look_back: input.plan.outputs.look_back.clone(),
        may_begin: privileges::are_settled,
        // The failure of the only volume is the error with which the recorder ends.
        volume_failed: if directories.len() > 1 { say_left_out } else { |_, _| () },
        ..defaults
    };
    if let Some(look_back) = &settings.look_back {
        let flag = Arc::clone(&look_back.asked.signal);
        register(SIGUSR2, flag).context("having SIGUSR2 be a trigger")?;
    }
    // Files will be created after capabilities are dropped, so directories are checked without them.
    let recorder = privileges::without(|| Recorder::new(settings, disk))?.with_names(input.names);
    for directory in directories.iter().filter(|_| input.plan.talks) {
        // The message has a slash, which shows that the name is a directory.
        if !directory.as_os_str().as_encoded_bytes().ends_with(b"/") {
            eprintln!("weir: {0} is a directory: recording into {0}/", directory.display());
        }
    }
    for note in recorder.notes().iter().filter(|_| input.plan.talks) {
        eprintln!("weir: {note}");
    }
    if let (left @ 1.., true) = (recorder.left_files(), input.plan.talks) {
        let names: Vec<_> = directories.iter().map(|one| one.display().to_string()).collect();
        let names = names.join(" ");
        eprintln!(
            "weir: {left} files of a recorder that was killed: weir index {names} gives them their names"
        );
    }
    Ok(Box::new(recorder))
}

/// Reports a volume that is not written to any more.
fn say_left_out(directory: &Path, error: &io::Error) {
    let why = without_number(&error.to_string());
    eprintln!("weir: {}: left out from now on: {why}", directory.display());
}

/// Returns the error text for a directory that cannot be created.
fn not_made(directory: &Path) -> String {
    let name = directory.display();
    match directory.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        Some(folder) => {
            let folder = folder.display();
            format!(
                "{name}: cannot be made; only the last folder of a path is made here: `mkdir -p {folder}` makes the \
                 others"
            )
        }
        None => format!("{name}: cannot be made; name a directory where you may write"),
    }
}

/// Returns the path without the slashes at its end if it names a file.
fn file_named(directory: &Path) -> Option<PathBuf> {
    // Components have no slashes at the end. With a slash, the path of a file is an error.
    let path: PathBuf = directory.components().collect();
    path.is_file().then_some(path)
}

impl RunConsumer for Recorder<AnyDisk> {
    /// Completes the files with the frames that were read.
    fn end(&mut self) {
        // The run already has an error to report.
        let _ = self.finish(&[]);
    }

    fn recorder(&self) -> Option<RecorderReport> {
        Some(self.report())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_made_is_told_with_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let (there, missing) = (folder.path(), folder.path().join("a"));
        let told = not_made(&missing.join("b/"));
        assert!(told.contains(&format!("`mkdir -p {}`", missing.display())), "{told}");
        assert!(not_made(&there.join("b/")).ends_with("where you may write"));
        let file = there.join("text");
        fs::write(&file, "").unwrap();
        assert_eq!(file_named(&there.join("text/")), Some(file));
        assert_eq!(file_named(there), None);
    }
}
