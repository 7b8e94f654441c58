//! Pauses that end early when BPF programs have begun another quarter of a ring.

use std::time::{Duration, Instant};

use super::message::Channel;
use super::page::line;
use super::{Sleeper, Woken, message};
use crate::Words;
use crate::doorbell::{self, EACH_QUARTER};
use crate::error::RingError;
use crate::header::WriterKind;
use crate::reader::Reader;
use crate::sync::Ordering;

impl Sleeper {
    /// Waits until the next quarter of one of the readers' rings was begun, or until `limit` has passed. Quarters are
    /// counted from a ring's first block, not from the reader's position. Each reader is passed with its line, as in
    /// [`sleep_on`](Sleeper::sleep_on).
    ///
    /// Only owners of BPF programs send such wake-ups, and only once they have armed the doorbell. `None` means that
    /// some owner does not, or has not armed its doorbell yet; then there was no wait.
    ///
    /// The thresholds stay set until [`free_line`](Sleeper::free_line) or another wait.
    ///
    /// # Errors
    /// [`RingError`] if a ring's header is invalid, or if the kernel refuses to wait.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn wait_for_quarter<'a, M: Words + 'a>(
        &self,
        readers: impl Iterator<Item = (usize, &'a Reader<M>)> + Clone,
        limit: Duration,
    ) -> Result<Option<Woken>, RingError> {
        if !self.know_quarters() {
            // An owner may have announced it since messages were last received.
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
            let renew = |channel: &mut Channel| {
                channel.quarters_asked = channel.quarters_asked.wrapping_add(1);
            };
            self.channels().iter_mut().for_each(renew);
        }
        if !self.is_armed() {
            let received = self.receive();
            if received.woken.is_some() {
                return Ok(received.woken);
            }
            if !self.is_armed() {
                self.ask_to_arm();
                return Ok(None);
            }
        }
        let begin = Instant::now();
        loop {
            let received = self.poll(limit.saturating_sub(begin.elapsed()))?;
            match received.woken {
                Some(woken) => return Ok(Some(woken)),
                None if !received.news || begin.elapsed() >= limit => {
                    return Ok(Some(Woken::Limit));
                }
                None => {}
            }
        }
    }

    /// Whether there are owners of BPF programs, and all of them wake for each quarter.
    fn know_quarters(&self) -> bool {
        let channels = self.channels();
        let owners = channels.iter().filter(|channel| channel.socket.is_some() && channel.confirms);
        owners.clone().count() > 0 && owners.clone().all(|channel| channel.knows_quarters)
    }

    /// Asks all owners that have not answered, in each call: an owner may be new, or its socket may have been full.
    fn ask_to_arm(&self) {
        for channel in self.channels().iter().filter(|channel| waits(channel)) {
            if let Some(socket) = &channel.socket {
                message::send(socket, message::ARM, channel.quarters_asked);
            }
        }
    }

    fn is_armed(&self) -> bool {
        !self.channels().iter().any(waits)
    }
}

/// Whether an owner has not reported yet that its doorbell is armed for the present thresholds.
fn waits(channel: &Channel) -> bool {
    channel.socket.is_some() && channel.confirms && channel.quarters_asked != channel.quarters_armed
}
