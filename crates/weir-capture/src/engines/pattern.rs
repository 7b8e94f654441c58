//! Patterns of interfaces, for any engine: decides which interfaces join and leave a source, and reports this as
//! events.
//!
//! Members are identified by their name: an interface that is renamed leaves, and joins again if its new name matches.

mod owners;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{CaptureError, error_text};
use crate::feed::direction::Direction;
use crate::kernel::interface::{Link, LinkEvent, LinkPattern, LinkWatch};
use crate::kernel::netns::{Owner, OwnerFinder};
use crate::source::SourceEvent;
use owners::Owners;

/// Most names in the note about the members at the start.
const NAMES_SHOWN: usize = 8;

/// A change of the members. The engine must make the change before it calls for the next one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// This interface must join. The engine reports the result by [`PatternLinks::joined`] or
    /// [`PatternLinks::left_out`].
    Joins(Link),
    /// The member with this interface index must leave.
    Leaves(u32),
    /// The MTU of a member has changed.
    HasOtherMtu(Link),
    /// The owner of a member's frames is now known ([`PatternLinks::owner_of`]).
    HasOwner(Link),
}

/// The interfaces of a network namespace and the members among them.
pub(super) struct PatternLinks {
    watch: LinkWatch,
    rules: Rules,
    owners: Owners,
}

impl PatternLinks {
    /// Begins to watch the interfaces of the calling thread's network namespace. The first changes are that the present
    /// interfaces join; their owners are looked up before this returns.
    ///
    /// # Errors
    /// [`CaptureError::Os`]; [`CaptureError::Options`] for a pattern that selects by owner if there is no finder of
    /// owners.
    pub(super) fn open(
        pattern: &LinkPattern,
        finder: Option<&OwnerFinder>,
    ) -> Result<PatternLinks, CaptureError> {
        if pattern.goes_by_owner() && finder.is_none() {
            let what = format!("{pattern}: whose an interface is cannot be found here; name it");
            return Err(CaptureError::Options(what));
        }
        let mut watch = LinkWatch::open()?;
        if pattern.goes_by_owner() {
            watch.tell_carriers();
        }
        let pending = watch.links().cloned().map(LinkEvent::Appeared).collect();
        let mut rules = Rules { pending, ..Rules::new(pattern) };
        let fitting: Vec<&Link> =
            watch.links().filter(|link| pattern.matches(&link.name)).collect();
        let owners = Owners::open(finder, &fitting);
        fitting.iter().for_each(|link| _ = rules.set_owner(link, owners.of(link)));
        Ok(PatternLinks { watch, rules, owners })
    }

    /// Returns the owner of the frames of an interface, if known.
    pub(super) fn owner_of(&self, link: &Link) -> Option<&Owner> {
        self.owners.of(link)
    }

    /// Returns the present interfaces that match, whether they are members or not.
    pub(super) fn fitting(&self) -> impl Iterator<Item = &Link> {
        self.watch.links().filter(|link| self.rules.fits(link))
    }

    /// Reads the kernel's events. [`next`](PatternLinks::next) then returns the changes.
    ///
    /// # Errors
    /// [`CaptureError::Os`].
    pub(super) fn read(&mut self) -> Result<(), CaptureError> {
        let events = self.watch.events().map_err(CaptureError::os("watching interfaces"))?;
        for event in events {
            match &event {
                LinkEvent::Appeared(link) | LinkEvent::Up(link)
                    if self.rules.pattern.matches(&link.name) =>
                {
                    self.owners.ask(link);
                }
                LinkEvent::Gone(link) => {
                    self.owners.forget(link.index);
                    self.rules.owned.remove(&link.index);
                }
                LinkEvent::Carrier(link) if self.rules.pattern.goes_by_owner() => {
                    // A process has released the tap or has taken it over, so the tap may have another owner now.
                    self.owners.forget(link.index);
                    self.rules.set_owner(link, None);
                    self.owners.ask(link);
                }
                _ => {}
            }
            self.rules.pending.push_back(event);
        }
        // These come after the earlier events of the interfaces whose owners were found.
        let (watch, owners) = (&self.watch, &mut self.owners);
        let is_same = |own: &&Link, link: &Link| own.index == link.index && own.name == link.name;
        let now = |link: &Link| watch.links().find(|own| is_same(own, link)).cloned();
        for link in owners.take_found(now) {
            if self.rules.set_owner(&link, owners.of(&link)) {
                self.rules.pending.push_back(LinkEvent::Appeared(link));
            } else {
                self.rules.found.push(link);
            }
        }
        Ok(())
    }

