//! Numbers the interfaces in an output of several rings.
//!
//! A ring numbers only its own interfaces, from 0. All rings of one feed describe the same interfaces in the same
//! order, even those of which they have no frames. An output gives each interface of each feed its own number, in the
//! order in which feeds join and describe interfaces. If a feed ended and joins again, its interfaces get their former
//! numbers if their descriptions are the same.

use std::collections::BTreeMap;

use weir_frame::pcapng::Interface;
use weir_frame::read::FrameReader;
use weir_ring::{Ring, RingError, Words};

/// An interface of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputInterface {
    /// The description of the interface in its ring. Another process may have written the texts, so they can have any
    /// characters, and any length that fits a ring.
    pub interface: Interface,
    /// The label of the interface's feed.
    pub label: String,
}

/// The numbers of all interfaces of all rings in one output.
#[derive(Clone, Debug, Default)]
pub struct Numbering {
    /// Feeds that are being read, by key.
    feeds: BTreeMap<u64, Feed>,
    /// Numbers of the interfaces, by the output of their feeds.
    outputs: BTreeMap<usize, Vec<u32>>,
    interfaces: Vec<OutputInterface>,
}

#[derive(Clone, Debug)]
struct Feed {
    output: usize,
    label: String,
    /// Numbers in the output, at the index of the rings' own numbers.
    numbers: Vec<u32>,
}

impl Numbering {
    /// Adds a feed, and gives numbers to the interfaces that its first ring describes. Returns the number of the first
    /// one.
    ///
    /// # Errors
    /// [`RingError`] if the ring is inconsistent.
    pub fn join<M: Words>(
        &mut self,
        key: u64,
        output: usize,
        label: String,
        ring: &Ring<M>,
    ) -> Result<u32, RingError> {
        let interfaces = described(ring)?;
        self.feeds.insert(key, Feed { output, label, numbers: Vec::new() });
        self.learn(key, interfaces);
        Ok(self.numbers(key, ring, 0)?[0])
    }

    /// Removes a feed. Its interfaces keep their numbers.
    pub fn leave(&mut self, key: u64) {
        self.feeds.remove(&key);
    }

    /// Returns the numbers in the output of a feed's interfaces, at the index of the rings' own numbers. Includes at
    /// least the interfaces up to `highest`, which a record of `ring` has named.
    ///
    /// # Errors
    /// [`RingError`] if the ring does not describe interface `highest`.
    #[inline]
    pub fn numbers<M: Words>(
        &mut self,
        key: u64,
        ring: &Ring<M>,
        highest: u32,
    ) -> Result<&[u32], RingError> {
        let highest = highest as usize;
        if self.feeds.get(&key).is_none_or(|feed| feed.numbers.len() <= highest) {
            self.learn(key, described(ring)?);
        }
        let numbers = self.feeds.get(&key).map(|feed| feed.numbers.as_slice());
        numbers.filter(|numbers| numbers.len() > highest).ok_or(RingError::Corrupt {
            block: 0,
            offset: 0,
            what: "a record of an interface that the ring does not describe",
        })
    }

    /// Returns the interfaces of the output in the order of their numbers.
    #[must_use]
    pub fn interfaces(&self) -> &[OutputInterface] {
        &self.interfaces
    }

    /// Returns the number of the first interface of this output.
    #[must_use]
    pub fn first_interface(&self, output: usize) -> Option<u32> {
        self.outputs.get(&output)?.first().copied()
    }

    /// Returns the numbers of this output's interfaces, in the order in which they had frames or were described.
    #[must_use]
    pub fn interfaces_of(&self, output: usize) -> &[u32] {
        self.outputs.get(&output).map(Vec::as_slice).unwrap_or_default()
    }

    /// Gives numbers to interfaces of a feed that have none yet.
    fn learn(&mut self, key: u64, described: Vec<Interface>) {
        let Some(feed) = self.feeds.get_mut(&key) else { return };
        let known = self.outputs.entry(feed.output).or_default();
        for interface in described.into_iter().skip(feed.numbers.len()) {
            let is_same = |number: &&u32| {
                let own = &self.interfaces[**number as usize].interface;
                *own == interface && !feed.numbers.contains(number)
            };
            let number = known.iter().find(is_same).copied().unwrap_or_else(|| {
                let number = self.interfaces.len() as u32;
                self.interfaces.push(OutputInterface { interface, label: feed.label.clone() });
                known.push(number);
                number
            });
            feed.numbers.push(number);
        }
    }
}

/// Returns the interfaces that a ring describes.
fn described<M: Words>(ring: &Ring<M>) -> Result<Vec<Interface>, RingError> {
    let header = ring.identity()?.pcapng_header;
    let corrupt =
        |_| RingError::Corrupt { block: 0, offset: 0, what: "the description of an interface" };
    // The header is the beginning of a pcapng file, and has no frames.
    let mut reader = FrameReader::open(&header[..]).map_err(corrupt)?;
    while reader.next().map_err(corrupt)?.is_some() {}
    Ok(reader.interfaces().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ring_of;
    use weir_ring::Mapping;

    fn named(names: &[&str]) -> Ring<Mapping> {
        let interface =
            |name: &&str| Interface { name: (*name).into(), link_type: 1, ..Interface::default() };
        ring_of(names.iter().map(interface).collect())
    }

    fn join(numbering: &mut Numbering, key: u64, output: usize, ring: &Ring<Mapping>) -> u32 {
        numbering.join(key, output, String::new(), ring).unwrap()
    }

    #[test]
    fn each_feed_has_numbers_of_its_own_in_the_order_of_joining() {
        let (a, b) = (named(&["a", "a"]), named(&["a"]));
        let mut numbering = Numbering::default();
        assert_eq!(join(&mut numbering, 7, 0, &a), 0);
        assert_eq!(join(&mut numbering, 9, 1, &b), 2);
        assert_eq!(numbering.numbers(7, &a, 1).unwrap(), [0, 1]);
        let more = Interface { name: "c".into(), link_type: 1, ..Interface::default() };
        a.append_interface(&more).unwrap();
        b.append_interface(&more).unwrap();
        assert_eq!(numbering.numbers(9, &b, 1).unwrap(), [2, 3]);
        assert_eq!(numbering.numbers(7, &a, 2).unwrap(), [0, 1, 4]);
        let names: Vec<_> = numbering.interfaces().iter().map(|i| &i.interface.name[..]).collect();
        assert_eq!(names, ["a", "a", "a", "c", "c"]);
    }

    #[test]
    fn a_feed_that_came_back_has_the_numbers_of_equal_interfaces() {
        let (before, after) = (named(&["a", "b", "b"]), named(&["b", "a", "new", "b", "b"]));
        let mut numbering = Numbering::default();
        join(&mut numbering, 1, 5, &before);
        numbering.leave(1);
        assert_eq!(join(&mut numbering, 2, 5, &after), 1);
        assert_eq!(numbering.numbers(2, &after, 4).unwrap(), [1, 0, 3, 2, 4]);
        assert_eq!(join(&mut numbering, 3, 6, &before), 5, "another output");
    }

    #[test]
    fn an_interface_that_the_ring_does_not_describe_is_an_error() {
        let ring = named(&["a"]);
        let mut numbering = Numbering::default();
        join(&mut numbering, 1, 0, &ring);
        assert!(matches!(numbering.numbers(1, &ring, 1), Err(RingError::Corrupt { .. })));
        assert!(numbering.numbers(2, &ring, 0).is_err(), "a feed that has not joined");
    }
}
