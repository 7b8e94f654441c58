//! Effects of the core, carried out as in the probe's runtime (`weir_probe::runtime`, effects).

use std::sync::Arc;

use weir_capture::{CaptureError, Change, Feed, FeedControl, FeedHandle, FeedSlot, Source};
use weir_probe::core::{Completion, Effect, EffectId};
use weir_probe::{ConsumerId, FeedId, SourceId};
use weir_ring::Ledger;

use super::{Fault, OpenSource, World};
use crate::broken::{broken, hold};
use crate::fake_source::{FakeSource, Script};
use crate::meaning::{Changing, Wanting};
use crate::planted::Planted;
use crate::truth::FeedTruth;

type Done = Completion<Fault>;

impl World {
    /// Returns whether a source is being opened.
    pub(super) fn is_opening(&self, source: SourceId) -> bool {
        let opens =
            |effect: &Effect<Wanting>| matches!(effect, Effect::OpenSource(of, _) if *of == source);
        self.under_way.values().any(opens)
    }

    /// Carries out an effect. If it fails, `is_missing` makes the reason a missing interface, for effects that can
    /// fail for this reason.
    pub(super) fn carry_out_one(&mut self, id: EffectId, fails: bool, is_missing: bool) {
        let effect = self.under_way.remove(&id).expect("it is under way");
        let may_miss = matches!(effect, Effect::OpenSource(..) | Effect::StartSource(_));
        let is_all_or_nothing = !matches!(
            effect,
            Effect::CloseSource(_) | Effect::RemoveFeed(..) | Effect::DetachWaker(..)
        );
        let completion = match fails && is_all_or_nothing {
            true if may_miss && is_missing => Completion::Missing("missing"),
            true => Completion::Failed("refused"),
            false => {
                let what = format!("{effect:?}");
                self.carry_out(effect, fails)
                    .unwrap_or_else(|error| broken(format!("{what} can be carried out: {error}")))
            }
        };
        self.complete(id, completion);
    }

    pub(super) fn complete(&mut self, id: EffectId, completion: Done) {
        self.core.complete(id, completion);
        self.take_outputs();
    }

    fn carry_out(&mut self, effect: Effect<Wanting>, fails: bool) -> Result<Done, CaptureError> {
        match effect {
            Effect::OpenSource(source, feeds) => self.open_source(source, feeds)?,
            Effect::StartSource(source) => {
                let own = self.open.get_mut(&source).expect("an open source");
                own.source.start()?;
                own.is_started = true;
            }
            Effect::CloseSource(source) => return self.close_source(source, fails),
            Effect::AddFeed(source, feed, wants) => {
                let handle = add_feed(self.control(source).as_ref(), feed, &wants)?;
                self.feed_added(source, feed, &wants, handle);
            }
            Effect::RemoveFeed(source, feed) => {
                let slot = self.slot(feed);
                self.keep_ring(feed);
                let ledger = self.control(source).remove(slot)?;
                self.feed_left(feed, &ledger);
                return Ok(match fails {
                    true => Completion::Failed("no ledger"),
                    false => Completion::Ledgers(vec![(feed, ledger)]),
                });
            }
            Effect::ChangeFeed(source, feed, change) => {
                let slot = self.slot(feed);
                self.control(source).change(slot, change.real.clone())?;
                self.feed_changed(feed, &change);
            }
            Effect::RenewFeed { source, old, new, wants } => {
                let (handle, ledger) = self.control(source).replace_rings(self.slot(old))?;
                self.feed_left(old, &ledger);
                let name = self.truths[&old].name.clone();
                self.feed_added(source, new, &wants, handle);
                self.truths.get_mut(&new).expect("just added").name = name;
                let refused = self.refused.iter().filter(|(_, feed)| *feed == old);
                let refused: Vec<_> = refused.map(|(consumer, _)| (*consumer, new)).collect();
                self.refused.extend(refused);
                return Ok(Completion::Ledgers(vec![(old, ledger)]));
            }
            Effect::AttachWaker(source, feed, consumer) => self.attach(source, feed, consumer)?,
            Effect::DetachWaker(source, feed, consumer) => {
                hold!(
                    self.wakers.remove(&(consumer, feed)),
                    "{consumer:?} is attached to {feed:?}"
                );
                if let Some(waker) = self.registry.waker_of(consumer, feed) {
                    self.control(source).detach(self.slot(feed), waker);
                }
                if self.planted != Some(Planted::LinesKept) {
                    self.registry.forget_waker(consumer, feed);
                }
            }
            Effect::ReadLedger(source, feed) => {
                let ledger = self.control(source).ledger(self.slot(feed))?;
                self.truths[&feed].check(&ledger);
                return Ok(Completion::Ledgers(vec![(feed, ledger)]));
            }
        }
        Ok(Completion::Done)
    }

    fn open_source(
        &mut self,
        source: SourceId,
        feeds: Vec<(FeedId, Wanting)>,
    ) -> Result<(), CaptureError> {
        let script = Script::default();
        let wanted = feeds.iter().map(|(feed, wants)| named(*feed, wants)).collect();
        let opened = FakeSource::open(wanted, script.clone(), self.planted)?;
        let control = opened.control();
        let handles = control.feeds();
        for (handle, (_, wants)) in handles.iter().zip(&feeds) {
            block(control.as_ref(), handle.slot, wants)?;
        }
        let is_first = self.known_feeds(source) == 0;
        self.registry.opened(source);
        self.counts.lives += 1;
        let own =
            OpenSource { source: Box::new(opened), control, script, is_started: false, offered: 0 };
        self.open.insert(source, own);
        if self.planted == Some(Planted::BackWithoutFeeds) && !is_first {
            return Ok(());
        }
        for (handle, (feed, wants)) in handles.into_iter().zip(feeds) {
            self.feed_added(source, feed, &wants, handle);
        }
        Ok(())
    }

