//! Reads a piece, and puts its wanted frames in order.

use std::sync::Arc;

use super::Job;
use super::blocks::{self, Kind};
use super::source::{Context, FileInterface, Source};
use super::stats::{Note, Stats};

/// Offset of the interface number in a record. Source: draft-ietf-opsawg-pcapng, section 4.3.
const INTERFACE_ID_AT: usize = 8;

/// `stop` is checked after this many blocks.
const STOP_EVERY: u64 = 256;

/// The interfaces of a file that are known so far.
struct Known {
    interfaces: Arc<Vec<FileInterface>>,
    are_all: bool,
}

/// Counts of frames in a piece.
#[derive(Default)]
struct Frames {
    whole: u64,
    damaged: u64,
}

/// A wanted frame in a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub ts_ns: u64,
    /// Offset of its block in the piece; `bytes` is the block's length.
    pub at: u32,
    pub bytes: u32,
    /// The number of its interface among those of all files.
    pub interface: u32,
}

/// A piece that was read.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub bytes: Vec<u8>,
    /// In order of time; frames of the same time are in the order of the file.
    pub found: Vec<Found>,
}

/// Reads a piece, and selects its wanted frames. After a read error, or once `stop` is true, the result is empty.
pub(super) fn load(job: &Job, source: &Source, context: &Context<'_>, stats: &mut Stats) -> Loaded {
    let mut loaded = Loaded { bytes: vec![0; job.wanted.bytes as usize], found: Vec::new() };
    if let Err(error) = source.file.read_exact_at(&mut loaded.bytes, job.wanted.at) {
        stats.files_unreadable += 1;
        stats.note(Note::Unreadable(source.path.clone(), error.to_string()));
        return Loaded::default();
    }
    stats.read.add(job.wanted.bytes.into());
    let mut known = Known { interfaces: source.interfaces(), are_all: false };
    let (mut at, mut blocks, mut frames) = (0, 0_u64, Frames::default());
    while let Some((kind, length)) = blocks::head(&loaded.bytes[at..]) {
        let Some(block) = loaded.bytes.get(at..at + length) else { break };
        blocks += 1;
        if blocks.is_multiple_of(STOP_EVERY) && (context.stop)() {
            return Loaded::default();
        }
        if kind == Kind::Frame
            && let Some((ts_ns, interface)) =
                choose(block, &mut known, &mut frames, source, context, job, stats)
        {
            let (at, bytes) = (at as u32, length as u32);
            loaded.found.push(Found { ts_ns, at, bytes, interface });
        }
        at += length;
    }
    if let Some(said) = job.wanted.frames.map(u64::from)
        && said != frames.whole
    {
        stats.frames_damaged += said.saturating_sub(frames.whole + frames.damaged);
        let path = source.path.clone();
        stats.note(Note::Contradicted(path, job.wanted.at, said, frames.whole));
    }
    for found in &loaded.found {
        let id_at = found.at as usize + INTERFACE_ID_AT;
        loaded.bytes[id_at..id_at + 4].copy_from_slice(&found.interface.to_le_bytes());
    }
    if loaded.found.is_empty() {
        return Loaded::default();
    }
    loaded.found.sort_by_key(|found| found.ts_ns);
    loaded
}

/// Returns time and interface of the frame in a block, if the frame is wanted.
fn choose(
    block: &[u8],
    known: &mut Known,
    frames: &mut Frames,
    source: &Source,
    context: &Context<'_>,
    job: &Job,
    stats: &mut Stats,
) -> Option<(u64, u32)> {
    let Some((outline, frame)) = blocks::frame(block) else {
        stats.frames_damaged += 1;
        frames.damaged += 1;
        return None;
    };
    frames.whole += 1;
    // Frames that were read in planning have been counted.
    stats.frames_read += u64::from(!job.wanted.is_scanned);
    let id = outline.interface_id as usize;
    if id >= known.interfaces.len() && !known.are_all {
        *known = Known { interfaces: source.learned_interfaces(context), are_all: true };
    }
    let Some(interface) = known.interfaces.get(id) else {
        stats.frames_damaged += 1;
        return None;
    };
    let (filter, link_type) = (&interface.filter, interface.link_type);
    let is_wanted = context.query.wants(filter, link_type, outline.ts_ns, outline.wire_len, frame);
    is_wanted.then_some((outline.ts_ns, interface.number))
}
