//! The account of a consumer: frames delivered, lapped, left in the rings.

use weir_ring::{Mapping, Reader};

use crate::numbering::Numbering;

/// Frames that reached a consumer, and those that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames.
    pub frames: u64,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
    /// Frames that the writers overtook.
    pub lapped: u64,
    /// Frames left in the rings because a limit of frames was reached.
    pub after_limit: u64,
    /// Frames that came too late to stand in order.
    pub late: u64,
}

/// The same of one interface: of a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Frames.
    pub frames: u64,
    /// Frames that the writers overtook.
    pub lapped: u64,
}

/// Adds up rings by the number of their feed's first interface. `frames` gives the count of a reader by its number.
pub(crate) fn by_interface(
    readers: &[Reader<Mapping>],
    numbering: &Numbering,
    frames: impl Fn(usize) -> u64,
) -> Vec<Taken> {
    let mut all: Vec<Taken> = Vec::new();
    for (number, reader) in readers.iter().enumerate() {
        let Some(id) = numbering.first(number) else { continue };
        let id = id as usize;
        all.resize(all.len().max(id + 1), Taken::default());
        all[id].lapped += reader.lapped();
        all[id].frames += frames(number);
    }
    all
}

/// Frames that were written and that this reader has neither read nor been lapped by.
#[must_use]
pub fn behind(reader: &Reader<Mapping>) -> u64 {
    reader.ring().frames_written().saturating_sub(reader.ordinal())
}

/// How far the fullest ring lies before its reader ([`Reader::fill`]).
pub fn fullest<'a>(readers: impl Iterator<Item = &'a Reader<Mapping>>) -> f64 {
    readers.map(Reader::fill).fold(0.0, f64::max)
}
