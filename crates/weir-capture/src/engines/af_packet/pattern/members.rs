//! The interfaces of the namespace that belong to the source, and their numbers.

use std::collections::HashMap;

use super::super::ETHERNET_BYTES;
use super::super::receiver::Origins;
use crate::kernel::interface::{Link, Missed};

/// An interface that is or was a member of the source.
struct Member {
    /// The interface's number in the rings.
    number: u32,
    link_bytes: u32,
    is_in: bool,
    missed: Missed,
}

/// Members by the kernel's interface index. A member that has left stays here until [`Members::forget_left`], because
/// blocks may still contain frames of it.
#[derive(Default)]
pub(super) struct Members {
    by_index: HashMap<u32, Member>,
    /// The last lookup and its result, because often several frames of one interface come in a row.
    last: (u32, Option<(u32, u32)>),
}

impl Members {
    /// Returns true if blocks may still contain frames of this interface index that belong to another number.
    pub(super) fn has_other(&self, ifindex: u32, number: u32) -> bool {
        self.by_index.get(&ifindex).is_some_and(|member| member.number != number)
    }

    /// Adds an interface: from now on its frames have this number. `missed_before`: the losses that earlier interfaces
    /// with this number have reported.
    pub(super) fn insert(&mut self, link: &Link, number: u32, missed_before: Option<u64>) {
        let mut missed = Missed::new(link.index);
        missed.begin_after(missed_before);
        let member = Member { number, link_bytes: link_bytes(link), is_in: true, missed };
        self.by_index.insert(link.index, member);
        self.last = (0, None);
    }

    /// Sets a member's MTU to that of `link`. The new MTU also applies to frames that were in blocks before the change.
    pub(super) fn set_mtu(&mut self, link: &Link) {
        if let Some(member) = self.by_index.get_mut(&link.index) {
            member.link_bytes = link_bytes(link);
            self.last = (0, None);
        }
    }

    /// Marks an interface as no longer a member, and returns its number; `None` if it is not a member.
    pub(super) fn remove(&mut self, ifindex: u32) -> Option<u32> {
        let member = self.by_index.get_mut(&ifindex).filter(|member| member.is_in)?;
        member.is_in = false;
        Some(member.number)
    }

    /// Returns the number of interfaces that have left and are still in the table.
    pub(super) fn left(&self) -> usize {
        self.by_index.values().filter(|member| !member.is_in).count()
    }

    /// Drops the interfaces that have left. No block may contain frames of them any more.
    pub(super) fn forget_left(&mut self) {
        self.by_index.retain(|_, member| member.is_in);
        self.last = (0, None);
    }

    /// Returns true if a present member has this number.
    pub(super) fn has_number(&self, number: u32) -> bool {
        self.by_index.values().any(|member| member.is_in && member.number == number)
    }

    /// Returns the interface indexes of all present members.
    pub(super) fn indexes(&self) -> Vec<u32> {
        let members = self.by_index.iter().filter(|(_, member)| member.is_in);
        members.map(|(&ifindex, _)| ifindex).collect()
    }

    /// Reads the losses that each member's interface reports. Returns them with the member's number.
    pub(super) fn missed(&mut self) -> Vec<(u32, Option<u64>)> {
        let members = self.by_index.values_mut().filter(|member| member.is_in);
        let ask = |member: &mut Member| {
            member.missed.ask();
            (member.number, member.missed.frames())
        };
        members.map(ask).collect()
    }
}

fn link_bytes(link: &Link) -> u32 {
    link.mtu.saturating_add(ETHERNET_BYTES)
}

impl Origins for Members {
    #[inline]
    fn of(&mut self, ifindex: u32) -> Option<(u32, u32)> {
        if self.last.0 != ifindex {
            let member = self.by_index.get(&ifindex);
            self.last = (ifindex, member.map(|member| (member.number, member.link_bytes)));
        }
        self.last.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, mtu: u32) -> Link {
        let (name, arphrd) = (format!("v{index}"), libc::ARPHRD_ETHER);
        Link { index, name, flags: 0, arphrd, mtu }
    }

    #[test]
    fn frames_are_as_long_as_the_mtu_that_the_link_has_now() {
        let mut members = Members::default();
        members.insert(&link(1, 1500), 7, None);
        assert_eq!(members.of(1), Some((7, 1514)));
        members.set_mtu(&link(1, 9000));
        assert_eq!(members.of(1), Some((7, 9014)));
        members.set_mtu(&link(1, u32::MAX));
        assert_eq!(members.of(1), Some((7, u32::MAX)));
    }

    #[test]
    fn what_has_left_has_its_number_until_it_is_forgotten() {
        let mut members = Members::default();
        for index in 1..=3 {
            members.insert(&link(index, 1500), index + 10, None);
        }
        assert_eq!(members.remove(2), Some(12));
        assert_eq!(members.remove(2), None);
        assert_eq!((members.left(), members.of(2)), (1, Some((12, 1514))));
        assert!(members.has_other(2, 13) && !members.has_number(12));
        members.forget_left();
        assert_eq!((members.left(), members.of(2), members.of(3)), (0, None, Some((13, 1514))));
    }
}
