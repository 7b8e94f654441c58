//! Finds the owners of the interfaces of a pattern. The owners of the present interfaces are looked up when the source
//! is opened. Those of later interfaces are looked up on a separate thread, because a lookup takes too long for a
//! thread that handles frames.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::kernel::interface::Link;
use crate::kernel::netns::{Owner, OwnerFinder};

/// Times after a request at which an owner is looked up. Several lookups are needed, because a container engine first
/// creates a veth and then moves its peer, and a VM gets its tap from another process, which opens it first.
const LOOK_AFTER_MS: [u64; 5] = [0, 100, 500, 2_000, 8_000];

/// Owners of the interfaces of a pattern.
#[derive(Default)]
pub(super) struct Owners {
    /// Owners, by the kernel's interface index.
    known: HashMap<u32, Owner>,
    lookup: Option<Lookup>,
}

/// The requests to the thread, and its results.
struct Lookup {
    asked: Sender<Link>,
    found: Arc<Found>,
}

#[derive(Default)]
struct Found {
    is_there: AtomicBool,
    owners: Mutex<Vec<(Link, Owner)>>,
}

impl Owners {
    /// Looks up the owners of these interfaces, and starts the thread for later interfaces. The calling thread must be
    /// in the network namespace of the interfaces.
    pub(super) fn open(finder: Option<&OwnerFinder>, links: &[&Link]) -> Owners {
        let Some(finder) = finder else { return Owners::default() };
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        let owners = finder.find(&names);
        let found = links.iter().zip(owners).filter_map(|(link, own)| Some((link.index, own?)));
        let (asked, asks) = channel();
        let (lookup, own) = (Lookup { asked, found: Arc::default() }, finder.clone());
        let into = Arc::clone(&lookup.found);
        // The thread inherits the network namespace. If the thread cannot be started, owners of later interfaces are
        // not found.
        let thread = std::thread::Builder::new().name("weir-owners".into());
        let started = thread.spawn(move || look(&own, &asks, &into));
        Owners { known: found.collect(), lookup: started.is_ok().then_some(lookup) }
    }

    /// Requests a lookup of the owner of an interface that has appeared or come up.
    pub(super) fn ask(&self, link: &Link) {
        if let Some(lookup) = &self.lookup {
            let _ = lookup.asked.send(link.clone());
        }
    }

    /// Forgets the owner of an interface: the interface was removed, and its index may be reused, or its owner may have
    /// changed.
    pub(super) fn forget(&mut self, index: u32) {
        self.known.remove(&index);
    }

    pub(super) fn of(&self, link: &Link) -> Option<&Owner> {
        self.known.get(&link.index)
    }

    /// Returns true if owners were found since the last [`take_found`](Owners::take_found).
    pub(super) fn has_found(&self) -> bool {
        self.lookup.as_ref().is_some_and(|lookup| lookup.found.is_there.load(Ordering::Acquire))
    }

    /// Records the owners that were found. Returns their interfaces, if their owner is new. `now` returns the present
    /// state of an interface, or `None` if it no longer exists.
    pub(super) fn take_found(&mut self, now: impl Fn(&Link) -> Option<Link>) -> Vec<Link> {
        if !self.has_found() {
            return Vec::new();
        }
        let Some(lookup) = &self.lookup else { return Vec::new() };
        lookup.found.is_there.store(false, Ordering::Release);
        let found = std::mem::take(
            &mut *lookup.found.owners.lock().unwrap_or_else(PoisonError::into_inner),
        );
        let mut links = Vec::new();
        for (link, owner) in found {
            let Some(link) = now(&link) else { continue };
            let before = self.known.insert(link.index, owner.clone());
            if before.is_none_or(|before| !before.is_same(&owner)) {
                links.push(link);
            }
        }
        links
    }
}

/// An interface whose owner is wanted.
struct Wanted {
    link: Link,
    asked: Instant,
    looks: usize,
}

impl Wanted {
    fn due(&self) -> Option<Instant> {
        Some(self.asked + Duration::from_millis(*LOOK_AFTER_MS.get(self.looks)?))
    }
}

/// Adds a request. It replaces an earlier request for the same interface, whose lookups begin anew.
fn want(wanted: &mut Vec<Wanted>, link: Link) {
    wanted.retain(|own| own.link.index != link.index);
    wanted.push(Wanted { link, asked: Instant::now(), looks: 0 });
}

