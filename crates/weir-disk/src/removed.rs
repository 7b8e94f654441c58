//! Frees the space of a removed file step by step.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Truncates a removed file to `length` bytes, and waits until the file system has freed the space. Returns false and
/// changes nothing if the file is also open elsewhere, if it still has a name, or if the kernel cannot tell.
pub fn shorten(removed: &File, length: u64) -> io::Result<bool> {
    if removed.metadata()?.nlink() > 0 || !is_only_ours(removed)? {
        return Ok(false);
    }
    removed.set_len(length)?;
    removed.sync_data()?;
    Ok(true)
}

/// Whether no other open file description refers to the file. Mappings made through another one count; those of this
/// one, and duplicates of its descriptor, do not. False also if the kernel cannot tell, as on file systems without
/// leases.
fn is_only_ours(file: &File) -> io::Result<bool> {
    // The kernel grants a write lease only on a file that is not open elsewhere. The lease is released at once. Another
    // process that opens the file while the lease is held (through /proc/PID/fd, as the file has no name) breaks the
    // lease. Then the kernel sends this process SIGURG, which is ignored by default, instead of SIGIO, which would end
    // it; and the other process may see that the file is truncated. Source: fcntl(2), "Leases".
    control(file, F_SETSIG, libc::SIGURG)?;
    if control(file, libc::F_SETLEASE, libc::F_WRLCK).is_err() {
        return Ok(false);
    }
    control(file, libc::F_SETLEASE, libc::F_UNLCK)?;
    Ok(true)
}

/// The crate libc does not define this constant for every C library. Source: asm-generic/fcntl.h.
const F_SETSIG: libc::c_int = 10;

fn control(file: &File, command: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: F_SETSIG and F_SETLEASE take an integer and access no memory of this process; the descriptor is open as
    // long as `file` is.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
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
