//! Offers frames to a source, together with changes and faults in between.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_capture::{CaptureError, FeedHandle, Pumped};
use weir_probe::core::{Completion, Effect, EffectId, Note};
use weir_probe::{FeedId, SourceId};
use weir_ring::geometry::{EntryWord, WriterWord};

use super::World;
use super::effects::add_feed;
use crate::broken::broken;
use crate::fake_source::Item;
use crate::frame::{Frame, HOSTS};
use crate::meaning::Wanting;
use crate::planted::Planted;
use crate::random::{Random, pick};
use crate::truth::FeedTruth;

/// Three such frames fill a block, because after each of them there must be space for the longest frame.
const LONG_BYTES: u32 = 200_000;

/// The result of another thread's change: `None` for a change of a feed, a handle for a new feed.
type Answer = Arc<Mutex<Option<Result<Option<FeedHandle>, CaptureError>>>>;

impl World {
    /// Offers some frames, with events between them.
    pub(super) fn frames(&mut self, which: u64, count: u64, seed: u64) {
        let Some(source) = self.offering(which) else { return };
        let mut random = Random::new(seed);
        let meanwhile = random.one_in(3).then(|| self.change_under_way(source)).flatten();
        let at = random.below(count);
        let (mut items, mut answered) = (Vec::new(), None);
        for number in 0..count {
            if let Some((id, effect)) = meanwhile.clone().filter(|_| number == at) {
                self.under_way.remove(&id);
                let answer = Answer::default();
                items.push(self.meanwhile(source, &effect, &answer));
                answered = Some((id, effect, answer));
            }
            if random.one_in(16) {
                self.lose(source);
                items.push(Item::Lost);
            }
            let bytes = match random.below(12) {
                0 => 8 + random.below(20) as u32,
                1..8 => 60 + random.below(200) as u32,
                8..11 => 60 + random.below(1455) as u32,
                _ => 60 + random.below(9_000) as u32,
            };
            items.push(self.frame(source, bytes, random.below(HOSTS) as u8));
            if random.one_in(8) {
                items.push(Item::Publish);
            }
        }
        let end = match random.below(200) {
            0 => Some(Ok(())),
            1 => Some(Err(CaptureError::Ended)),
            2..5 => Some(Err(CaptureError::Vanished { iface: "sim0".to_owned() })),
            _ => None,
        };
        items.extend(end.map(Item::End));
        self.pump(source, items, answered);
    }

    /// Offers long frames, which usually lap consumers that have not read.
    pub(super) fn burst(&mut self, which: u64, count: u64) {
        let Some(source) = self.offering(which) else { return };
        let mut random = Random::new(which);
        let long =
            (0..2 * count).map(|_| self.frame(source, LONG_BYTES, random.below(HOSTS) as u8));
        let items = long.collect();
        self.pump(source, items, None);
    }

    fn offering(&self, which: u64) -> Option<SourceId> {
        pick(which, self.open.iter().filter(|(_, own)| own.is_started).map(|(id, _)| *id))
    }

    /// Returns the pending effect of this source, if it is an effect that can be carried out between two frames.
    fn change_under_way(&self, source: SourceId) -> Option<(EffectId, Effect<Wanting>)> {
        let own = self.under_way.iter().find(|(_, effect)| effect.source() == source)?;
        let is_posted = matches!(own.1, Effect::AddFeed(..) | Effect::ChangeFeed(..));
        is_posted.then(|| (*own.0, own.1.clone()))
    }

