//! The interfaces of all files, each once.

use std::sync::{Mutex, PoisonError};

use weir_frame::pcapng::Interface;

/// The interfaces that were met, in the order in which they were; equal descriptions are one.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    all: Mutex<Vec<Interface>>,
}

impl Interfaces {
    /// The number of this one.
    pub fn number(&self, interface: Interface) -> u32 {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|known| *known == interface);
        known.unwrap_or_else(|| {
            all.push(interface);
            all.len() - 1
        }) as u32
    }

    /// How an output describes it: with the snaplen of all of its link type together, since tcpdump refuses files whose
    /// interfaces differ in that.
    pub fn described(&self, number: u32) -> Option<Interface> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let interface = all.get(number as usize)?.clone();
        let alike = all.iter().filter(|other| other.link_type == interface.link_type);
        // 0 is no limit.
        let snaplen =
            alike.map(|other| other.snaplen).max_by_key(|snaplen| snaplen.wrapping_sub(1));
        Some(Interface { snaplen: snaplen.unwrap_or(0), ..interface })
    }
}
