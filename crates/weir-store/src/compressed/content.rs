//! Reads a recorded file, and decompresses it if it is compressed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use zstd::bulk::Decompressor;

use super::table::{Placed, Table};
use super::{FRAME_MAGIC, Frame};

/// A recorded file, read as uncompressed bytes. Offsets are those before compression.
pub struct Content {
    file: File,
    /// The frames of a compressed file.
    table: Option<Table>,
    /// The number and the bytes of the zstd frame that was decompressed last.
    last: Mutex<(usize, Vec<u8>)>,
}

impl Content {
    /// Creates a reader of a file that is open for reading. Data that is added to a compressed file later is not
    /// seen.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(file: File) -> io::Result<Content> {
        let mut magic = [0; FRAME_MAGIC.len()];
        let is_compressed = match file.read_exact_at(&mut magic, 0) {
            Ok(()) => magic == FRAME_MAGIC,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        let table = is_compressed.then(|| Table::read(&file)).transpose()?;
        Ok(Content { file, table, last: Mutex::new((usize::MAX, Vec::new())) })
    }

    /// Returns the length in bytes before compression.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn length(&self) -> io::Result<u64> {
        match &self.table {
            None => Ok(self.file.metadata()?.len()),
            Some(table) => Ok(table.plain_length()),
        }
    }

    /// Returns the number of bytes after the last zstd frame of a compressed file that are not a frame.
    pub fn cut_off_bytes(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.cut_off_bytes)
    }

    /// Returns the file itself.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.table.is_some()
    }

    /// Returns the end of the piece of a compressed file that contains this byte.
    pub(crate) fn piece_end(&self, at: u64) -> Option<u64> {
        let (_, frame) = self.table.as_ref()?.find(at)?;
        Some(frame.plain_at + u64::from(frame.plain_bytes))
    }

    /// Returns the start of the first piece of a compressed file at or after this offset.
    pub(crate) fn piece_start(&self, from: u64) -> Option<u64> {
        let frames = self.table.as_ref()?.frames();
        frames.get(frames.partition_point(|frame| frame.plain_at < from)).map(|one| one.plain_at)
    }

    /// Frees the cached contents of the frame that was decompressed last.
    pub(crate) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (usize::MAX, Vec::new());
    }

    /// Returns whether the file is compressed and ends with a seek table.
    pub(crate) fn has_table(&self) -> bool {
        self.table.as_ref().is_some_and(|table| table.is_at_end)
    }

    /// Returns the frames of a compressed file up to and including the one with the last byte before `plain_end`, and
    /// the length of the file up to their end, including skippable data after them. `None`: a seek table cannot
    /// describe these frames.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn up_to(&self, plain_end: u64) -> io::Result<Option<(u64, Vec<Frame>)>> {
        let Some(table) = &self.table else { return Ok(None) };
        let last = plain_end.checked_sub(1).and_then(|last| table.find(last));
        let Some((last, _)) = last else { return Ok(None) };
        let frames = &table.frames()[..=last];
        let end = match table.frames().get(last + 1) {
            Some(next) => next.at,
            None => self.file.metadata()?.len().saturating_sub(table.cut_off_bytes),
        };
        let ends = frames.iter().skip(1).map(|frame| frame.at).chain([end]);
        let known = |(placed, end): (&Placed, u64)| {
            // The limit leaves space for the skippable data before a seek table.
            let bytes = end.checked_sub(placed.at).filter(|bytes| *bytes <= i32::MAX as u64)?;
            Some(Frame { bytes: bytes as u32, plain_bytes: placed.plain_bytes })
        };
        let is_from_start = frames.first().is_some_and(|first| first.at == 0);
        let known: Option<Vec<_>> = frames.iter().zip(ends).map(known).collect();
        Ok(known.filter(|_| is_from_start).map(|frames| (end, frames)))
    }

    /// Reads as [`FileExt::read_at`] does.
    ///
    /// # Errors
    /// The kernel's error; `InvalidData` if a frame is damaged.
    pub fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let Some(table) = &self.table else { return self.file.read_at(buffer, at) };
        let Some((number, frame)) = table.find(at) else { return Ok(0) };
        if frame.plain_at == at && frame.plain_bytes as usize == buffer.len() {
            self.decompress(frame, buffer)?;
            return Ok(buffer.len());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (last_number, bytes) = &mut *last;
        if *last_number != number {
            *last_number = usize::MAX;
            bytes.resize(frame.plain_bytes as usize, 0);
            self.decompress(frame, bytes)?;
            *last_number = number;
        }
        let rest = &bytes[(at - frame.plain_at) as usize..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    /// Reads as [`FileExt::read_exact_at`] does.
    ///
    /// # Errors
    /// As [`read_at`](Content::read_at).
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
        if self.table.is_none() {
            return self.file.read_exact_at(buffer, at);
        }
        while !buffer.is_empty() {
            match self.read_at(buffer, at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => {
                    at += bytes as u64;
                    buffer = &mut buffer[bytes..];
                }
            }
        }
        Ok(())
    }

    fn decompress(&self, frame: &Placed, plain: &mut [u8]) -> io::Result<()> {
        let mut packed = vec![0; frame.bytes as usize];
        self.file.read_exact_at(&mut packed, frame.at)?;
        let damaged =
            || io::Error::new(io::ErrorKind::InvalidData, "a compressed piece is damaged");
        let bytes =
            Decompressor::new()?.decompress_to_buffer(&packed, plain).map_err(|_| damaged())?;
        if bytes == plain.len() { Ok(()) } else { Err(damaged()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use proptest::prelude::*;

    use super::*;
    use crate::compressed::{Frame, compress, compressor, seek_table, store};

    /// A compressed file of these pieces, and its contents before compression.
    fn made(pieces: &[usize], with_table: bool) -> (Vec<u8>, Vec<u8>) {
        let mut compressor = compressor(1).unwrap();
        let (mut file, mut plain, mut frames) = (Vec::new(), Vec::new(), Vec::new());
        for (number, length) in pieces.iter().enumerate() {
            let piece: Vec<u8> = (0..*length).map(|at| (at / 50 + number) as u8).collect();
            let buffer =
                if number % 3 == 2 { store(&piece) } else { compress(&mut compressor, &piece) };
            frames.push(Frame { bytes: buffer.filled() as u32, plain_bytes: *length as u32 });
            file.extend_from_slice(buffer.as_slice());
            plain.extend(piece);
        }
        if with_table {
            file.extend_from_slice(seek_table(&frames).as_slice());
        }
        (file, plain)
    }

    fn content(bytes: &[u8]) -> Content {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        Content::new(file).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_part_is_read_with_and_without_a_table(
            pieces in proptest::collection::vec(1usize..300_000, 1..5),
            with_table: bool,
            parts in proptest::collection::vec((any::<prop::sample::Index>(), 1usize..500_000), 1..6),
        ) {
            let (file, plain) = made(&pieces, with_table);
            let content = content(&file);
            prop_assert_eq!((content.length().unwrap(), content.cut_off_bytes()), (plain.len() as u64, 0));
            for (at, length) in parts {
                let at = at.index(plain.len());
                let mut part = vec![0; length.min(plain.len() - at)];
                content.read_exact_at(&mut part, at as u64).unwrap();
                prop_assert!(part == plain[at..at + part.len()]);
            }
            let mut behind = [0; 1];
            prop_assert!(content.read_exact_at(&mut behind, plain.len() as u64).is_err());
        }

        #[test]
        fn a_file_that_is_cut_off_or_damaged_has_its_first_pieces(
            pieces in proptest::collection::vec(1usize..100_000, 1..5),
            with_table: bool,
            cut in any::<prop::sample::Index>(),
            damage in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let (mut file, plain) = made(&pieces, with_table);
            file.truncate(cut.index(file.len()) + 1);
            if let Some((at, byte)) = damage {
                let at = at.index(file.len());
                file[at] = byte;
            }
            let content = content(&file);
            let length = content.length().unwrap().min(1 << 30) as usize;
            let mut all = vec![0; length.min(plain.len())];
            // Data that is read without an error is the recorded data, unless the damage turned it into
            // another format.
            if content.read_exact_at(&mut all, 0).is_ok() && content.table.is_some() {
                prop_assert!(all == plain[..all.len()]);
            }
        }
    }

    #[test]
    fn hostile_files_are_read_as_far_as_there_is_room() {
        use crate::limits::PACKED_PIECES_MAX;
        // Each frame has one block with one byte.
        let mut file = Vec::new();
        for _ in 0..PACKED_PIECES_MAX + 5 {
            file.extend_from_slice(&FRAME_MAGIC);
            file.extend_from_slice(&[0x20, 1, 9, 0, 0, 7]);
        }
        let tiny = content(&file);
        assert_eq!((tiny.length().unwrap(), tiny.cut_off_bytes()), (1 << 20, 50));
        // A table with a frame of nearly 2 GiB.
        let (file, plain) = made(&[1000], false);
        let frame = Frame { bytes: (2 << 30) - 8192, plain_bytes: 1000 };
        let table = seek_table(&[frame]);
        let mut sparse = tempfile::tempfile().unwrap();
        sparse.write_all(&file).unwrap();
        sparse.write_all_at(table.as_slice(), frame.bytes.into()).unwrap();
        let huge = Content::new(sparse).unwrap();
        assert!(!huge.has_table() && huge.cut_off_bytes() > 1 << 30);
        let mut all = vec![0; 1000];
        huge.read_exact_at(&mut all, 0).unwrap();
        assert!(all == plain);
    }

    #[test]
    fn a_file_that_is_not_compressed_is_read_as_it_is() {
        let content = content(b"0123456789");
        assert_eq!((content.length().unwrap(), content.cut_off_bytes()), (10, 0));
        let mut part = [0; 4];
        content.read_exact_at(&mut part, 3).unwrap();
        assert_eq!(&part, b"3456");
    }
}
