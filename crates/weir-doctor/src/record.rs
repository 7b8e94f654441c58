//! What is written down about changed settings: one file an interface, under /run/weir/doctor/.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::settings::Knob;

/// Where records are, but for tests. /run does not survive a boot, nor do the settings.
pub const FOLDER: &str = "/run/weir/doctor";

/// One knob that was turned, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What.
    pub knob: Knob,
    /// What it was before the first change.
    pub before: String,
    /// What it was after the last one, or should be if the process ended in between.
    pub after: String,
}

/// What was changed for an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub iface: String,
    /// Its address, which tells it from a namesake that came later.
    pub address: [u8; 6],
    /// In the order of the first changes.
    pub changes: Vec<Change>,
}

/// The records of one network namespace, which one process at a time has.
#[derive(Debug)]
pub struct Book {
    folder: PathBuf,
    netns: u64,
    _locked: File,
}

impl Book {
    /// Opens the book of the calling thread's network namespace; waits for whoever has it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(folder: &Path) -> io::Result<Book> {
        fs::create_dir_all(folder)?;
        let locked = File::create(folder.join("lock"))?;
        flock(&locked, FlockOperation::LockExclusive)?;
        let netns = fs::metadata("/proc/thread-self/ns/net")?.ino();
        Ok(Book { folder: folder.to_owned(), netns, _locked: locked })
    }

    /// The record of an interface, if there is one.
    ///
    /// # Errors
    /// A record that cannot be read.
    pub fn find(&self, iface: &str) -> io::Result<Option<Record>> {
        match fs::read(self.path(iface)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a record down, whole or not at all; one without changes goes away.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn keep(&self, record: &Record) -> io::Result<()> {
        let path = self.path(&record.iface);
        if record.changes.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let new = self.folder.join("new");
        fs::write(&new, serde_json::to_vec_pretty(record)?)?;
        fs::rename(new, path)
    }

    fn path(&self, iface: &str) -> PathBuf {
        self.folder.join(format!("{}-{iface}.json", self.netns))
    }
}
