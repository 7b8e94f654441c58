//! Builds an index from the recorded file itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::check::{self, Fault};
use super::{Event, Options};
use crate::catalog::{Listed, new_path};
use crate::compressed::Content;
use crate::extract::blocks::{self, Kind};
use crate::extract::open::open;
use crate::extract::walk::{Walk, Walked};
use crate::index::{Piece, Scan, Writer};
use crate::limits::FILE_INTERFACES_MAX;

/// The pieces of a recorder end at multiples of this number.
const ALIGN_BYTES: u64 = 4096;
/// Bytes of a ring's block, which is one piece. If a piece ends without padding, its end is found by this length.
const BLOCK_BYTES: u64 = 1 << 20;
/// The longest piece: the most data that a recorder collects before it writes.
const PIECE_BYTES_MAX: u64 = 2 << 20;

/// The result for a file.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub event: Option<Event>,
    pub bytes_read: u64,
    pub pieces: u64,
    pub frames: u64,
    /// Offset of the first damage in the file.
    pub damaged_at: Option<u64>,
    pub is_stopped: bool,
}

/// The reason why no index was built.
pub(super) enum Trouble {
    Io(io::Error),
    /// The file was not made by a recorder.
    Foreign(&'static str),
    Stopped,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Io(error)
    }
}

/// Builds the index of a complete file, if it is missing or does not match.
pub(super) fn file(listed: &Listed, options: &Options, stop: &dyn Fn() -> bool) -> Outcome {
    let mut outcome = Outcome::default();
    let path = listed.path.clone();
    outcome.event = match attend(listed, options, stop, &mut outcome) {
        Ok(fault) => fault.map(|fault| Event::Indexed {
            path,
            fault,
            frames: outcome.frames,
            damaged_at: outcome.damaged_at,
        }),
        Err(Trouble::Foreign(why)) => Some(Event::Foreign { path, why }),
        Err(Trouble::Io(error)) => Some(Event::Failed { path, why: error.to_string() }),
        Err(Trouble::Stopped) => {
            outcome.is_stopped = true;
            None
        }
    };
    outcome
}

fn attend(
    listed: &Listed,
    options: &Options,
    stop: &dyn Fn() -> bool,
    outcome: &mut Outcome,
) -> Result<Option<Fault>, Trouble> {
    // `None`: a recorder has deleted the file meanwhile. From now on, the lock of the open file prevents that.
    let Some(file) = open(listed)? else { return Ok(None) };
    let file = Content::new(file)?;
    check_start(&file)?;
    let index = listed.index_path();
    let complete = listed.complete_path();
    let (fault, known) = check::fault(&index, &complete, &file)?;
    let fault = match fault {
        None if options.all => Fault::Fits,
        None => return Ok(None),
        Some(fault) => fault,
    };
    if !options.check {
        let places: Vec<u64> = known.iter().map(|piece| piece.at).collect();
        write(&file, &complete, &index, &places, stop, outcome)?;
    }
    Ok(Some(fault))
}

/// Checks that a file begins as the files of a recorder do. An empty file passes.
pub(super) fn check_start(file: &Content) -> Result<(), Trouble> {
    let mut start = [0; 16];
    match file.length()? {
        0 => return Ok(()),
        1..16 => return Err(Trouble::Foreign("it is no pcapng file")),
        _ => match file.read_exact_at(&mut start, 0) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(Trouble::Foreign("its first piece is damaged"));
            }
            other => other?,
        },
    }
    match blocks::is_our_section(&start) {
        true => Ok(()),
        false => Err(Trouble::Foreign("it is no pcapng file as Weir writes it")),
    }
}

/// Writes the index under another name, and replaces the old one by a rename.
fn write(
    file: &Content,
    complete: &Path,
    index: &Path,
    known: &[u64],
    stop: &dyn Fn() -> bool,
    outcome: &mut Outcome,
) -> Result<(), Trouble> {
    let new = new_path(index);
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let meta = file.file().metadata()?;
    let out = rustix::fs::open(&new, flags, Mode::from_raw_mode(0o600)).map_err(io::Error::from)?;
    let out = File::from(out);
    // Another process that builds this index holds the lock.
    let is_held = flock(&out, FlockOperation::NonBlockingLockExclusive).is_ok();
    let own = out.metadata()?;
    // If another process has renamed the file to the index meanwhile, the file must not be written.
    let is_there = fs::symlink_metadata(&new)
        .is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
    if !is_held || !is_there || !own.is_file() || own.nlink() != 1 {
        let why = "the name for its new index is taken, by another weir index perhaps";
        return Err(io::Error::other(why).into());
    }
    out.set_len(0)?;
    // Users who may read the file may read its index. Only root may change the owner, and only root needs to.
    let _ = fchown(&out, Some(meta.uid()), Some(meta.gid()));
    out.set_permissions(fs::Permissions::from_mode(meta.mode() & 0o666))?;
    let made = fill(out, file, complete, known, stop, outcome);
    let done = made.and_then(|()| Ok(fs::rename(&new, index)?));
    if done.is_err() {
        let _ = fs::remove_file(&new);
    }
    done
}

