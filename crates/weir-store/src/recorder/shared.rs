//! What all rings of a recorder share.

use std::collections::BTreeMap;

use weir_consumer::Count;
use weir_disk::{Disk, Spare, Ticket};

use super::pool::Pool;
use super::settings::Settings;
use super::volume::Volumes;
use super::{RecorderReport, stream};
use crate::names::Names;

/// What all streams share.
pub struct Shared<D: Disk> {
    pub disk: D,
    pub volumes: Volumes,
    pub settings: Settings,
    /// Names of addresses, which every file says.
    pub names: Names,
    /// Compresses pieces, if that is asked for.
    pub pool: Option<Pool>,
    /// Memory of copies that were written.
    pub spare: Spare,
    /// Whose write it is, and which of its entries.
    pub tickets: BTreeMap<Ticket, (usize, u64)>,
    pub next_ticket: u64,
    /// Frames that are safely out, and all that were taken.
    pub kept: Count,
    pub taken: Count,
    pub report: RecorderReport,
}

impl<D: Disk> Shared<D> {
    /// Whether anything is compressed or written.
    pub fn is_at_work(&self) -> bool {
        !self.tickets.is_empty() || self.pool.as_ref().is_some_and(|pool| !pool.is_idle())
    }

    /// Whether one more piece can go out of a ring that is so full.
    pub fn has_room(&self, fill: f64) -> bool {
        // Where the writer is near, pieces are written as they are.
        let is_free = |pool: &Pool| pool.has_room() || fill > stream::NEAR;
        self.volumes.have_room() && self.pool.as_ref().is_none_or(is_free)
    }
}
