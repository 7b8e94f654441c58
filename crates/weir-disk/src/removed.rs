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
    // A write lease is only granted on a file that nobody else has open, and it is given back at once. Who opens the
    // file in between (it has no name, but there is /proc/PID/fd) breaks it: this process gets a signal that is
    // ignored by default, in place of SIGIO, which would end it; and the other may see a file that gets shorter.
    // Source: fcntl(2), "Leases".
    control(file, F_SETSIG, libc::SIGURG)?;
    if control(file, libc::F_SETLEASE, libc::F_WRLCK).is_err() {
        return Ok(false);
    }
    control(file, libc::F_SETLEASE, libc::F_UNLCK)?;
    Ok(true)
}

/// Source: linux/fcntl.h (asm-generic), which libc does not have for every C library.
const F_SETSIG: libc::c_int = 10;

fn control(file: &File, command: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: F_SETSIG and F_SETLEASE take an integer and touch no memory of ours; the descriptor is open as long as
    // `file` is.
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
