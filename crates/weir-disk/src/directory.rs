//! Renames files, and returns the size and mount options of file systems.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Size of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that unprivileged users can use, including those in use.
    pub total: u64,
    /// Free bytes for unprivileged users.
    pub free: u64,
}

/// Renames a file without replacing an existing one, and syncs the directory.
///
/// # Errors
/// The kernel's error: `EEXIST` if the name is taken.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some network file systems do not support RENAME_NOREPLACE.
        Err(Errno::INVAL | Errno::NOSYS) => rename_by_link(from, to)?,
        other => other?,
    }
    sync_parent(to)?;
    if from.parent() != to.parent() {
        sync_parent(from)?;
    }
    Ok(())
}

/// Renames a file without replacing an existing one: a second name fails if it is taken. Where a file can have only one
/// name, another program could create the new one between the check and the renaming.
fn rename_by_link(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::hard_link(from, to) {
        Ok(()) => std::fs::remove_file(from).inspect_err(|_| _ = std::fs::remove_file(to)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) =>
        {
            Err(error)
        }
        Err(_) if to.try_exists()? => Err(Errno::EXIST.into()),
        Err(_) => std::fs::rename(from, to),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match File::open(parent)?.sync_all() {
        // Some file systems do not support fsync of a directory. Source: fsync(2).
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// Returns the size of the file system of a path.
///
/// # Errors
/// The kernel's error.
pub fn space(path: &Path) -> io::Result<Space> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    // Blocks that are reserved for root (5 % on ext4) count as free, but other users cannot use them.
    let kept_back = stat.f_bfree.saturating_sub(stat.f_bavail);
    let total = stat.f_blocks.saturating_sub(kept_back);
    Ok(Space { total: bytes(total), free: bytes(stat.f_bavail) })
}

/// Whether the file system of a path is mounted with `discard`: it then sends discards to the disk for all
/// deleted data, which may delay writes. False if that cannot be determined.
#[must_use]
pub fn discards(path: &Path) -> bool {
    let Ok(meta) = path.metadata() else { return false };
    let device = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    discards_in(&mounts, device)
}

/// Does the same as [`discards`] with a text in the format of `/proc/self/mountinfo`. Source: proc(5).
fn discards_in(mounts: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    let of_device = |line: &&str| line.split(' ').nth(2) == Some(&device);
    let has_option = |line: &str| {
        let options = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').nth(2));
        options.is_some_and(|options| options.split(',').any(|option| option == "discard"))
    };
    mounts.lines().filter(of_device).any(has_option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_stays_with_its_file() {
        [rename, rename_by_link].into_iter().for_each(keeps_names);
    }

    fn keeps_names(rename: fn(&Path, &Path) -> io::Result<()>) {
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
    fn a_file_system_that_discards_is_known_by_its_options() {
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resuid=1\n\
                      23 22 254:1 / /data rw,relatime shared:1 - xfs /dev/vdb rw,nodiscard\n";
        assert!(discards_in(mounts, (254, 0)));
        assert!(!discards_in(mounts, (254, 1)) && !discards_in(mounts, (8, 0)));
    }

    #[test]
    fn a_file_system_has_space() {
        let directory = tempfile::tempdir().unwrap();
        let Space { total, free } = space(directory.path()).unwrap();
        assert!(total > 0 && free <= total, "{free} of {total}");
        assert!(space(&directory.path().join("none")).is_err());
    }
}