    fn known_feeds(&self, source: SourceId) -> usize {
        self.truths.values().filter(|truth| truth.source == source).count()
    }

    fn close_source(&mut self, source: SourceId, fails: bool) -> Result<Done, CaptureError> {
        let mut own = self.open.remove(&source).expect("an open source");
        own.source.stop()?;
        let mut ledgers = Vec::new();
        for (feed, slot) in self.registry.feeds_of(source) {
            let ledger = own.control.ledger(slot)?;
            self.leave(feed, &ledger, own.offered);
            ledgers.push((feed, ledger));
        }
        let open = |truth: &&FeedTruth| truth.source == source && truth.left_at.is_none();
        hold!(
            self.truths.values().find(open).is_none(),
            "a source is closed with all of its feeds"
        );
        Ok(Completion::Closed(ledgers, fails.then_some("not quite")))
    }

    fn attach(
        &mut self,
        source: SourceId,
        feed: FeedId,
        consumer: ConsumerId,
    ) -> Result<(), CaptureError> {
        let slot = self.slot(feed);
        let (waker, attaching) = self.registry.attach(consumer, feed)?;
        match self.control(source).attach(slot, waker, attaching.first_line) {
            Ok(slot) => self.registry.attached(consumer, feed, attaching, slot),
            Err(error) => {
                self.registry.not_attached(consumer, &attaching);
                return Err(error);
            }
        }
        hold!(self.wakers.insert((consumer, feed)), "{consumer:?} is attached to {feed:?} once");
        self.refused.remove(&(consumer, feed));
        self.callers.seen.entry(consumer).or_default().insert(feed);
        Ok(())
    }

    /// Records that a feed was added.
    pub(super) fn feed_added(
        &mut self,
        source: SourceId,
        feed: FeedId,
        wants: &Wanting,
        handle: FeedHandle,
    ) {
        self.rings.extend(handle.rings.iter().map(|ring| (feed, Arc::downgrade(ring.memory()))));
        self.registry.add_feed(source, feed, handle);
        self.truth_joins(source, feed, wants);
    }

    /// Records the expected state of a feed that was added, unless it is recorded already.
    pub(super) fn truth_joins(&mut self, source: SourceId, feed: FeedId, wants: &Wanting) {
        let joined_at = self.open[&source].offered;
        let meaning = wants.meaning.clone();
        self.truths
            .entry(feed)
            .or_insert_with(|| FeedTruth::new(source, meaning, name_of(feed), joined_at));
    }

    /// Records that the wishes of a feed have changed.
    pub(super) fn feed_changed(&mut self, feed: FeedId, change: &Changing) {
        let truth = self.truths.get_mut(&feed).expect("a feed");
        truth.meaning = truth.meaning.changed(change);
    }

    fn feed_left(&mut self, feed: FeedId, ledger: &Ledger) {
        let offered = self.open[&self.truths[&feed].source].offered;
        self.leave(feed, ledger, offered);
    }

    fn leave(&mut self, feed: FeedId, ledger: &Ledger, offered: u64) {
        self.wakers.retain(|(_, of)| *of != feed);
        let truth = self.truths.get_mut(&feed).expect("a feed");
        hold!(truth.left_at.is_none(), "{feed:?} leaves once");
        truth.left_at = Some(offered);
        truth.check(ledger);
    }

    pub(super) fn control(&self, source: SourceId) -> Arc<dyn FeedControl> {
        Arc::clone(&self.open[&source].control)
    }

    pub(super) fn slot(&self, feed: FeedId) -> FeedSlot {
        let Some(open) = self.registry.feed(feed) else {
            broken(format!("the runtime knows {feed:?}"))
        };
        open.slot
    }

    fn keep_ring(&mut self, feed: FeedId) {
        if self.planted == Some(Planted::RingKept) {
            self.kept_rings
                .extend(self.registry.feed(feed).into_iter().flat_map(|one| one.rings.clone()));
        }
    }
}

fn name_of(feed: FeedId) -> String {
    format!("feed {}", feed.number())
}

/// Returns a feed as it is requested from its engine. Its name distinguishes its frames from those of other feeds.
fn named(feed: FeedId, wants: &Wanting) -> Feed {
    let mut named = wants.real.feed.clone();
    named.interface.name = name_of(feed);
    named
}

/// Adds a feed with its block list.
pub(super) fn add_feed(
    control: &dyn FeedControl,
    feed: FeedId,
    wants: &Wanting,
) -> Result<FeedHandle, CaptureError> {
    let handle = control.add(named(feed, wants))?;
    block(control, handle.slot, wants)?;
    Ok(handle)
}

fn block(control: &dyn FeedControl, slot: FeedSlot, wants: &Wanting) -> Result<(), CaptureError> {
    if wants.real.blocked.is_empty() {
        return Ok(());
    }
    let add = wants.real.blocked.iter().copied().collect();
    control.change(slot, Change::Block { remove: Vec::new(), add }).map(drop)
}
