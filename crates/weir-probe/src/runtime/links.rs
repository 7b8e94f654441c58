//! Interfaces of sources as they come, go down and come up again: a thread for each network namespace.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{io, thread};

use weir_capture::CaptureError;
use weir_capture::error::error_text;
use weir_capture::interface::{Link, LinkEvent, LinkWatch};
use weir_capture::kernel::netns::{Netns, NetnsId};

use super::{LinkName, Shared, SourceSpec, State};
use crate::core::{Event, Note, SourceId};

/// How long a thread waits before it looks whether its probe is still there.
const WAIT_LIMIT: Duration = Duration::from_millis(500);
/// Before a watch that failed is opened again.
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// The network namespaces that are watched, and how many sources are about to be opened in each.
#[derive(Default)]
pub(super) struct LinkWatches {
    opening: BTreeMap<Option<String>, usize>,
}

/// Keeps a network namespace watched until its source is known to the probe, which keeps it watched then.
pub(super) struct Opening<'a> {
    shared: &'a Shared,
    netns: &'a Option<String>,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(opening) = self.shared.lock().links.opening.get_mut(self.netns) {
            *opening -= 1;
        }
    }
}

/// Watches the network namespace of this interface, if it is not watched yet. What changes from then on is noted.
pub(super) fn watch<'a>(
    shared: &'a Arc<Shared>,
    link: &'a LinkName,
) -> Result<Opening<'a>, CaptureError> {
    let mut state = shared.lock();
    let is_watched = state.links.opening.contains_key(&link.netns);
    *state.links.opening.entry(link.netns.clone()).or_default() += 1;
    drop(state);
    let opening = Opening { shared, netns: &link.netns };
    if is_watched {
        return Ok(opening);
    }
    let (opened, is_open) = channel();
    let (netns, weak) = (link.netns.clone(), Arc::downgrade(shared));
    let spawned = thread::Builder::new()
        .name("weir-links".into())
        .spawn(move || follow(netns, &weak, &opened));
    let watched = match spawned {
        Ok(_) => is_open.recv().unwrap_or(Err(CaptureError::Ended)),
        Err(source) => Err(CaptureError::Os { doing: "starting a thread".into(), source }),
    };
    if watched.is_err() {
        shared.lock().links.opening.remove(&link.netns);
    }
    watched.map(|()| opening)
}

