//! Interfaces of sources as they come, go down and come up again: a thread for each network namespace.

use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use weir_capture::CaptureError;
use weir_capture::interface::{LinkEvent, LinkWatch, enter_netns};

use super::{LinkName, Shared};
use crate::core::{Note, SourceId};

/// How long a thread waits before it looks whether its probe is still there.
const WAIT_LIMIT: Duration = Duration::from_millis(500);

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
    let spawned = std::thread::Builder::new()
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
    let mut watch = match watch {
        Ok(watch) => watch,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    loop {
        let waited = watch.wait(WAIT_LIMIT);
        let Some(shared) = shared.upgrade().filter(|shared| !shared.lock().is_over) else { return };
        let Ok(events) = waited.and_then(|()| watch.events()) else {
            // Whoever opens a source there next begins anew.
            shared.lock().links.netns.remove(&netns);
            return;
        };
        for event in events {
            for (iface, note) in notes(&event) {
                let name = LinkName { netns: netns.clone(), iface: iface.to_owned() };
                shared.note_all(&name, note);
            }
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
    fn note_all(&self, name: &LinkName, note: MakeNote) {
        let state = self.lock();
        let of = |link: &Option<LinkName>| link.as_ref() == Some(name);
        let sources: Vec<SourceId> =
            state.specs.iter().filter(|(_, spec)| of(&spec.link)).map(|(&id, _)| id).collect();
        drop(state);
        sources.into_iter().for_each(|source| self.note(source, note()));
    }
}
