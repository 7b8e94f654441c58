//! A disk for tests. It writes real files; a test can make writes fail, hold them back and change their order.

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

/// The longest time for which a test may hold back a request that is waited for.
const TEST_TIME_MAX: Duration = Duration::from_secs(30);

/// A disk that a test controls by its [`Script`].
pub struct Fake {
    script: Script,
}

/// Controls a [`Fake`] from a test. Error numbers are those of libc.
#[derive(Clone, Default)]
pub struct Script(Arc<Both>);

#[derive(Default)]
struct Both {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Writes requested so far.
    writes: u64,
    /// Bytes requested so far, over all files.
    bytes: u64,
    failing: Vec<(u64, i32)>,
    fail_from: Option<(u64, i32)>,
    create: Option<i32>,
    cut: Option<i32>,
    sync: Option<i32>,
    preallocate: Option<i32>,
    is_holding_files: bool,
    is_holding_steps: bool,
    rename: Option<i32>,
    remove: Option<i32>,
    space: Option<Space>,
    discards: bool,
    shortened: Vec<u64>,
    note: Option<&'static str>,
    is_holding: bool,
    /// Writes to files in these directories are held back.
    holding: Vec<PathBuf>,
    failing_files: Vec<(PathBuf, i32)>,
    takes_last_first: bool,
    held: Vec<Held>,
    over: Vec<Completed>,
}

struct Held {
    file: Arc<FakeFile>,
    at: u64,
    bytes: Bytes,
    ticket: Ticket,
    error: Option<i32>,
}

impl Fake {
    /// A disk that carries out every request at once until its script says otherwise.
    #[must_use]
    pub fn new() -> (Fake, Script) {
        let script = Script::default();
        (Fake { script: script.clone() }, script)
    }
}

impl Script {
    /// Fails the `n`-th write from now on (0: the next one), which writes nothing.
    pub fn fail_write(&self, n: u64, errno: i32) {
        let mut state = self.state();
        let write = state.writes + n;
        state.failing.push((write, errno));
    }

    /// Fails each write that would raise the total since the disk was made above `limit.0` bytes, with the error
    /// `limit.1`, as a full disk does. `None` removes the limit. Failed writes count too, so that later ones also fail.
    pub fn fail_from_byte(&self, limit: Option<(u64, i32)>) {
        self.state().fail_from = limit;
    }

    /// Refuses to make files; `None` ends that.
    pub fn fail_create(&self, errno: Option<i32>) {
        self.state().create = errno;
    }

    /// Refuses to truncate files; `None` ends that.
    pub fn fail_cut(&self, errno: Option<i32>) {
        self.state().cut = errno;
    }

    /// Refuses to preallocate; `None` ends that.
    pub fn fail_preallocate(&self, errno: Option<i32>) {
        self.state().preallocate = errno;
    }

    /// Holds back requests about whole files (cut, sync, remove), or releases them.
    pub fn hold_whole_files(&self, is_holding: bool) {
        self.state().is_holding_files = is_holding;
        self.0.changed.notify_all();
    }

    /// Holds back each step of a deletion after the file was shortened, or releases it.
    pub fn hold_steps(&self, is_holding: bool) {
        self.state().is_holding_steps = is_holding;
        self.0.changed.notify_all();
    }

