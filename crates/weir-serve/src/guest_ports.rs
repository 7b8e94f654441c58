//! Each guest of the daemon's file has a thread that serves its port.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use weir_plug::Serving;

use crate::daemon::Daemon;
use crate::guests::Guest;

impl Daemon {
    /// Serves each guest of the file on a thread of its own, until `is_over`.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn serve_guests(
        self: &Arc<Daemon>,
        serving: &Arc<Serving>,
        is_over: &Arc<AtomicBool>,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let serve = |guest: &Arc<Guest>| {
            let (guest, daemon) = (Arc::clone(guest), Arc::clone(self));
            let (serving, is_over) = (Arc::clone(serving), Arc::clone(is_over));
            let thread = thread::Builder::new().name(format!("guest {}", guest.name()));
            thread.spawn(move || guest.serve(&serving, &is_over, |line| daemon.journal.say(line)))
        };
        self.guests.all().map(serve).collect()
    }
}