fn follow(netns: Option<String>, shared: &Weak<Shared>, opened: &Sender<Result<(), CaptureError>>) {
    let (home, watch) = match Netns::current().and_then(|home| Ok((home, Links::open(&netns)?))) {
        Ok(both) => both,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    // From home, so that one that has lost its name is not held by this thread.
    let open_again = || home.enter().and_then(|()| Links::open(&netns));
    keep_watch(watch, open_again, |heard| {
        let Some(shared) = shared.upgrade().filter(|shared| shared.lock().wants_links(&netns))
        else {
            return Listening::Nobody;
        };
        match heard {
            Heard::Changes(events) => {
                for event in events {
                    for (iface, note) in notes(&event) {
                        let name = LinkName { netns: netns.clone(), iface: iface.to_owned() };
                        shared.note_all(&name, note);
                    }
                }
            }
            Heard::Elsewhere => shared.note_elsewhere(&netns),
            Heard::Deaf(error) => shared.tell_deaf(netns.as_ref(), &error),
        }
        Listening::Somebody
    });
}

/// The links of a network namespace, as long as it has its name.
struct Links {
    watch: LinkWatch,
    of: Option<(String, NetnsId)>,
}

impl Links {
    /// Watches those of the thread's network namespace, or of this one, which the thread enters.
    fn open(netns: &Option<String>) -> Result<Links, CaptureError> {
        let Some(name) = netns else { return Ok(Links { watch: LinkWatch::open()?, of: None }) };
        let netns = Netns::open(name)?;
        netns.enter()?;
        Ok(Links { watch: LinkWatch::open()?, of: Some((name.clone(), netns.id())) })
    }
}

/// What a watch brings.
enum Heard {
    Changes(Vec<LinkEvent>),
    /// Another network namespace has the name now; what is there comes next.
    Elsewhere,
    /// It has failed, and cannot be opened again yet.
    Deaf(CaptureError),
}

/// Whether anybody wants to hear more.
#[derive(PartialEq)]
enum Listening {
    Somebody,
    Nobody,
}

/// Links that are watched.
trait Watch {
    /// Waits for changes, at most this long.
    fn next(&mut self, limit: Duration) -> io::Result<Vec<LinkEvent>>;

    /// What is there, as if it had just changed.
    fn all(&self) -> Vec<LinkEvent>;

    /// Whether it is of another network namespace than this one.
    fn is_elsewhere_than(&self, before: &Self) -> bool;
}

impl Watch for Links {
    fn next(&mut self, limit: Duration) -> io::Result<Vec<LinkEvent>> {
        if let Some((name, id)) = &self.of
            && NetnsId::named(name) != Some(*id)
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.watch.wait(limit)?;
        self.watch.events()
    }

    fn all(&self) -> Vec<LinkEvent> {
        let event = |link: &Link| match link.is_up() {
            true => LinkEvent::Up(link.clone()),
            false => LinkEvent::Down(link.clone()),
        };
        self.watch.links().map(event).collect()
    }

    fn is_elsewhere_than(&self, before: &Links) -> bool {
        self.of != before.of
    }
}

/// Tells what a watch brings. One that fails is opened again, and then everything is told that is there: what changed
/// in between was missed.
fn keep_watch<W: Watch>(
    mut watch: W,
    open: impl Fn() -> Result<W, CaptureError>,
    tell: impl Fn(Heard) -> Listening,
) {
    loop {
        let heard = match watch.next(WAIT_LIMIT) {
            Ok(events) => events,
            Err(_) => match open_again(&open, &tell) {
                Some(again) => {
                    if again.is_elsewhere_than(&watch)
                        && tell(Heard::Elsewhere) == Listening::Nobody
                    {
                        return;
                    }
                    watch = again;
                    watch.all()
                }
                None => return,
            },
        };
        if tell(Heard::Changes(heard)) == Listening::Nobody {
            return;
        }
    }
}

/// Tries until it succeeds or nobody listens any more. Of failures the first is told.
fn open_again<W>(
    open: impl Fn() -> Result<W, CaptureError>,
    tell: impl Fn(Heard) -> Listening,
) -> Option<W> {
    let mut is_told = false;
    loop {
        // A watch that fails again and again keeps no CPU busy.
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

/// Makes a note: one for each source of the interface.
type MakeNote = fn() -> Note<CaptureError>;

/// What an event says of which interface. That it is gone, its source notices by itself.
fn notes(event: &LinkEvent) -> Vec<(&str, MakeNote)> {
    let appeared: MakeNote = || Note::Appeared;
    match event {
        LinkEvent::Appeared(link) | LinkEvent::Renamed { link, .. } if link.is_up() => {
            vec![(&link.name, appeared)]
        }
        LinkEvent::Appeared(_)
        | LinkEvent::Renamed { .. }
        | LinkEvent::Changed(_)
        | LinkEvent::Gone(_) => Vec::new(),
        // One that is waited for may have been there, and down.
        LinkEvent::Up(link) => vec![(&link.name, || Note::Up), (&link.name, appeared)],
        LinkEvent::Down(link) => vec![(&link.name, || Note::Down)],
    }
}

impl State {
    /// Whether somebody still wants to hear of this network namespace; if nobody does, it is not watched any more.
    fn wants_links(&mut self, netns: &Option<String>) -> bool {
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
}

impl Shared {
    /// The sources that are followed go on in the network namespace that has the name now: in the one that they are in,
    /// their interfaces are gone for them.
    fn note_elsewhere(&self, netns: &Option<String>) {
        let followed = |spec: &SourceSpec| {
            let link = spec.link.as_ref().filter(|link| spec.follows && link.netns == *netns)?;
            Some(link.iface.clone())
        };
        let sources: Vec<(SourceId, String)> = {
            let state = self.lock();
            state.specs.iter().filter_map(|(&id, spec)| Some((id, followed(spec)?))).collect()
        };
        for (source, iface) in sources {
            let iface = netns.iter().fold(iface, |iface, netns| format!("netns:{netns}/{iface}"));
            self.note(source, Note::Vanished(CaptureError::Vanished { iface }));
        }
    }

    /// That the links of a network namespace are not watched for now, to each source there: whether its interface goes
    /// down, or comes back, is noticed when they are watched again.
    fn tell_deaf(&self, netns: Option<&String>, error: &CaptureError) {
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

    fn note_all(&self, name: &LinkName, note: MakeNote) {
        let state = self.lock();
        let of = |link: &Option<LinkName>| link.as_ref() == Some(name);
        let sources: Vec<SourceId> =
            state.specs.iter().filter(|(_, spec)| of(&spec.link)).map(|(&id, _)| id).collect();
        drop(state);
        sources.into_iter().for_each(|source| self.note(source, note()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::io::ErrorKind;

    /// Fails when it is asked, and has one link. Of two with different numbers one is elsewhere.
    struct Fails(u32);

    impl Watch for Fails {
        fn next(&mut self, _: Duration) -> io::Result<Vec<LinkEvent>> {
            Err(ErrorKind::InvalidData.into())
        }

        fn all(&self) -> Vec<LinkEvent> {
            let name = "eth0".to_owned();
            vec![LinkEvent::Up(Link { index: 2, name, flags: 1, arphrd: 1, mtu: 1500 })]
        }

        fn is_elsewhere_than(&self, before: &Fails) -> bool {
            self.0 != before.0
        }
    }

    #[test]
    fn a_watch_that_fails_is_opened_again_and_looks_at_everything() {
        let (opened, told) = (Cell::new(0), RefCell::new(Vec::new()));
        let open = || {
            opened.set(opened.get() + 1);
            match opened.get() {
                1 | 2 => Err(CaptureError::Ended),
                3 => Ok(Fails(0)),
                _ => Ok(Fails(1)),
            }
        };
        keep_watch(Fails(0), open, |heard| {
            let mut told = told.borrow_mut();
            told.push(match heard {
                Heard::Changes(events) => events.iter().flat_map(notes).count(),
                Heard::Elsewhere => 200,
                Heard::Deaf(_) => 100,
            });
            if told.len() < 5 { Listening::Somebody } else { Listening::Nobody }
        });
        // Told once that it cannot be opened; then that the link is up, and there; and again, elsewhere.
        assert_eq!((told.into_inner(), opened.get()), (vec![100, 0, 2, 200, 2], 4));
    }
}
