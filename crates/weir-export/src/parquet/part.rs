//! A file with a temporary name until it is complete.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Most files that are begun in the same second.
const SUFFIX_MAX: u32 = 10_000;

/// The temporary path of an incomplete file. If dropped before [`publish`](Part::publish), the file is removed.
pub(super) struct Part {
    directory: PathBuf,
    /// The final name, without its suffix and file extension.
    stem: String,
    suffix: u32,
    path: PathBuf,
    is_published: bool,
}

impl Part {
    /// Creates an empty file named by this time. Neither its temporary nor its final name is taken.
    pub fn create(directory: &Path, begun: SystemTime, mode: u32) -> io::Result<(Part, File)> {
        let seconds = begun.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let time = DateTime::from_timestamp(seconds.try_into().unwrap_or(i64::MAX), 0);
        let stem = format!("flows-{}", time.unwrap_or_default().format("%Y%m%dT%H%M%SZ"));
        for suffix in 1..=SUFFIX_MAX {
            let name = name(&stem, suffix);
            if fs::symlink_metadata(directory.join(&name)).is_ok() {
                continue;
            }
            let path = directory.join(format!(".{name}.part"));
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
                Ok(file) => {
                    let directory = directory.to_owned();
                    return Ok((Part { directory, stem, suffix, path, is_published: false }, file));
                }
                // Another process writes this file, or was killed while it did.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Renames the file to its final name. If another file took this name meanwhile, the next suffix is used. May be
    /// called again after a failure.
    ///
    /// The caller has synced the file before. Otherwise it could be empty under its final name after a crash.
    pub fn publish(&mut self) -> io::Result<()> {
        if !self.is_published {
            self.rename()?;
            self.is_published = true;
        }
        sync_directory(&self.directory)
    }

    fn rename(&self) -> io::Result<()> {
        for suffix in self.suffix..=SUFFIX_MAX {
            let path = self.directory.join(name(&self.stem, suffix));
            match rename_new(&self.path, &path) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_published {
            // The file may be gone, with its directory.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn name(stem: &str, suffix: u32) -> String {
    match suffix {
        1 => format!("{stem}.parquet"),
        _ => format!("{stem}-{suffix}.parquet"),
    }
}

/// Renames a file, but never replaces an existing one.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems (NFS, some FUSE ones) cannot do this in one step. Only another Weir process would create
        // such a name between the two steps.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match fs::symlink_metadata(to) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(from, to),
        },
        result => Ok(result?),
    }
}

/// Syncs a directory, so that new names in it survive a crash.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // Some file systems cannot sync a directory; they write names to the disk on their own.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}
