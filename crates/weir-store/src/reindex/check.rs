//! Whether an index is there and fits its file.

use std::fmt;
use std::io;
use std::path::Path;

use crate::compressed::Content;
use crate::extract::blocks::{self, HEAD_BYTES};
use crate::extract::source::tiles;
use crate::index::{self, IndexError, Piece};

/// Why an index is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is none.
    Missing,
    /// It is no index, or damaged.
    Damaged,
    /// It names another file.
    OfAnotherFile,
    /// It tells of pieces that are not in the file.
    Contradicts,
    /// It does not tell of all pieces of the file.
    Short,
    /// None is known; it was asked for.
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
            Fault::Fits => "no fault; all are made anew",
        })
    }
}

/// Fault of the index at `path` of the file with the complete name `complete`; `None`: nothing that can be seen
/// without reading all of the file. With the pieces that may be in this file.
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
        // More than is read of an index cannot be compared.
        false if index.is_full => None,
        false => gap(&index.pieces, file, length)?,
    };
    Ok((fault, index.pieces))
}

/// Whether pieces begin where no block does, or blocks are in none of them.
fn gap(pieces: &[Piece], file: &Content, length: u64) -> io::Result<Option<Fault>> {
    let mut end = 0;
    for piece in pieces {
        if piece.at != end && has_block(file, end, length)? {
            return Ok(Some(Fault::Short));
        }
        // Each of a compressed file would have to be decompressed.
        let is_piece = file.piece_start(piece.at) == Some(piece.at);
        if !is_piece && !has_block(file, piece.at, length)? {
            return Ok(Some(Fault::Contradicts));
        }
        end = piece.at + u64::from(piece.bytes);
    }
    // Behind a place where no block stands nothing is believed, and no index tells of it.
    let is_short = end < length && has_block(file, end, length)?;
    Ok(is_short.then_some(Fault::Short))
}

/// Whether a whole block stands here.
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

/// Whether these bytes could be read: a compressed piece that is damaged cannot.
fn is_read(file: &Content, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, at) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error),
    }
}
