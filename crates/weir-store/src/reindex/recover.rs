//! Completes files that a killed recorder left, and renames them to their final names.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, fchown};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};

use super::build::{Trouble, check_start};
use super::check::has_block;
use super::{Event, Options, Report};
use crate::catalog::{LOCK_NAME, Listed, State};
use crate::compressed::{Content, seek_table};
use crate::extract::blocks::Kind;
use crate::extract::open::open;
use crate::extract::walk::{Walk, Walked};
use crate::index::{self, Piece, Set};
use crate::recorder::RecorderError;
use crate::recorder::volume::{DirectoryLock, is_recorded, lock};

/// The action for a file of a killed recorder.
pub(super) enum Recovered {
    /// Truncate the file to `end` bytes, append `table` (the seek table of a compressed file that has none), and
    /// rename it.
    Whole { end: u64, cut_bytes: u64, table: Vec<u8> },
    /// Delete the file, because it has no frame.
    Empty,
}

/// The reason why nothing is completed in a directory.
const RECORDS: &str = "a recorder writes there";

/// Completes files that a recorder left in one directory, and adds them to the files that need an
/// index.
pub(super) fn directory(
    directory: &Path,
    left: &[Listed],
    options: &Options,
    stop: &dyn Fn() -> bool,
    report: &mut Report,
    files: &mut Vec<Listed>,
) {
    let is_recording = |listed: &Listed| listed.state == State::Open { recording: true };
    // The lock is held until all files are done, so that no recorder begins meanwhile.
    let held = match left.iter().any(is_recording) {
        true => Err(Event::LeftAlone { path: directory.into(), why: RECORDS }),
        false if options.check => Ok(None),
        false => hold(directory).map(Some),
    };
    let _held = match held {
        Ok(held) => held,
        Err(event) => return report.events.push(event),
    };
    for listed in left {
        if stop() {
            return;
        }
        match file(listed, options, stop, report) {
            Ok(event) => {
                if let Event::Completed { path, .. } = &event
                    && !options.check
                {
                    report.files -= 1;
                    let state = State::Complete;
                    files.push(Listed { path: path.clone(), state, named: listed.named });
                }
                report.events.push(event);
            }
            Err(Trouble::Stopped) => return,
            Err(Trouble::Foreign(why)) => {
                report.events.push(Event::LeftAlone { path: listed.path.clone(), why });
            }
            Err(Trouble::Io(error)) => report
                .events
                .push(Event::Failed { path: listed.path.clone(), why: error.to_string() }),
        }
    }
    // Syncs the directory, so that the new names survive a power failure.
    if !options.check
        && let Err(error) = File::open(directory).and_then(|directory| directory.sync_all())
    {
        report.events.push(Event::Failed { path: directory.into(), why: error.to_string() });
    }
}

/// Takes the lock on the directory, as a recorder does.
fn hold(directory: &Path) -> Result<DirectoryLock, Event> {
    let path = directory.to_owned();
    let failed = |error: io::Error| Event::Failed { path: path.clone(), why: error.to_string() };
    let is_new = !directory.join(LOCK_NAME).exists();
    let held = lock(directory).map_err(|error| match error {
        RecorderError::Taken { .. } => Event::LeftAlone { path: path.clone(), why: RECORDS },
        error => {
            let text = std::error::Error::source(&error).map(ToString::to_string);
            Event::Failed { path: path.clone(), why: text.unwrap_or_else(|| error.to_string()) }
        }
    })?;
    if is_new {
        // A recorder with fewer privileges must be able to open the lock file.
        let meta = directory.metadata().map_err(failed)?;
        let _ = fchown(held.file(), Some(meta.uid()), Some(meta.gid()));
    }
    Ok(held)
}

fn file(
    listed: &Listed,
    options: &Options,
    stop: &dyn Fn() -> bool,
    report: &mut Report,
) -> Result<Event, Trouble> {
    let (path, complete) = (&listed.path, listed.complete_path());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !is_recorded(&name) {
        return Err(Trouble::Foreign("no recorder gives such a name"));
    }
    if fs::symlink_metadata(&complete).is_ok() {
        return Err(Trouble::Foreign("there is a complete file of that name"));
    }
    // A symbolic link is not followed, even if the user named it.
    let unnamed = Listed { named: false, state: State::Complete, ..listed.clone() };
    let Some(file) = open(&unnamed)? else {
        return Err(Trouble::Foreign("it is not there any more"));
    };
    let file = Content::new(file)?;
    let indexed = Indexed::of(listed, &file)?;
    let recovered = look(&file, &indexed, stop, report)?;
    let event = match &recovered {
        Recovered::Empty => Event::Deleted { path: path.clone() },
        Recovered::Whole { cut_bytes, .. } => {
            Event::Completed { path: complete.clone(), cut_bytes: *cut_bytes }
        }
    };
    if options.check {
        return Ok(event);
    }
    match recovered {
        Recovered::Empty => {
            fs::remove_file(path)?;
            let _ = fs::remove_file(listed.index_path());
        }
        Recovered::Whole { end, table, .. } => {
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let out = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
            let out = File::from(out);
            let (own, seen) = (out.metadata()?, file.file().metadata()?);
            if (own.dev(), own.ino()) != (seen.dev(), seen.ino()) {
                return Err(Trouble::Foreign("another file has its name now"));
            }
            if end < own.len() {
                out.set_len(end)?;
            }
            out.write_all_at(&table, end)?;
            out.sync_all()?;
            match rustix::fs::renameat_with(CWD, path, CWD, &complete, RenameFlags::NOREPLACE) {
                // The file system does not support NOREPLACE. The lock keeps recorders from using the name.
                Err(rustix::io::Errno::INVAL) => fs::rename(path, &complete)?,
                other => other.map_err(io::Error::from)?,
            }
        }
    }
    Ok(event)
}

