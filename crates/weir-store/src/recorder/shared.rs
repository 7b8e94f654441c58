//! State that all rings of a recorder share.

use std::collections::BTreeMap;

use weir_consumer::Count;
use weir_disk::{Disk, Spare, Ticket};

use super::pool::Pool;
use super::settings::Settings;
use super::volume::Volumes;
use super::{RecorderReport, stream};
use crate::names::Names;

/// State that all streams share.
pub struct Shared<D: Disk> {
    pub disk: D,
    pub volumes: Volumes<D>,
    pub settings: Settings,
    /// Names of addresses, which every file says.
    pub names: Names,
    /// Compresses pieces, if that is asked for.
    pub pool: Option<Pool>,
    /// Memory of copies that were written.
    pub spare: Spare,
    /// The stream that a write belongs to, and the kind of data.
    pub tickets: BTreeMap<Ticket, (usize, Asked)>,
    pub next_ticket: u64,
    /// Frames that are safely out, and all that were taken.
    pub kept: Count,
    pub taken: Count,
    pub report: RecorderReport,
}

impl<D: Disk> Shared<D> {
    /// Whether anything is compressed or written, or done with a whole file.
    pub fn is_at_work(&self) -> bool {
        self.volumes.are_at_work()
            || !self.tickets.is_empty()
            || self.pool.as_ref().is_some_and(|pool| !pool.is_idle())
    }

    /// A number by which the disk's answer is known.
    pub fn ticket(&mut self, stream: usize, asked: Asked) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tickets.insert(ticket, (stream, asked));
        ticket
    }

    /// Whether one more piece can go out of a ring that is so full.
    pub fn has_room(&self, fill: f64) -> bool {
        // Where the writer is near, pieces are written as they are.
        let is_free = |pool: &Pool| pool.has_room() || fill > stream::NEAR;
        self.volumes.have_room() && self.pool.as_ref().is_none_or(is_free)
    }
}

/// A request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To write the entry of this number.
    Write(u64),
    /// To preallocate a file up to here.
    Preallocation { file: u64, end: u64 },
}
