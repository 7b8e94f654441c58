//! A recorded file: finds the pieces that have to be read.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use weir_frame::pcapng::{AddressName, Interface, names};

use super::blocks::{self, Kind};
use super::interfaces::Interfaces;
use super::names::FoundNames;
use super::open::open;
use super::query::{LinkFilter, Query};
use super::stats::{Note, Stats};
use super::walk::{Walk, Walked};
use crate::catalog::{Listed, State};
use crate::compressed::Content;
use crate::index::{self, Index, Piece, Set};
use crate::limits::{FILE_INTERFACES_MAX, NAMES_MAX};

/// The longest piece that is accepted from an index.
const PIECE_BYTES_MAX: u32 = 64 << 20;
/// Size of the pieces into which frames without an index entry are grouped.
const SCANNED_BYTES: u64 = 1 << 20;

/// A file with pieces that have to be read. Dropping it releases its lock.
pub(super) struct Source {
    pub path: PathBuf,
    pub file: Content,
    /// The interfaces of the file that were read in planning.
    interfaces: Mutex<Arc<Vec<FileInterface>>>,
    /// All interfaces of the file. They are read once a frame belongs to an interface that planning did not find.
    learned: OnceLock<Arc<Vec<FileInterface>>>,
}

/// An interface of a file.
#[derive(Clone)]
pub(super) struct FileInterface {
    /// The number of the interface among those of all files.
    pub number: u32,
    pub link_type: u16,
    pub filter: Arc<LinkFilter>,
}

/// A piece that has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub first_ns: u64,
    pub at: u64,
    pub bytes: u32,
    /// Number of frames by the index; `None` without an index entry.
    pub frames: Option<u32>,
    /// Whether the piece was read in planning, to find its times.
    pub is_scanned: bool,
}

/// Data that planning needs besides the file.
pub(super) struct Context<'a> {
    pub query: &'a Query,
    pub interfaces: &'a Interfaces,
    pub names: &'a FoundNames,
    /// Returns true once the extraction is to end.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl Context<'_> {
    pub fn interface(&self, interface: Interface) -> FileInterface {
        let link_type = interface.link_type;
        let filter = self.query.filter_for(link_type);
        FileInterface { number: self.interfaces.number(interface), link_type, filter }
    }
}

impl Source {
    /// Finds the pieces of a file that have to be read, if any, and its names. `number`: its number among all files.
    pub fn plan(
        number: usize,
        listed: &Listed,
        context: &Context<'_>,
        stats: &mut Stats,
    ) -> Option<(Source, Vec<Wanted>)> {
        let path = listed.path.clone();
        let file = match open(listed) {
            Ok(Some(file)) => file,
            Ok(None) => {
                stats.files_deleted += 1;
                return None;
            }
            Err(error) => {
                stats.files_unreadable += 1;
                stats.note(Note::Unreadable(path, error.to_string()));
                return None;
            }
        };
        // The index is read before the file's length, so the file contains all pieces that the index lists.
        let index = index::read(&listed.index_path()).ok();
        let file = match Content::new(file) {
            Ok(file) => file,
            Err(error) => {
                stats.files_unreadable += 1;
                stats.note(Note::Unreadable(path, error.to_string()));
                return None;
            }
        };
        let source = Source { path, file, interfaces: Mutex::default(), learned: OnceLock::new() };
        let mut plan =
            Plan { source: &source, context, stats, wanted: Vec::new(), names: Vec::new() };
        plan.stats.files += 1;
        let made = plan.make(listed, index);
        source.file.forget();
        match made {
            Ok(()) => {}
            Err(Trouble::Foreign(why)) => {
                plan.stats.files -= 1;
                plan.stats.files_foreign += 1;
                plan.stats.note(Note::Foreign(source.path.clone(), why, listed.named));
                return None;
            }
            Err(Trouble::Io(error)) => {
                plan.stats.files_unreadable += 1;
                plan.stats.note(Note::Unreadable(source.path.clone(), error.to_string()));
            }
        }
        let (wanted, names) = (plan.wanted, plan.names);
        if wanted.is_empty() {
            return None;
        }
        context.names.add(number, names);
        Some((source, wanted))
    }

