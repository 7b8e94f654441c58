//! The rotation of written files, and checks of its settings for each output.

use std::num::NonZero;
use std::path::Path;

use anyhow::{Result, bail};
use weir_store::Rotation;
use weir_store::limits::FILE_BYTES_MIN;
use weir_store::recorder::settings::Quota;
use weir_store::rotating::check_name;

use super::names::is_recorder;
use crate::cli::CaptureArgs;
use crate::source_name::SourceName;

/// The number of files that must fit into a quota, so that at least half of the quota is always kept.
const FILES_MIN: u64 = 2;

/// Returns the rotation of a plain file. The settings of a recorder, which reads the arguments itself, are only
/// checked.
///
/// # Errors
/// The settings contradict each other or do not apply to this output; the text says what to change.
pub(super) fn of(args: &CaptureArgs) -> Result<Rotation> {
    let (Some(path), Some(flag)) = (args.write.first(), args.rotate.given()) else {
        return Ok(Rotation::default());
    };
    if is_recorder(args) {
        check_recorder(args)?;
        return Ok(Rotation::default());
    }
    let is_special = path.metadata().is_ok_and(|meta| !meta.is_file());
    if path == Path::new("-") || is_special {
        bail!(
            "{flag} is for files, and {} is none: name one (--write NAME.pcapng {flag} ...), or rotate behind the \
             pipe",
            path.display()
        );
    }
    let rotation = rotation(args)?;
    check_combination(path, &rotation)?;
    check_name(path, &rotation)?;
    check_not_a_source(path, args)?;
    Ok(rotation)
}

fn check_recorder(args: &CaptureArgs) -> Result<()> {
    if args.rotate.rotate_files.is_some() {
        bail!(
            "--rotate-files is for a file that is followed by others (--write NAME.pcapng); what a directory may \
             hold is said by --quota, such as 20GiB or 80%"
        );
    }
    if args.rotate.size().is_some_and(|size| size < FILE_BYTES_MIN) {
        let flag = args.rotate.size_flag();
        bail!("{flag}: a recorded file has at least {FILE_BYTES_MIN} bytes ({flag} 4MiB)");
    }
    Ok(())
}

fn rotation(args: &CaptureArgs) -> Result<Rotation> {
    let quota_bytes = match args.rotate.quota {
        None => None,
        Some(Quota::Bytes(bytes)) => Some(bytes),
        Some(Quota::Percent(percent)) => bail!(
            "--quota {percent}%: a share of the file system is for a directory that is recorded into (--write DIR/); \
             of a file, name a size: --quota 20GiB"
        ),
    };
    Ok(Rotation {
        file_bytes: args.rotate.size(),
        file_time: args.rotate.rotate_time,
        files_max: args.rotate.rotate_files.and_then(NonZero::new),
        quota_bytes,
    })
}

fn check_combination(path: &Path, rotation: &Rotation) -> Result<()> {
    let Rotation { file_bytes, file_time, files_max, quota_bytes } = *rotation;
    if !rotation.is_asked_for() {
        let flag = if files_max.is_some() { "--rotate-files" } else { "--quota" };
        bail!(
            "{flag} of one file that goes on for ever means nothing: add --rotate-size 100MiB (-C 100), or \
             --rotate-time 1h (-G 3600)"
        );
    }
    if files_max.is_some() && file_bytes.is_some() && file_time.is_some() {
        bail!(
            "--rotate-files goes with a size (so many files in turn) or with a time (the end after so many files), \
             not with both; say how much is kept by --quota 20GiB"
        );
    }
    if files_max.is_some() && quota_bytes.is_some() {
        bail!("--rotate-files and --quota both say how much is kept; leave one of them out");
    }
    if let Some((quota, size)) = quota_bytes.zip(file_bytes)
        && quota / FILES_MIN < size
    {
        bail!(
            "--quota: {quota} bytes have no room for {FILES_MIN} files of {size} bytes (--rotate-size, -C); the \
             quota is all of them together"
        );
    }
    let has_time = path.file_name().is_some_and(|name| name.as_encoded_bytes().contains(&b'%'));
    let is_one = files_max.is_some_and(|files| files.get() == 1);
    if file_time.is_some() && file_bytes.is_none() && !has_time && !is_one {
        bail!(
            "--write {}: by time alone each file would replace the one before; have the name say the time \
             (trace-%Y%m%d-%H%M%S.pcapng), add a size (-C), or write one file only (-W 1)",
            path.display()
        );
    }
    Ok(())
}

/// Refuses a name with which rotation could overwrite a file that is being read.
fn check_not_a_source(path: &Path, args: &CaptureArgs) -> Result<()> {
    let folder = |path: &Path| {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        folder.unwrap_or(Path::new(".")).canonicalize().ok()
    };
    let Some(name) = path.file_name().map(|name| name.as_encoded_bytes()) else { return Ok(()) };
    let begin = name.split(|byte| *byte == b'%').next().unwrap_or_default();
    for source in &args.input.sources {
        if let SourceName::File(file) = source
            && let Some(of_source) = file.file_name()
            && of_source.as_encoded_bytes().starts_with(begin)
            && folder(file) == folder(path)
        {
            bail!(
                "--write {}: one of the files could get the name of {source}, which is read; write into another \
                 folder, or choose another name",
                path.display()
            );
        }
    }
    Ok(())
}
