//! Reads the bytes of a capture file from a file, a pipe or standard input, and decompresses them if they are
//! compressed.

use std::collections::BTreeMap;
use std::fs::{DirEntry, File, Metadata};
use std::io::{self, Cursor, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::chunks::Chunks;
use super::lz4::Lz4;

/// The path that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// The first bytes of compressed files. Source: RFC 1952; RFC 8878; the LZ4 frame format.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// Longest wait for bytes between two calls of `goes_on`.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Pipes whose beginning `peek` or `wait_for` has read. The next `open` of such a pipe reads the beginning again.
static LOOKED_AT: Mutex<BTreeMap<PathBuf, Chunks>> = Mutex::new(BTreeMap::new());

/// The bytes of a capture file.
pub enum Input {
    /// A file; all bytes are available.
    File(Box<dyn Read + Send>),
    /// A pipe; bytes arrive at any time.
    Pipe(Chunks),
}

impl Input {
    /// Makes a read from a pipe without available bytes return [`WouldBlock`](io::ErrorKind::WouldBlock) from now on.
    pub fn wait_no_more(&mut self) {
        if let Input::Pipe(chunks) = self {
            chunks.set_waiting(false);
        }
    }

    /// Waits for more bytes of a pipe, for at most `limit`.
    pub fn wait(&mut self, limit: Duration) {
        if let Input::Pipe(chunks) = self {
            chunks.wait(limit);
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::File(file) => file.read(buffer),
            Input::Pipe(chunks) => chunks.read(buffer),
        }
    }
}

/// Returns true if the path can be read only once: standard input, a named pipe, a device.
pub fn is_pipe(path: &Path) -> bool {
    let is_stream = |meta: Metadata| !meta.is_file() && !meta.is_dir();
    is_standard_input(path) || path.metadata().is_ok_and(is_stream)
}

/// Returns true if `weir capture --write DIR/` has written files into this folder: they have indexes.
pub fn has_recorded_files(folder: &Path) -> bool {
    let is_index = |entry: io::Result<DirEntry>| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let endings: [&[u8]; 2] = [b".pcapng.index", b".pcapng.zst.index"];
            endings.iter().any(|ending| name.as_encoded_bytes().ends_with(ending))
        })
    };
    folder.read_dir().is_ok_and(|mut entries| entries.any(is_index))
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// Opens a capture file, or standard input.
///
/// # Errors
/// The kernel's error; `IsADirectory` for a folder.
pub fn open(path: &Path) -> io::Result<Input> {
    let known = looked_at().remove(path);
    match known {
        Some(chunks) => Ok(Input::Pipe(chunks)),
        None => open_anew(path),
    }
}

/// Calls `look` with the beginning of the file. The next [`open`] of a pipe reads it again.
///
/// # Errors
/// As [`open`].
pub fn peek<T>(path: &Path, look: impl FnOnce(&mut dyn Read) -> T) -> io::Result<T> {
    match open(path)? {
        Input::File(mut file) => Ok(look(&mut file)),
        Input::Pipe(mut chunks) => {
            let found = chunks.peek(look);
            looked_at().insert(path.to_owned(), chunks);
            Ok(found)
        }
    }
}

/// Waits until the beginning of a pipe has arrived, or until `goes_on`, which is called regularly, returns false.
/// Returns true if the beginning has arrived. `look` reads the beginning, and returns false if it got
/// [`WouldBlock`](io::ErrorKind::WouldBlock). The next [`open`] of the pipe reads the beginning again.
///
/// # Errors
/// As [`open`].
pub fn wait_for(
    path: &Path,
    look: impl Fn(&mut dyn Read) -> bool,
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<bool> {
    let Input::Pipe(mut chunks) = open(path)? else { return Ok(true) };
    chunks.set_waiting(false);
    let is_there = loop {
        if chunks.peek(&look) {
            break true;
        }
        if !goes_on() {
            break false;
        }
        chunks.wait_for_more(LOOK_EVERY);
    };
    chunks.set_waiting(true);
    looked_at().insert(path.to_owned(), chunks);
    Ok(is_there)
}

fn looked_at() -> MutexGuard<'static, BTreeMap<PathBuf, Chunks>> {
    LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_anew(path: &Path) -> io::Result<Input> {
    if is_standard_input(path) {
        return Chunks::start(|| unpacked(Box::new(io::stdin()))).map(Input::Pipe);
    }
    // Opening a named pipe does not wait for a writer here; the thread of `Chunks` waits for it.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    // A folder can be opened, but reading it would fail with a less clear error.
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if kind.is_file() {
        return unpacked(Box::new(file)).map(Input::File);
    }
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Chunks::start(move || {
        wait_for_bytes(&file)?;
        unpacked(Box::new(file))
    })
    .map(Input::Pipe)
}

/// Waits until there are bytes, or the writer has closed the pipe. Without this wait, a read of a named pipe would
/// return the end of the file before the first writer opens the pipe.
fn wait_for_bytes(file: &File) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(file, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Returns the decompressed bytes; if the input is not compressed, its own bytes.
fn unpacked(mut input: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut first = Vec::with_capacity(ZSTD.len());
    (&mut input).take(ZSTD.len() as u64).read_to_end(&mut first)?;
    let is_gzip = first.starts_with(&GZIP);
    let (is_zstd, is_lz4) = (first == ZSTD, first == LZ4);
    let whole: Box<dyn Read + Send> = Box::new(Cursor::new(first).chain(input));
    Ok(match (is_gzip, is_zstd, is_lz4) {
        (true, ..) => Box::new(Unpacked(MultiGzDecoder::new(whole))),
        (_, true, _) => Box::new(Unpacked(zstd::stream::read::Decoder::new(whole)?)),
        (.., true) => Box::new(Unpacked(Lz4::new(whole))),
        _ => whole,
    })
}

/// Decompressed bytes. The libraries have different texts for a truncated file, which do not name the cause.
struct Unpacked<R>(R);

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the compressed file is cut off here; the frames before are whole",
            ),
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use lz4_flex::frame::FrameEncoder;

    use super::*;

    fn read(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        unpacked(Box::new(Cursor::new(packed.to_vec())))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn compressed_bytes_are_unpacked_whatever_the_file_is_called() {
        let plain: Vec<u8> = (0..200_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&plain).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut lz4 = FrameEncoder::new(Vec::new());
        lz4.write_all(&plain).unwrap();
        let lz4 = lz4.finish().unwrap();
        let zstd = zstd::encode_all(&plain[..], 1).unwrap();
        for packed in [&gzip, &lz4, &zstd] {
            assert!(read(packed).unwrap() == plain);
            let cut = &packed[..packed.len() / 2];
            let error = read(cut).expect_err("a file that ends in the middle is no whole one");
            let said = error.to_string();
            assert!(said.contains("compressed file is cut off here"), "{said}");
        }
        // Two compressed files in a row are one file, as for the command-line tools.
        for packed in [&gzip, &lz4, &zstd] {
            assert!(read(&packed.repeat(2)).unwrap().len() == 2 * plain.len());
        }
        assert_eq!(read(b"abc").unwrap(), b"abc");
        assert_eq!(read(b"").unwrap(), b"");
    }
}
