//! Watches the interfaces of sources: whether they appear, vanish, go down or come up. There is one thread for each
//! network namespace.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use std::{io, thread};

use weir_capture::CaptureError;
use weir_capture::error::error_text;
use weir_capture::interface::{Link, LinkEvent, LinkWatch};
use weir_capture::kernel::netns::{Netns, NetnsId, NetnsName};

use super::{LinkName, Shared, SourceSpec, State};
use crate::core::{Event, Note, SourceId};

/// How long a thread waits for events before it checks whether its probe still exists.
const WAIT_LIMIT: Duration = Duration::from_millis(500);
/// Pause before a failed watch is opened again.
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// The watched network namespaces, each with the number of sources that are being opened in it.
#[derive(Default)]
pub(super) struct LinkWatches {
    opening: BTreeMap<Option<NetnsName>, usize>,
}

/// Keeps the watch of a network namespace while a source is being opened. After that, the source keeps it.
pub(super) struct Opening<'a> {
    shared: &'a Shared,
    netns: &'a Option<NetnsName>,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(opening) = self.shared.lock().links.opening.get_mut(self.netns) {
            *opening -= 1;
        }
    }
}

/// Watches the network namespace of this interface, if it is not watched yet. Later changes are passed to its sources.
pub(super) fn watch<'a>(
    shared: &'a Arc<Shared>,
    link: &'a LinkName,
) -> Result<Opening<'a>, CaptureError> {
    // One caller at a time, so that a watch that another caller finds has been started.
    let _one_by_one = shared.watching.lock().unwrap_or_else(PoisonError::into_inner);
    let mut state = shared.lock();
    let is_watched = state.links.opening.contains_key(&link.netns);
    *state.links.opening.entry(link.netns.clone()).or_default() += 1;
    drop(state);
    if !is_watched && let Err(error) = start(shared, link.netns.clone()) {
        shared.lock().links.opening.remove(&link.netns);
        return Err(error);
    }
    Ok(Opening { shared, netns: &link.netns })
}

/// Starts the thread that watches a network namespace. Returns once the thread watches.
fn start(shared: &Arc<Shared>, netns: Option<NetnsName>) -> Result<(), CaptureError> {
    let (opened, is_open) = channel();
    let weak = Arc::downgrade(shared);
    thread::Builder::new()
        .name("weir-links".into())
        .spawn(move || follow(netns, &weak, &opened))
        .map_err(|source| CaptureError::Os { doing: "starting a thread".into(), source })?;
    is_open.recv().unwrap_or(Err(CaptureError::Ended))
}

