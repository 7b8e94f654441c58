//! The interfaces of all files, each only once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::Interface;

/// Name, description, filter, link type and snaplen.
type Description = (String, Option<String>, Option<String>, u16, u32);

/// The interfaces in the order in which they were found. Interfaces with equal descriptions are a single interface.
#[derive(Debug, Default)]
pub(super) struct Interfaces(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    in_order: Vec<Interface>,
    numbers: HashMap<Description, u32>,
    /// For each link type, the largest snaplen minus 1, wrapping: snaplen 0, which means no limit, becomes the largest.
    snaplens: HashMap<u16, u32>,
}

impl Interfaces {
    /// Returns the number of an interface. A new interface is added.
    pub fn number(&self, interface: Interface) -> u32 {
        let mut all = self.lock();
        let All { in_order, numbers, snaplens } = &mut *all;
        let Interface { name, description, filter, link_type, snaplen } = interface.clone();
        *numbers.entry((name, description, filter, link_type, snaplen)).or_insert_with(|| {
            let largest = snaplens.entry(link_type).or_default();
            *largest = snaplen.wrapping_sub(1).max(*largest);
            in_order.push(interface);
            in_order.len() as u32 - 1
        })
    }

    /// Returns the description of an interface for the output. Its snaplen is the largest of its link type, because
    /// tcpdump refuses files whose interfaces have different snaplens.
    pub fn described(&self, number: u32) -> Option<Interface> {
        let all = self.lock();
        let interface = all.in_order.get(number as usize)?.clone();
        let largest = all.snaplens.get(&interface.link_type).copied();
        Some(Interface {
            snaplen: largest.map_or(0, |largest| largest.wrapping_add(1)),
            ..interface
        })
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
