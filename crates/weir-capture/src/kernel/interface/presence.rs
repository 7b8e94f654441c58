//! Checks whether a source's interface still exists.

use std::time::{Duration, Instant};

use super::{Interface, InterfaceQuery};
use crate::error::CaptureError;

/// Shortest time between two requests.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Asks the kernel for a source's interface by its index, so a renamed interface still exists.
///
/// Sources poll instead of watching, because a [`LinkWatch`](super::LinkWatch) gets the events of every link of its
/// namespace: with one for each source, every event would be read once for each source.
#[derive(Debug)]
pub(crate) struct Presence {
    query: InterfaceQuery,
    index: u32,
    /// Its name when the source was opened.
    name: String,
    asked: Instant,
}

impl Presence {
    pub(crate) fn new(query: InterfaceQuery, interface: &Interface) -> Presence {
        let (index, name) = (interface.index, interface.name.clone());
        Presence { query, index, name, asked: Instant::now() }
    }

    /// Asks the kernel, at most once in `ASK_EVERY`. Call this in each turn of a source.
    ///
    /// # Errors
    /// [`CaptureError::Vanished`].
    pub(crate) fn check(&mut self) -> Result<(), CaptureError> {
        if self.asked.elapsed() < ASK_EVERY {
            return Ok(());
        }
        self.asked = Instant::now();
        self.check_now()
    }

    /// Asks the kernel now.
    ///
    /// # Errors
    /// [`CaptureError::Vanished`].
    pub(crate) fn check_now(&self) -> Result<(), CaptureError> {
        if self.query.exists(self.index) {
            return Ok(());
        }
        Err(CaptureError::Vanished { iface: self.name.clone() })
    }
}
