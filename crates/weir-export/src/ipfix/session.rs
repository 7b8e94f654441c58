//! State of a session with a collector.

use std::sync::Arc;

use super::flow::Layouts;
use crate::export::Origin;

/// Templates and options that the collector has received in this session, and counts of messages and records.
#[derive(Default)]
pub struct Session {
    pub sequence: u32,
    pub messages_since_refresh: u32,
    pub layouts: Layouts,
    pub has_options: bool,
    pub has_statistics: bool,
    pub origins: Arc<Vec<Origin>>,
}

/// Totals of all sessions.
#[derive(Default)]
pub struct Exported {
    pub messages: u64,
    pub flows: u64,
}

impl Session {
    pub fn forget_templates(&mut self) {
        (self.layouts, self.has_options) = (Layouts::default(), false);
        self.messages_since_refresh = 0;
    }
}
