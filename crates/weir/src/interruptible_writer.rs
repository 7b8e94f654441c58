//! Output that waits for its reader, with a limit: after a stop was requested, the output gives up if its reader takes
//! nothing for a second.
//!
//! The kernel restarts a plain write(2) into a full pipe after any signal whose handler only sets a flag.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_consumer::Stalled;

use crate::readiness::{PIECE_BYTES, has_left, has_room};
use crate::signals;

/// How long a reader may take nothing after a stop was requested.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which the stop is checked. A signal also ends the wait.
const LOOK: Duration = Duration::from_millis(100);

/// The condition for the end of a run: a signal or a time. Clones share it.
#[derive(Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    at: Arc<Mutex<Option<Instant>>>,
}

impl Stop {
    /// Creates a stop that is requested when `flag` is set, or at the time `at`.
    pub fn new(flag: Arc<AtomicBool>, at: Option<Instant>) -> Stop {
        Stop { flag, at: Arc::new(Mutex::new(at)) }
    }

    /// Replaces the time at which the run stops. The duration of a run counts from its begin.
    pub fn end_at(&self, at: Option<Instant>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Returns whether a signal has come or the time is over.
    pub fn is_asked_for(&self) -> bool {
        self.is_signalled() || self.is_over()
    }

    /// Returns whether a signal has come.
    pub fn is_signalled(&self) -> bool {
        signals::is_set(&self.flag)
    }

    /// Returns the remaining time, if there is a limit.
    pub fn left(&self) -> Option<Duration> {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn is_over(&self) -> bool {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| Instant::now() >= at)
    }
}

/// The way in which a file is written to.
#[derive(Clone, Copy)]
enum Way {
    /// A file, which has no reader to wait for.
    Plain,
    /// A pipe or terminal that this process has opened: a write takes as many bytes as fit.
    NonBlocking,
    /// An open file description that is shared with other processes, and must stay blocking for them.
    InPieces,
}

/// An output, and the stop that limits its waits.
pub struct InterruptibleWriter {
    file: File,
    way: Way,
    stop: Stop,
}

impl InterruptibleWriter {
    /// Opens standard output, without the buffer of `io::stdout()`. That buffer keeps refused bytes and splits the
    /// output at line ends, so a frame could be written in two pieces.
    pub fn stdout(stop: Stop) -> io::Result<InterruptibleWriter> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let kind = file.metadata()?.file_type();
        if kind.is_socket() {
            return Ok(InterruptibleWriter { file, way: Way::InPieces, stop });
        }
        if !kind.is_fifo() && !file.is_terminal() {
            return Ok(InterruptibleWriter { file, way: Way::Plain, stop });
        }
        // O_NONBLOCK is a flag of the open file description, which other processes share, so the file is opened again.
        // The second open fails for a pipe of another user, and for a pipe without a reader.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(match open_nonblocking(Path::new(&path)) {
            Ok(file) => InterruptibleWriter { file, way: Way::NonBlocking, stop },
            Err(_) => InterruptibleWriter { file, way: Way::InPieces, stop },
        })
    }

    /// Opens a named pipe once it has a reader. Calls `waits` if the pipe has none yet.
    pub fn named_pipe(
        path: &Path,
        stop: Stop,
        waits: impl FnOnce(),
    ) -> io::Result<InterruptibleWriter> {
        let mut waits = Some(waits);
        loop {
            match open_nonblocking(path) {
                Ok(file) => return Ok(InterruptibleWriter { file, way: Way::NonBlocking, stop }),
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
                Err(error) => return Err(error),
            }
            if stop.is_asked_for() {
                return Err(io::Error::other(match stop.is_over() {
                    true => {
                        "no reader came within --duration, so nothing was captured; begin the reader first"
                    }
                    false => "it was stopped before a reader came, so nothing was captured",
                }));
            }
            if let Some(waits) = waits.take() {
                waits();
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until a write would not block, or would fail because the reader has left.
    fn wait_for_room(&self) -> io::Result<()> {
        let mut since = None;
        while !has_room(&self.file, LOOK)? {
            if self.stop.is_asked_for() {
                let since: Instant = *since.get_or_insert_with(Instant::now);
                if since.elapsed() >= PATIENCE {
                    return Err(Stalled.into());
                }
            }
        }
        Ok(())
    }
}

impl Write for InterruptibleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = match self.way {
            Way::Plain => return self.file.write(bytes),
            Way::NonBlocking => bytes.len(),
            Way::InPieces => bytes.len().min(PIECE_BYTES),
        };
        loop {
            self.wait_for_room()?;
            match self.file.write(&bytes[..most]) {
                // Another process has filled the pipe meanwhile.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    /// Checks whether the reader has left, because on an idle link there may be no further write. No bytes are buffered
    /// here.
    fn flush(&mut self) -> io::Result<()> {
        if matches!(self.way, Way::Plain) {
            return Ok(());
        }
        if has_left(&self.file)? {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }
}

fn open_nonblocking(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn stop(asked: bool) -> Stop {
        Stop::new(Arc::new(AtomicBool::new(asked)), None)
    }

    fn shared(writer: impl Into<OwnedFd>, asked: bool) -> InterruptibleWriter {
        InterruptibleWriter {
            file: File::from(writer.into()),
            way: Way::InPieces,
            stop: stop(asked),
        }
    }

    #[test]
    fn a_reader_that_takes_nothing_is_left_after_the_stop() {
        let (_reader, pipe) = io::pipe().unwrap();
        let (_peer, socket) = UnixStream::pair().unwrap();
        for mut writer in [shared(pipe, true), shared(socket, true)] {
            let begin = Instant::now();
            let error = writer.write_all(&[0; 1 << 24]).unwrap_err();
            assert!(Stalled::is_why(&error), "{error}");
            assert!(begin.elapsed() >= PATIENCE);
        }
    }

    #[test]
    fn a_slow_reader_is_waited_for_even_then() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let slow = thread::spawn(move || {
            let mut taken = 0;
            let mut piece = [0; 50_000];
            while let Ok(bytes @ 1..) = reader.read(&mut piece) {
                taken += bytes;
                thread::sleep(PATIENCE / 4);
            }
            taken
        });
        let mut writer = shared(pipe, true);
        writer.write_all(&[0; 300_000]).unwrap();
        drop(writer);
        assert_eq!(slow.join().unwrap(), 300_000);
    }

    #[test]
    fn the_time_of_a_run_is_counted_from_when_it_begins() {
        let stop = Stop::new(Arc::default(), Some(Instant::now()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let refused = InterruptibleWriter::named_pipe(&path, stop.clone(), || ());
        let error = refused.err().expect("nobody reads").to_string();
        assert!(error.contains("--duration") && error.contains("nothing was captured"), "{error}");
        // A reader came just in time, and the run begins.
        let (mut reader, pipe) = io::pipe().unwrap();
        let file = File::from(OwnedFd::from(pipe));
        let mut writer = InterruptibleWriter { file, way: Way::InPieces, stop: stop.clone() };
        stop.end_at(Instant::now().checked_add(10 * PATIENCE));
        let slow = thread::spawn(move || {
            thread::sleep(2 * PATIENCE);
            io::copy(&mut reader, &mut io::sink()).unwrap()
        });
        writer.write_all(&[0; 300_000]).unwrap();
        drop(writer);
        assert_eq!(slow.join().unwrap(), 300_000);
    }

    #[test]
    fn a_reader_that_has_gone_is_noticed_without_a_write() {
        let (reader, pipe) = io::pipe().unwrap();
        let mut writer = shared(pipe, false);
        writer.flush().unwrap();
        drop(reader);
        assert_eq!(writer.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(writer.write(&[0]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
