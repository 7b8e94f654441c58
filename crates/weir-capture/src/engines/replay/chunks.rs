//! Bytes that somebody writes at some time, read by a thread: reading itself never waits longer than it is to.

use std::io::{self, Read};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};

/// As many bytes as a pipe holds. Source: pipe(7).
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that are read ahead.
const CHUNKS_AHEAD: usize = 8;

/// The bytes.
pub struct Chunks {
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// The one that is being read, and the place in it.
    current: Vec<u8>,
    at: usize,
    waits: bool,
}

impl Chunks {
    /// Starts a thread that opens and reads. It ends with its input, or once nobody reads and another chunk has come.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start<R: Read>(
        open: impl FnOnce() -> io::Result<R> + Send + 'static,
    ) -> io::Result<Chunks> {
        let (sender, chunks) = mpsc::sync_channel(CHUNKS_AHEAD);
        let thread = std::thread::Builder::new().name("weir-input".to_owned());
        thread.spawn(move || send_all(open, &sender))?;
        Ok(Chunks { chunks, current: Vec::new(), at: 0, waits: true })
    }

    /// From now on, bytes that are not there yet are a [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub fn wait_no_more(&mut self) {
        self.waits = false;
    }

    /// Reads the beginning, and leaves it there.
    pub fn peek<T>(&mut self, look: impl FnOnce(&mut dyn Read) -> T) -> T {
        let mut copying = Copying { chunks: self, copy: Vec::new() };
        let found = look(&mut copying);
        let mut copy = copying.copy;
        copy.extend_from_slice(&self.current[self.at..]);
        (self.current, self.at) = (copy, 0);
        found
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() {
            let next = match self.chunks.try_recv() {
                Err(TryRecvError::Empty) if self.waits => self.chunks.recv().ok(),
                Err(TryRecvError::Empty) => return Err(io::ErrorKind::WouldBlock.into()),
                other => other.ok(),
            };
            // The thread has ended: so have the bytes.
            let Some(next) = next else { return Ok(0) };
            (self.current, self.at) = (next?, 0);
        }
        let read = (&self.current[self.at..]).read(buffer)?;
        self.at += read;
        Ok(read)
    }
}

/// Keeps what it reads.
struct Copying<'a> {
    chunks: &'a mut Chunks,
    copy: Vec<u8>,
}

impl Read for Copying<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.chunks.read(buffer)?;
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
        let mut chunk = vec![0; CHUNK_BYTES];
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

    #[test]
    fn bytes_come_when_they_are_written_and_are_not_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut chunks = Chunks::start(move || Ok(reader)).unwrap();
        let mut buffer = [0; 16];
        writer.write_all(b"one").unwrap();
        assert_eq!(chunks.read(&mut buffer).unwrap(), 3);
        chunks.wait_no_more();
        assert_eq!(chunks.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        writer.write_all(b"three").unwrap();
        let read = loop {
            match chunks.read(&mut buffer) {
                Ok(read) => break read,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        assert_eq!(&buffer[..read], b"three");
        drop(writer);
        let end = loop {
            match chunks.read(&mut buffer) {
                Ok(read) => break read,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        assert_eq!(end, 0);
    }

    #[test]
    fn an_input_that_cannot_be_opened_is_an_error_and_then_an_end() {
        let failing = || Err::<&[u8], _>(io::Error::from_raw_os_error(5));
        let mut chunks = Chunks::start(failing).unwrap();
        assert_eq!(chunks.read(&mut [0; 4]).unwrap_err().raw_os_error(), Some(5));
        assert_eq!(chunks.read(&mut [0; 4]).unwrap(), 0);
    }
}
