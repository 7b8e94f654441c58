//! A pause that ends early when a writer has filled a quarter of a ring.

use std::time::Duration;

use super::page::line;
use super::{Sleeper, Woken, message};
use crate::Words;
use crate::doorbell::{self, EACH_QUARTER};
use crate::error::RingError;
use crate::header::WriterKind;
use crate::reader::Reader;
use crate::sync::Ordering;

impl Sleeper {
    /// Waits until a quarter of one of the readers' rings was filled, counted from the ring's first block and not from
    /// the reader, or until `limit` has passed. Each reader comes with its line, as in
    /// [`sleep_on`](Sleeper::sleep_on).
    ///
    /// Only BPF programs ring for that, and only once their owner has armed the doorbell: `None` means that it is not
    /// so, or not yet, and that nothing was waited for.
    ///
    /// The thresholds stand until [`free_line`](Sleeper::free_line) or another wait.
    ///
    /// # Errors
    /// [`RingError`] of a ring's header, and if the kernel refuses to wait.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn wait_for_quarter<'a, M: Words + 'a>(
        &self,
        readers: impl Iterator<Item = (usize, &'a Reader<M>)> + Clone,
        limit: Duration,
    ) -> Result<Option<Woken>, RingError> {
        if !self.know_quarters() {
            // An owner may have said so since messages were last read.
            let received = self.receive();
            if received.woken.is_some() || !self.know_quarters() {
                return Ok(received.woken);
            }
        }
        let lines = readers.filter(|(_, reader)| !reader.has_ended());
        let new = lines.filter(|(ring, _)| {
            assert!(*ring < self.lines, "line {ring} of {}", self.lines);
            line(&self.page, *ring).load(Ordering::Relaxed) != EACH_QUARTER
        });
        for (_, reader) in new.clone() {
            if reader.ring().identity()?.writer != WriterKind::Bpf {
                return Ok(None);
            }
        }
        let mut is_new = false;
        for (ring, _) in new {
            doorbell::set_threshold(line(&self.page, ring), EACH_QUARTER);
            is_new = true;
        }
        if is_new {
            self.ask_for_quarters();
        }
        if !self.is_armed() {
            let received = self.receive();
            if received.woken.is_some() || !self.is_armed() {
                return Ok(received.woken);
            }
        }
        Ok(Some(self.poll(limit)?.woken.unwrap_or(Woken::Limit)))
    }

    /// Whether there are owners of BPF programs, and all of them wake for quarters.
    fn know_quarters(&self) -> bool {
        let channels = self.channels();
        let owners = channels.iter().filter(|channel| channel.socket.is_some() && channel.confirms);
        owners.clone().count() > 0 && owners.clone().all(|channel| channel.knows_quarters)
    }

    fn ask_for_quarters(&self) {
        for channel in self.channels().iter_mut() {
            channel.quarters_asked = channel.quarters_asked.wrapping_add(1);
            if let Some(socket) = channel.socket.as_ref().filter(|_| channel.confirms) {
                message::send(socket, message::ARM, channel.quarters_asked);
            }
        }
    }

    fn is_armed(&self) -> bool {
        let waits = |channel: &message::Channel| {
            channel.socket.is_some()
                && channel.confirms
                && channel.quarters_asked != channel.quarters_armed
        };
        !self.channels().iter().any(waits)
    }
}
