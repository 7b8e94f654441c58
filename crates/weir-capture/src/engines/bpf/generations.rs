//! Counts, without error, the frames that came to the hook while a feed was there.
//!
//! Each set of programs that is attached is a generation, and counts its frames in words of its own. Each frame is
//! handled by one program, so the number of frames offered to a feed is the sum over the generations of which the feed
//! is a member. A replaced generation may still count until none of its programs runs any more; only then are its words
//! reused.

use super::control::{Came, GENERATIONS};

/// The interface number of the sums over all interfaces. In a source with several interfaces, no frame has this number.
pub(super) const ALL: usize = 0;

/// Reads the words in which the programs count.
pub(super) trait Words {
    /// Returns all frames that the programs have counted in these words, for [`ALL`] or for one of several interfaces.
    fn came(&self, generation: usize, interface: usize) -> Came;

    /// Returns the number of interface numbers in use, including [`ALL`].
    fn numbers(&self) -> usize;
}

/// Numbers of frames, indexed by interface. Interfaces that joined later are not in the list; their numbers are 0.
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

/// A generation of programs that is attached, is being attached, or was replaced and may still run.
struct Generation {
    /// The words in which the generation counts.
    words: usize,
    /// The places of its feeds, one bit for each place.
    members: u32,
    /// The counts of earlier generations in the same words.
    before: ByInterface,
    /// Whether it was attached on one side, and could not be replaced there.
    is_stuck: bool,
}

/// The generations that may still count, and the counts of ended generations.
pub(super) struct Generations {
    live: Vec<Generation>,
    /// The words of the attached generation.
    current: usize,
    /// For each place, the counts of generations that have ended.
    over: Vec<ByInterface>,
}

impl Generation {
    fn came(&self, interface: usize, counts: &impl Words) -> Came {
        counts.came(self.words, interface) - self.before.of(interface)
    }
}

impl Generations {
    /// Creates the generations of a source whose first generation counts in the first words.
    pub(super) fn new(places: usize, members: u32) -> Generations {
        let before = ByInterface::default();
        let first = Generation { words: 0, members, before, is_stuck: false };
        Generations { live: vec![first], current: 0, over: vec![ByInterface::default(); places] }
    }

    /// Returns words for a new generation; `None` if all words are in use until [`Generations::end_replaced`].
    pub(super) fn free_words(&self) -> Option<usize> {
        (0..GENERATIONS).find(|words| self.live.iter().all(|own| own.words != *words))
    }

    /// Adds a generation that is about to be attached.
    pub(super) fn begin(&mut self, words: usize, members: u32, counts: &impl Words) {
        let before = ByInterface::read(words, counts);
        self.live.push(Generation { words, members, before, is_stuck: false });
    }

    /// Records that the generation with these words is attached on all sides, and no other generation is.
    pub(super) fn replaced_by(&mut self, words: usize) {
        self.current = words;
        self.live.iter_mut().for_each(|own| own.is_stuck = false);
    }

    /// Records that the generation with these words was attached on one side only, and could not be detached there.
    pub(super) fn stuck(&mut self, words: usize) {
        for own in self.live.iter_mut().filter(|own| own.words == words) {
            own.is_stuck = true;
        }
    }

    /// Adds up the final counts of the replaced generations. Must be called when no program of theirs runs any more.
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

    /// Clears the counts of a place for another feed. No live generation may have the place as a member.
    pub(super) fn clear(&mut self, place: usize) {
        self.over[place] = ByInterface::default();
    }

    /// Returns the numbers of frames of an interface that came while this place's feed was at the hook.
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
            // A third of the frames belongs to one interface.
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
        // The first generation still runs on another CPU.
        counts.count(0, 5);
        assert_eq!((judged(&all, 0), judged(&all, 1), judged(&all, 2)), (116, 1, 0));
        all.end_replaced(&counts);
        assert_eq!((judged(&all, 0), judged(&all, 1)), (116, 1));
        // The words of the first generation are reused.
        let third = all.free_words().unwrap();
        assert_eq!(third, 0);
        all.begin(third, 0b101, &counts);
        all.replaced_by(third);
        counts.count(second, 2);
        counts.count(third, 7);
        all.end_replaced(&counts);
        assert_eq!((judged(&all, 0), judged(&all, 1), judged(&all, 2)), (125, 3, 7));
        // Thirds of 115, 3 and 122; the last starts at a third of 115, which is subtracted.
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