    /// Returns the next of the changes that were read.
    pub(super) fn next(&mut self) -> Option<Change> {
        self.rules.next()
    }

    /// Records that an interface has become a member.
    pub(super) fn joined(&mut self, link: &Link) {
        self.rules.joined(link);
    }

    /// Returns true if there are changes that were read but not made yet.
    pub(super) fn is_behind(&self) -> bool {
        !self.rules.pending.is_empty() || self.owners.has_found()
    }

    /// Reports that an interface that matches could not join.
    pub(super) fn left_out(&mut self, link: &Link, error: &CaptureError) {
        self.rules.left_out(&link.name, error_text(error));
    }

    /// Reports that a member cannot be captured; it is no longer a member.
    pub(super) fn leave_out_member(&mut self, index: u32, error: &CaptureError) {
        if let Some(iface) = self.rules.members.remove(&index) {
            self.rules.left_out(&iface, error_text(error));
        }
    }

    /// Returns the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<SourceEvent> {
        std::mem::take(&mut self.rules.events)
    }

    /// Returns notes for the user about the members at the start. They replace the events of their joining.
    pub(super) fn note_members(&mut self, direction: Direction) -> Vec<String> {
        self.rules.note_members(direction)
    }
}

impl AsFd for PatternLinks {
    /// Returns the descriptor that is readable when there is something for [`read`](PatternLinks::read).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

struct Rules {
    pattern: LinkPattern,
    pending: VecDeque<LinkEvent>,
    /// Interfaces whose owner was found. For a member among them, the next change is `Change::HasOwner`.
    found: Vec<Link>,
    /// If the pattern selects by owner: the interfaces of the wanted owner, by the kernel's interface index.
    owned: HashSet<u32>,
    /// Names of the members, by the kernel's interface index.
    members: HashMap<u32, String>,
    events: Vec<SourceEvent>,
}

impl Rules {
    fn new(pattern: &LinkPattern) -> Rules {
        let (pattern, pending) = (pattern.clone(), VecDeque::new());
        let (found, members, events) = (Vec::new(), HashMap::new(), Vec::new());
        Rules { pattern, pending, found, owned: HashSet::new(), members, events }
    }

    /// Returns true if an interface matches the pattern, by its name and, as far as known, its owner.
    fn fits(&self, link: &Link) -> bool {
        let is_owned = !self.pattern.goes_by_owner() || self.owned.contains(&link.index);
        is_owned && self.pattern.matches(&link.name)
    }

    /// Records the owner of an interface. Returns true if the pattern selects by owner, and the interface did not match
    /// it before. An interface that no longer matches leaves.
    fn set_owner(&mut self, link: &Link, owner: Option<&Owner>) -> bool {
        if !self.pattern.goes_by_owner() {
            return false;
        }
        if self.pattern.is_of(owner) {
            return self.owned.insert(link.index);
        }
        if self.owned.remove(&link.index) {
            self.pending.push_back(LinkEvent::Gone(link.clone()));
        }
        false
    }

    fn next(&mut self) -> Option<Change> {
        while let Some(event) = self.pending.pop_front() {
            match event {
                LinkEvent::Appeared(link) => {
                    // The interface may have joined already, if its owner was found before this event was read.
                    let is_member = self.members.get(&link.index) == Some(&link.name);
                    if !is_member && self.may_join(&link) {
                        return Some(Change::Joins(link));
                    }
                }
                LinkEvent::Gone(link) => {
                    if self.leaves(link.index) {
                        return Some(Change::Leaves(link.index));
                    }
                }
                LinkEvent::Renamed { link, .. } => {
                    let index = link.index;
                    self.pending.push_front(LinkEvent::Appeared(link));
                    if self.leaves(index) {
                        return Some(Change::Leaves(index));
                    }
                }
                LinkEvent::Up(link) if self.members.contains_key(&link.index) => {
                    self.events.push(SourceEvent::Up { iface: link.name });
                }
                LinkEvent::Down(link) if self.members.contains_key(&link.index) => {
                    self.events.push(SourceEvent::Down { iface: link.name });
                }
                // An interface that could not join before is tried again.
                LinkEvent::Up(link) if self.may_join(&link) => return Some(Change::Joins(link)),
                LinkEvent::Up(_) | LinkEvent::Down(_) | LinkEvent::Carrier(_) => {}
                LinkEvent::Changed(link) => {
                    if let Some(change) = self.changed(link) {
                        return Some(change);
                    }
                }
            }
        }
        while let Some(link) = self.found.pop() {
            if self.members.get(&link.index) == Some(&link.name) {
                return Some(Change::HasOwner(link));
            }
        }
        None
    }

