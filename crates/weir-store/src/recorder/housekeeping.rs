//! Work on whole files: completed, cut off, deleted. Each takes as long as the file system does (a deletion of 1 GiB
//! some hundred milliseconds on a disk that discards), so a thread of the volume does it, and rings are read meanwhile.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use weir_disk::{Disk, Files};

use super::file::OpenFile;
use crate::catalog::{complete_path, index_path};

/// Work on a whole file.
pub enum Job<D: Disk> {
    /// Nothing more comes: give it its final length and its final name.
    Complete(Box<OpenFile<D>>),
    /// Give back the preallocated space of a file that grows slowly. Nothing is written to it meanwhile.
    Cut {
        stream: usize,
        id: u64,
        file: Arc<D::File>,
        length: u64,
    },
    Delete(Past),
}

/// A file that no recorder writes to any more.
pub struct Past {
    pub path: PathBuf,
    pub bytes: u64,
    /// Keeps readers that lock it away while it is deleted.
    pub lock: Option<File>,
    /// It could not be deleted.
    pub is_kept: bool,
}

/// Result of a job.
pub enum Outcome {
    Completed {
        /// The file's name now.
        path: PathBuf,
        bytes: u64,
        /// Bytes that it was to have.
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
        /// Whether the file system has more space since.
        has_freed: bool,
        result: io::Result<()>,
    },
}

/// The thread of a volume, and its jobs.
pub struct Housekeeping<D: Disk> {
    files: D::Files,
    directory: PathBuf,
    thread: Option<(Sender<Job<D>>, JoinHandle<()>)>,
    done: Sender<Outcome>,
    outcomes: Receiver<Outcome>,
    under_way: usize,
}

impl<D: Disk> Housekeeping<D> {
    pub fn new(files: D::Files, directory: &Path) -> Housekeeping<D> {
        let (done, outcomes) = mpsc::channel();
        let directory = directory.to_owned();
        Housekeeping { files, directory, thread: None, done, outcomes, under_way: 0 }
    }

    /// Jobs whose outcome was not taken yet.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Has a job done, behind those that were asked for before.
    pub fn ask(&mut self, job: Job<D>) {
        self.under_way += 1;
        // Not before the first job: a thread has the rights that its process has when it starts.
        if self.thread.is_none() {
            self.thread = self.start().ok();
        }
        let job = match &self.thread {
            Some((asked, _)) => asked.send(job).err().map(|refused| refused.0),
            None => Some(job),
        };
        if let Some(job) = job {
            // Without a thread the rings wait.
            let _ = self.done.send(carry_out(job, &self.files, &self.directory));
        }
    }

    /// The outcome of a job that is over.
    pub fn next(&mut self) -> Option<Outcome> {
        let outcome = self.outcomes.try_recv().ok()?;
        self.under_way -= 1;
        Some(outcome)
    }

    /// Waits for no job any more.
    pub fn abandon(&mut self) {
        // It ends by itself, if the kernel answers it.
        self.thread = None;
        self.under_way = 0;
        (self.done, self.outcomes) = mpsc::channel();
    }

    fn start(&self) -> io::Result<(Sender<Job<D>>, JoinHandle<()>)> {
        let (asked, jobs) = mpsc::channel();
        let (files, directory, done) =
            (self.files.clone(), self.directory.clone(), self.done.clone());
        let thread = std::thread::Builder::new().name("weir-files".to_owned());
        let thread = thread.spawn(move || {
            for job in jobs {
                if done.send(carry_out(job, &files, &directory)).is_err() {
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
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn carry_out<D: Disk>(job: Job<D>, files: &D::Files, directory: &Path) -> Outcome {
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
            // The last one who has it open frees its space.
            past.lock = None;
            Outcome::Deleted { past, has_freed: free() > before, result }
        }
    }
}