fn follow(
    netns: Option<NetnsName>,
    shared: &Weak<Shared>,
    opened: &Sender<Result<(), CaptureError>>,
) {
    let (place, watch) = match enter(netns.as_ref()) {
        Ok((place, watch)) => (RefCell::new(place), watch),
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    let id = || place.borrow().as_ref().map(Netns::id);
    // Enters the namespace that has the name now, if a source follows the name. As long as no namespace has the name,
    // the thread and the sources stay in the old one.
    let move_on = || {
        let name = netns.as_ref()?;
        // The name is resolved only then, because for a container that is a request to its engine.
        if place.borrow().as_ref().is_none_or(Netns::is_in_place)
            || !shared.upgrade()?.lock().follows_into(name)
        {
            return None;
        }
        let replaced = NetnsId::named(name).is_some_and(|now| Some(now) != id());
        let (now, watch) = replaced.then(|| enter(Some(name)).ok()).flatten()?;
        place.replace(now);
        Some(watch)
    };
    // LinkWatch::open works in the thread's network namespace, even if that namespace has no name any more.
    keep_watch(watch, LinkWatch::open, move_on, |heard| {
        let Some(shared) = shared.upgrade().filter(|shared| shared.lock().wants_links(&netns))
        else {
            return Listening::Nobody;
        };
        match heard {
            Heard::Changes(events) => {
                if let (Some(name), Some(id)) = (&netns, id()) {
                    shared.note_replaced(name, id);
                }
                for event in events {
                    for (iface, note) in notes(&event) {
                        shared.note_all(netns.as_ref(), iface, id(), note);
                    }
                }
            }
            Heard::Deaf(error) => shared.tell_deaf(netns.as_ref(), &error),
        }
        Listening::Somebody
    });
}

/// Moves the calling thread into this network namespace, if one is given, and opens a watch there.
fn enter(netns: Option<&NetnsName>) -> Result<(Option<Netns>, LinkWatch), CaptureError> {
    let Some(name) = netns else { return Ok((None, LinkWatch::open()?)) };
    let netns = Netns::open(name)?;
    netns.enter()?;
    Ok((Some(netns), LinkWatch::open()?))
}

/// A result of a watch.
enum Heard {
    Changes(Vec<LinkEvent>),
    /// The watch has failed, and could not be opened again yet.
    Deaf(CaptureError),
}

/// Whether a source still needs the watch.
#[derive(PartialEq)]
enum Listening {
    Somebody,
    Nobody,
}

/// A watch of interfaces.
trait Watch {
    /// Waits for changes for at most `limit`, and returns them.
    fn next(&mut self, limit: Duration) -> io::Result<Vec<LinkEvent>>;

    /// Returns all current links, as if each had just changed.
    fn all(&self) -> Vec<LinkEvent>;
}

impl Watch for LinkWatch {
    fn next(&mut self, limit: Duration) -> io::Result<Vec<LinkEvent>> {
        self.wait(limit)?;
        self.events()
    }

    fn all(&self) -> Vec<LinkEvent> {
        let event = |link: &Link| match link.is_up() {
            true => LinkEvent::Up(link.clone()),
            false => LinkEvent::Down(link.clone()),
        };
        self.links().map(event).collect()
    }
}

/// Passes the results of a watch to `tell`. The watch is opened again if it fails, or if another network namespace has
/// got the name. Events may have been missed then, so all current links are reported.
fn keep_watch<W: Watch>(
    mut watch: W,
    open: impl Fn() -> Result<W, CaptureError>,
    move_on: impl Fn() -> Option<W>,
    tell: impl Fn(Heard) -> Listening,
) {
    loop {
        let mut heard = match watch.next(WAIT_LIMIT) {
            Ok(events) => events,
            Err(_) => match open_again(&open, &tell) {
                Some(again) => {
                    watch = again;
                    watch.all()
                }
                None => return,
            },
        };
        if let Some(other) = move_on() {
            watch = other;
            heard = watch.all();
        }
        if tell(Heard::Changes(heard)) == Listening::Nobody {
            return;
        }
    }
}

/// Tries to open a watch until it succeeds or no source needs the watch any more. Only the first failure is reported.
fn open_again<W>(
    open: impl Fn() -> Result<W, CaptureError>,
    tell: impl Fn(Heard) -> Listening,
) -> Option<W> {
    let mut is_told = false;
    loop {
        // The pause keeps a watch that fails repeatedly from using a whole CPU.
        thread::sleep(OPEN_PAUSE);
        let heard = match open() {
            Ok(watch) => return Some(watch),
            Err(error) if !std::mem::replace(&mut is_told, true) => Heard::Deaf(error),
            Err(_) => Heard::Changes(Vec::new()),
        };
        if tell(heard) == Listening::Nobody {
            return None;
        }
    }
}

/// Creates a note for one source of the interface. It is a function because notes cannot be cloned.
type MakeNote = fn() -> Note<CaptureError>;

/// Returns the notes that an event causes, each with the name of the interface. An interface that is gone causes none:
/// its source notices that itself.
fn notes(event: &LinkEvent) -> Vec<(&str, MakeNote)> {
    let appeared: MakeNote = || Note::Appeared;
    match event {
        LinkEvent::Appeared(link) | LinkEvent::Renamed { link, .. } if link.is_up() => {
            vec![(&link.name, appeared)]
        }
        LinkEvent::Appeared(_)
        | LinkEvent::Renamed { .. }
        | LinkEvent::Changed(_)
        | LinkEvent::Carrier(_)
        | LinkEvent::Gone(_) => Vec::new(),
        // A source may have waited for the interface because it was down.
        LinkEvent::Up(link) => vec![(&link.name, || Note::Up), (&link.name, appeared)],
        LinkEvent::Down(link) => vec![(&link.name, || Note::Down)],
    }
}

impl State {
    /// Tells whether a source still needs the watch of this network namespace. If not, removes its entry.
    fn wants_links(&mut self, netns: &Option<NetnsName>) -> bool {
        let is_there =
            |link: &Option<LinkName>| link.as_ref().is_some_and(|link| link.netns == *netns);
        let is_opening = self.links.opening.get(netns).is_some_and(|&opening| opening > 0);
        let is_wanted =
            !self.is_over && (is_opening || self.specs.values().any(|spec| is_there(&spec.link)));
        if !is_wanted {
            self.links.opening.remove(netns);
        }
        is_wanted
    }

    /// Tells whether a source follows the name of this network namespace.
    fn follows_into(&self, netns: &NetnsName) -> bool {
        let mut followed = self.specs.values().filter(|spec| spec.follows);
        followed
            .any(|spec| spec.link.as_ref().is_some_and(|link| link.netns.as_ref() == Some(netns)))
    }

    /// Tells whether a source is open in another network namespace than this one.
    fn is_elsewhere(&self, source: SourceId, id: NetnsId) -> bool {
        let own = self.threads.get(&source).and_then(|thread| thread.netns);
        own.is_some_and(|own| own != id)
    }
}

impl Shared {
    /// Ends the lives of followed sources that are still in an earlier network namespace of this name. They will be
    /// opened in the current one.
    fn note_replaced(&self, netns: &NetnsName, id: NetnsId) {
        let state = self.lock();
        let behind = state.specs.iter().filter_map(|(&source, spec)| {
            let link = spec.link.as_ref().filter(|link| link.netns.as_ref() == Some(netns))?;
            (spec.follows && state.is_elsewhere(source, id)).then(|| (source, link.iface.clone()))
        });
        let behind: Vec<(SourceId, Option<String>)> = behind.collect();
        drop(state);
        for (source, iface) in behind {
            let iface = format!("{netns}/{}", iface.as_deref().unwrap_or("*"));
            self.note(source, Note::Vanished(CaptureError::Vanished { iface }));
        }
    }

    /// Reports, for each source of a network namespace, that its interfaces cannot be watched for now. Changes are
    /// noticed once the watch works again.
    fn tell_deaf(&self, netns: Option<&NetnsName>, error: &CaptureError) {
        let mut state = self.lock();
        let is_there = |link: &Option<LinkName>| {
            link.as_ref().is_some_and(|link| link.netns.as_ref() == netns)
        };
        let sources: Vec<SourceId> = state
            .specs
            .iter()
            .filter(|(_, spec)| is_there(&spec.link))
            .map(|(&id, _)| id)
            .collect();
        for source in sources {
            let doing = "watching interfaces".to_owned();
            let error = CaptureError::Os { doing, source: io::Error::other(error_text(error)) };
            (state.listener)(Event::NotWatched(source, error));
        }
    }

    /// Sends a note to the sources of an interface, except those that are open in another network namespace. Sources
    /// that have all interfaces of a namespace only get `Note::Appeared`: they are up even if interfaces are down.
    fn note_all(
        &self,
        netns: Option<&NetnsName>,
        iface: &str,
        id: Option<NetnsId>,
        note: MakeNote,
    ) {
        let state = self.lock();
        let has_appeared = matches!(note(), Note::Appeared);
        let is_concerned = |link: &LinkName| {
            link.netns.as_ref() == netns
                && link.iface.as_deref().map_or(has_appeared, |own| own == iface)
        };
        let is_of = |(source, spec): &(&SourceId, &Arc<SourceSpec>)| {
            spec.link.as_ref().is_some_and(is_concerned)
                && !id.is_some_and(|id| state.is_elsewhere(**source, id))
        };
        let sources: Vec<SourceId> = state.specs.iter().filter(is_of).map(|(&id, _)| id).collect();
        drop(state);
        sources.into_iter().for_each(|source| self.note(source, note()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A watch of one link. It fails each time, or has no events.
    struct OneLink {
        fails: bool,
    }

    impl Watch for OneLink {
        fn next(&mut self, _: Duration) -> io::Result<Vec<LinkEvent>> {
            if self.fails { Err(io::ErrorKind::InvalidData.into()) } else { Ok(Vec::new()) }
        }

        fn all(&self) -> Vec<LinkEvent> {
            let name = "eth0".to_owned();
            vec![LinkEvent::Up(Link { index: 2, name, flags: 1, arphrd: 1, mtu: 1500 })]
        }
    }

    #[test]
    fn a_watch_that_fails_is_opened_again_and_looks_at_everything() {
        let (opened, told) = (Cell::new(0), RefCell::new(Vec::new()));
        let open = || {
            opened.set(opened.get() + 1);
            match opened.get() {
                1 | 2 => Err(CaptureError::Ended),
                _ => Ok(OneLink { fails: true }),
            }
        };
        keep_watch(
            OneLink { fails: true },
            open,
            || None,
            |heard| {
                let mut told = told.borrow_mut();
                told.push(match heard {
                    Heard::Changes(events) => events.iter().flat_map(notes).count(),
                    Heard::Deaf(_) => 100,
                });
                if told.len() < 4 { Listening::Somebody } else { Listening::Nobody }
            },
        );
        // One failure is reported, then nothing, then twice that the link is up and has appeared.
        assert_eq!((told.into_inner(), opened.get()), (vec![100, 0, 2, 2], 4));
    }

    #[test]
    fn a_watch_that_moves_on_looks_at_everything() {
        let (turns, told) = (Cell::new(0), RefCell::new(Vec::new()));
        let move_on = || {
            turns.set(turns.get() + 1);
            (turns.get() == 2).then_some(OneLink { fails: false })
        };
        let watch = OneLink { fails: false };
        keep_watch(
            watch,
            || unreachable!(),
            move_on,
            |heard| {
                let Heard::Changes(events) = heard else { panic!("nothing fails") };
                told.borrow_mut().push(events.len());
                if turns.get() < 3 { Listening::Somebody } else { Listening::Nobody }
            },
        );
        assert_eq!(told.into_inner(), [0, 1, 0]);
    }
}