    /// Returns true if an interface that is not a member matches and has an Ethernet header. An interface that matches
    /// but has no Ethernet header is reported as left out; but only when it is up, because tunnel modules create
    /// devices that are never used.
    fn may_join(&mut self, link: &Link) -> bool {
        let fits = self.fits(link);
        if fits && !link.is_ethernet() && link.is_up() {
            let why = "its frames have no Ethernet header; capture it by its name".to_owned();
            self.left_out(&link.name, why);
        }
        fits && link.is_ethernet()
    }

    /// Handles a change of link type or MTU. A member whose link type is no longer Ethernet leaves (a bond takes the
    /// link type of its first interface). An interface whose link type becomes Ethernet is handled like a new one.
    fn changed(&mut self, link: Link) -> Option<Change> {
        match (self.members.contains_key(&link.index), link.is_ethernet()) {
            (true, true) => Some(Change::HasOtherMtu(link)),
            (true, false) => {
                self.leaves(link.index);
                self.may_join(&link);
                Some(Change::Leaves(link.index))
            }
            (false, true) => self.may_join(&link).then_some(Change::Joins(link)),
            (false, false) => None,
        }
    }

    fn leaves(&mut self, index: u32) -> bool {
        let Some(iface) = self.members.remove(&index) else { return false };
        self.events.push(SourceEvent::Left { iface });
        true
    }

    fn joined(&mut self, link: &Link) {
        self.members.insert(link.index, link.name.clone());
        self.events.push(SourceEvent::Joined { iface: link.name.clone() });
    }

    fn left_out(&mut self, iface: &str, why: String) {
        self.events.push(SourceEvent::LeftOut { iface: iface.to_owned(), why });
    }