    /// Returns the item by which another thread carries out an effect between two frames.
    fn meanwhile(&mut self, source: SourceId, effect: &Effect<Wanting>, answer: &Answer) -> Item {
        let (control, answer) = (self.control(source), Arc::clone(answer));
        let tell =
            move |result| *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        match effect.clone() {
            Effect::ChangeFeed(_, feed, change) => {
                let slot = self.slot(feed);
                self.feed_changed(feed, &change);
                Item::Meanwhile(Box::new(move || {
                    tell(control.change(slot, change.real).map(|_| None))
                }))
            }
            Effect::AddFeed(_, feed, wants) => {
                self.truth_joins(source, feed, &wants);
                Item::Meanwhile(Box::new(move || {
                    tell(add_feed(control.as_ref(), feed, &wants).map(Some))
                }))
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn frame(&mut self, source: SourceId, bytes: u32, host: u8) -> Item {
        let number = self.frames.len() as u64;
        self.clock_ns += 1 + number % 900;
        // Frames of one ring may be a little out of order.
        let ts_ns = self.clock_ns - if number % 61 == 60 { 700 } else { 0 };
        let wire_len = if bytes >= 60 { bytes + (number % 3) as u32 } else { bytes };
        let frame = Frame { number, ts_ns, bytes, wire_len, host };
        self.frames.push(frame);
        self.counts.offered += 1;
        self.open.get_mut(&source).expect("an open source").offered += 1;
        let step = self.step;
        self.feeds_of(source).for_each(|(_, truth)| truth.offer(&frame, step));
        Item::Frame(frame)
    }

    fn lose(&mut self, source: SourceId) {
        self.open.get_mut(&source).expect("an open source").offered += 1;
        self.feeds_of(source).for_each(|(_, truth)| truth.lose());
    }

    fn feeds_of(&mut self, source: SourceId) -> impl Iterator<Item = (&FeedId, &mut FeedTruth)> {
        let own = self.truths.iter_mut();
        own.filter(move |(_, truth)| truth.source == source && truth.left_at.is_none())
    }

    fn pump(
        &mut self,
        source: SourceId,
        items: Vec<Item>,
        answered: Option<(EffectId, Effect<Wanting>, Answer)>,
    ) {
        let own = self.open.get_mut(&source).expect("an open source");
        own.script.push(items);
        let pumped = own.source.pump(Duration::ZERO);
        if let Some((id, effect, answer)) = answered {
            let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            match (answer, effect) {
                (Some(Ok(Some(handle))), Effect::AddFeed(_, feed, wants)) => {
                    self.feed_added(source, feed, &wants, handle);
                }
                (Some(Ok(_)), _) => {}
                (answer, effect) => {
                    let error = answer.and_then(Result::err).map(|error| error.to_string());
                    broken(format!("{effect:?} can be carried out between frames: {error:?}"));
                }
            }
            self.plant_in_rings(source);
            self.check_ledgers(source);
            self.complete(id, Completion::Done);
        } else {
            self.plant_in_rings(source);
            self.check_ledgers(source);
        }
        let note = match pumped {
            Ok(Pumped::More) => return,
            Ok(Pumped::Ended) => Note::Ended,
            Err(CaptureError::Vanished { .. }) => Note::Vanished("vanished"),
            Err(_) => Note::Failed("failed"),
        };
        self.core.note(source, note);
        self.take_outputs();
    }

    /// Compares the ledgers of a source's feeds with the expected ones.
    pub(super) fn check_ledgers(&self, source: SourceId) {
        let control = &self.open[&source].control;
        let own = self.truths.iter();
        for (feed, truth) in own.filter(|(_, one)| one.source == source && one.left_at.is_none()) {
            match control.ledger(self.slot(*feed)) {
                Ok(ledger) => truth.check(&ledger),
                Err(error) => broken(format!("the ledger of {feed:?} can be read: {error}")),
            }
        }
    }

    /// Changes a ring's words as certain bugs of a writer would change them.
    fn plant_in_rings(&self, source: SourceId) {
        let ring =
            self.registry.feeds_of(source).first().and_then(|(feed, _)| self.registry.feed(*feed));
        let Some(ring) = ring.map(|feed| &feed.rings[0]) else { return };
        let opened = ring.writer_word(WriterWord::Opened);
        if opened == 0 || !self.step.is_multiple_of(4) {
            return;
        }
        let geometry = ring.geometry();
        let (index, more) = match self.planted {
            Some(Planted::AnnouncedBeforeWritten) => {
                (geometry.entry_word(opened - 1, EntryWord::Committed), 64)
            }
            Some(Planted::OrdinalAhead) => (geometry.writer_word(WriterWord::Ordinal), 1),
            Some(Planted::ClosedEarly) => (geometry.writer_word(WriterWord::Closed), 1),
            _ => return,
        };
        let words = weir_ring::Words::words(ring.memory().as_ref());
        words[index].fetch_add(more, std::sync::atomic::Ordering::Release);
    }
}
