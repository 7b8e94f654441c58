//! Writes by `pwrite` on two threads for each directory, for kernels and containers that refuse io_uring. The caller's
//! thread does not block. The disk always has a write in progress while the next one is prepared. A disk that does not
//! respond does not block writes to other directories.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;

use crate::file::DiskFile;
use crate::files::KernelFiles;
use crate::limits::{PLAIN_THREADS, WRITES_MAX};
use crate::queue::{Bytes, Completed, Disk, Ticket};
use crate::shared::{Notes, Shared};
use crate::write::{NO_PREALLOCATION, Next, Step, Write};

/// Flags that write pages to the disk and wait until they are written. Source: sync_file_range(2).
pub(crate) const FLUSH: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE
    | libc::SYNC_FILE_RANGE_WRITE
    | libc::SYNC_FILE_RANGE_WAIT_AFTER;

/// A disk that is written by threads.
pub struct Plain {
    /// The queue of each directory.
    queues: Vec<(PathBuf, SyncSender<Write>)>,
    done: Sender<Completed>,
    over: Receiver<Completed>,
    pending: usize,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    notes: Notes,
    is_abandoned: bool,
}

impl Default for Plain {
    fn default() -> Plain {
        Plain::new()
    }
}

impl Plain {
    /// Creates a disk without threads. They start with the first file of a directory.
    #[must_use]
    pub fn new() -> Plain {
        let (done, over) = mpsc::channel();
        Plain {
            queues: Vec::new(),
            done,
            over,
            pending: 0,
            threads: Vec::new(),
            shared: Arc::new(Shared::default()),
            notes: Notes::default(),
            is_abandoned: false,
        }
    }

    /// Returns the index of a directory's queue. Starts its threads if necessary.
    fn queue(&mut self, directory: &Path) -> io::Result<usize> {
        if let Some(at) = self.queues.iter().position(|(own, _)| own == directory) {
            return Ok(at);
        }
        let (asked, writes) = mpsc::sync_channel(WRITES_MAX);
        let writes = Arc::new(Mutex::new(writes));
        let start = |_| {
            let (writes, done) = (Arc::clone(&writes), self.done.clone());
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("weir-disk".to_owned());
            thread.spawn(move || work(&writes, &done, &shared))
        };
        // If a thread cannot be started, `asked` is dropped, which ends the threads that have started.
        let threads = (0..PLAIN_THREADS).map(start).collect::<io::Result<Vec<_>>>()?;
        self.threads.extend(threads);
        self.queues.push((directory.to_owned(), asked));
        Ok(self.queues.len() - 1)
    }

    pub(crate) fn say(&mut self, note: &str) {
        self.shared.say(note);
        self.shared.refresh(&mut self.notes);
    }
}

/// Carries out writes until the queue is closed.
fn work(writes: &Mutex<Receiver<Write>>, done: &Sender<Completed>, shared: &Shared) {
    loop {
        // One thread waits for a write and holds the lock; the other thread waits for the lock.
        let write = writes.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut write) = write else { return };
        let result = loop {
            let answer = carry_out(&mut write);
            if let Next::Over(result) = write.advance(answer, shared) {
                break result;
            }
        };
        if done.send(write.complete(result, shared)).is_err() {
            return;
        }
    }
}

fn carry_out(write: &mut Write) -> Result<usize, Errno> {
    let step = write.step();
    let fd = write.file().as_fd().as_raw_fd();
    let wrote = match step {
        // SAFETY: the memory and the descriptor stay valid during the call: `write` holds both, and is
        // borrowed. The kernel only reads bytes; those of a ring may be changed meanwhile by its writer.
        Step::Write { from, bytes, at } => unsafe {
            libc::pwrite(fd, from.cast(), bytes as usize, at as libc::off_t)
        },
        // SAFETY: the call uses no memory; the descriptor is open.
        Step::Preallocate { at, bytes } => unsafe {
            libc::fallocate(fd, 0, at as libc::off_t, bytes as libc::off_t) as isize
        },
        // SAFETY: the call uses no memory; the descriptor is open.
        Step::Flush { at, bytes } => unsafe {
            libc::sync_file_range(fd, at as libc::off64_t, libc::off64_t::from(bytes), FLUSH)
                as isize
        },
    };
    usize::try_from(wrote).map_err(|_| {
        Errno::from_io_error(&io::Error::last_os_error()).expect("the kernel's error has a number")
    })
}

impl Disk for Plain {
    type File = DiskFile;
    type Files = KernelFiles;

    fn files(&self) -> KernelFiles {
        KernelFiles
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<DiskFile>> {
        let queue = self.queue(path.parent().unwrap_or(Path::new(".")))?;
        let file = DiskFile::create(path, mode, &self.shared);
        self.shared.refresh(&mut self.notes);
        file.map(|file| Arc::new(file.with_queue(queue)))
    }

    fn write(&mut self, file: &Arc<DiskFile>, at: u64, bytes: Bytes, ticket: Ticket) {
        let write = Write::new(file, at, bytes, ticket, &self.shared);
        self.pending += 1;
        if write.is_refused() {
            let refused = write.complete(Err(NO_PREALLOCATION.into()), &self.shared);
            return self.done.send(refused).expect("its receiver is here");
        }
        let (_, asked) = self.queues.get(file.queue()).expect("it was made by this disk");
        asked.send(write).expect("the threads run as long as they may be asked");
    }

    fn pending(&self) -> usize {
        self.pending
    }

    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>) {
        let before = out.len();
        out.extend(self.over.try_iter());
        if wait && out.len() == before && self.pending > 0 {
            out.push(self.over.recv().expect("the threads answer each write"));
        }
        self.pending -= out.len() - before;
        self.shared.refresh(&mut self.notes);
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    fn note(&self) -> Option<&str> {
        self.notes.text()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.queues.clear();
        if self.is_abandoned {
            // The threads end when their system calls return, if ever.
            return;
        }
        for thread in self.threads.drain(..) {
            // If the thread panicked, it has already reported that.
            let _ = thread.join();
        }
    }
}
