//! Frames that came to the hook while a feed was there, exact to the frame.
//!
//! Each program that is put at the hook is a generation, and counts its frames in words of its own. Each frame is
//! handled by one program, so the number of frames offered to a feed is the sum over the generations that it is a
//! member of. A generation that is replaced counts on until no program of it runs any more: its words are used again
//! only after a wait for that.

use super::control::{Came, GENERATIONS};

/// All interfaces together, among the numbers of interfaces in rings: no frame is of it where there are several.
pub(super) const ALL: usize = 0;

/// Where to read what came: the programs' words.
pub(super) trait Words {
    /// All frames that a generation has counted, for [`ALL`] or one of several interfaces.
    fn came(&self, generation: usize, interface: usize) -> Came;

    /// The numbers in use, that of all included.
    fn numbers(&self) -> usize;
}

/// Frames by interface. The list may be shorter: no frame came of an interface that joined later.
#[derive(Clone, Debug, Default)]
struct ByInterface(Vec<Came>);

impl ByInterface {
    fn read(generation: usize, counts: &impl Words) -> ByInterface {
        ByInterface((0..counts.numbers()).map(|number| counts.came(generation, number)).collect())
    }

    fn of(&self, interface: usize) -> Came {
        self.0.get(interface).copied().unwrap_or_default()
    }

    fn add(&mut self, interface: usize, more: Came) {
        if self.0.len() <= interface {
            self.0.resize(interface + 1, Came::default());
        }
        self.0[interface] = self.0[interface] + more;
    }
}

/// One program at the hook, or on its way there or from there.
struct Generation {
    /// Which words it counts in.
    words: usize,
    /// Places of its feeds, a bit each.
    members: u32,
    /// Counts of earlier generations there.
    before: ByInterface,
    /// It could not be taken away everywhere.
    is_stuck: bool,
}

/// The generations that may still count, and what those before them did.
pub(super) struct Generations {
    live: Vec<Generation>,
    /// The words of the one at the hook.
    current: usize,
    /// By place: of generations that are over.
    over: Vec<ByInterface>,
}

impl Generation {
    fn came(&self, interface: usize, counts: &impl Words) -> Came {
        counts.came(self.words, interface) - self.before.of(interface)
    }
}

impl Generations {
    /// Of a source whose first program counts in the first words.
    pub(super) fn new(places: usize, members: u32) -> Generations {
        let before = ByInterface::default();
        let first = Generation { words: 0, members, before, is_stuck: false };
        Generations { live: vec![first], current: 0, over: vec![ByInterface::default(); places] }
    }

    /// Words for one more; `None` until [`Generations::end_replaced`].
    pub(super) fn free_words(&self) -> Option<usize> {
        (0..GENERATIONS).find(|words| self.live.iter().all(|own| own.words != *words))
    }

    /// One more, which is about to be put at the hook.
    pub(super) fn begin(&mut self, words: usize, members: u32, counts: &impl Words) {
        let before = ByInterface::read(words, counts);
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

    /// No program of a replaced generation runs any more: its counts are final.
    pub(super) fn end_replaced(&mut self, counts: &impl Words) {
        let (current, over) = (self.current, &mut self.over);
        self.live.retain(|own| {
            let is_over = own.words != current && !own.is_stuck;
            if is_over {
                for number in 0..counts.numbers() {
                    let came = own.came(number, counts);
                    let is_member = |place: &usize| own.members >> place & 1 != 0;
                    let places = (0..over.len()).filter(is_member);
                    places.for_each(|place| over[place].add(number, came));
                }
            }
            !is_over
        });
    }

    /// A place is another feed's from here on. No live generation has it as a member.
    pub(super) fn clear(&mut self, place: usize) {
        self.over[place] = ByInterface::default();
    }

    /// Frames of an interface that came while this place's feed was at the hook.
    pub(super) fn came(&self, place: usize, interface: usize, counts: &impl Words) -> Came {
        let live = self.live.iter().filter(|own| own.members >> place & 1 != 0);
        let live = live.map(|own| own.came(interface, counts));
        live.fold(self.over[place].of(interface), |sum, came| sum + came)
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
        fn came(&self, generation: usize, interface: usize) -> Came {
            let all = self.0[generation].get();
            // A third of them is of the one interface.
            Came { judged: if interface == ALL { all } else { all / 3 }, reentry: 0 }
        }

        fn numbers(&self) -> usize {
            2
        }
    }

    #[test]
    fn a_feed_was_offered_what_its_generations_counted() {
        let (counts, mut all) = (Counts::default(), Generations::new(3, 0b001));
        let judged = |all: &Generations, place| all.came(place, ALL, &counts).judged;
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
        // Thirds of 115, 3 and 122, of which the last begins at a third of 115.
        assert_eq!([0, 1, 2].map(|place| all.came(place, 1, &counts).judged), [38 + 1 + 2, 1, 2]);
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
        assert_eq!(all.came(0, ALL, &counts).judged, GENERATIONS as u64 - 1);
        all.end_replaced(&counts);
        assert_eq!((all.live.len(), all.came(0, ALL, &counts).judged), (1, GENERATIONS as u64 - 1));
    }

    #[test]
    fn what_could_not_be_taken_away_counts_on_until_it_is_replaced() {
        let (counts, mut all) = (Counts::default(), Generations::new(1, 1));
        let words = all.free_words().unwrap();
        all.begin(words, 1, &counts);
        all.stuck(words);
        all.end_replaced(&counts);
        counts.count(words, 3);
        assert_eq!(all.came(0, ALL, &counts).judged, 3);
        let next = all.free_words().unwrap();
        all.begin(next, 1, &counts);
        all.replaced_by(next);
        all.end_replaced(&counts);
        assert_eq!((all.live.len(), all.came(0, ALL, &counts).judged), (1, 3));
    }
}
