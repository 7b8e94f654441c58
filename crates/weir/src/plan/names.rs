//! Checks of the names of sources and outputs.

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Result, bail};
use weir_capture::CaptureError;
use weir_capture::interface::InterfaceQuery;

use crate::cli::CaptureArgs;
use crate::source_name::SourceName;
use crate::{interfaces, usage_hints};

/// Refuses a name that is not an interface but the name of a file.
pub(super) fn check(args: &CaptureArgs) -> Result<()> {
    let sources = &args.input.sources;
    for (at, source) in sources.iter().enumerate() {
        let SourceName::Interface { netns: None, iface, .. } = source else { continue };
        if !matches!(InterfaceQuery::new()?.find(iface), Err(CaptureError::NoInterface { .. })) {
            continue;
        }
        if let Some(hint) = usage_hints::file_hint(iface) {
            bail!("{iface}: no such interface here, but {hint}");
        }
        // With --follow, the interface may come later.
        if args.input.follow {
            continue;
        }
        if let Some(hint) = interfaces::number_hint(iface) {
            bail!("{iface}: no such interface here; {hint}");
        }
        if at > 0 {
            bail!(
                "{iface}: no such interface here (`ip -brief link` lists them), and not taken for the beginning of a \
                 filter; any filter can be written as --filter '{iface} ...'"
            );
        }
    }
    Ok(())
}

/// Refuses outputs that are impossible or certainly a mistake.
pub(super) fn check_output(args: &CaptureArgs) -> Result<()> {
    let Some(path) = args.write.first() else { return Ok(()) };
    if is_recorder(args) {
        return match args.write.iter().find(|path| !is_directory(path)) {
            Some(file) => bail!(
                "--write {}: several outputs can only be directories, each a volume of the recorder; end the name of \
                 one that is still to be made with a slash",
                file.display()
            ),
            None => Ok(()),
        };
    }
    if args.compress.is_some() {
        bail!(
            "--compress is for a directory that is recorded into, and {} is none: --write DIR/ --compress zstd, or \
             --write - | zstd > {}.zst",
            path.display(),
            path.display()
        );
    }
    check_not_a_source(path, &args.input.sources)?;
    if path == Path::new("-") && io::stdout().is_terminal() {
        bail!(
            "--write -: standard output is a terminal, and a capture file is not for reading; use \
             --write - | tcpdump -r -, or --print"
        );
    }
    Ok(())
}

/// Returns whether the output is recorded into directories.
pub(super) fn is_recorder(args: &CaptureArgs) -> bool {
    args.write.len() > 1 || args.write.iter().any(|path| is_directory(path))
}

/// Returns whether an output is a directory that is recorded into, which may still be missing.
pub fn is_directory(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Refuses to write into a file that is a source: it would be truncated before it is read.
fn check_not_a_source(path: &Path, sources: &[SourceName]) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    let target = inode(path).filter(|_| path.is_file());
    for source in sources {
        if let SourceName::File(file) = source
            && target.is_some()
            && inode(file) == target
        {
            bail!("--write {} is the file that {source} reads; write to another", path.display());
        }
    }
    Ok(())
}
