//! Threads that compress pieces, with the CPU time that other threads leave.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use weir_disk::Buffer;
use weir_ring::{Mapping, Words};
use zstd::bulk::Compressor;

use super::RecorderError;
use super::settings::Compression;
use crate::compressed;

/// Pieces under way for each thread: one is compressed while the next one waits.
const JOBS_PER_THREAD: usize = 2;
/// The lowest priority but one: other programs go first. Source: setpriority(2).
const NICE: i32 = 19;

/// Threads that compress.
pub struct Pool {
    asked: Option<SyncSender<Job>>,
    done: Receiver<Packed>,
    under_way: usize,
    jobs_max: usize,
    threads: Vec<JoinHandle<()>>,
    /// For small buffers.
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
    /// A part of a ring: the requester confirms afterwards that it was still there.
    Ring {
        memory: Arc<Mapping>,
        at: usize,
        bytes: usize,
    },
}

/// A piece that is compressed.
pub struct Packed {
    pub stream: usize,
    pub entry: u64,
    pub plain_bytes: usize,
    pub buffer: Buffer,
}

/// Level at which headers and names are compressed: the thread that reads the rings does that, and thousands of names
/// are a megabyte.
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

    /// Whether one more piece can be asked for.
    pub fn has_room(&self) -> bool {
        self.under_way < self.jobs_max
    }

    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Has a piece compressed: [`has_room`](Pool::has_room).
    pub fn ask(&mut self, job: Job) {
        let asked = self.asked.as_ref().expect("it is not being dropped");
        asked.send(job).expect("the threads run as long as they may be asked");
        self.under_way += 1;
    }

    /// A piece that is done.
    pub fn next(&mut self) -> Option<Packed> {
        let packed = self.done.try_recv().ok()?;
        self.under_way -= 1;
        Some(packed)
    }

    /// Compresses something small at once.
    pub fn compress(&mut self, plain: &[u8]) -> Buffer {
        compressed::compress(&mut self.own, plain)
    }
}

fn work(
    jobs: &Mutex<Receiver<Job>>,
    finished: &mpsc::Sender<Packed>,
    compressor: &mut Compressor<'_>,
) {
    // Refused: then it is a thread like others.
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
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