    fn wait_while(&self, is_holding: impl Fn(&State) -> bool) {
        let (state, timeout) = (self.0.changed)
            .wait_timeout_while(self.state(), TEST_TIME_MAX, |state| is_holding(state))
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!timeout.timed_out(), "the test holds back requests about whole files");
    }

    fn wait_for_files(&self) {
        self.wait_while(|state| state.is_holding_files);
    }

    /// Refuses to sync files; `None` ends that.
    pub fn fail_sync(&self, errno: Option<i32>) {
        self.state().sync = errno;
    }

    /// Refuses to rename files; `None` ends that.
    pub fn fail_rename(&self, errno: Option<i32>) {
        self.state().rename = errno;
    }

    /// Refuses to remove files; `None` ends that.
    pub fn fail_remove(&self, errno: Option<i32>) {
        self.state().remove = errno;
    }

    /// Reports this size of the file system; with `None`, the real one.
    pub fn set_space(&self, space: Option<Space>) {
        self.state().space = space;
    }

    /// Reports whether the file system is mounted with `discard`.
    pub fn set_discards(&self, discards: bool) {
        self.state().discards = discards;
    }

    /// The lengths to which removed files were shortened, in order.
    #[must_use]
    pub fn shortened(&self) -> Vec<u64> {
        self.state().shortened.clone()
    }

    /// Sets the note for the user.
    pub fn set_note(&self, note: Option<&'static str>) {
        self.state().note = note;
    }

    /// Holds back writes from now on. They stay pending, and their bytes are read when they are
    /// [released](Script::release).
    pub fn hold(&self) {
        self.state().is_holding = true;
    }

    /// Holds back writes to the files of one directory.
    pub fn hold_files(&self, directory: &Path) {
        self.state().holding.push(directory.to_owned());
    }

    /// Fails all writes to files of this directory from now on, including those that are held back.
    pub fn fail_file(&self, directory: &Path, errno: i32) {
        self.state().failing_files.push((directory.to_owned(), errno));
    }

    /// Completes writes in the reverse order of their requests, both held and completed ones that were not taken yet.
    pub fn take_last_first(&self) {
        self.state().takes_last_first = true;
    }

    /// Writes that are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Waits until at least `writes` writes are held back.
    ///
    /// # Panics
    /// After 30 seconds.
    pub fn wait_held(&self, writes: usize) {
        let state = self.state();
        let wait = |state: &mut State| state.held.len() < writes;
        let (state, timeout) = (self.0.changed.wait_timeout_while(state, TEST_TIME_MAX, wait))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "{} of {writes} writes were asked for", state.held.len());
    }

    /// Carries out `writes` of the held writes, in the order of their requests; in the reverse order after
    /// [`take_last_first`](Script::take_last_first).
    pub fn release(&self, writes: usize) {
        let mut state = self.state();
        for _ in 0..writes.min(state.held.len()) {
            let index = if state.takes_last_first { state.held.len() - 1 } else { 0 };
            let mut held = state.held.remove(index);
            held.error = held.error.or_else(|| state.refuses(&held.file));
            let completed = held.carry_out();
            state.over.push(completed);
        }
        self.0.changed.notify_all();
    }

    /// Carries out all held writes, and holds back no more.
    pub fn release_all(&self) {
        let mut state = self.state();
        (state.is_holding, state.holding) = (false, Vec::new());
        drop(state);
        self.release(usize::MAX);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that the test has failed already: its own panic is the one to report.
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

/// Requests about whole files of a [`Fake`].
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
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
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
        let is_holding = state.is_holding || state.holding.contains(&file.directory);
        let write = Held { file: Arc::clone(file), at, bytes, ticket, error };
        if is_holding {
            state.held.push(write);
        } else {
            state.over.push(write.carry_out());
        }
        self.script.0.changed.notify_all();
    }

    fn pending(&self) -> usize {
        let state = self.script.state();
        state.held.len() + state.over.len()
    }

    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>) {
        let mut state = self.script.state();
        if wait {
            let nothing = |state: &mut State| state.over.is_empty() && !state.held.is_empty();
            let changed = &self.script.0.changed;
            let (waited, timeout) = (changed.wait_timeout_while(state, TEST_TIME_MAX, nothing))
                .unwrap_or_else(PoisonError::into_inner);
            assert!(!timeout.timed_out(), "the test holds back writes that are waited for");
            state = waited;
        }
        if state.takes_last_first && !state.is_holding {
            state.over.reverse();
        }
        out.append(&mut state.over);
    }

    fn abandon(&mut self) {}

    fn note(&self) -> Option<&str> {
        self.script.state().note
    }
}