    fn note_members(&mut self, direction: Direction) -> Vec<String> {
        self.events.retain(|event| !matches!(event, SourceEvent::Joined { .. }));
        let mut names: Vec<&str> = self.members.values().map(String::as_str).collect();
        names.sort_unstable();
        let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
        let more = match names.len().saturating_sub(NAMES_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let mut notes = vec![match names.len() {
            0 if self.pattern.goes_by_owner() => {
                format!("no interface of {} at the start; each joins when it appears", self.pattern)
            }
            0 => "no interface matches at the start; each joins when it appears".to_owned(),
            1 => format!("one interface at the start: {shown}"),
            count => format!("{count} interfaces at the start: {shown}{more}"),
        }];
        if names.contains(&"lo") && direction == Direction::Both {
            notes.push(
                "the loopback device shows every packet twice, going out and coming in; --direction in shows each once"
                    .to_owned(),
            );
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str) -> Link {
        Link { index, name: name.to_owned(), flags: 1, arphrd: libc::ARPHRD_ETHER, mtu: 1500 }
    }

    fn rules() -> Rules {
        Rules::new(&LinkPattern::parse("v*").unwrap())
    }

    /// Makes every change, as an engine to which every interface can join.
    fn follow(rules: &mut Rules, events: impl IntoIterator<Item = LinkEvent>) -> Vec<Change> {
        rules.pending.extend(events);
        let mut changes = Vec::new();
        while let Some(change) = rules.next() {
            if let Change::Joins(link) = &change {
                rules.joined(link);
            }
            changes.push(change);
        }
        changes
    }

    #[test]
    fn members_are_those_whose_names_fit_now() {
        let mut rules = rules();
        let up = LinkEvent::Up(link(1, "v1"));
        let appeared = [link(1, "v1"), link(2, "eth0")].map(LinkEvent::Appeared);
        let changes = follow(&mut rules, appeared.into_iter().chain([up]));
        assert_eq!(changes, [Change::Joins(link(1, "v1"))]);
        let told = std::mem::take(&mut rules.events);
        let v1 = || "v1".to_owned();
        assert_eq!(told, [SourceEvent::Joined { iface: v1() }, SourceEvent::Up { iface: v1() }]);
        let renamed =
            |index, from: &str, to| LinkEvent::Renamed { link: link(index, to), from: from.into() };
        let changes = follow(
            &mut rules,
            [renamed(1, "v1", "v9"), renamed(2, "eth0", "v2"), renamed(1, "v9", "x")],
        );
        let wanted = [
            Change::Leaves(1),
            Change::Joins(link(1, "v9")),
            Change::Joins(link(2, "v2")),
            Change::Leaves(1),
        ];
        assert_eq!(changes, wanted);
        assert_eq!(rules.note_members(Direction::Both), ["one interface at the start: v2"]);
        let gone = [link(1, "x"), link(2, "v2")].map(LinkEvent::Gone);
        assert_eq!(follow(&mut rules, gone), [Change::Leaves(2)]);
    }

    #[test]
    fn by_owner_an_interface_is_a_member_while_it_is_the_owners() {
        let mut rules = Rules::new(&LinkPattern::of_owner("vm", "web1"));
        let own = |name: &str| Owner { kind: "vm", name: name.into(), ..Owner::default() };
        let (tap, appeared) = (link(1, "vnet0"), LinkEvent::Appeared(link(1, "vnet0")));
        assert_eq!(follow(&mut rules, [appeared.clone()]), [], "nobody knows whose it is");
        assert!(!rules.set_owner(&tap, Some(&own("db"))));
        assert!(rules.set_owner(&tap, Some(&own("web1"))));
        // Reported twice: its owner is found, and it appears.
        let twice = [appeared.clone(), appeared.clone()];
        assert_eq!(follow(&mut rules, twice), [Change::Joins(tap.clone())]);
        assert!(!rules.set_owner(&tap, Some(&own("web1"))), "it is a member already");
        // Its process releases it, another VM takes it, and then the first one again.
        assert!(!rules.set_owner(&tap, None));
        assert_eq!(follow(&mut rules, []), [Change::Leaves(1)]);
        assert!(!rules.set_owner(&tap, Some(&own("db"))));
        assert!(rules.set_owner(&tap, Some(&own("web1"))));
        assert_eq!(follow(&mut rules, [appeared]), [Change::Joins(tap)]);
        let told = rules.note_members(Direction::In);
        assert_eq!(told, ["one interface at the start: vnet0"]);
    }

    #[test]
    fn what_has_no_ethernet_header_is_left_out_aloud_once_it_is_up() {
        let mut rules = rules();
        let tunnel = |flags| Link { flags, arphrd: libc::ARPHRD_NONE, ..link(3, "v3") };
        let events = [LinkEvent::Appeared(tunnel(0)), LinkEvent::Up(tunnel(1))];
        assert_eq!(follow(&mut rules, events), []);
        let told = &rules.events[..];
        assert!(matches!(told, [SourceEvent::LeftOut { iface, .. }] if iface == "v3"), "{told:?}");
    }

    #[test]
    fn one_that_was_refused_is_tried_again_when_it_comes_up() {
        let mut rules = rules();
        rules.pending.push_back(LinkEvent::Appeared(link(1, "v1")));
        assert_eq!(rules.next(), Some(Change::Joins(link(1, "v1"))));
        rules.left_out("v1", "a reason".to_owned());
        let events = [LinkEvent::Down(link(1, "v1")), LinkEvent::Up(link(1, "v1"))];
        assert_eq!(follow(&mut rules, events), [Change::Joins(link(1, "v1"))]);
        let told = &rules.events[..];
        assert!(
            matches!(told, [SourceEvent::LeftOut { .. }, SourceEvent::Joined { .. }]),
            "{told:?}"
        );
    }

    #[test]
    fn a_member_is_one_as_long_as_it_has_an_ethernet_header() {
        let mut rules = rules();
        let tunnel = || Link { arphrd: libc::ARPHRD_NONE, ..link(1, "v1") };
        let longer = || Link { mtu: 9000, ..link(1, "v1") };
        let stranger = LinkEvent::Changed(link(2, "eth0"));
        let changed = [longer(), tunnel(), Link { mtu: 9000, ..tunnel() }, link(1, "v1")];
        let events = [LinkEvent::Appeared(link(1, "v1")), stranger]
            .into_iter()
            .chain(changed.map(LinkEvent::Changed));
        let wanted = [
            Change::Joins(link(1, "v1")),
            Change::HasOtherMtu(longer()),
            Change::Leaves(1),
            Change::Joins(link(1, "v1")),
        ];
        assert_eq!(follow(&mut rules, events), wanted);
        let told = &rules.events[..];
        use SourceEvent::{Joined, Left, LeftOut};
        assert!(
            matches!(told, [Joined { .. }, Left { .. }, LeftOut { .. }, Joined { .. }]),
            "{told:?}"
        );
    }
}
