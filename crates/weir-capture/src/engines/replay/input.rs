//! The bytes of a capture file: from a file or from standard input, unpacked where they are compressed.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;

/// Bytes of a capture file.
pub type Input = Box<dyn Read + Send>;

/// The path that means standard input.
const STANDARD_INPUT: &str = "-";

/// The first bytes of compressed files. Source: RFC 1952; RFC 8878; the LZ4 frame format.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// Bytes that were read from standard input to learn its link type, for a later reader that starts
/// at the beginning.
static READ_AHEAD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Whether it can be read only once.
pub fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// Opens a capture file, or standard input.
///
/// # Errors
/// What the kernel says; `IsADirectory` for a folder.
pub fn open(path: &Path) -> io::Result<Input> {
    if is_standard_input(path) {
        let before = std::mem::take(&mut *read_ahead());
        return unpacked(Box::new(Cursor::new(before).chain(io::stdin())));
    }
    let file = File::open(path)?;
    // Opening a folder succeeds and reading it fails, with less to say.
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    unpacked(Box::new(file))
}

/// Looks at the beginning of standard input and leaves it there.
pub fn peek<T>(look: impl FnOnce(Input) -> T) -> T {
    let copy = Copying { input: Box::new(io::stdin()), before: read_ahead().clone(), at: 0 };
    match unpacked(Box::new(copy)) {
        Ok(input) => look(input),
        Err(error) => look(Box::new(Failing(Some(error)))),
    }
}

fn read_ahead() -> std::sync::MutexGuard<'static, Vec<u8>> {
    READ_AHEAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the bytes that were read before, then on, and keeps these, too.
struct Copying {
    input: Input,
    before: Vec<u8>,
    at: usize,
}

impl Read for Copying {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let before = &self.before[self.at..];
        if !before.is_empty() {
            let bytes = before.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&before[..bytes]);
            self.at += bytes;
            return Ok(bytes);
        }
        let bytes = self.input.read(buffer)?;
        read_ahead().extend_from_slice(&buffer[..bytes]);
        Ok(bytes)
    }
}

struct Failing(Option<io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(self.0.take().unwrap_or(io::ErrorKind::UnexpectedEof.into()))
    }
}

/// The bytes as they were before they were compressed, if they are.
fn unpacked(mut input: Input) -> io::Result<Input> {
    let mut first = Vec::with_capacity(ZSTD.len());
    (&mut input).take(ZSTD.len() as u64).read_to_end(&mut first)?;
    let is_gzip = first.starts_with(&GZIP);
    let (is_zstd, is_lz4) = (first == ZSTD, first == LZ4);
    let whole: Input = Box::new(Cursor::new(first).chain(input));
    Ok(match (is_gzip, is_zstd, is_lz4) {
        (true, ..) => Box::new(MultiGzDecoder::new(whole)),
        (_, true, _) => Box::new(zstd::stream::read::Decoder::new(whole)?),
        (.., true) => Box::new(FrameDecoder::new(whole)),
        _ => whole,
    })
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
            assert!(read(cut).is_err(), "a file that ends in the middle is no whole one");
        }
        // Two of them in a row are one file, as the tools have it.
        assert!(read(&[&gzip[..], &gzip[..]].concat()).unwrap().len() == 2 * plain.len());
        assert_eq!(read(b"abc").unwrap(), b"abc");
        assert_eq!(read(b"").unwrap(), b"");
    }

    #[test]
    fn what_was_looked_at_is_read_again() {
        let copy = |before: &[u8], input: &'static [u8]| Copying {
            input: Box::new(input),
            before: before.to_vec(),
            at: 0,
        };
        let mut bytes = Vec::new();
        copy(b"be", b"fore").read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"before");
        assert_eq!(*read_ahead(), b"fore");
        read_ahead().clear();
    }
}
