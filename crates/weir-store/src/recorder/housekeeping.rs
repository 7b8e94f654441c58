//! Completes, truncates and deletes files. Deleting 1 GiB takes some hundred milliseconds on a file system mounted
//! with `discard`, so a thread of the volume does this work, and rings are read meanwhile.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_disk::{Disk, Files};

use super::file::OpenFile;
use crate::catalog::{complete_path, index_path};
use crate::limits::{DELETE_STEP_BYTES, DELETE_STEPS_TIME_MAX};

/// The longest pause between two steps of a deletion.
const DELETE_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Work that concerns a whole file.
pub enum Job<D: Disk> {
    /// Give a file its final length and its final name.
    Complete(Box<OpenFile<D>>),
    /// Free the preallocated space of a file that grows slowly. Nothing is written to it meanwhile.
    Cut {
        stream: usize,
        id: u64,
        file: Arc<D::File>,
        length: u64,
    },
    Delete(Past),
}

/// A file to which no recorder writes any more.
pub struct Past {
    pub path: PathBuf,
    pub bytes: u64,
    /// A lock that excludes readers during the deletion.
    pub lock: Option<File>,
    /// Whether the file could not be deleted.
    pub is_kept: bool,
}

/// The result of a job.
pub enum Outcome {
    Completed {
        /// The path that the file has now.
        path: PathBuf,
        bytes: u64,
        /// Bytes that counted for the quota.
        planned: u64,
        result: io::Result<()>,
    },
    Cut {
        stream: usize,
        id: u64,
        result: io::Result<()>,
    },
    Deleted {
        past: Past,
        /// Whether the free space of the file system has grown.
        has_freed: bool,
        result: io::Result<()>,
    },
}

/// The thread of a volume, and its jobs.
pub struct Housekeeping<D: Disk> {
    files: D::Files,
    directory: PathBuf,
    /// Whether the file system is mounted with `discard`, so that files are deleted in steps.
    discards: bool,
    thread: Option<(Sender<Job<D>>, JoinHandle<()>)>,
    done: Sender<Outcome>,
    outcomes: Receiver<Outcome>,
    under_way: usize,
    /// Whether writes wait for a deletion.
    is_waited_for: Arc<AtomicBool>,
}

impl<D: Disk> Housekeeping<D> {
    pub fn new(files: D::Files, directory: &Path) -> Housekeeping<D> {
        let (done, outcomes) = mpsc::channel();
        let is_waited_for = Arc::default();
        let discards = files.discards(directory);
        let directory = directory.to_owned();
        Housekeeping {
            files,
            directory,
            discards,
            thread: None,
            done,
            outcomes,
            under_way: 0,
            is_waited_for,
        }
    }

    /// Returns whether the file system is mounted with `discard`.
    pub fn discards(&self) -> bool {
        self.discards
    }

    /// Returns the number of jobs whose outcome was not taken yet.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Queues a job.
    pub fn ask(&mut self, job: Job<D>) {
        self.under_way += 1;
        // The thread is started at the first job, because it inherits the capabilities at that time.
        if self.thread.is_none() {
            self.thread = self.start().ok();
        }
        let job = match &self.thread {
            Some((asked, _)) => asked.send(job).err().map(|refused| refused.0),
            None => Some(job),
        };
        if let Some(job) = job {
            // Without a thread, the job is done here, and rings are not read meanwhile.
            let _ = self.done.send(carry_out(job, &self.files, &self.directory, || Pace::AtOnce));
        }
    }

    /// Sets whether writes wait for a deletion, which then frees the space at once instead of in steps.
    pub fn set_waited_for(&self, is_waited_for: bool) {
        self.is_waited_for.store(is_waited_for, Relaxed);
    }

    /// Returns the outcome of the next finished job.
    pub fn next(&mut self) -> Option<Outcome> {
        let outcome = self.outcomes.try_recv().ok()?;
        self.under_way -= 1;
        Some(outcome)
    }

    /// Abandons all jobs, without waiting for them.
    pub fn abandon(&mut self) {
        // The thread ends by itself once its system call returns.
        self.thread = None;
        self.under_way = 0;
        (self.done, self.outcomes) = mpsc::channel();
    }

