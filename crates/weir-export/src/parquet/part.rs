//! A file that nobody takes for a Parquet file before it is one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Files of one second.
const SUFFIX_MAX: u32 = 10_000;

/// The path of a file that is not whole yet. Dropped before [`publish`](Part::publish), the file is removed.
pub(super) struct Part {
    directory: PathBuf,
    /// The name that it will have, without suffix and ending.
    stem: String,
    suffix: u32,
    path: PathBuf,
    is_published: bool,
}

impl Part {
    /// Makes an empty file named by this time, whose names are both free.
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
                // Another one writes it, or was killed.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Gives the file its name, which another file may have taken meanwhile: then with the next suffix. May be tried
    /// again.
    ///
    /// Its bytes have to be on the disk already: after a crash, a file with this name would be empty otherwise.
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
            // It may have gone with its directory.
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

/// Renames a file to a name that no file has.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can do that at once (NFS, some of FUSE). Only another Weir makes such names.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match fs::symlink_metadata(to) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(from, to),
        },
        result => Ok(result?),
    }
}

/// Brings new names in a directory to the disk.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // Not every file system can do that; those bring names to the disk by themselves.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}
