//! What came to the hook while a feed was there, exact to the frame.
//!
//! Each program that is put at the hook is a generation, and counts what comes in words of its own. A frame meets one
//! program, so what a feed was offered is the sum of the generations that it is a member of. A generation that is
//! replaced counts on until no program of it runs any more: its words are used again only after a wait for that.

use super::control::{Came, Control, GENERATIONS};

/// Where to read what came: the programs' words.
pub(super) trait Words {
    /// What a generation has counted ever.
    fn came(&self, generation: usize) -> Came;
}

impl Words for Control {
    fn came(&self, generation: usize) -> Came {
        Control::came(self, generation)
    }
}

/// One program at the hook, or on its way there or from there.
struct Generation {
    /// Which words it counts in.
    words: usize,
    /// Places of its feeds, a bit each.
    members: u32,
    /// What earlier ones had counted there.
    before: Came,
    /// It could not be taken away everywhere.
    is_stuck: bool,
}

/// The generations that may still count, and what those before them did.
pub(super) struct Generations {
    live: Vec<Generation>,
    /// The words of the one at the hook.
    current: usize,
    /// By place: of generations that are over.
    over: Vec<Came>,
}

impl Generations {
    /// Of a source whose first program counts in the first words.
    pub(super) fn new(places: usize, members: u32) -> Generations {
        let first = Generation { words: 0, members, before: Came::default(), is_stuck: false };
        Generations { live: vec![first], current: 0, over: vec![Came::default(); places] }
    }

    /// Words for one more; `None` until [`Generations::end_replaced`].
    pub(super) fn free_words(&self) -> Option<usize> {
        (0..GENERATIONS).find(|words| self.live.iter().all(|own| own.words != *words))
    }

    /// One more, which is about to be put at the hook.
    pub(super) fn begin(&mut self, words: usize, members: u32, counts: &impl Words) {
        let before = counts.came(words);
        self.live.push(Generation { words, members, before, is_stuck: false });
    }

    /// It is at the hook, and no other.
    pub(super) fn replaced_by(&mut self, words: usize) {
        self.current = words;
        self.live.iter_mut().for_each(|own| own.is_stuck = false);
    }

    /// It was to replace the one at the hook, and is at a part of it.
    pub(super) fn stuck(&mut self, words: usize) {
        for own in self.live.iter_mut().filter(|own| own.words == words) {
            own.is_stuck = true;
        }
    }

    /// No program of a replaced generation runs any more: what these counted is final.
    pub(super) fn end_replaced(&mut self, counts: &impl Words) {
        let (current, over) = (self.current, &mut self.over);
        self.live.retain(|own| {
            let is_over = own.words != current && !own.is_stuck;
            if is_over {
                let came = counts.came(own.words) - own.before;
                let is_member = |place: &usize| own.members >> place & 1 != 0;
                (0..over.len())
                    .filter(is_member)
                    .for_each(|place| over[place] = over[place] + came);
            }
            !is_over
        });
    }

    /// A place is another feed's from here on. No live generation has it as a member.
    pub(super) fn clear(&mut self, place: usize) {
        self.over[place] = Came::default();
    }

    /// What came while this place's feed was at the hook.
    pub(super) fn came(&self, place: usize, counts: &impl Words) -> Came {
        let live = self.live.iter().filter(|own| own.members >> place & 1 != 0);
        let live = live.map(|own| counts.came(own.words) - own.before);
        live.fold(self.over[place], |sum, came| sum + came)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Default)]
    struct Counts([Cell<u64>; GENERATIONS]);

    impl Counts {
        fn count(&self, words: usize, frames: u64) {
            self.0[words].set(self.0[words].get() + frames);
        }
    }

    impl Words for Counts {
        fn came(&self, generation: usize) -> Came {
            Came { judged: self.0[generation].get(), reentry: 0 }
        }
    }

    #[test]
    fn a_feed_was_offered_what_its_generations_counted() {
        let (counts, mut all) = (Counts::default(), Generations::new(3, 0b001));
        let judged = |all: &Generations, place| all.came(place, &counts).judged;
        counts.count(0, 100);
        let second = all.free_words().unwrap();
        all.begin(second, 0b011, &counts);
        counts.count(0, 10);
        counts.count(second, 1);
        all.replaced_by(second);
        // The first one still runs on another CPU.
        counts.count(0, 5);
        assert_eq!((judged(&all, 0), judged(&all, 1), judged(&all, 2)), (116, 1, 0));
        all.end_replaced(&counts);
        assert_eq!((judged(&all, 0), judged(&all, 1)), (116, 1));
        // The words of the first are used again.
        let third = all.free_words().unwrap();
        assert_eq!(third, 0);
        all.begin(third, 0b101, &counts);
        all.replaced_by(third);
        counts.count(second, 2);
        counts.count(third, 7);
        all.end_replaced(&counts);
        assert_eq!((judged(&all, 0), judged(&all, 1), judged(&all, 2)), (125, 3, 7));
        all.clear(1);
        assert_eq!(judged(&all, 1), 0);
    }

    #[test]
    fn words_are_not_used_again_before_their_programs_have_ended() {
        let (counts, mut all) = (Counts::default(), Generations::new(1, 1));
        while let Some(words) = all.free_words() {
            all.begin(words, 1, &counts);
            counts.count(words, 1);
            all.replaced_by(words);
        }
        assert_eq!(all.came(0, &counts).judged, GENERATIONS as u64 - 1);
        all.end_replaced(&counts);
        assert_eq!((all.live.len(), all.came(0, &counts).judged), (1, GENERATIONS as u64 - 1));
    }

    #[test]
    fn what_could_not_be_taken_away_counts_on_until_it_is_replaced() {
        let (counts, mut all) = (Counts::default(), Generations::new(1, 1));
        let words = all.free_words().unwrap();
        all.begin(words, 1, &counts);
        all.stuck(words);
        all.end_replaced(&counts);
        counts.count(words, 3);
        assert_eq!(all.came(0, &counts).judged, 3);
        let next = all.free_words().unwrap();
        all.begin(next, 1, &counts);
        all.replaced_by(next);
        all.end_replaced(&counts);
        assert_eq!((all.live.len(), all.came(0, &counts).judged), (1, 3));
    }
}
