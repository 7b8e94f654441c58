//! A folder whose files are trusted, because only this user can have created them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Longest file that is read. The files that Weir keeps in such folders are much shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A folder that is owned by this process's effective user and closed to all others.
///
/// All names are names of files in this folder, without a slash. Files are opened relative to the folder that was
/// checked, so that it cannot be replaced afterwards. Links are not followed. Everything is an error except a regular
/// file of this user with at most one hard link. No call blocks, even on a FIFO.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    folder: OwnedFd,
}

impl PrivateFolder {
    /// Opens the folder, and creates it if it does not exist. Its parent must exist.
    ///
    /// # Errors
    /// `PermissionDenied`: the folder belongs to another user, or others have access to it. Otherwise the
    /// kernel's error.
    pub fn open(path: &Path) -> io::Result<PrivateFolder> {
        match mkdirat(CWD, path, Mode::RWXU) {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        PrivateFolder::open_existing(path)
    }

    /// Opens the folder, which must exist.
    ///
    /// # Errors
    /// As [`open`](PrivateFolder::open), and `NotFound`.
    pub fn open_existing(path: &Path) -> io::Result<PrivateFolder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(CWD, path, flags, Mode::empty())?;
        let stat = fstat(&folder)?;
        let own = geteuid();
        if stat.st_uid != own.as_raw() || stat.st_mode & 0o077 != 0 {
            let text = format!(
                "{} is not private: it must belong to user {} with mode 0700; look what is in it, then remove it",
                path.display(),
                own.as_raw()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(PrivateFolder { path: path.to_owned(), folder })
    }

    /// Returns the path of the folder, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of the folder's entries, without those that are not UTF-8.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    /// Opens a file for writing. Creates it if it does not exist, and does not truncate it if it does.
    ///
    /// # Errors
    /// `InvalidData`: it is not a regular file of this user. Otherwise the kernel's error.
    pub fn open_or_create(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE)
    }

    /// Opens a file for writing.
    ///
    /// # Errors
    /// As [`open_or_create`](PrivateFolder::open_or_create), and `NotFound`.
    pub fn open_file_for_writing(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::WRONLY)
    }

    /// Creates a file, which must not exist.
    ///
    /// # Errors
    /// `AlreadyExists`; otherwise the kernel's error.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// As [`open_file_for_writing`](PrivateFolder::open_file_for_writing); `InvalidData` above 1 MiB.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.open_file(name, OFlags::RDONLY)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(self.refused(name, "too long"));
        }
        Ok(bytes)
    }

    /// Replaces a file atomically, by way of a temporary file named `new`. Two threads must not call this at the same
    /// time.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        const NEW: &str = "new";
        // A process that ended within this function may have left it.
        self.remove(NEW)?;
        self.create_new(NEW)?.write_all(bytes)?;
        Ok(renameat(&self.folder, NEW, &self.folder, name)?)
    }

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        if name.contains('/') {
            return Err(self.refused(name, "not a name in this folder"));
        }
        // Without NONBLOCK, opening a FIFO would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR);
        let file = match file {
            Ok(fd) => File::from(fd),
            // The kernel's errors for a link, a folder, and a FIFO without a reader.
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                return Err(self.refused(name, "not a regular file"));
            }
            Err(error) => return Err(error.into()),
        };
        let meta = file.metadata()?;
        if FileType::from_raw_mode(meta.mode()) != FileType::RegularFile {
            return Err(self.refused(name, "not a regular file"));
        }
        // A link count of 0 is accepted: another process of this user has just removed the file. Callers
        // for which that matters check for it.
        if meta.uid() != geteuid().as_raw() || meta.nlink() > 1 {
            return Err(self.refused(name, "another user's, or has another name elsewhere"));
        }
        Ok(file)
    }

    fn refused(&self, name: &str, why: &str) -> io::Error {
        let path = self.path.join(name);
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} is {why}; remove it", path.display()),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn folder() -> (tempfile::TempDir, PrivateFolder) {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::open(&parent.path().join("own")).unwrap();
        (parent, folder)
    }

    fn fifo(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    #[test]
    fn what_is_written_is_read_and_only_ours_to_see() {
        let (_parent, folder) = folder();
        assert_eq!(folder.path().metadata().unwrap().mode() & 0o7777, 0o700);
        folder.replace("a", b"1").unwrap();
        folder.replace("a", b"22").unwrap();
        assert_eq!(folder.read("a").unwrap(), b"22");
        assert_eq!(folder.path().join("a").metadata().unwrap().mode() & 0o7777, 0o600);
        assert_eq!(folder.names().unwrap(), ["a"]);
        let there = folder.create_new("a").unwrap_err();
        assert_eq!(there.kind(), io::ErrorKind::AlreadyExists);
        folder.remove("a").unwrap();
        folder.remove("a").unwrap();
        assert_eq!(folder.read("a").unwrap_err().kind(), io::ErrorKind::NotFound);
        // A file that a process left which ended within `replace`.
        fs::write(folder.path().join("new"), b"half").unwrap();
        folder.replace("b", b"3").unwrap();
        assert_eq!(folder.names().unwrap(), ["b"]);
    }

    #[test]
    fn a_folder_that_others_may_enter_or_own_is_refused() {
        let (parent, folder) = folder();
        let path = folder.path().to_owned();
        for mode in [0o755, 0o770, 0o701] {
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = PrivateFolder::open(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        PrivateFolder::open(&path).unwrap();
        let link = parent.path().join("link");
        symlink(&path, &link).unwrap();
        PrivateFolder::open(&link).unwrap_err();
        let file = parent.path().join("file");
        fs::write(&file, b"").unwrap();
        PrivateFolder::open(&file).unwrap_err();
        PrivateFolder::open_existing(&parent.path().join("missing")).unwrap_err();
    }

    #[test]
    fn root_a_folder_or_file_of_another_user_is_refused() {
        let test = "root_a_folder_or_file_of_another_user_is_refused";
        if !weir_lab::testbed::require_root(test) {
            return;
        }
        let (_parent, folder) = folder();
        folder.replace("a", b"1").unwrap();
        std::os::unix::fs::chown(folder.path().join("a"), Some(1), None).unwrap();
        assert_eq!(folder.read("a").unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::os::unix::fs::chown(folder.path(), Some(1), None).unwrap();
        let error = PrivateFolder::open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn links_fifos_and_folders_are_refused_and_nothing_waits_for_them() {
        let (parent, folder) = folder();
        let victim = parent.path().join("victim");
        fs::write(&victim, b"precious").unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink(&victim, at("link")).unwrap();
        symlink(parent.path().join("not-there"), at("dangling")).unwrap();
        fs::hard_link(&victim, at("second-name")).unwrap();
        fifo(&at("fifo"));
        fs::create_dir(at("folder")).unwrap();
        for name in ["link", "dangling", "second-name", "fifo", "folder", "../victim"] {
            let refused = |result: io::Result<()>| {
                let error = result.expect_err(name);
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}: {error}");
            };
            refused(folder.read(name).map(drop));
            refused(folder.open_or_create(name).map(drop));
            refused(folder.open_file_for_writing(name).map(drop));
        }
        // A FIFO with a reader can be opened for writing.
        let _reader = fs::File::options().read(true).write(true).open(at("fifo")).unwrap();
        assert!(folder.open_file_for_writing("fifo").is_err());
        // A link in the place of the temporary file.
        symlink(&victim, at("new")).unwrap();
        folder.replace("record", b"1").unwrap();
        assert_eq!(folder.read("record").unwrap(), b"1");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(!parent.path().join("not-there").exists());
    }
}
