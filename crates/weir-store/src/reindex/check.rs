//! Whether an index is there and fits its file.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::extract::blocks::{self, HEAD_BYTES};
use crate::extract::source::tiles;
use crate::index::{self, Index, IndexError};

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
            Fault::Missing => "there was none",
            Fault::Damaged => "it was damaged",
            Fault::OfAnotherFile => "it was that of another file",
            Fault::Contradicts => "it told of pieces that are not there",
            Fault::Short => "it did not tell of all pieces",
            Fault::Fits => "all are made anew",
        })
    }
}

/// What is wrong with the index at `path` of the file that is called `complete`; `None`: nothing that can be seen
/// without reading all of the file.
pub(super) fn fault(path: &Path, complete: &Path, file: &File) -> io::Result<Option<Fault>> {
    let index = match index::read(path) {
        Ok(index) => index,
        Err(IndexError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Some(Fault::Missing));
        }
        Err(_) => return Ok(Some(Fault::Damaged)),
    };
    let length = file.metadata()?.len();
    if index.file_name.file_name() != complete.file_name() {
        return Ok(Some(Fault::OfAnotherFile));
    }
    if index.is_cut {
        return Ok(Some(Fault::Damaged));
    }
    if !tiles(&index.pieces, length) {
        return Ok(Some(Fault::Contradicts));
    }
    gap(&index, file, length)
}

/// Whether pieces begin where no block does, or blocks are in none of them.
fn gap(index: &Index, file: &File, length: u64) -> io::Result<Option<Fault>> {
    let mut end = 0;
    for piece in &index.pieces {
        if piece.at != end {
            return Ok(Some(Fault::Short));
        }
        if !has_block(file, piece.at, length)? {
            return Ok(Some(Fault::Contradicts));
        }
        end = piece.at + u64::from(piece.bytes);
    }
    // Behind a place where no block stands nothing is believed, and no index tells of it.
    let is_short = end < length && has_block(file, end, length)?;
    Ok(is_short.then_some(Fault::Short))
}

/// Whether a whole block stands here.
fn has_block(file: &File, at: u64, length: u64) -> io::Result<bool> {
    let mut head = [0; HEAD_BYTES];
    if length - at < HEAD_BYTES as u64 {
        return Ok(false);
    }
    file.read_exact_at(&mut head, at)?;
    let Some((_, bytes)) = blocks::head(&head).filter(|(_, bytes)| *bytes as u64 <= length - at)
    else {
        return Ok(false);
    };
    let mut tail = [0; 4];
    file.read_exact_at(&mut tail, at + bytes as u64 - 4)?;
    Ok(tail == (bytes as u32).to_le_bytes())
}