/// Looks up owners, until the sender of requests is dropped.
fn look(finder: &OwnerFinder, asks: &Receiver<Link>, into: &Found) {
    let mut wanted: Vec<Wanted> = Vec::new();
    loop {
        match wanted.iter().filter_map(Wanted::due).min() {
            Some(next) => {
                let wait = next.saturating_duration_since(Instant::now());
                match asks.recv_timeout(wait) {
                    Ok(link) => want(&mut wanted, link),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            None => match asks.recv() {
                Ok(link) => want(&mut wanted, link),
                Err(_) => return,
            },
        }
        // Several requests often come together; take all of them.
        asks.try_iter().for_each(|link| want(&mut wanted, link));
        let now = Instant::now();
        let is_due = |own: &&mut Wanted| own.due().is_some_and(|due| due <= now);
        let mut due: Vec<&mut Wanted> = wanted.iter_mut().filter(is_due).collect();
        if due.is_empty() {
            continue;
        }
        let names: Vec<&str> = due.iter().map(|own| own.link.name.as_str()).collect();
        let owners = finder.find(&names);
        for (own, owner) in due.iter_mut().zip(owners) {
            own.looks += 1;
            if let Some(owner) = owner {
                let mut found = into.owners.lock().unwrap_or_else(PoisonError::into_inner);
                found.push((own.link.clone(), owner));
                into.is_there.store(true, Ordering::Release);
            }
        }
        wanted.retain(|own| own.due().is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn link(index: u32, name: &str) -> Link {
        Link { index, name: name.to_owned(), flags: 1, arphrd: libc::ARPHRD_ETHER, mtu: 1500 }
    }

    fn owner(name: &str) -> Owner {
        Owner { kind: "vm", name: name.to_owned(), ..Owner::default() }
    }

    /// Waits until owners are found.
    fn found(owners: &mut Owners) -> Vec<Link> {
        let begin = Instant::now();
        while !owners.has_found() {
            assert!(begin.elapsed() < Duration::from_secs(30), "nobody is found");
            std::thread::sleep(Duration::from_millis(1));
        }
        owners.take_found(|link| Some(link.clone()))
    }

    #[test]
    fn those_that_are_there_are_known_and_later_ones_are_found_without_waiting() {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        // The owner of one interface is found only at a later lookup.
        let finder = OwnerFinder::new(move |names| {
            let look = counted.fetch_add(1, Ordering::Relaxed);
            names.iter().map(|name| (*name != "v2" || look >= 2).then(|| owner(name))).collect()
        });
        let mut owners = Owners::open(Some(&finder), &[&link(1, "v1")]);
        assert_eq!(owners.of(&link(1, "v1")), Some(&owner("v1")));
        assert!(!owners.has_found(), "it was found at once");
        owners.ask(&link(2, "v2"));
        assert_eq!(owners.of(&link(2, "v2")), None);
        assert_eq!(found(&mut owners), [link(2, "v2")]);
        assert_eq!(owners.of(&link(2, "v2")), Some(&owner("v2")));
        assert!(looks.load(Ordering::Relaxed) >= 3);
        assert_eq!(found(&mut owners), [], "it is the same");
        owners.forget(2);
        assert_eq!(owners.of(&link(2, "v3")), None);
    }

    #[test]
    fn a_search_that_is_slow_holds_nobody_up() {
        let (go, goes) = channel::<()>();
        let goes = Mutex::new(goes);
        let finder = OwnerFinder::new(move |names| {
            if !names.is_empty() {
                let _ = goes.lock().unwrap().recv_timeout(Duration::from_secs(30));
            }
            names.iter().map(|name| Some(owner(name))).collect()
        });
        let mut owners = Owners::open(Some(&finder), &[]);
        let begin = Instant::now();
        (1..100).for_each(|index| owners.ask(&link(index, "v")));
        assert!(!owners.has_found() && owners.take_found(|_| None).is_empty());
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        (0..100).for_each(|_| _ = go.send(()));
        assert!(!found(&mut owners).is_empty());
    }

    #[test]
    fn one_that_has_left_meanwhile_gets_no_owner() {
        let finder = OwnerFinder::new(|names| vec![Some(owner("x")); names.len()]);
        let mut owners = Owners::open(Some(&finder), &[]);
        owners.ask(&link(1, "v1"));
        let begin = Instant::now();
        while !owners.has_found() {
            assert!(begin.elapsed() < Duration::from_secs(30), "nobody is found");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(owners.take_found(|_| None), []);
        assert_eq!(owners.of(&link(1, "v1")), None);
    }

    #[test]
    fn nobody_is_asked_where_there_is_nobody_to_ask() {
        let owners = Owners::open(None, &[&link(1, "v1")]);
        owners.ask(&link(1, "v1"));
        assert!(owners.of(&link(1, "v1")).is_none() && !owners.has_found());
    }
}
