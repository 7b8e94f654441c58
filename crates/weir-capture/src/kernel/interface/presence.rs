//! Whether a source's interface is still there.

use std::time::{Duration, Instant};

use super::{Interface, InterfaceQuery};
use crate::error::CaptureError;

/// How often the kernel is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Asks the kernel for a source's interface, by its index: one that is renamed is still there.
///
/// A source asks for itself and watches nothing: a [`LinkWatch`](super::LinkWatch) hears of every link of its
/// namespace, so one a source would be read once for each pair of a source and a link.
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

    /// Asks if it is time; of each turn of a source.
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

    /// Asks.
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
