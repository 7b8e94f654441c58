//! Lines of text for a reader that may be slow: a thread of its own writes them, and whoever makes them does not wait.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use crate::limits::LINE_CHUNKS_MAX;

/// Bytes of lines that are handed over together.
const CHUNK_BYTES: usize = 1 << 16;

/// What becomes of a line that its reader has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is waited for: nothing is lost by that.
    Wait,
    /// The line is dropped, and counted.
    Drop,
}

/// The lines.
pub struct Lines {
    chunk: Vec<u8>,
    /// Lines in it.
    count: u64,
    when_full: WhenFull,
    unwritten: u64,
    sender: Option<SyncSender<(Vec<u8>, u64)>>,
    writer: Option<JoinHandle<Written>>,
}

/// What the writing thread came to: lines that were not written, and why not.
struct Written {
    unwritten: u64,
    failure: Option<io::Error>,
}

impl Lines {
    /// Lines that go to `out`, which has no buffer of its own.
    ///
    /// # Errors
    /// No thread is left.
    pub fn new(out: impl Write + Send + 'static, when_full: WhenFull) -> io::Result<Lines> {
        let (sender, chunks) = sync_channel(LINE_CHUNKS_MAX);
        let thread = thread::Builder::new().name("weir-lines".into());
        let writer = Some(thread.spawn(move || write(out, &chunks))?);
        let (chunk, sender) = (Vec::new(), Some(sender));
        Ok(Lines { chunk, count: 0, when_full, unwritten: 0, sender, writer })
    }

    /// Takes a line, with its end.
    pub fn push(&mut self, line: &str) {
        self.chunk.extend_from_slice(line.as_bytes());
        self.count += 1;
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush();
        }
    }

    /// Hands over what waits here; what there is no room for stays, as long as it is less than a chunk.
    pub fn flush(&mut self) {
        let Some(sender) = self.sender.as_ref().filter(|_| self.count > 0) else { return };
        let chunk = (std::mem::take(&mut self.chunk), std::mem::take(&mut self.count));
        let refused = match self.when_full {
            WhenFull::Wait => sender.send(chunk).err().map(|refused| (refused.0, false)),
            WhenFull::Drop => sender.try_send(chunk).err().map(|refused| match refused {
                TrySendError::Full(chunk) => (chunk, true),
                // finish() says that the reader has gone.
                TrySendError::Disconnected(chunk) => (chunk, false),
            }),
        };
        match refused {
            Some(((chunk, count), true)) if chunk.len() < CHUNK_BYTES => {
                (self.chunk, self.count) = (chunk, count);
            }
            Some(((_, count), _)) => self.unwritten += count,
            None => {}
        }
    }

    /// Whether the reader has gone, or the output has failed.
    pub fn has_ended(&self) -> bool {
        self.writer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until everything is written, if it ever is; gives the lines that were not, and why.
    pub fn finish(&mut self) -> (u64, Option<io::Error>) {
        // Nobody captures any more: there is time.
        self.when_full = WhenFull::Wait;
        self.flush();
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.unwritten += written.unwritten;
            return (self.unwritten, written.failure);
        }
        (self.unwritten, None)
    }

    /// Lines that were dropped so far.
    pub fn unwritten(&self) -> u64 {
        self.unwritten
    }
}

fn write(mut out: impl Write, chunks: &Receiver<(Vec<u8>, u64)>) -> Written {
    while let Ok((chunk, count)) = chunks.recv() {
        if let Err(failure) = out.write_all(&chunk).and_then(|()| out.flush()) {
            // Of a chunk that went out in part nobody knows which lines were read.
            let unwritten = count + chunks.try_iter().map(|(_, count)| count).sum::<u64>();
            return Written { unwritten, failure: Some(failure) };
        }
    }
    Written { unwritten: 0, failure: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc;

    /// Takes nothing until it is told to.
    struct Slow(mpsc::Receiver<()>, Vec<u8>, mpsc::Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // It is told for ever once the sender has gone.
            let _ = self.0.recv();
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.2.send(std::mem::take(&mut self.1)).unwrap();
        }
    }

    #[test]
    fn a_slow_reader_costs_counted_lines_and_no_time() {
        let (go_on, waits) = mpsc::channel();
        let (done, taken) = mpsc::channel();
        let mut lines = Lines::new(Slow(waits, Vec::new(), done), WhenFull::Drop).unwrap();
        let line = "x".repeat(CHUNK_BYTES - 1) + "\n";
        let count = 2 * LINE_CHUNKS_MAX as u64;
        (0..count).for_each(|_| lines.push(&line));
        let dropped = lines.unwritten();
        assert!(dropped >= count - LINE_CHUNKS_MAX as u64 - 1 && dropped < count, "{dropped}");
        // Less than a chunk is not dropped.
        lines.push("few\n");
        lines.flush();
        assert_eq!(lines.unwritten(), dropped);
        drop(go_on);
        let (unwritten, failure) = lines.finish();
        assert!(failure.is_none());
        let taken = taken.recv().unwrap();
        assert!(taken.ends_with(b"\nfew\n"));
        let written = taken.len() / line.len();
        assert_eq!(unwritten + written as u64, count);
    }

    #[test]
    fn a_reader_that_has_gone_is_told_of() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let mut lines = Lines::new(pipe, WhenFull::Wait).unwrap();
        lines.push("one\n");
        lines.flush();
        let mut first = [0; 4];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"one\n");
        drop(reader);
        lines.push("two\n");
        lines.flush();
        while !lines.has_ended() {
            thread::yield_now();
        }
        lines.push("three\n");
        let (unwritten, failure) = lines.finish();
        assert_eq!((unwritten, failure.unwrap().kind()), (2, io::ErrorKind::BrokenPipe));
    }
}
