//! A disk for tests: it writes real files, and can be told to fail, hold and reorder writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::buffer::Buffer;
use crate::directory;
use crate::directory::Space;
use crate::files::Files;
use crate::queue::{Bytes, Completed, Disk, Ticket};
use crate::removed;
use crate::write::{check, length, ring_words};

/// Longest time for which a test may hold a request.
const TEST_TIME_MAX: Duration = Duration::from_secs(30);

/// A disk that is controlled by a [`Script`].
pub struct Fake {
    script: Script,
}

/// Controls a [`Fake`] from a test. Error numbers are those of libc.
#[derive(Clone, Default)]
pub struct Script(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of writes so far.
    writes: u64,
    /// Number of bytes of all writes so far.
    bytes: u64,
    failing: Vec<(u64, i32)>,
    fail_from: Option<(u64, i32)>,
    create: Option<i32>,
    cut: Option<i32>,
    sync: Option<i32>,
    preallocate: Option<i32>,
    is_holding_requests: bool,
    is_holding_steps: bool,
    rename: Option<i32>,
    remove: Option<i32>,
    space: Option<Space>,
    discards: bool,
    shortened: Vec<u64>,
    note: Option<&'static str>,
    is_holding: bool,
    /// Directories: writes to their files are held.
    held_directories: Vec<PathBuf>,
    failing_files: Vec<(PathBuf, i32)>,
    takes_last_first: bool,
    held: Vec<Held>,
    completed: Vec<Completed>,
}

struct Held {
    file: Arc<FakeFile>,
    at: u64,
    bytes: Bytes,
    ticket: Ticket,
    error: Option<i32>,
}

impl Fake {
    /// Creates a disk that carries out all requests at once, until its script changes that.
    #[must_use]
    pub fn new() -> (Fake, Script) {
        let script = Script::default();
        (Fake { script: script.clone() }, script)
    }
}

impl Script {
    /// Makes the `n`-th next write fail without writing anything. 0: the next one; preallocations do not count.
    pub fn fail_write(&self, n: u64, errno: i32) {
        let mut state = self.state();
        let write = state.writes + n;
        state.failing.push((write, errno));
    }

    /// Makes all writes fail that would exceed this total number of bytes since the disk was created, as on a full
    /// disk; `None` ends this. Failed writes count, too, so that later ones also fail.
    pub fn fail_from_byte(&self, limit: Option<(u64, i32)>) {
        self.state().fail_from = limit;
    }

    /// Makes the creation of files fail; `None` ends this.
    pub fn fail_create(&self, errno: Option<i32>) {
        self.state().create = errno;
    }

    /// Makes truncation fail; `None` ends this.
    pub fn fail_cut(&self, errno: Option<i32>) {
        self.state().cut = errno;
    }

    /// Makes preallocation fail; `None` ends this.
    pub fn fail_preallocate(&self, errno: Option<i32>) {
        self.state().preallocate = errno;
    }

    /// Holds requests for whole files (cut, sync, remove), or releases them.
    pub fn hold_file_requests(&self, is_holding: bool) {
        self.state().is_holding_requests = is_holding;
        self.0.changed.notify_all();
    }

    /// Holds each step of a deletion after the file was truncated, or releases it.
    pub fn hold_steps(&self, is_holding: bool) {
        self.state().is_holding_steps = is_holding;
        self.0.changed.notify_all();
    }

