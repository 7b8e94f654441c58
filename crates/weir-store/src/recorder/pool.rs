//! Threads that compress pieces, at the lowest priority.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use weir_disk::Buffer;
use weir_ring::{Mapping, Words};
use zstd::bulk::Compressor;

use super::RecorderError;
use super::settings::Compression;
use crate::compressed;

/// Pieces in the queue for each thread: one is compressed while the next one waits.
const JOBS_PER_THREAD: usize = 2;
/// The nice value of the lowest priority, so that other threads are scheduled first. Source: setpriority(2).
const NICE: i32 = 19;

/// Threads that compress.
pub struct Pool {
    asked: Option<SyncSender<Job>>,
    done: Receiver<Packed>,
    under_way: usize,
    jobs_max: usize,
    threads: Vec<JoinHandle<()>>,
    /// The compressor of the calling thread, for small data.
    own: Compressor<'static>,
}

/// A piece to be compressed.
pub struct Job {
    pub stream: usize,
    pub entry: u64,
    pub plain: Plain,
}

/// Bytes of a piece.
pub enum Plain {
    Own(Buffer),
    /// A part of a ring. The sender of the job checks afterwards that the ring's writer has not overwritten it.
    Ring {
        memory: Arc<Mapping>,
        at: usize,
        bytes: usize,
    },
}

/// A compressed piece.
pub struct Packed {
    pub stream: usize,
    pub entry: u64,
    pub plain_bytes: usize,
    pub buffer: Buffer,
}

/// Compression level of headers and names. It is low because the thread that reads the rings compresses them, and
/// thousands of names take a megabyte.
const OWN_LEVEL: i32 = 1;

impl Pool {
    pub fn new(compression: Compression) -> Result<Pool, RecorderError> {
        let Compression { level, threads } = compression;
        let failed = |source| RecorderError::Compression { source };
        let (asked, jobs) = mpsc::sync_channel(threads * JOBS_PER_THREAD);
        let (finished, done) = mpsc::channel();
        let jobs = Arc::new(Mutex::new(jobs));
        let start = |_| {
            let (jobs, finished) = (Arc::clone(&jobs), finished.clone());
            let mut compressor = compressed::compressor(level)?;
            let thread = thread::Builder::new().name("weir-compress".to_owned());
            thread.spawn(move || work(&jobs, &finished, &mut compressor))
        };
        let started = (0..threads).map(start).collect::<std::io::Result<_>>().map_err(failed)?;
        Ok(Pool {
            asked: Some(asked),
            done,
            under_way: 0,
            jobs_max: threads * JOBS_PER_THREAD,
            threads: started,
            own: compressed::compressor(OWN_LEVEL).map_err(failed)?,
        })
    }

    /// Returns whether one more piece can be requested.
    pub fn has_room(&self) -> bool {
        self.under_way < self.jobs_max
    }

    /// Sets the number of pieces that may be in progress at a time; 0: no thread is free.
    #[cfg(test)]
    pub fn set_jobs_max(&mut self, jobs_max: usize) {
        self.jobs_max = jobs_max;
    }

    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Requests the compression of a piece. Does not block if [`has_room`](Pool::has_room) is true.
    pub fn ask(&mut self, job: Job) {
        let asked = self.asked.as_ref().expect("it is not being dropped");
        asked.send(job).expect("the threads run as long as they may be asked");
        self.under_way += 1;
    }

    /// Takes a compressed piece, if one is ready.
    pub fn next(&mut self) -> Option<Packed> {
        let packed = self.done.try_recv().ok()?;
        self.under_way -= 1;
        Some(packed)
    }

    /// Compresses small data on the calling thread.
    pub fn compress(&mut self, plain: &[u8]) -> Buffer {
        compressed::compress(&mut self.own, plain)
    }
}

fn work(
    jobs: &Mutex<Receiver<Job>>,
    finished: &mpsc::Sender<Packed>,
    compressor: &mut Compressor<'_>,
) {
    // If the kernel refuses this, the thread keeps its priority.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut copy: Option<Buffer> = None;
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { stream, entry, plain }) = job else { return };
        let (buffer, plain_bytes) = match plain {
            Plain::Own(own) => (compressed::compress(compressor, own.as_slice()), own.filled()),
            Plain::Ring { memory, at, bytes } => {
                let words = &memory.words()[at / 8..(at + bytes).div_ceil(8)];
                let mut own = copy
                    .take()
                    .filter(|own| own.capacity() >= 8 * words.len())
                    .unwrap_or_else(|| Buffer::new(8 * words.len()));
                own.fill_from_ring(words);
                let packed = compressed::compress(compressor, &own.as_slice()[..bytes]);
                copy = Some(own);
                (packed, bytes)
            }
        };
        if finished.send(Packed { stream, entry, plain_bytes, buffer }).is_err() {
            return;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.asked = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}
