//! Records of changed settings: one file for each interface, under /run/weir-doctor/.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use weir_capture::kernel::PrivateFolder;

use crate::settings::Knob;

/// The folder of the records, except in tests. /run does not survive a reboot, and neither do the settings. The folder
/// is not under /run/weir, which a service manager may give to a user without rights (`RuntimeDirectory=weir`).
pub const FOLDER: &str = "/run/weir-doctor";

/// A setting that was changed, or was about to be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The setting.
    pub knob: Knob,
    /// Value before the first change.
    pub before: String,
    /// Value after the last change, or the intended value if the process ended in between.
    pub after: String,
}

/// The changes of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub iface: String,
    /// Its link-layer address, which distinguishes it from a later interface of the same name.
    pub address: [u8; 6],
    /// The changes, in the order in which the settings were first changed.
    pub changes: Vec<Change>,
}

/// The records of one network namespace. Only one process at a time has them open.
#[derive(Debug)]
pub struct Book {
    folder: PrivateFolder,
    netns: u64,
    _locked: File,
}

impl Book {
    /// Opens the records of the calling thread's network namespace. Waits while another process has them open.
    ///
    /// # Errors
    /// The folder does not belong to this user alone: records in it would become settings of the system. Otherwise the
    /// kernel's error.
    pub fn open(folder: &Path) -> io::Result<Book> {
        let folder = PrivateFolder::open(folder)?;
        let locked = folder.open_or_create("lock")?;
        flock(&locked, FlockOperation::LockExclusive)?;
        let netns = fs::metadata("/proc/thread-self/ns/net")?.ino();
        Ok(Book { folder, netns, _locked: locked })
    }

    /// Returns the record of an interface, if there is one.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn find(&self, iface: &str) -> io::Result<Option<Record>> {
        match self.folder.read(&self.name(iface)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a record atomically. Removes it if it has no changes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn keep(&self, record: &Record) -> io::Result<()> {
        let name = self.name(&record.iface);
        if record.changes.is_empty() {
            return self.folder.remove(&name);
        }
        self.folder.replace(&name, &serde_json::to_vec_pretty(record)?)
    }

    fn name(&self, iface: &str) -> String {
        format!("{}-{iface}.json", self.netns)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn record(value: &str) -> Record {
        let knob = Knob::RxRing { iface: "eth0".to_owned() };
        let change = Change { knob, before: value.to_owned(), after: "2".to_owned() };
        Record { iface: "eth0".to_owned(), address: [2; 6], changes: vec![change] }
    }

    #[test]
    fn a_record_is_kept_in_a_folder_of_ones_own_and_goes_with_its_last_change() {
        let folder = tempfile::tempdir().unwrap();
        let book = Book::open(&folder.path().join("own")).unwrap();
        assert_eq!(book.find("eth0").unwrap(), None);
        book.keep(&record("1")).unwrap();
        assert_eq!(book.find("eth0").unwrap(), Some(record("1")));
        book.keep(&Record { changes: Vec::new(), ..record("1") }).unwrap();
        assert_eq!(book.find("eth0").unwrap(), None);
    }

    #[test]
    fn what_others_may_have_written_is_not_believed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("open");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o1777)).unwrap();
        let error = Book::open(&folder).unwrap_err();
        assert!(error.to_string().contains("not private"), "{error}");
        assert!(!folder.join("lock").exists());
        let link = parent.path().join("link");
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        symlink(&folder, &link).unwrap();
        Book::open(&link).unwrap_err();
    }

    #[test]
    fn links_and_fifos_in_the_folder_are_errors_and_hang_nobody() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("own");
        let victim = parent.path().join("victim");
        fs::write(&victim, b"precious").unwrap();
        drop(Book::open(&folder).unwrap());
        fs::remove_file(folder.join("lock")).unwrap();
        symlink(&victim, folder.join("lock")).unwrap();
        Book::open(&folder).unwrap_err();
        fs::remove_file(folder.join("lock")).unwrap();
        let book = Book::open(&folder).unwrap();
        symlink(&victim, folder.join("new")).unwrap();
        book.keep(&record("1")).unwrap();
        let path = folder.join(book.name("eth0"));
        fs::remove_file(&path).unwrap();
        let fifo = |path: &Path| {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        };
        fifo(&path);
        book.find("eth0").unwrap_err();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
