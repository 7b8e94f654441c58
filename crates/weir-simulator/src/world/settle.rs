//! Completion of all effects: the state must be as the callers requested, and at the end nothing must be left.

use std::collections::BTreeSet;

use weir_probe::FeedId;
use weir_probe::core::{Command, Note};

use super::{Counts, World};
use crate::broken::hold;
use crate::meaning::Wanting;
use crate::random::{Random, pick};

impl World {
    /// Carries out all effects, in any order, and checks that the state is as the callers requested.
    pub(super) fn settle(&mut self, random: &mut Random) {
        self.carry_out_all(random);
        let callers = &self.callers;
        hold!(callers.asked.is_empty(), "all commands are answered: {:?}", callers.asked);
        let mut read: BTreeSet<FeedId> = BTreeSet::new();
        let mut wakers = BTreeSet::new();
        for (&id, known) in &callers.subscriptions {
            let wants = self.core.wants_of(id).map(|wants| &wants.meaning);
            hold!(
                wants == Some(&known.wants.meaning),
                "{id:?} takes what was asked for: {wants:?}"
            );
            let feed = self.core.feed_of(id);
            let is_open = self.open.contains_key(&known.source);
            hold!(feed.is_some() == is_open, "{id:?} has a feed if its source is open: {feed:?}");
            let Some(feed) = feed else {
                hold!(callers.follows.contains(&known.source), "{:?} is followed", known.source);
                continue;
            };
            let truth = &self.truths[&feed];
            hold!(
                (truth.source, &truth.meaning) == (known.source, &known.wants.meaning),
                "{feed:?} is what {id:?} asked for: {:?}",
                truth.meaning
            );
            hold!(truth.left_at.is_none(), "{feed:?} of {id:?} is there");
            read.insert(feed);
            let here = known.consumers.intersection(&callers.consumers);
            wakers.extend(here.map(|&consumer| (consumer, feed)));
        }
        let there = self.truths.iter().filter(|(_, truth)| truth.left_at.is_none());
        let there: BTreeSet<FeedId> = there.map(|(&id, _)| id).collect();
        hold!(there == read, "feeds that there are are subscribed to: {there:?}, {read:?}");
        for source in self.open.keys() {
            let (told, is) = (self.told_down.contains(source), self.down.contains(source));
            hold!(told == is, "{source:?} is down as it was told: {is}, {told}");
        }
        wakers.retain(|reader| !self.refused.contains(reader));
        hold!(self.wakers == wakers, "who is attached: {:?}, {wakers:?}", self.wakers);
        hold!(callers.reads == wakers, "who reads: {:?}, {wakers:?}", callers.reads);
        for &consumer in &callers.consumers {
            for &feed in &there {
                let has_lines = self.registry.waker_of(consumer, feed).is_some();
                let is_attached = wakers.contains(&(consumer, feed));
                hold!(has_lines == is_attached, "lines of {consumer:?} for {feed:?}: {has_lines}");
            }
        }
        self.open.keys().for_each(|source| self.check_ledgers(*source));
    }

    fn carry_out_all(&mut self, random: &mut Random) {
        while let Some(id) = pick(random.number(), self.under_way.keys().copied()) {
            let fails = !self.is_calm && random.one_in(8);
            self.carry_out_one(id, fails, random.one_in(2));
        }
    }

    /// Ends the run, and checks that followed sources come back and that nothing is left.
    pub fn finish(mut self) -> Counts {
        let random = &mut Random::new(self.frames.len() as u64);
        self.step += 1;
        self.settle(random);
        self.is_calm = true;
        for source in self.callers.sources.clone() {
            self.core.note(source, Note::Appeared);
            self.take_outputs();
        }
        self.settle(random);
        for source in &self.callers.sources {
            let is_wanted =
                self.callers.subscriptions.values().any(|known| known.source == *source);
            hold!(self.open.contains_key(source) || !is_wanted, "{source:?} comes back");
        }
        self.give(Command::Stop);
        if random.one_in(2) {
            self.give(Command::Open { wants: vec![Wanting::of(0)], follows: false });
        }
        self.carry_out_all(random);
        let asked = &self.callers.asked;
        hold!(asked.is_empty(), "all commands are answered: {asked:?}");
        hold!(self.open.is_empty() && self.core.sources().count() == 0, "no source is left");
        hold!(self.wakers.is_empty() && self.callers.reads.is_empty(), "nobody is attached");
        let all: BTreeSet<FeedId> = self.truths.keys().copied().collect();
        hold!(self.closed == all, "a ledger of every feed, once: {:?}, {all:?}", self.closed);
        self.read_to_the_end();
        self.count();
        for reader in self.readers.keys().copied().collect::<Vec<_>>() {
            self.reader_gone(reader);
        }
        for consumer in self.callers.consumers.clone() {
            self.registry.remove_member(consumer);
        }
        hold!(self.registry.is_empty(), "the runtime has forgotten all feeds and consumers");
        for (feed, ring) in &self.rings {
            hold!(ring.strong_count() == 0, "the ring of {feed:?} is free");
        }
        self.counts
    }

    fn count(&mut self) {
        self.counts.feeds = self.truths.len() as u64;
        self.counts.captured = self.truths.values().map(|truth| truth.frames()).sum();
        (self.counts.hostile, self.counts.refused_rings) = self.hostile.counts();
    }
}
