//! Lists the files of a recording, by the names in its directories.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Most attempts to determine the state of a directory's lock, while recorders begin and end.
const LOCK_TRIES: u32 = 20;
/// Suffix of a complete file.
pub const COMPLETE_ENDING: &str = ".pcapng";
/// Suffix of a complete compressed file.
pub const COMPRESSED_ENDING: &str = ".pcapng.zst";
/// Suffix after the complete name, while a file is being written. A killed recorder leaves such files.
pub const OPEN_ENDING: &str = ".open";
/// Suffix of the index, after the complete name.
pub const INDEX_ENDING: &str = ".index";
/// Suffix of an index while it is rebuilt, after its name.
pub const NEW_ENDING: &str = ".new";
/// The file in its directory on which a recorder holds a lock.
pub const LOCK_NAME: &str = ".weir-recorder";

/// An error of listing files.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// A directory or file cannot be read.
    #[error(
        "{}: cannot be read; name a directory that weir capture --write DIR/ made, or a pcapng file",
        path.display()
    )]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A path that is neither a directory nor a regular file.
    #[error("{}: is no directory and no file; name a directory that weir capture --write DIR/ made", path.display())]
    NeitherOne {
        /// The path.
        path: PathBuf,
    },
}

/// The state of a recorded file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The file has its final name.
    Complete,
    /// The name of the file still ends with `.open`.
    Open {
        /// A recorder holds the lock of the directory, so the file may grow.
        recording: bool,
    },
}

/// A recorded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The path of the file.
    pub path: PathBuf,
    /// Complete or open.
    pub state: State,
    /// The user named the file itself, not its directory. It may then be a symbolic link, and have any name.
    pub named: bool,
}

impl Listed {
    /// Returns the path that the file has when it is complete.
    #[must_use]
    pub fn complete_path(&self) -> PathBuf {
        match self.state {
            State::Open { .. } => complete_path(&self.path),
            State::Complete => self.path.clone(),
        }
    }

    /// Returns the path of the file's index, which may not exist.
    #[must_use]
    pub fn index_path(&self) -> PathBuf {
        index_path(&self.complete_path())
    }
}

/// Returns the path that a file has when it is complete.
pub(crate) fn complete_path(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(OPEN_ENDING.as_bytes()).unwrap_or(bytes);
    OsString::from_vec(bytes.to_vec()).into()
}

/// Returns the path of a file while it is being written.
pub(crate) fn open_path(complete: &Path) -> PathBuf {
    with_ending(complete, OPEN_ENDING)
}

/// Returns the path of the index of a complete file.
pub(crate) fn index_path(complete: &Path) -> PathBuf {
    with_ending(complete, INDEX_ENDING)
}

/// Returns the path at which a new index is built before it replaces the old one.
pub(crate) fn new_path(index: &Path) -> PathBuf {
    with_ending(index, NEW_ENDING)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// The files of some directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// Sorted by name, which is the order of begin times; equal names are sorted by directory.
    pub files: Vec<Listed>,
    /// Other entries of the directories: other names, symbolic links, subdirectories.
    pub passed_over: Vec<PathBuf>,
}

impl Catalog {
    /// Lists the files in directories, and files that are named themselves; each file once.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn list<P: AsRef<Path>>(paths: &[P]) -> Result<Catalog, CatalogError> {
        let mut catalog = Catalog::default();
        for path in paths.iter().map(AsRef::as_ref) {
            let fail = |source| CatalogError::Unreadable { path: path.into(), source };
            let kind = fs::metadata(path).map_err(fail)?.file_type();
            if kind.is_dir() {
                catalog.add_directory(path).map_err(fail)?;
            } else if kind.is_file() {
                let state = match is_open_name(path.as_os_str()) {
                    true => State::Open { recording: is_recording(&directory_of(path)) },
                    false => State::Complete,
                };
                catalog.files.push(Listed { path: path.into(), state, named: true });
            } else {
                return Err(CatalogError::NeitherOne { path: path.into() });
            }
        }
        let order = |listed: &Listed| {
            (listed.complete_path().file_name().map(OsStr::to_owned), listed.path.clone())
        };
        catalog.files.sort_by_cached_key(order);
        let mut seen = std::collections::HashSet::new();
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.into());
        catalog.files.retain(|listed| seen.insert(real(&listed.path)));
        Ok(catalog)
    }

    fn add_directory(&mut self, directory: &Path) -> io::Result<()> {
        // Checked before the names are read: files of a recorder that starts later are not listed then.
        let recording = is_recording(directory);
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            // Symbolic links are not followed: a user who may write here must not choose which file is read.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let state = match () {
                () if !is_file || !is_listed_name(&name) => None,
                () if is_open_name(&name) => Some(State::Open { recording }),
                () => Some(State::Complete),
            };
            match state {
                Some(state) => self.files.push(Listed { path, state, named: false }),
                None if is_companion(&name) => {}
                None => self.passed_over.push(path),
            }
        }
        self.passed_over.sort();
        Ok(())
    }
}

/// Returns whether a file of this name is listed with its directory: one that ends in `.pcapng` or `.pcapng.zst`, with
/// or without `.open`. Not only recorders give such names.
#[must_use]
pub fn is_listed_name(name: &OsStr) -> bool {
    ends(name, "") || is_open_name(name)
}

fn is_open_name(name: &OsStr) -> bool {
    ends(name, OPEN_ENDING)
}

/// Returns whether this is the name of a recorded file, with `more` after its suffix.
fn ends(name: &OsStr, more: &str) -> bool {
    let is_so = |ending: &str| name.as_bytes().ends_with([ending, more].concat().as_bytes());
    is_so(COMPLETE_ENDING) || is_so(COMPRESSED_ENDING)
}

/// Returns whether this is the name of a file that belongs to a recording but has no frames.
fn is_companion(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let bytes = bytes.strip_suffix(NEW_ENDING.as_bytes()).unwrap_or(bytes);
    name == LOCK_NAME || ends(OsStr::from_bytes(bytes), INDEX_ENDING)
}

pub(crate) fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.into(),
        _ => PathBuf::from("."),
    }
}

/// Returns whether the path names this open file. Symbolic links are not followed.
pub(crate) fn is_named(file: &File, path: &Path) -> bool {
    let id = |meta: &fs::Metadata| (meta.dev(), meta.ino());
    let named = fs::symlink_metadata(path).map(|meta| id(&meta));
    file.metadata().is_ok_and(|meta| named.is_ok_and(|named| named == id(&meta)))
}

/// Returns whether a recorder holds the lock of the directory; `true` if that cannot be determined.
#[must_use]
pub fn is_recording(directory: &Path) -> bool {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock};
    // Follows no symbolic link, and does not block on a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = directory.join(LOCK_NAME);
    for _ in 0..LOCK_TRIES {
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(error) => return error != rustix::io::Errno::NOENT,
            Ok(file) => File::from(file),
        };
        // A shared lock, so that two simultaneous checks do not see each other as a recorder.
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            return true;
        }
        // A recorder that ends removes the file; another one may have begun with a new file.
        if is_named(&file, &path) {
            return false;
        }
    }
    true
}
