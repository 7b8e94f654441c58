//! Names of files, and the space of their file system.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// How large a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of it that users without rights can have, those included that are in use.
    pub total: u64,
    /// Bytes that may be written by users without rights.
    pub free: u64,
}

/// Gives a file another name, on the disk too, and takes no other file's name away.
///
/// # Errors
/// What the kernel says: `EEXIST` where the name is taken.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some network file systems have no such flag.
        Err(Errno::INVAL | Errno::NOSYS) if !to.try_exists()? => std::fs::rename(from, to)?,
        Err(Errno::INVAL | Errno::NOSYS) => return Err(Errno::EXIST.into()),
        other => other?,
    }
    sync_parent(to)?;
    if from.parent() != to.parent() {
        sync_parent(from)?;
    }
    Ok(())
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match File::open(parent)?.sync_all() {
        // Some file systems have nothing to sync of a directory. Source: fsync(2).
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// How large the file system of a path is.
///
/// # Errors
/// What the kernel says.
pub fn space(path: &Path) -> io::Result<Space> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    // What is kept back for root (5 % on ext4) is free, and nobody else's.
    let kept_back = stat.f_bfree.saturating_sub(stat.f_bavail);
    let total = stat.f_blocks.saturating_sub(kept_back);
    Ok(Space { total: bytes(total), free: bytes(stat.f_bavail) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_stays_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| directory.path().join(name));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "b").unwrap();
        assert_eq!(rename(&a, &b).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        rename(&a, &c).unwrap();
        assert_eq!(std::fs::read(&b).unwrap(), b"b");
        assert_eq!(std::fs::read(&c).unwrap(), b"a");
        assert_eq!(rename(&a, &c).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_system_has_space() {
        let directory = tempfile::tempdir().unwrap();
        let Space { total, free } = space(directory.path()).unwrap();
        assert!(total > 0 && free <= total, "{free} of {total}");
        assert!(space(&directory.path().join("none")).is_err());
    }
}
