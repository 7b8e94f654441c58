//! State that all rings of a recorder share.

use std::collections::BTreeMap;

use weir_consumer::Count;
use weir_disk::{Disk, Spare, Ticket};

use super::pool::Pool;
use super::settings::Settings;
use super::volume::Volumes;
use super::{RecorderReport, stream};
use crate::names::Names;

/// State that all streams of a recorder share.
pub struct Shared<D: Disk> {
    pub disk: D,
    pub volumes: Volumes<D>,
    pub settings: Settings,
    /// Names of addresses, which are written into every file.
    pub names: Names,
    /// Compresses pieces, if compression is requested.
    pub pool: Option<Pool>,
    /// Buffers of completed writes, for reuse.
    pub spare: Spare,
    /// For each pending request, its stream and its kind.
    pub tickets: BTreeMap<Ticket, (usize, Asked)>,
    pub next_ticket: u64,
    /// Frames that were written, and all frames that were taken from the rings.
    pub kept: Count,
    pub taken: Count,
    pub report: RecorderReport,
}

impl<D: Disk> Shared<D> {
    /// Returns whether a compression, a write or a request about a whole file is pending.
    pub fn is_at_work(&self) -> bool {
        self.volumes.are_at_work()
            || !self.tickets.is_empty()
            || self.pool.as_ref().is_some_and(|pool| !pool.is_idle())
    }

    /// Returns a new ticket, by which the answer of the disk is assigned to the request.
    pub fn ticket(&mut self, stream: usize, asked: Asked) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tickets.insert(ticket, (stream, asked));
        ticket
    }

    /// Returns whether one more piece can be taken from a ring of which the share `fill` is unread.
    pub fn has_room(&self, fill: f64) -> bool {
        // If the ring's writer is close, pieces are stored uncompressed.
        let is_free = |pool: &Pool| pool.has_room() || fill > stream::NEAR;
        self.volumes.have_room() && self.pool.as_ref().is_none_or(is_free)
    }
}

/// A request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Write the entry with this number.
    Write(u64),
    /// Preallocate a file up to `end`.
    Preallocation { file: u64, end: u64 },
}