    fn start(&self) -> io::Result<(Sender<Job<D>>, JoinHandle<()>)> {
        let (asked, jobs) = mpsc::channel();
        let (files, directory, done) =
            (self.files.clone(), self.directory.clone(), self.done.clone());
        let (discards, is_waited_for) = (self.discards, Arc::clone(&self.is_waited_for));
        let thread = std::thread::Builder::new().name("weir-files".to_owned());
        let thread = thread.spawn(move || {
            let mut queue = JobQueue { jobs, next: VecDeque::new(), is_over: false };
            while let Some(job) = queue.wait() {
                let pace = || {
                    queue.receive();
                    match !discards || is_waited_for.load(Relaxed) || queue.is_over {
                        true => Pace::AtOnce,
                        false if queue.next.is_empty() => Pace::Gentle,
                        false => Pace::Steady,
                    }
                };
                if done.send(carry_out(job, &files, &directory, pace)).is_err() {
                    return;
                }
            }
        })?;
        Ok((asked, thread))
    }
}

impl<D: Disk> Drop for Housekeeping<D> {
    fn drop(&mut self) {
        if let Some((asked, thread)) = self.thread.take() {
            drop(asked);
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

/// The speed at which the space of a deleted file is freed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// In steps, with a pause after each that is as long as the step.
    Gentle,
    /// In steps without pauses.
    Steady,
    AtOnce,
}

/// The job queue of the thread.
struct JobQueue<D: Disk> {
    jobs: Receiver<Job<D>>,
    /// Jobs that were received during another job.
    next: VecDeque<Job<D>>,
    is_over: bool,
}

impl<D: Disk> JobQueue<D> {
    /// Waits for the next job, and returns it; `None` at the end.
    fn wait(&mut self) -> Option<Job<D>> {
        self.next.pop_front().or_else(|| self.jobs.recv().ok())
    }

    /// Receives new jobs, and notices the end of the recorder.
    fn receive(&mut self) {
        loop {
            match self.jobs.try_recv() {
                Ok(job) => self.next.push_back(job),
                Err(none) => {
                    self.is_over = none == TryRecvError::Disconnected;
                    return;
                }
            }
        }
    }
}

/// Does a job. A deletion calls `pace` before each step.
fn carry_out<D: Disk>(
    job: Job<D>,
    files: &D::Files,
    directory: &Path,
    pace: impl FnMut() -> Pace,
) -> Outcome {
    match job {
        Job::Complete(file) => {
            let planned = file.taken();
            let (open, complete) = (file.path.clone(), file.final_path.clone());
            match file.complete(files) {
                Ok(bytes) => Outcome::Completed { path: complete, bytes, planned, result: Ok(()) },
                Err(error) => {
                    let bytes = open.metadata().map_or(0, |meta| meta.len());
                    Outcome::Completed { path: open, bytes, planned, result: Err(error) }
                }
            }
        }
        Job::Cut { stream, id, file, length } => {
            Outcome::Cut { stream, id, result: files.cut(&file, length) }
        }
        Job::Delete(mut past) => {
            let free = || files.space(directory).map_or(0, |space| space.free);
            let before = free();
            let mut result = files.remove(&past.path);
            if result.is_ok() || !past.path.exists() {
                let _ = fs::remove_file(index_path(&complete_path(&past.path)));
                result = Ok(());
            }
            if let Some(file) = past.lock.take()
                && result.is_ok()
            {
                give_back(&file, files, pace);
            }
            // The rest of the file's space is freed when its last descriptor is closed.
            Outcome::Deleted { past, has_freed: free() > before, result }
        }
    }
}

/// Frees the space of a removed file in steps. If 1 GiB is discarded at once, writes to the disk wait for 50 ms; in
/// steps, for 15 ms. Decision 0047.
fn give_back<F: Files>(removed: &File, files: &F, mut pace: impl FnMut() -> Pace) {
    let begin = Instant::now();
    let mut length = removed.metadata().map_or(0, |meta| meta.len());
    while length > DELETE_STEP_BYTES && begin.elapsed() < DELETE_STEPS_TIME_MAX {
        let (step, pace) = (Instant::now(), pace());
        if pace == Pace::AtOnce {
            return;
        }
        length -= DELETE_STEP_BYTES;
        // If this fails, closing the file frees the rest.
        let Ok(true) = files.shorten(removed, length) else { return };
        if pace == Pace::Gentle {
            std::thread::sleep(step.elapsed().min(DELETE_PAUSE_MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_disk::fake::{Fake, Script};

    use super::*;
    use crate::recorder::volume::lock_unread;

    const MIB: u64 = 1 << 20;

    struct Rig {
        directory: tempfile::TempDir,
        script: Script,
        housekeeping: Housekeeping<Fake>,
    }

    impl Rig {
        fn new(discards: bool) -> Rig {
            let directory = tempfile::tempdir().unwrap();
            let (fake, script) = Fake::new();
            script.set_discards(discards);
            let housekeeping = Housekeeping::new(fake.files(), directory.path());
            Rig { directory, script, housekeeping }
        }

        /// A file of 100 MiB, and its deletion.
        fn file(&self, name: &str) -> (PathBuf, Job<Fake>) {
            let path = self.directory.path().join(name);
            File::create(&path).unwrap().set_len(100 * MIB).unwrap();
            let lock = lock_unread(&path).unwrap();
            (path.clone(), Job::Delete(Past { path, bytes: 100 * MIB, lock, is_kept: false }))
        }

        /// Waits until everything is deleted.
        fn wait(&mut self) {
            let begin = Instant::now();
            while self.housekeeping.under_way() > 0 {
                assert!(begin.elapsed() < Duration::from_secs(30), "a deletion is not over");
                match self.housekeeping.next() {
                    Some(Outcome::Deleted { result, .. }) => result.unwrap(),
                    Some(_) => panic!("nothing else was asked for"),
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        }
    }

    /// Lengths of a file while it is deleted in steps.
    const STEPS: [u64; 3] = [68 * MIB, 36 * MIB, 4 * MIB];

    #[test]
    fn where_the_disk_is_told_of_deletions_they_are_made_in_steps() {
        let mut rig = Rig::new(false);
        let (_, deletion) = rig.file("without discard");
        rig.housekeeping.ask(deletion);
        rig.wait();
        assert_eq!(rig.script.shortened(), []);

        let mut rig = Rig::new(true);
        let (path, deletion) = rig.file("with discard");
        rig.housekeeping.ask(deletion);
        rig.wait();
        assert!(!path.exists());
        assert_eq!(rig.script.shortened(), STEPS);
    }

    #[test]
    fn a_deletion_that_something_waits_for_has_no_steps() {
        let mut rig = Rig::new(true);
        rig.housekeeping.set_waited_for(true);
        let (_, deletion) = rig.file("writes wait");
        rig.housekeeping.ask(deletion);
        rig.wait();
        assert_eq!(rig.script.shortened(), []);

        // A recorder that ends waits for it.
        rig.housekeeping.set_waited_for(false);
        rig.script.hold_file_requests(true);
        let (path, deletion) = rig.file("the recorder ends");
        rig.housekeeping.ask(deletion);
        let release = std::thread::spawn({
            let script = rig.script.clone();
            move || {
                std::thread::sleep(Duration::from_millis(50));
                script.hold_file_requests(false);
            }
        });
        drop(rig.housekeeping);
        release.join().unwrap();
        assert!(!path.exists());
        assert_eq!(rig.script.shortened(), []);
    }

    #[test]
    fn a_reader_keeps_a_file_that_is_deleted() {
        let mut rig = Rig::new(true);
        let (path, deletion) = rig.file("read");
        let reader = File::open(&path).unwrap();
        rig.housekeeping.ask(deletion);
        rig.wait();
        assert!(!path.exists());
        assert_eq!(reader.metadata().unwrap().len(), 100 * MIB);
        assert_eq!(rig.script.shortened(), []);
    }
}
