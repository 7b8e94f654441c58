//! Turns of the consumers, and the messages that they got.

use weir_consumer::Step;
use weir_probe::ConsumerId;
use weir_probe::runtime::channels::Channels;

use super::World;
use crate::account::Facts;
use crate::broken::{broken, hold};
use crate::reader::{FeedMessage, Kind, Reader};

impl World {
    /// Creates the consumer that the core has added.
    pub(super) fn consumer_added(&mut self, id: ConsumerId) {
        let (reader, sleeper, updates) = Reader::new(id, self.next_kind, self.planted);
        let channels = Channels::made(sleeper);
        let channels = channels.unwrap_or_else(|error| broken(format!("a waker: {error}")));
        self.registry.add_member(id, channels, updates);
        self.readers.insert(id, reader);
        self.next_kind = Kind::Counts;
    }

    /// Lets a consumer read, unless it is stalled or asleep.
    pub(super) fn turn(&mut self, id: ConsumerId, frames_max: u64) {
        let facts = Facts { frames: &self.frames, feeds: &self.truths, step: self.step };
        let Some(reader) = self.readers.get_mut(&id).filter(|reader| !reader.is_stalled) else {
            return;
        };
        let (step, told) = reader.step(frames_max, &facts);
        self.taken(id, told, step);
    }

    /// Checks that a consumer that had a turn has taken all updates that it was sent, and no others.
    pub(super) fn taken(&mut self, id: ConsumerId, taken: Vec<FeedMessage>, step: Option<Step>) {
        if step.is_none() {
            return;
        }
        let untaken = self.untaken.remove(&id).unwrap_or_default();
        let is_same = |(told, taken): (&FeedMessage, &FeedMessage)| match (told, taken) {
            // Without end positions, the consumer reads the end from the rings.
            (FeedMessage::Left(feed, _), FeedMessage::Left(taken, until)) if until.is_empty() => {
                feed == taken
            }
            (told, taken) => told == taken,
        };
        let is_all = untaken.len() == taken.len() && untaken.iter().zip(&taken).all(is_same);
        hold!(is_all, "a consumer takes what it was told: {untaken:?}, {taken:?}");
    }

    /// Removes a consumer that is gone, and adds its counts to the totals. The probe may not know yet.
    pub(super) fn reader_gone(&mut self, id: ConsumerId) {
        let Some(reader) = self.readers.remove(&id) else { return };
        let (delivered, refused) = reader.totals();
        self.counts.delivered += delivered.frames;
        self.counts.lapped += delivered.lapped;
        self.counts.refused += refused;
    }

    /// Lets all consumers read to the end.
    pub(super) fn read_to_the_end(&mut self) {
        let ids: Vec<ConsumerId> = self.readers.keys().copied().collect();
        for id in ids {
            let facts = Facts { frames: &self.frames, feeds: &self.truths, step: self.step };
            let reader = self.readers.get_mut(&id).expect("it is there");
            let told = reader.finish(&facts);
            self.taken(id, told, Some(Step::Ended));
        }
    }
}
