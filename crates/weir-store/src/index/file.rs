//! The file format of an index: a header with the name of the recorded file, then an entry for each piece.
//!
//! ```text
//! header   "WEIRINDX", version (4 bytes), length of the name (4), the name, CRC-32 of all that (4)
//! entry    length of the body (4), CRC-32 of the body (4), body:
//!          at (8), bytes (4), frames (4), first_ns (8), last_ns (8), words of the set (8 each)
//! ```
//!
//! All numbers are little-endian. Entries are only ever appended. Bytes after the first incomplete entry, which a
//! killed writer leaves behind, are not entries: their pieces are read from the file itself.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use thiserror::Error;

use super::{Piece, Set};
use crate::limits::{INDEX_PIECES_MAX, INDEX_SETS_BYTES_MAX, SET_BYTES_MAX};

const MAGIC: &[u8; 8] = b"WEIRINDX";
const VERSION: u32 = 1;
/// The longest name of a file. Source: NAME_MAX, limits.h.
const NAME_BYTES_MAX: usize = 255;
/// Bytes of an entry's body before its set.
const FIXED_BYTES: usize = 32;

/// The reason why an index cannot be read.
#[derive(Debug, Error)]
pub enum IndexError {
    /// The kernel returned an error.
    #[error("{}: cannot read this index", path.display())]
    Read {
        /// Path of the index.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file does not begin with the header of this version.
    #[error("{}: no index of this version; without it the file is read whole", path.display())]
    Foreign {
        /// Path of the index.
        path: PathBuf,
    },
}

/// Contents of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// The name that the recorded file has when it is complete.
    pub file_name: PathBuf,
    /// The pieces of the recorded file, in the order of their offsets.
    pub pieces: Vec<Piece>,
    /// Whether there are bytes after the last whole entry.
    pub is_cut: bool,
    /// Whether the index has more pieces than the limit. The pieces beyond the limit are not in `pieces`.
    pub is_full: bool,
}

/// Writes the index of a file while the file is recorded.
pub struct Writer {
    out: BufWriter<File>,
    body: Vec<u8>,
}

impl Writer {
    /// Begins the index of `file`, and replaces an existing one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(index: &Path, file: &Path, mode: u32) -> io::Result<Writer> {
        // An existing name is removed, so that nothing is written through a symbolic link or into a pipe.
        match std::fs::remove_file(index) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let out = OpenOptions::new().write(true).create_new(true).mode(mode).open(index)?;
        Writer::begin(out, file)
    }

    /// Begins the index of `file` in `out`, an empty file.
    pub(crate) fn begin(out: File, file: &Path) -> io::Result<Writer> {
        let name = file.file_name().unwrap_or_default().as_bytes();
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&(name.len() as u32).to_le_bytes());
        header.extend_from_slice(name);
        let check = crc32fast::hash(&header);
        header.extend_from_slice(&check.to_le_bytes());
        let mut writer = Writer { out: BufWriter::with_capacity(64 << 10, out), body: Vec::new() };
        writer.out.write_all(&header)?;
        Ok(writer)
    }

    /// Adds a piece. Readers see it after the next [`flush`](Writer::flush).
    ///
    /// # Errors
    /// The kernel's error. The index is whole up to the earlier pieces.
    pub fn append(&mut self, piece: &Piece) -> io::Result<()> {
        let Piece { at, bytes, frames, first_ns, last_ns, set } = piece;
        let body = &mut self.body;
        body.clear();
        body.extend_from_slice(&at.to_le_bytes());
        body.extend_from_slice(&bytes.to_le_bytes());
        body.extend_from_slice(&frames.to_le_bytes());
        body.extend_from_slice(&first_ns.to_le_bytes());
        body.extend_from_slice(&last_ns.to_le_bytes());
        set.words().iter().for_each(|word| body.extend_from_slice(&word.to_le_bytes()));
        self.out.write_all(&(body.len() as u32).to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(body).to_le_bytes())?;
        self.out.write_all(body)
    }

    /// Writes the collected entries.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes the collected entries, and waits until they are on the disk.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()
    }
}

/// Reads an index. Its contents are not trusted.
///
/// # Errors
/// [`IndexError`].
pub fn read(path: &Path) -> Result<Index, IndexError> {
    let failed = |source| IndexError::Read { path: path.to_owned(), source };
    let mut input = BufReader::with_capacity(1 << 20, open(path).map_err(failed)?);
    let foreign = || IndexError::Foreign { path: path.to_owned() };
    let Some(file_name) = read_header(&mut input).map_err(failed)? else { return Err(foreign()) };
    let mut index = Index { file_name, ..Index::default() };
    let (mut body, mut sets_bytes) = (Vec::new(), 0);
    loop {
        match read_entry(&mut input, &mut body).map_err(failed)? {
            Entry::Piece(piece) => {
                sets_bytes += 8 * piece.set.words().len();
                if index.pieces.len() == INDEX_PIECES_MAX || sets_bytes > INDEX_SETS_BYTES_MAX {
                    index.is_full = true;
                    break;
                }
                index.pieces.push(piece);
            }
            Entry::End => break,
            Entry::Bad => {
                index.is_cut = true;
                break;
            }
        }
    }
    index.pieces.sort_by_key(|piece| piece.at);
    Ok(index)
}

