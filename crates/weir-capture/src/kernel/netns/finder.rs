//! Finds the owner of an interface of the host. The function for this comes from another crate, because this crate does
//! not know container runtimes and hypervisors.

use std::fmt;
use std::sync::Arc;

use weir_frame::pcapng::Interface;

use super::name::Owner;

/// Finds the owners of interfaces' frames.
///
/// It is called with the interfaces' names, on a thread in their network namespace, and returns one answer
/// for each; `None` if the owner is not known. It may be slow, so threads that move frames do not call it.
#[derive(Clone)]
pub struct OwnerFinder(Arc<Find>);

type Find = dyn Fn(&[&str]) -> Vec<Option<Owner>> + Send + Sync;

impl OwnerFinder {
    /// Creates a finder that calls this function.
    #[must_use]
    pub fn new(
        find: impl Fn(&[&str]) -> Vec<Option<Owner>> + Send + Sync + 'static,
    ) -> OwnerFinder {
        OwnerFinder(Arc::new(find))
    }

    /// Returns the owners of these interfaces of the calling thread's network namespace, in the same order.
    #[must_use]
    pub fn find(&self, ifaces: &[&str]) -> Vec<Option<Owner>> {
        let mut found = (self.0)(ifaces);
        found.resize(ifaces.len(), None);
        found
    }

    /// Returns the owner of one interface.
    #[must_use]
    pub fn find_one(&self, iface: &str) -> Option<Owner> {
        self.find(&[iface]).pop().flatten()
    }
}

impl fmt::Debug for OwnerFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerFinder")
    }
}

impl Owner {
    /// Returns whether both are the same owner. Another process of the same container is the same owner.
    #[must_use]
    pub fn is_same(&self, other: &Owner) -> bool {
        let pid = |owner: &Owner| owner.pid.filter(|_| owner.id.is_none());
        (self.kind, &self.name, &self.id, pid(self))
            == (other.kind, &other.name, &other.id, pid(other))
    }

    /// Puts the owner in front of an interface's description, unless it is there already.
    pub(crate) fn describe(&self, interface: &mut Interface) {
        let owner = self.to_string();
        let own = interface.description.take().unwrap_or_default();
        interface.description = Some(match own.strip_prefix(&owner) {
            Some("") => owner,
            Some(rest) if rest.starts_with(", ") => own,
            _ if own.is_empty() => owner,
            _ => format!("{owner}, {own}"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_says_once_whose_frames_it_has() {
        let owner = Owner { kind: "netns", name: "blue".into(), ..Owner::default() };
        for (before, after) in [
            (None, "netns blue"),
            (Some("feed web"), "netns blue, feed web"),
            (Some("netns blueish"), "netns blue, netns blueish"),
        ] {
            let description = before.map(str::to_owned);
            let mut interface = Interface { description, ..Interface::default() };
            (0..2).for_each(|_| owner.describe(&mut interface));
            assert_eq!(interface.description.as_deref(), Some(after));
        }
    }

    #[test]
    fn a_container_is_the_same_whichever_process_is_found_and_a_process_is_not() {
        let owner = |id: Option<&str>, pid| Owner {
            id: id.map(str::to_owned),
            pid: Some(pid),
            ..Owner::default()
        };
        assert!(owner(Some("3f"), 1).is_same(&owner(Some("3f"), 2)));
        assert!(!owner(Some("3f"), 1).is_same(&owner(Some("4f"), 1)));
        assert!(!owner(None, 1).is_same(&owner(None, 2)));
    }

    #[test]
    fn every_interface_has_an_answer() {
        let finder = OwnerFinder::new(|ifaces| {
            assert_eq!(ifaces, ["a", "b"]);
            vec![Some(Owner::default())]
        });
        assert_eq!(finder.find(&["a", "b"]), [Some(Owner::default()), None]);
    }
}