/// The contents of a file according to its index. The index lists confirmed data, which is kept even if data before
/// it is damaged.
#[derive(Debug, Default)]
struct Indexed {
    /// End of the last listed piece that exists in the file.
    end: u64,
    /// Whether the index lists frames before `end`.
    has_frames: bool,
    /// Whether the index lists pieces after the readable part of the file.
    is_beyond: bool,
}

impl Indexed {
    fn of(listed: &Listed, file: &Content) -> Result<Indexed, Trouble> {
        let mut indexed = Indexed::default();
        let Ok(index) = index::read(&listed.index_path()) else { return Ok(indexed) };
        if index.file_name.file_name() != listed.complete_path().file_name() {
            return Ok(indexed);
        }
        let length = file.length()?;
        // Padding need not be kept.
        let says = |piece: &&Piece| piece.frames > 0 || piece.set != Set::default();
        for piece in index.pieces.iter().rev().filter(says) {
            let end = piece.at + u64::from(piece.bytes);
            if end > length {
                indexed.is_beyond = true;
            } else if indexed.end == 0 && has_block(file, piece.at, length)? {
                indexed.end = end;
            }
            indexed.has_frames |= indexed.end > 0 && piece.frames > 0;
        }
        Ok(indexed)
    }
}

/// Determines the action for a file: finds the end of its last block that is not padding.
fn look(
    file: &Content,
    indexed: &Indexed,
    stop: &dyn Fn() -> bool,
    report: &mut Report,
) -> Result<Recovered, Trouble> {
    let length = file.length()?;
    let (mut end, mut frames, mut is_damaged) = (0, 0_u64, false);
    let mut walk = Walk::frames(file, 0, length);
    while let Some(walked) = walk.next()? {
        if stop() {
            return Err(Trouble::Stopped);
        }
        let (kind, block_end) = match walked {
            Walked::Block { kind: Kind::Section, at: 1.., .. } => {
                return Err(Trouble::Foreign("it has several sections"));
            }
            Walked::Block { kind, at, length, .. } => (kind, at + length as u64),
            Walked::Damage { at } => {
                is_damaged = !is_unwritten(file, at)?;
                break;
            }
        };
        match kind {
            Kind::Padding => continue,
            Kind::ForeignFrame => {
                return Err(Trouble::Foreign("it has frames in blocks that Weir does not write"));
            }
            Kind::Frame => frames += 1,
            Kind::Section | Kind::Interface | Kind::Names | Kind::Other => {}
        }
        end = block_end;
    }
    report.bytes_read += walk.bytes_read();
    // A file that begins with zeros has no confirmed data.
    if length > 0 && !is_unwritten(file, 0)? {
        check_start(file)?;
    }
    if frames > 0 || indexed.has_frames {
        return whole(file, end.max(indexed.end), indexed.is_beyond);
    }
    match is_damaged || indexed.is_beyond || !is_cut_at_zeros(file)? {
        true => Err(Trouble::Foreign("it is damaged before its first frame")),
        false => Ok(Recovered::Empty),
    }
}

/// Returns the action for a file that keeps its contents up to the uncompressed offset `end`.
fn whole(file: &Content, end: u64, is_beyond: bool) -> Result<Recovered, Trouble> {
    let length = file.file().metadata()?.len();
    let no_table = Vec::new();
    if !file.is_compressed() {
        return Ok(Recovered::Whole {
            end,
            cut_bytes: length.saturating_sub(end),
            table: no_table,
        });
    }
    // A file with a seek table is complete. If the index lists pieces after damage, the file is not truncated, so
    // that they are not lost.
    let found = if file.has_table() || is_beyond { None } else { file.up_to(end)? };
    Ok(match found {
        None => Recovered::Whole { end: length, cut_bytes: 0, table: no_table },
        Some((end, frames)) => Recovered::Whole {
            end,
            cut_bytes: length.saturating_sub(end),
            table: seek_table(&frames).as_slice().to_vec(),
        },
    })
}

/// Returns whether the next 16 bytes are zeros or beyond the end of the file.
fn is_unwritten(file: &Content, at: u64) -> Result<bool, Trouble> {
    let mut start = [0; 16];
    let there = file.length()?.saturating_sub(at).min(start.len() as u64) as usize;
    match file.read_exact_at(&mut start[..there], at) {
        Ok(()) => Ok(start == [0; 16]),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the bytes after the last frame of a compressed file begin with zeros, so that they were never
/// written.
fn is_cut_at_zeros(file: &Content) -> Result<bool, Trouble> {
    let raw = file.file();
    let there = file.cut_off_bytes().min(16) as usize;
    let mut start = [0; 16];
    raw.read_exact_at(&mut start[..there], raw.metadata()?.len() - file.cut_off_bytes())?;
    Ok(start == [0; 16])
}