/// Opens an index. Does not follow a symbolic link, and does not block on a FIFO.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    Ok(file)
}

enum Entry {
    Piece(Piece),
    End,
    Bad,
}

fn read_header(input: &mut impl Read) -> io::Result<Option<PathBuf>> {
    let mut header = vec![0; 16];
    if fill(input, &mut header)? < 16 || header[..8] != *MAGIC || word(&header, 8) != VERSION {
        return Ok(None);
    }
    let length = word(&header, 12) as usize;
    if length > NAME_BYTES_MAX {
        return Ok(None);
    }
    header.resize(16 + length + 4, 0);
    if fill(input, &mut header[16..])? < length + 4 {
        return Ok(None);
    }
    let (said, check) = header.split_at(16 + length);
    let is_whole = crc32fast::hash(said) == word(check, 0);
    Ok(is_whole.then(|| PathBuf::from(OsStr::from_bytes(&said[16..]))))
}

fn read_entry(input: &mut impl Read, body: &mut Vec<u8>) -> io::Result<Entry> {
    let mut head = [0; 8];
    match fill(input, &mut head)? {
        0 => return Ok(Entry::End),
        8 => {}
        _ => return Ok(Entry::Bad),
    }
    let length = word(&head, 0) as usize;
    if !(FIXED_BYTES..=FIXED_BYTES + SET_BYTES_MAX).contains(&length) {
        return Ok(Entry::Bad);
    }
    body.clear();
    body.resize(length, 0);
    if fill(input, body)? < length || crc32fast::hash(body) != word(&head, 4) {
        return Ok(Entry::Bad);
    }
    Ok(piece(body).map_or(Entry::Bad, Entry::Piece))
}

fn piece(body: &[u8]) -> Option<Piece> {
    let (fixed, set) = body.split_at_checked(FIXED_BYTES)?;
    let (words, rest) = set.as_chunks::<8>();
    let set = Set::from_words(words.iter().map(|word| u64::from_le_bytes(*word)).collect())?;
    let long = |at: usize| u64::from(word(fixed, at)) | u64::from(word(fixed, at + 4)) << 32;
    let (at, bytes, frames) = (long(0), word(fixed, 8), word(fixed, 12));
    let is_sane = rest.is_empty() && bytes > 0 && at.checked_add(u64::from(bytes)).is_some();
    is_sane.then(|| Piece { at, bytes, frames, first_ns: long(16), last_ns: long(24), set })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Fills the buffer, or reads to the end of the file. Returns the number of bytes.
fn fill(input: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < to.len() {
        match input.read(&mut to[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let sets = prop_oneof![Just(Set::default()), Just(Set::everything())];
        let piece = (any::<u32>(), 1..=u32::MAX, any::<u32>(), any::<u64>(), any::<u64>(), sets);
        let piece = piece.prop_map(|(at, bytes, frames, first_ns, last_ns, set)| Piece {
            at: u64::from(at) << 12,
            bytes,
            frames,
            first_ns,
            last_ns,
            set,
        });
        prop::collection::vec(piece, 0..20)
    }

    fn written(pieces: &[Piece]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pcapng.index");
        let mut writer = Writer::create(&path, Path::new("/x/a.pcapng"), 0o600).unwrap();
        pieces.iter().for_each(|piece| writer.append(piece).unwrap());
        writer.flush().unwrap();
        std::fs::read(path).unwrap()
    }

    fn read_bytes(bytes: &[u8]) -> Result<Index, IndexError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index");
        std::fs::write(&path, bytes).unwrap();
        read(&path)
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(mut pieces in pieces()) {
            let index = read_bytes(&written(&pieces)).unwrap();
            pieces.sort_by_key(|piece| piece.at);
            let file_name = PathBuf::from("a.pcapng");
            prop_assert_eq!(index, Index { file_name, pieces, ..Index::default() });
        }

        #[test]
        fn of_a_damaged_index_what_is_before_the_damage_is_read(
            pieces in pieces(), at in any::<prop::sample::Index>(), cut in any::<bool>(),
        ) {
            let mut bytes = written(&pieces);
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1 }
            if let Ok(index) = read_bytes(&bytes) {
                prop_assert!(index.pieces.len() <= pieces.len());
                prop_assert!(index.pieces.iter().all(|piece| pieces.contains(piece)));
                prop_assert!(cut || index.is_cut);
            }
        }

        #[test]
        fn hostile_bytes_are_no_index_or_a_short_one(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = read_bytes(&bytes);
            let mut later = written(&[]);
            later.extend_from_slice(&bytes);
            let _ = read_bytes(&later).unwrap();
        }
    }
}
