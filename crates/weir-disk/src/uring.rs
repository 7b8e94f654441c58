//! Writes by io_uring. The caller's thread submits requests and handles completions.
//!
//! No buffers are registered: the kernel refuses (EFAULT) to register memory that is mapped read-only, such as other
//! processes' rings. Source: io_uring_register(2); `io_sqe_buffer_register` pins pages for writing.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use crate::file::DiskFile;
use crate::files::KernelFiles;
use crate::limits::WRITES_MAX;
use crate::plain::FLUSH;
use crate::queue::{Bytes, Completed, Disk, Ticket};
use crate::shared::{Notes, Shared};
use crate::write::{NO_PREALLOCATION, Next, Step, Write};

/// A disk that is written by io_uring.
pub struct Uring {
    ring: IoUring,
    /// The writes in progress. The index of each is the `user_data` of its requests. They hold the memory that the
    /// kernel reads.
    writes: Vec<Option<Write>>,
    free: Vec<usize>,
    over: Vec<Completed>,
    /// Completions of the kernel that are being handled.
    answers: Vec<(usize, i32)>,
    shared: Shared,
    notes: Notes,
    is_abandoned: bool,
}

impl Uring {
    /// Sets up an io_uring, and tests it with one operation.
    ///
    /// # Errors
    /// The kernel's error: `EPERM` if `kernel.io_uring_disabled` or a container's seccomp profile forbids
    /// io_uring, `ENOSYS` if the kernel was built without it.
    pub fn new() -> io::Result<Uring> {
        let mut ring = IoUring::new(WRITES_MAX as u32)?;
        // A seccomp profile may allow the setup and forbid further calls. SAFETY: an operation that does nothing uses
        // no memory.
        let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        pushed.expect("a new queue is empty");
        while ring.completion().next().is_none() {
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(Uring {
            ring,
            writes: (0..WRITES_MAX).map(|_| None).collect(),
            free: (0..WRITES_MAX).rev().collect(),
            over: Vec::new(),
            answers: Vec::with_capacity(2 * WRITES_MAX),
            shared: Shared::default(),
            notes: Notes::default(),
            is_abandoned: false,
        })
    }

    fn under_way(&self) -> usize {
        WRITES_MAX - self.free.len()
    }

    /// Puts the next step of a write into the submission queue. [`enter`](Uring::enter) submits it.
    fn push(&mut self, index: usize) {
        let write = self.writes[index].as_mut().expect("a write that is under way");
        let step = write.step();
        let entry = entry(write.file(), step).user_data(index as u64);
        // SAFETY: the memory stays in place and readable until the kernel has completed the request: `write` holds it
        // (a mapping, or a buffer that nobody changes) and stays in `writes` until then, and `drop` waits for it or
        // leaks it. The same applies to the file. Other processes may change a ring meanwhile, which is sound, since
        // the kernel only reads bytes.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there is room for a step of each write");
    }

    /// Submits the queue, and waits for this many completions.
    fn enter(&mut self, answers: usize) -> io::Result<()> {
        loop {
            let Err(error) = self.ring.submit_and_wait(answers) else { return Ok(()) };
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                // The kernel has no memory for requests now, or has completions that were not taken yet. Source:
                // io_uring_enter(2).
                Some(Errno::AGAIN | Errno::BUSY) => {
                    if !self.ring.completion().is_empty() {
                        return Ok(());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return Err(error),
            }
        }
    }

    /// Handles completions, and submits further steps.
    fn take_answers(&mut self) -> io::Result<()> {
        let mut answers = std::mem::take(&mut self.answers);
        let taken = self.ring.completion().map(|answer| (answer.user_data(), answer.result()));
        answers.extend(taken.map(|(index, result)| (index as usize, result)));
        for (index, result) in answers.drain(..) {
            self.answered(index, result);
        }
        self.answers = answers;
        if self.ring.submission().is_empty() { Ok(()) } else { self.enter(0) }
    }

    fn answered(&mut self, index: usize, result: i32) {
        let write = self.writes[index].as_mut().expect("the kernel answers once");
        let answer = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        match write.advance(answer, &self.shared) {
            Next::Step => self.push(index),
            Next::Over(result) => {
                let write = self.writes[index].take().expect("it was there");
                self.over.push(write.complete(result, &self.shared));
                self.free.push(index);
            }
        }
    }
}

fn entry(file: &DiskFile, step: Step) -> squeue::Entry {
    let fd = types::Fd(file.as_fd().as_raw_fd());
    match step {
        Step::Write { from, bytes, at } => opcode::Write::new(fd, from, bytes).offset(at).build(),
        Step::Preallocate { at, bytes } => opcode::Fallocate::new(fd, bytes).offset(at).build(),
        Step::Flush { at, bytes } => {
            opcode::SyncFileRange::new(fd, bytes).offset(at).flags(FLUSH).build()
        }
    }
}

/// Message of a panic: the kernel has accepted requests from this queue before, so a refusal is a bug in this code.
const TAKEN_BEFORE: &str = "the kernel has taken requests from this queue before";

impl Disk for Uring {
    type File = DiskFile;
    type Files = KernelFiles;

    fn files(&self) -> KernelFiles {
        KernelFiles
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<DiskFile>> {
        let file = DiskFile::create(path, mode, &self.shared);
        self.shared.refresh(&mut self.notes);
        file.map(Arc::new)
    }

    fn write(&mut self, file: &Arc<DiskFile>, at: u64, bytes: Bytes, ticket: Ticket) {
        let write = Write::new(file, at, bytes, ticket, &self.shared);
        if write.is_refused() {
            return self.over.push(write.complete(Err(NO_PREALLOCATION.into()), &self.shared));
        }
        while self.free.is_empty() {
            self.enter(1).expect(TAKEN_BEFORE);
            self.take_answers().expect(TAKEN_BEFORE);
        }
        let index = self.free.pop().expect("one is free");
        self.writes[index] = Some(write);
        self.push(index);
        self.enter(0).expect(TAKEN_BEFORE);
    }

    fn pending(&self) -> usize {
        self.under_way() + self.over.len()
    }

    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>) {
        self.take_answers().expect(TAKEN_BEFORE);
        while wait && self.over.is_empty() && self.under_way() > 0 {
            self.enter(1).expect(TAKEN_BEFORE);
            self.take_answers().expect(TAKEN_BEFORE);
        }
        out.append(&mut self.over);
        self.shared.refresh(&mut self.notes);
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    fn note(&self) -> Option<&str> {
        self.notes.text()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        while self.under_way() > 0 {
            let answers = usize::from(!self.is_abandoned);
            let looked = self.enter(answers).and_then(|()| self.take_answers());
            if looked.is_err() || self.is_abandoned && self.under_way() > 0 {
                // The kernel may still read the memory of these writes, so it is leaked.
                std::mem::forget(std::mem::take(&mut self.writes));
                return;
            }
        }
    }
}
