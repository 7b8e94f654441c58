//! The bytes of a pipe. A thread reads them, so that the caller can limit how long it waits.

use std::io::{self, Read};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::time::Duration;

use crate::limits::{PIPE_CHUNK_BYTES, PIPE_CHUNKS_AHEAD};

/// The bytes of a pipe, in chunks.
pub struct Chunks {
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// A chunk or error that was already received from the thread: by a wait, or by `peek`, which restores an error.
    next: Option<io::Result<Vec<u8>>>,
    /// The chunk that is being read, and the position in it.
    current: Vec<u8>,
    at: usize,
    waits: bool,
}

impl Chunks {
    /// Starts a thread that opens the input and reads it. The thread ends when its input ends, or with the next chunk
    /// after this value was dropped.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start<R: Read>(
        open: impl FnOnce() -> io::Result<R> + Send + 'static,
    ) -> io::Result<Chunks> {
        let (sender, chunks) = mpsc::sync_channel(PIPE_CHUNKS_AHEAD);
        let thread = std::thread::Builder::new().name("weir-input".to_owned());
        thread.spawn(move || send_all(open, &sender))?;
        Ok(Chunks { chunks, next: None, current: Vec::new(), at: 0, waits: true })
    }

    /// Sets whether reading waits for bytes. If not, it returns [`WouldBlock`](io::ErrorKind::WouldBlock) when there
    /// are none.
    pub fn set_waiting(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Waits until there are bytes to read, or the input has ended, or `limit` is over.
    pub fn wait(&mut self, limit: Duration) {
        if self.at == self.current.len() {
            self.wait_for_more(limit);
        }
    }

    /// Waits like [`wait`](Chunks::wait), but for more bytes than those that have arrived.
    pub fn wait_for_more(&mut self, limit: Duration) {
        if self.next.is_some() {
            return;
        }
        // If the thread has ended, this stays `None`, and reading returns the end of the input.
        self.next = self.chunks.recv_timeout(limit).ok();
    }

    /// Calls `look` with the next bytes. Later reads return the same bytes again, and an error that `look` got.
    pub fn peek<T>(&mut self, look: impl FnOnce(&mut dyn Read) -> T) -> T {
        let mut copying = Copying { chunks: self, copy: Vec::new(), failed: None };
        let found = look(&mut copying);
        let Copying { mut copy, failed, .. } = copying;
        if let Some(error) = failed {
            self.next = Some(Err(error));
        }
        copy.extend_from_slice(&self.current[self.at..]);
        (self.current, self.at) = (copy, 0);
        found
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() {
            let next = match self.next.take().map_or_else(|| self.chunks.try_recv(), Ok) {
                Err(TryRecvError::Empty) if self.waits => self.chunks.recv().ok(),
                Err(TryRecvError::Empty) => return Err(io::ErrorKind::WouldBlock.into()),
                other => other.ok(),
            };
            // Without a chunk, the thread has ended, so there are no more bytes.
            let Some(next) = next else { return Ok(0) };
            (self.current, self.at) = (next?, 0);
        }
        let read = (&self.current[self.at..]).read(buffer)?;
        self.at += read;
        Ok(read)
    }
}

/// Reads from `chunks`, and keeps a copy of the bytes.
struct Copying<'a> {
    chunks: &'a mut Chunks,
    copy: Vec<u8>,
    failed: Option<io::Error>,
}

impl Read for Copying<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.chunks.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::WouldBlock {
                self.failed = Some(io::Error::new(error.kind(), error.to_string()));
            }
        })?;
        self.copy.extend_from_slice(&buffer[..bytes]);
        Ok(bytes)
    }
}

fn send_all<R: Read>(
    open: impl FnOnce() -> io::Result<R>,
    sender: &SyncSender<io::Result<Vec<u8>>>,
) {
    let mut input = match open() {
        Ok(input) => input,
        Err(error) => return drop(sender.send(Err(error))),
    };
    loop {
        let mut chunk = vec![0; PIPE_CHUNK_BYTES];
        let sent = match input.read(&mut chunk) {
            Ok(0) => return,
            Ok(bytes) => {
                chunk.truncate(bytes);
                sender.send(Ok(chunk))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return drop(sender.send(Err(error))),
        };
        if sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_was_looked_at_is_read_again() {
        let mut chunks = Chunks::start(|| Ok(&b"before and after"[..])).unwrap();
        let mut first = [0; 6];
        for _ in 0..2 {
            chunks.peek(|input| input.read_exact(&mut first)).unwrap();
            assert_eq!(&first, b"before");
        }
        let mut text = String::new();
        chunks.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before and after");
    }

    /// Reads from chunks that are not waited for, until there are bytes or the input has ended.
    fn read_in_time(chunks: &mut Chunks, buffer: &mut [u8]) -> usize {
        let begin = Instant::now();
        loop {
            match chunks.read(buffer) {
                Ok(read) => return read,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn bytes_come_when_they_are_written_and_are_not_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut chunks = Chunks::start(move || Ok(reader)).unwrap();
        let mut buffer = [0; 16];
        writer.write_all(b"one").unwrap();
        assert_eq!(chunks.read(&mut buffer).unwrap(), 3);
        chunks.set_waiting(false);
        assert_eq!(chunks.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        writer.write_all(b"three").unwrap();
        let read = read_in_time(&mut chunks, &mut buffer);
        assert_eq!(&buffer[..read], b"three");
        drop(writer);
        assert_eq!(read_in_time(&mut chunks, &mut buffer), 0);
    }

    #[test]
    fn an_input_that_cannot_be_opened_is_an_error_and_then_an_end() {
        let failing = || Err::<&[u8], _>(io::Error::from_raw_os_error(5));
        let mut chunks = Chunks::start(failing).unwrap();
        assert!(chunks.peek(|input| input.read(&mut [0; 4])).is_err());
        assert!(chunks.peek(|input| input.read(&mut [0; 4])).is_err(), "it was only looked at");
        assert!(chunks.read(&mut [0; 4]).unwrap_err().to_string().contains("Input/output"));
        assert_eq!(chunks.read(&mut [0; 4]).unwrap(), 0);
    }
}
