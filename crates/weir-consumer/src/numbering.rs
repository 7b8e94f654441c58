//! Numbers of interfaces in an output of several rings.
//!
//! A ring numbers its own interfaces from 0 and knows of no other. All rings of one feed describe the same
//! interfaces in the same order, whichever of them has frames. An output gives each interface of each feed a number of
//! its own: first those that are described at the start, feed by feed, then others in the order in which their frames
//! come.

use weir_ring::{Mapping, Ring, Words};

/// The number that each interface of each ring has in one output.
#[derive(Clone, Debug, Default)]
pub struct Numbering {
    /// By ring: the number of its feed.
    feed_of: Vec<usize>,
    /// By feed, then by the ring's own number.
    numbers: Vec<Vec<u32>>,
    /// By number in the output: feed, and the ring's own number.
    interfaces: Vec<(usize, u32)>,
}

impl Numbering {
    /// Of rings whose feeds are `feed_of`: ring `i` belongs to feed number `feed_of[i]`.
    ///
    /// # Panics
    /// Unless each ring has a feed.
    #[must_use]
    pub fn new<M: Words>(rings: &[Ring<M>], feed_of: &[usize]) -> Numbering {
        assert_eq!(rings.len(), feed_of.len(), "a feed for each ring");
        let feeds = feed_of.iter().max().map_or(0, |last| last + 1);
        let mut numbering = Numbering {
            feed_of: feed_of.to_vec(),
            numbers: vec![Vec::new(); feeds],
            interfaces: Vec::new(),
        };
        for feed in 0..feeds {
            let own = feed_of.iter().position(|of| *of == feed);
            let described = own.map_or(0, |ring| rings[ring].interfaces());
            (0..described).for_each(|_| numbering.add(feed));
        }
        numbering
    }

    /// Of rings of one feed.
    #[must_use]
    pub fn of_one_feed(rings: &[Ring<Mapping>]) -> Numbering {
        Numbering::new(rings, &vec![0; rings.len()])
    }

    /// The output's number of the interface that ring number `ring` calls `id`: an id of a ring that was read
    /// ([`weir_ring::Reader`]), and so one that the ring describes.
    #[inline]
    pub fn number(&mut self, ring: usize, id: u32) -> u32 {
        let feed = self.feed_of[ring];
        // Ends: a reader gives no id that a ring cannot describe.
        while self.numbers[feed].len() <= id as usize {
            self.add(feed);
        }
        self.numbers[feed][id as usize]
    }

    /// The output's number of the first interface of ring number `ring`.
    #[must_use]
    pub fn first(&self, ring: usize) -> Option<u32> {
        self.numbers[self.feed_of[ring]].first().copied()
    }

    /// Whether the interfaces of ring number `ring` below `count` have the ring's own numbers in the output, too.
    #[must_use]
    #[inline]
    pub fn is_same(&self, ring: usize, count: u32) -> bool {
        let own = &self.numbers[self.feed_of[ring]];
        own.get(..count as usize).is_some_and(|own| own.iter().zip(0..).all(|(a, b)| *a == b))
    }

    /// The interfaces of the output in the order of their numbers: feed, and the number in that one's rings.
    #[must_use]
    pub fn interfaces(&self) -> &[(usize, u32)] {
        &self.interfaces
    }

    fn add(&mut self, feed: usize) {
        let own = self.numbers[feed].len() as u32;
        self.numbers[feed].push(self.interfaces.len() as u32);
        self.interfaces.push((feed, own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_frame::pcapng::Interface;
    use weir_ring::{Clock, RingSpec, WriterKind, memory};

    fn ring(interfaces: usize) -> Ring<Mapping> {
        let spec = RingSpec {
            data_blocks: 4,
            interfaces: vec![Interface { link_type: 1, ..Interface::default() }; interfaces],
            cpu: None,
            clock: Clock::Foreign,
            writer: WriterKind::User,
        };
        memory::create_memfd("numbering-test", &spec).unwrap()
    }

    #[test]
    fn feeds_of_one_interface_have_the_numbers_of_the_feeds() {
        let rings = [1, 1, 1, 1].map(ring);
        let mut numbering = Numbering::new(&rings, &[0, 0, 1, 1]);
        assert_eq!([0, 1, 2, 3].map(|ring| numbering.number(ring, 0)), [0, 0, 1, 1]);
        assert!(numbering.is_same(1, 1) && !numbering.is_same(2, 1));
    }

    #[test]
    fn an_interface_that_joins_has_the_next_number_whichever_ring_names_it_first() {
        let rings = [2, 2, 1].map(ring);
        let mut numbering = Numbering::new(&rings, &[0, 0, 1]);
        assert_eq!(numbering.interfaces(), [(0, 0), (0, 1), (1, 0)]);
        assert_eq!(numbering.number(2, 1), 3);
        assert_eq!(numbering.number(1, 3), 5);
        assert_eq!(numbering.number(0, 2), 4);
        assert_eq!((numbering.number(0, 1), numbering.first(2)), (1, Some(2)));
        assert_eq!(numbering.interfaces()[3..], [(1, 1), (0, 2), (0, 3)]);
    }
}
