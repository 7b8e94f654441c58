//! Interfaces of sources as they come, go down and come up again: a thread for each network namespace.

use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{io, thread};

use weir_capture::CaptureError;
use weir_capture::error::error_text;
use weir_capture::interface::{Link, LinkEvent, LinkWatch, enter_netns};

use super::{LinkName, Shared};
use crate::core::{Event, Note, SourceId};

/// How long a thread waits before it looks whether its probe is still there.
const WAIT_LIMIT: Duration = Duration::from_millis(500);
/// Before a watch that failed is opened again.
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// The network namespaces that are watched.
#[derive(Default)]
pub(super) struct LinkWatches {
    netns: BTreeSet<Option<String>>,
}

/// Watches the network namespace of this interface, if it is not watched yet. What changes from then on is noted.
pub(super) fn watch(shared: &Arc<Shared>, link: &LinkName) -> Result<(), CaptureError> {
    if !shared.lock().links.netns.insert(link.netns.clone()) {
        return Ok(());
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
        shared.lock().links.netns.remove(&link.netns);
    }
    watched
}

fn follow(netns: Option<String>, shared: &Weak<Shared>, opened: &Sender<Result<(), CaptureError>>) {
    let watch = match &netns {
        Some(name) => enter_netns(name).and_then(|()| LinkWatch::open()),
        None => LinkWatch::open(),
    };
    let watch = match watch {
        Ok(watch) => watch,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    // The thread is in its network namespace, even if that has no name any more.
    keep_watch(watch, LinkWatch::open, |heard| {
        let Some(shared) = shared.upgrade().filter(|shared| !shared.lock().is_over) else {
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
            Heard::Deaf(error) => shared.tell_deaf(netns.as_ref(), &error),
        }
        Listening::Somebody
    });
}

/// What a watch brings.
enum Heard {
    Changes(Vec<LinkEvent>),
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

impl Shared {
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

    /// Fails when it is asked, and has one link.
    struct Fails;

    impl Watch for Fails {
        fn next(&mut self, _: Duration) -> io::Result<Vec<LinkEvent>> {
            Err(io::ErrorKind::InvalidData.into())
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
                _ => Ok(Fails),
            }
        };
        keep_watch(Fails, open, |heard| {
            let mut told = told.borrow_mut();
            told.push(match heard {
                Heard::Changes(events) => events.iter().flat_map(notes).count(),
                Heard::Deaf(_) => 100,
            });
            if told.len() < 4 { Listening::Somebody } else { Listening::Nobody }
        });
        // Told once that it cannot be opened; then that the link is up, and there; and again.
        assert_eq!((told.into_inner(), opened.get()), (vec![100, 0, 2, 2], 4));
    }
}