    fn wait_while(&self, is_holding: impl Fn(&State) -> bool) {
        let (state, timeout) = (self.0.changed)
            .wait_timeout_while(self.state(), TEST_TIME_MAX, |state| is_holding(state))
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!timeout.timed_out(), "a test has held a request for longer than 30 s");
    }

    fn wait_for_files(&self) {
        self.wait_while(|state| state.is_holding_requests);
    }

    /// Makes syncing fail; `None` ends this.
    pub fn fail_sync(&self, errno: Option<i32>) {
        self.state().sync = errno;
    }

    /// Makes renaming fail; `None` ends this.
    pub fn fail_rename(&self, errno: Option<i32>) {
        self.state().rename = errno;
    }

    /// Makes removal fail; `None` ends this.
    pub fn fail_remove(&self, errno: Option<i32>) {
        self.state().remove = errno;
    }

    /// Sets the reported size of the disk's file system; `None`: the real size.
    pub fn set_space(&self, space: Option<Space>) {
        self.state().space = space;
    }

    /// Sets whether the disk's file system is reported as mounted with `discard`.
    pub fn set_discards(&self, discards: bool) {
        self.state().discards = discards;
    }

    /// Returns the lengths to which removed files were truncated, in order.
    #[must_use]
    pub fn shortened(&self) -> Vec<u64> {
        self.state().shortened.clone()
    }

    /// Sets the note that the disk has for the user.
    pub fn set_note(&self, note: Option<&'static str>) {
        self.state().note = note;
    }

    /// Holds writes from now on: they stay in progress, and their bytes are not read until they are
    /// [released](Script::release).
    pub fn hold(&self) {
        self.state().is_holding = true;
    }

    /// Holds the writes to files of one directory.
    pub fn hold_writes_in(&self, directory: &Path) {
        self.state().held_directories.push(directory.to_owned());
    }

    /// Makes all writes to files of this directory fail from now on, and preallocations.
    pub fn fail_writes_in(&self, directory: &Path, errno: i32) {
        self.state().failing_files.push((directory.to_owned(), errno));
    }

    /// Makes writes complete in reverse order: those that are held, and those that have completed but were not taken.
    pub fn take_last_first(&self) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.takes_last_first, true) {
            state.completed.reverse();
        }
    }

    /// Returns the number of held writes.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Waits until at least this many writes are held.
    ///
    /// # Panics
    /// If that takes more than 30 seconds.
    pub fn wait_held(&self, writes: usize) {
        let state = self.state();
        let wait = |state: &mut State| state.held.len() < writes;
        let (state, timeout) = (self.0.changed.wait_timeout_while(state, TEST_TIME_MAX, wait))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "only {} of {writes} writes are held", state.held.len());
    }

    /// Carries out this many of the held writes, oldest first or, after
    /// [`take_last_first`](Script::take_last_first), newest first.
    pub fn release(&self, writes: usize) {
        let mut state = self.state();
        for _ in 0..writes.min(state.held.len()) {
            let index = if state.takes_last_first { state.held.len() - 1 } else { 0 };
            let mut held = state.held.remove(index);
            held.error = held.error.or_else(|| state.refuses(&held.file));
            let completed = held.carry_out();
            state.completed.push(completed);
        }
        self.0.changed.notify_all();
    }

    /// Carries out all held writes, and holds no more.
    pub fn release_all(&self) {
        let mut state = self.state();
        (state.is_holding, state.held_directories) = (false, Vec::new());
        drop(state);
        self.release(usize::MAX);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Ignore poisoning: a failed test is reported by its own panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file of a [`Fake`].
#[derive(Debug)]
pub struct FakeFile {
    file: File,
    directory: PathBuf,
}

impl FakeFile {
    fn preallocate(&self, end: u64) -> io::Result<()> {
        if self.file.metadata()?.len() < end { self.file.set_len(end) } else { Ok(()) }
    }
}

impl State {
    fn refuses(&self, file: &FakeFile) -> Option<i32> {
        let own = self.failing_files.iter().find(|(directory, _)| *directory == file.directory);
        own.map(|(_, errno)| *errno)
    }

    /// Counts a write, and returns the error with which it fails, if any.
    fn count(&mut self, bytes: u64) -> Option<i32> {
        let write = self.writes;
        self.writes += 1;
        self.bytes += bytes;
        let named = self.failing.iter().find(|(failing, _)| *failing == write);
        let full = self.fail_from.as_ref().filter(|(limit, _)| self.bytes > *limit);
        named.or(full).map(|(_, errno)| *errno)
    }
}

impl Held {
    fn carry_out(self) -> Completed {
        let Held { file, at, bytes, ticket, error } = self;
        let result = match (error, &bytes) {
            (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
            (None, Bytes::Own(own)) => file.file.write_all_at(own.as_slice(), at),
            (None, Bytes::Preallocate { bytes }) => file.preallocate(at + bytes),
            (None, ring) => {
                let mut copy = Buffer::new(length(ring));
                copy.fill_from_ring(ring_words(ring));
                file.file.write_all_at(copy.as_slice(), at)
            }
        };
        Completed { ticket, result, bytes }
    }
}

fn refuse(errno: Option<i32>) -> io::Result<()> {
    errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Requests for whole files of a [`Fake`].
#[derive(Clone)]
pub struct FakeFiles(Script);

impl Files for FakeFiles {
    type File = FakeFile;

    fn cut(&self, file: &FakeFile, length: u64) -> io::Result<()> {
        self.0.wait_for_files();
        refuse(self.0.state().cut)?;
        file.file.set_len(length)
    }

    fn sync(&self, file: &FakeFile) -> io::Result<()> {
        self.0.wait_for_files();
        refuse(self.0.state().sync)?;
        file.file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        refuse(self.0.state().rename)?;
        directory::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.wait_for_files();
        refuse(self.0.state().remove)?;
        std::fs::remove_file(path)
    }

    fn shorten(&self, removed: &File, length: u64) -> io::Result<bool> {
        let is_shorter = removed::shorten(removed, length)?;
        if is_shorter {
            self.0.state().shortened.push(length);
            self.0.wait_while(|state| state.is_holding_steps);
        }
        Ok(is_shorter)
    }

    fn discards(&self, _: &Path) -> bool {
        self.0.state().discards
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        let space = self.0.state().space;
        space.map_or_else(|| directory::space(directory), Ok)
    }
}

impl Disk for Fake {
    type File = FakeFile;
    type Files = FakeFiles;

    fn files(&self) -> FakeFiles {
        FakeFiles(self.script.clone())
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<FakeFile>> {
        refuse(self.script.state().create)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        let directory = path.parent().expect("a file has a directory").to_owned();
        Ok(Arc::new(FakeFile { file, directory }))
    }

    fn write(&mut self, file: &Arc<FakeFile>, at: u64, bytes: Bytes, ticket: Ticket) {
        let length = check(at, &bytes);
        let mut state = self.script.state();
        let error = match bytes {
            Bytes::Preallocate { .. } => state.preallocate,
            _ => state.count(length as u64),
        };
        let error = error.or_else(|| state.refuses(file));
        let is_holding = state.is_holding || state.held_directories.contains(&file.directory);
        let write = Held { file: Arc::clone(file), at, bytes, ticket, error };
        if is_holding {
            state.held.push(write);
        } else {
            let at = if state.takes_last_first { 0 } else { state.completed.len() };
            state.completed.insert(at, write.carry_out());
        }
        self.script.0.changed.notify_all();
    }

    fn pending(&self) -> usize {
        let state = self.script.state();
        state.held.len() + state.completed.len()
    }

    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>) {
        let mut state = self.script.state();
        if wait {
            let nothing = |state: &mut State| state.completed.is_empty() && !state.held.is_empty();
            let changed = &self.script.0.changed;
            let (waited, timeout) = (changed.wait_timeout_while(state, TEST_TIME_MAX, nothing))
                .unwrap_or_else(PoisonError::into_inner);
            assert!(!timeout.timed_out(), "the test holds back writes that are waited for");
            state = waited;
        }
        out.append(&mut state.completed);
    }

    fn abandon(&mut self) {}

    fn note(&self) -> Option<&str> {
        self.script.state().note
    }
}