/// Writes entries for the pieces of a file. `known` contains the offsets of pieces in the old index: after damage,
/// the walk continues at the next of them, so that the new index loses no frame that the old index had.
fn fill(
    out: File,
    file: &Content,
    complete: &Path,
    known: &[u64],
    stop: &dyn Fn() -> bool,
    outcome: &mut Outcome,
) -> Result<(), Trouble> {
    let mut builder = Builder {
        file,
        writer: Writer::begin(out, complete)?,
        scan: Scan::new(),
        link_types: Vec::new(),
        start: 0,
        end: 0,
        frames: 0,
        has_headers: false,
        is_behind_damage: false,
        outcome,
    };
    let length = file.length()?;
    let mut from = Some(0);
    while let Some(start) = from.take() {
        (builder.start, builder.end) = (start, start);
        let mut walk = Walk::frames(file, start, length);
        while let Some(walked) = walk.next()? {
            if stop() {
                return Err(Trouble::Stopped);
            }
            match walked {
                Walked::Block { kind, bytes, at, length } => {
                    builder.add(kind, bytes, at, length as u64)?;
                }
                Walked::Damage { at } => {
                    builder.is_behind_damage = true;
                    builder.outcome.damaged_at.get_or_insert(at);
                    let next = known.get(known.partition_point(|place| *place <= at)).copied();
                    from = next.into_iter().chain(file.piece_start(at + 1)).min();
                }
            }
        }
        builder.cut()?;
        builder.outcome.bytes_read += walk.bytes_read();
    }
    Ok(builder.writer.finish()?)
}

/// Divides blocks into pieces.
struct Builder<'a> {
    file: &'a Content,
    writer: Writer,
    scan: Scan,
    /// Link types of the file's interfaces.
    link_types: Vec<u16>,
    /// Start and end of the current piece, and its number of frames.
    start: u64,
    end: u64,
    frames: u32,
    /// Whether the current piece has blocks other than frames and padding.
    has_headers: bool,
    /// Whether the walk has passed damage. The damaged part may have described interfaces, so the numbers of later
    /// interfaces are not known.
    is_behind_damage: bool,
    outcome: &'a mut Outcome,
}

impl Builder<'_> {
    fn add(&mut self, kind: Kind, block: &[u8], at: u64, length: u64) -> Result<(), Trouble> {
        let is_frame = kind == Kind::Frame;
        // Readers do not search pieces with frames for interfaces, so frames and headers are in different pieces.
        let is_other = match is_frame {
            true => self.has_headers,
            false => self.frames > 0 && kind != Kind::Padding,
        };
        if is_other || at + length - self.start > PIECE_BYTES_MAX {
            self.cut()?;
        }
        self.end = at + length;
        match kind {
            Kind::Frame => self.frame(block),
            Kind::Interface => {
                let interface = blocks::interface(block);
                let interface =
                    interface.ok_or(Trouble::Foreign("its times are not in nanoseconds"))?;
                if self.link_types.len() == FILE_INTERFACES_MAX {
                    let why = "it has more interfaces than a recorder gives a file";
                    return Err(Trouble::Foreign(why));
                }
                if !self.is_behind_damage {
                    self.link_types.push(interface.link_type);
                }
            }
            Kind::Section if at > 0 => return Err(Trouble::Foreign("it has several sections")),
            Kind::ForeignFrame => {
                return Err(Trouble::Foreign("it has frames in blocks that Weir does not write"));
            }
            Kind::Section | Kind::Padding | Kind::Names | Kind::Other => {}
        }
        self.has_headers |= !is_frame && kind != Kind::Padding;
        let is_piece = match self.file.piece_end(self.start) {
            Some(end) => self.end >= end,
            None => {
                let is_padded = kind == Kind::Padding && self.end.is_multiple_of(ALIGN_BYTES);
                is_padded || self.end - self.start == BLOCK_BYTES
            }
        };
        if is_piece {
            self.cut()?;
        }
        Ok(())
    }

    fn frame(&mut self, block: &[u8]) {
        let Some((outline, frame)) = blocks::frame(block) else {
            // Readers must read this piece, to count the damaged frame.
            self.has_headers |= self.frames == 0;
            return;
        };
        self.frames += 1;
        match self.link_types.get(outline.interface_id as usize) {
            Some(link_type) => self.scan.add(outline.ts_ns, *link_type, frame, outline.caplen),
            None => self.scan.add_unknown(outline.ts_ns),
        }
    }

    /// Ends the current piece, and writes its entry.
    fn cut(&mut self) -> Result<(), Trouble> {
        let (at, bytes) = (self.start, (self.end - self.start) as u32);
        self.start = self.end;
        if bytes == 0 {
            return Ok(());
        }
        let piece = match () {
            () if self.frames > 0 => self.scan.finish(at, bytes),
            () if self.has_headers => Piece::headers(at, bytes),
            () => Piece::nothing(at, bytes),
        };
        self.outcome.pieces += 1;
        self.outcome.frames += u64::from(self.frames);
        (self.frames, self.has_headers) = (0, false);
        Ok(self.writer.append(&piece)?)
    }
}
