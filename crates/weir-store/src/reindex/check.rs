//! Checks whether an index exists and matches its file.

use std::fmt;
use std::io;
use std::path::Path;

use crate::compressed::Content;
use crate::extract::blocks::{self, HEAD_BYTES};
use crate::extract::source::tiles;
use crate::index::{self, IndexError, Piece};

/// The reason why an index is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no index.
    Missing,
    /// The index cannot be read.
    Damaged,
    /// The index belongs to another file.
    OfAnotherFile,
    /// The index lists pieces that the file does not have.
    Contradicts,
    /// The index does not list all pieces of the file.
    Short,
    /// The index has no known fault, and is rebuilt because [`Options::all`](super::Options::all) is set.
    Fits,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Missing => "missing",
            Fault::Damaged => "damaged",
            Fault::OfAnotherFile => "made for another file",
            Fault::Contradicts => "lists pieces that the file does not have",
            Fault::Short => "does not list all pieces of the file",
            Fault::Fits => "no fault",
        })
    }
}

/// Returns the fault of the index at `path` for the file with the final name `complete`, and the pieces that the
/// index lists. The fault is `None` if none can be found without reading the whole file.
pub(super) fn fault(
    path: &Path,
    complete: &Path,
    file: &Content,
) -> io::Result<(Option<Fault>, Vec<Piece>)> {
    let index = match index::read(path) {
        Ok(index) => index,
        Err(IndexError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok((Some(Fault::Missing), Vec::new()));
        }
        Err(_) => return Ok((Some(Fault::Damaged), Vec::new())),
    };
    let length = file.length()?;
    if index.file_name.file_name() != complete.file_name() {
        return Ok((Some(Fault::OfAnotherFile), Vec::new()));
    }
    if !tiles(&index.pieces, length) {
        let fault = if index.is_cut { Fault::Damaged } else { Fault::Contradicts };
        return Ok((Some(fault), Vec::new()));
    }
    let fault = match index.is_cut {
        true => Some(Fault::Damaged),
        // Pieces beyond the limit are not read, so they cannot be compared.
        false if index.is_full => None,
        false => gap(&index.pieces, file, length)?,
    };
    Ok((fault, index.pieces))
}

/// Finds pieces that do not begin with a block, and blocks outside of all pieces.
fn gap(pieces: &[Piece], file: &Content, length: u64) -> io::Result<Option<Fault>> {
    let mut end = 0;
    for piece in pieces {
        if piece.at != end && has_block(file, end, length)? {
            return Ok(Some(Fault::Short));
        }
        // A piece of a compressed file is not decompressed: the start of a zstd frame is enough.
        let is_piece = file.piece_start(piece.at) == Some(piece.at);
        if !is_piece && !has_block(file, piece.at, length)? {
            return Ok(Some(Fault::Contradicts));
        }
        end = piece.at + u64::from(piece.bytes);
    }
    // Without a block after the last piece, nothing follows that an index could list.
    let is_short = end < length && has_block(file, end, length)?;
    Ok(is_short.then_some(Fault::Short))
}

/// Returns whether there is a whole block at this offset.
pub(super) fn has_block(file: &Content, at: u64, length: u64) -> io::Result<bool> {
    let mut head = [0; HEAD_BYTES];
    if length.saturating_sub(at) < HEAD_BYTES as u64 || !is_read(file, &mut head, at)? {
        return Ok(false);
    }
    let Some((_, bytes)) = blocks::head(&head).filter(|(_, bytes)| *bytes as u64 <= length - at)
    else {
        return Ok(false);
    };
    let mut tail = [0; 4];
    let is_read = is_read(file, &mut tail, at + bytes as u64 - 4)?;
    Ok(is_read && tail == (bytes as u32).to_le_bytes())
}

/// Fills `bytes`. Returns `false` if they are in a damaged compressed piece.
fn is_read(file: &Content, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, at) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error),
    }
}