    /// Returns the interfaces that were read in planning, indexed by the file's own numbers.
    pub fn interfaces(&self) -> Arc<Vec<FileInterface>> {
        Arc::clone(&self.interfaces.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns all interfaces of the file, which is searched once, in case the index is wrong about their places.
    pub fn learned_interfaces(&self, context: &Context<'_>) -> Arc<Vec<FileInterface>> {
        let learn = || Arc::new(self.learn_interfaces(context).unwrap_or_default());
        Arc::clone(self.learned.get_or_init(learn))
    }

    fn learn_interfaces(&self, context: &Context<'_>) -> io::Result<Vec<FileInterface>> {
        let length = self.file.length()?;
        let (mut walk, mut all) = (Walk::headers(&self.file, 0, length), Vec::new());
        while let Some(walked) = walk.next()?
            && all.len() < FILE_INTERFACES_MAX
            && !(context.stop)()
        {
            if let Walked::Block { kind: Kind::Interface, bytes, .. } = walked
                && let Some(interface) = blocks::interface(bytes)
            {
                all.push(context.interface(interface));
            }
        }
        Ok(all)
    }

    /// Adds an interface; `false` if the file has too many.
    fn add_interface(&self, interface: FileInterface) -> bool {
        let mut interfaces = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = interfaces.len() < FILE_INTERFACES_MAX;
        if fits {
            Arc::make_mut(&mut interfaces).push(interface);
        }
        fits
    }
}

/// The reason why a file cannot be planned.
enum Trouble {
    Io(io::Error),
    /// The file was not made by a recorder.
    Foreign(&'static str),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Io(error)
    }
}

struct Plan<'a, 'b> {
    source: &'a Source,
    context: &'a Context<'b>,
    stats: &'a mut Stats,
    wanted: Vec<Wanted>,
    /// Names of addresses in the file.
    names: Vec<AddressName>,
}

impl Plan<'_, '_> {
    fn make(&mut self, listed: &Listed, index: Option<Index>) -> Result<(), Trouble> {
        let file = &self.source.file;
        let complete = listed.complete_path();
        // The index of another file is not used.
        let index = index.filter(|index| complete.file_name() == index.file_name.file_name());
        if index.as_ref().is_some_and(|index| index.is_full) {
            self.stats.note(Note::LongIndex(self.source.path.clone()));
        }
        let pieces = index.map(|index| index.pieces);
        let length = file.length()?;
        self.stats.bytes += length;
        let mut start = [0; 16];
        match length {
            0 => return Ok(()),
            1..16 => return Err(Trouble::Foreign("it is no pcapng file")),
            _ => file.read_exact_at(&mut start, 0)?,
        }
        if !blocks::is_our_section(&start) {
            return Err(Trouble::Foreign("it is no pcapng file as Weir writes it"));
        }
        let (pieces, is_indexed) = match pieces {
            Some(pieces) if tiles(&pieces, length) => (pieces, true),
            Some(_) => {
                self.stats.indexes_wrong += 1;
                (Vec::new(), false)
            }
            None => {
                self.stats.indexes_missing += 1;
                (Vec::new(), false)
            }
        };
        let is_growing = matches!(listed.state, State::Open { recording: true });
        let mut at = 0;
        for piece in &pieces {
            if (self.context.stop)() {
                return Ok(());
            }
            self.scan(at, piece.at, is_growing)?;
            self.take(piece)?;
            at = piece.at + u64::from(piece.bytes);
        }
        // A recorder may be writing the part of the file that the index does not list yet.
        if is_growing && is_indexed {
            return Ok(());
        }
        if file.cut_off_bytes() > 0 && !is_growing {
            self.stats.cut_off(&self.source.path, length, file.cut_off_bytes());
        }
        self.scan(at, length, is_growing)
    }

    /// Processes a piece that an index describes.
    fn take(&mut self, piece: &Piece) -> Result<(), Trouble> {
        self.stats.pieces += 1;
        let Piece { first_ns, last_ns, at, bytes, frames, .. } = *piece;
        if frames == 0 && piece.set == Set::default() {
            // The data was incomplete, and a recorder has replaced it by padding.
            return Ok(());
        }
        if frames == 0 {
            return self.read_headers(at, at + u64::from(bytes));
        }
        self.stats.has_times(first_ns, last_ns);
        let query = self.context.query;
        if !query.overlaps(first_ns, last_ns) {
            self.stats.skipped_by_time.add(bytes.into());
            return Ok(());
        }
        let interfaces = self.source.interfaces();
        let possible = |one: &FileInterface| query.possible(&one.filter, one.link_type, &piece.set);
        // If no interface is known, the piece is read, so that the error is found then.
        if !interfaces.is_empty() && !interfaces.iter().any(possible) {
            self.stats.skipped_by_index.add(bytes.into());
            return Ok(());
        }
        let frames = Some(frames);
        self.wanted.push(Wanted { first_ns, at, bytes, frames, is_scanned: false });
        Ok(())
    }

    /// Reads interfaces and names from a part of the file without frames.
    fn read_headers(&mut self, from: u64, to: u64) -> Result<(), Trouble> {
        let mut walk = Walk::headers(&self.source.file, from, to);
        while let Some(walked) = walk.next()? {
            if (self.context.stop)() {
                break;
            }
            if let Walked::Block { kind, bytes, at, .. } = walked {
                self.header(kind, bytes, at)?;
            }
        }
        self.stats.read.add(walk.bytes_read());
        Ok(())
    }

    fn header(&mut self, kind: Kind, block: &[u8], at: u64) -> Result<(), Trouble> {
        match kind {
            Kind::Interface => match blocks::interface(block) {
                Some(interface) => {
                    if !self.source.add_interface(self.context.interface(interface)) {
                        return Err(Trouble::Foreign(
                            "it has more interfaces than a recorder gives a file",
                        ));
                    }
                }
                None => return Err(Trouble::Foreign("its times are not in nanoseconds")),
            },
            // A recorder writes at most this number of names into a file.
            Kind::Names if self.names.len() < NAMES_MAX => self.names.extend(names::read(block)),
            Kind::Section if at > 0 => return Err(Trouble::Foreign("it has several sections")),
            Kind::ForeignFrame => {
                return Err(Trouble::Foreign("it has frames in blocks that Weir does not write"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Finds wanted frames and their times in a part that no index describes. The end of a growing file is no damage.
    fn scan(&mut self, from: u64, to: u64, is_growing: bool) -> Result<(), Trouble> {
        if from >= to {
            return Ok(());
        }
        let mut walk = Walk::frames(&self.source.file, from, to);
        let mut piece: Option<Scanned> = None;
        let mut interfaces = self.source.interfaces();
        let mut end = from;
        while let Some(walked) = walk.next()? {
            if (self.context.stop)() {
                break;
            }
            let (kind, block, at) = match walked {
                Walked::Block { kind, bytes, at, length } => {
                    end = at + length as u64;
                    (kind, bytes, at)
                }
                Walked::Damage { at } => {
                    if !is_growing {
                        self.stats.cut_off(&self.source.path, at, to - at);
                    }
                    break;
                }
            };
            if kind != Kind::Frame {
                if kind != Kind::Padding {
                    // Dropped before an interface is added: otherwise `Arc::make_mut` would copy all of them.
                    drop(interfaces);
                    self.header(kind, block, at)?;
                    interfaces = self.source.interfaces();
                }
                continue;
            }
            let Some((outline, frame)) = blocks::frame(block) else {
                self.stats.frames_damaged += 1;
                continue;
            };
            self.stats.frames_read += 1;
            let Some(interface) = interfaces.get(outline.interface_id as usize) else {
                self.stats.frames_damaged += 1;
                continue;
            };
            let (query, ts_ns) = (self.context.query, outline.ts_ns);
            self.stats.has_times(ts_ns, ts_ns);
            if !query.wants(&interface.filter, interface.link_type, ts_ns, outline.wire_len, frame)
            {
                continue;
            }
            match &mut piece {
                Some(piece) if end - piece.at <= SCANNED_BYTES => {
                    piece.first_ns = piece.first_ns.min(ts_ns);
                    piece.end = end;
                }
                other => {
                    let begun = Scanned { at, end, first_ns: ts_ns };
                    self.wanted.extend(other.replace(begun).map(Scanned::wanted));
                }
            }
        }
        self.wanted.extend(piece.map(Scanned::wanted));
        self.stats.pieces += 1 + (end - from) / SCANNED_BYTES;
        self.stats.read.add(walk.bytes_read());
        Ok(())
    }
}

/// A piece of consecutive frames without an index entry.
struct Scanned {
    at: u64,
    end: u64,
    first_ns: u64,
}

impl Scanned {
    fn wanted(self) -> Wanted {
        let bytes = (self.end - self.at) as u32;
        Wanted { first_ns: self.first_ns, at: self.at, bytes, frames: None, is_scanned: true }
    }
}

/// Returns whether these can be the pieces of a file of this length: aligned, in order, and without overlap.
pub(crate) fn tiles(pieces: &[Piece], length: u64) -> bool {
    let mut end = 0;
    pieces.iter().all(|piece| {
        let fits = piece.at >= end && piece.at.is_multiple_of(4) && piece.bytes <= PIECE_BYTES_MAX;
        end = piece.at.saturating_add(piece.bytes.into());
        fits && end <= length && piece.first_ns <= piece.last_ns
    })
}
