//! A file whose name was removed, and whose space is given back piece by piece.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Cuts a removed file off at byte `length`, and waits until the file system has freed what was behind. False: others
/// have the file too, so nothing was changed.
pub fn shorten(removed: &File, length: u64) -> io::Result<bool> {
    if removed.metadata()?.nlink() > 0 || !is_only_ours(removed)? {
        return Ok(false);
    }
    removed.set_len(length)?;
    removed.sync_data()?;
    Ok(true)
}

/// Whether this is the only open file description of the file, mappings included. Where the kernel does not say: false.
fn is_only_ours(file: &File) -> io::Result<bool> {
    // A write lease is only granted on a file that nobody else has open. It is given back at once: the file has no name
    // by which anybody could open it, so the lease can't be broken meanwhile. Source: fcntl(2), "Leases".
    if set_lease(file, libc::F_WRLCK).is_err() {
        return Ok(false);
    }
    set_lease(file, libc::F_UNLCK)?;
    Ok(true)
}

fn set_lease(file: &File, lease: libc::c_int) -> io::Result<()> {
    // SAFETY: F_SETLEASE takes an integer and touches no memory of ours; the descriptor is open as long as `file` is.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_is_shortened_where_nobody_else_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link] = ["file", "link"].map(|name| directory.path().join(name));
        std::fs::write(&path, [7; 8192]).unwrap();
        std::fs::hard_link(&path, &link).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let length = || file.metadata().unwrap().len();

        assert!(!shorten(&file, 4096).unwrap(), "it has two names");
        std::fs::remove_file(&path).unwrap();
        assert!(!shorten(&file, 4096).unwrap(), "it has another name");
        let reader = File::open(&link).unwrap();
        std::fs::remove_file(&link).unwrap();
        assert!(!shorten(&file, 4096).unwrap(), "somebody reads it");
        assert_eq!(length(), 8192);
        drop(reader);

        assert!(shorten(&file, 4096).unwrap());
        assert_eq!(length(), 4096);
        assert!(shorten(&file, 0).unwrap());
        assert_eq!(length(), 0);
    }
}
