//! A source in another network namespace. Its info and its errors contain the name of the namespace; its events contain
//! only the names of interfaces in that namespace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_ring::Ledger;
use weir_ring::wake::Waker;

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::change::Change;
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::interfaces::InterfaceLedger;
use crate::feed::location::FilterLocation;
use crate::kernel::netns::{Netns, NetnsName, Owner};
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source, SourceEvent};

struct Inside {
    source: Box<dyn Source>,
    name: NetnsName,
    is_whole: bool,
    /// The namespace in which the source was opened. Later, another namespace may have its name.
    netns: Arc<Netns>,
    info: Info,
    /// Time of the last check whether the namespace is still that of its process.
    looked: Instant,
}

/// Time between two checks whether the process to which the network namespace belongs still exists and is still in that
/// namespace. A check takes one `stat`.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Opens a source in the network namespace that has this name now. The calling thread moves into the namespace and
/// stays there. The source's info and errors contain the name of the namespace, to distinguish interfaces of the same
/// name.
///
/// # Errors
/// As [`Netns::open`] and [`Netns::enter`], or the error of `open`.
pub fn open(
    name: &NetnsName,
    setup: &Setup,
    open: impl FnOnce(&Setup) -> Result<Box<dyn Source>, CaptureError>,
) -> Result<Box<dyn Source>, CaptureError> {
    open_inside(name, false, setup, open)
}

/// Opens a source like [`open`], for a source that captures all interfaces through which the namespace's owner
/// communicates with others. The name of the source is that of the namespace.
///
/// # Errors
/// As [`open`].
pub fn open_whole(
    name: &NetnsName,
    setup: &Setup,
    open: impl FnOnce(&Setup) -> Result<Box<dyn Source>, CaptureError>,
) -> Result<Box<dyn Source>, CaptureError> {
    open_inside(name, true, setup, open)
}

fn open_inside(
    name: &NetnsName,
    is_whole: bool,
    setup: &Setup,
    open: impl FnOnce(&Setup) -> Result<Box<dyn Source>, CaptureError>,
) -> Result<Box<dyn Source>, CaptureError> {
    let netns = Arc::new(Netns::open(name)?);
    netns.enter()?;
    // The owner is already known. A finder would find the owner of the other end of a veth.
    let mut setup = Setup { owner_finder: None, ..setup.clone() };
    setup.feeds.iter_mut().for_each(|feed| describe(feed, netns.owner()));
    let source = open(&setup).map_err(|error| error.in_netns(name))?;
    let (info, looked) = (Info::default(), Instant::now());
    let mut inside = Inside { source, name: name.clone(), is_whole, netns, info, looked };
    inside.look();
    Ok(Box::new(inside))
}

/// Adds the owner to the description of the feed's interface, which is written into rings and files. Does nothing for a
/// namespace of `ip netns`: its name is already part of the interface's name.
fn describe(feed: &mut Feed, owner: &Owner) {
    if owner.kind == "netns" {
        return;
    }
    owner.describe(&mut feed.interface);
}

impl Inside {
    /// Updates the info from that of the inner source, which may change it when it starts and stops.
    fn look(&mut self) {
        self.info = self.source.info().clone();
        self.info.source = match self.is_whole {
            true => self.name.to_string(),
            false => format!("{}/{}", self.name, self.info.source),
        };
        self.info.owner = Some(self.netns.owner().clone());
    }

    fn named<T>(&self, result: Result<T, CaptureError>) -> Result<T, CaptureError> {
        result.map_err(|error| error.in_netns(&self.name))
    }
}

impl Source for Inside {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        let (name, netns) = (self.name.clone(), Arc::clone(&self.netns));
        Arc::new(InsideControl { control: self.source.control(), name, netns })
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        let started = self.source.start();
        self.look();
        self.named(started)
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        // The namespace exists as long as this source holds it open. So without this check, the source would wait for
        // frames forever after the process has ended.
        if self.netns.owner().pid.is_some() && self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            if !self.netns.is_in_place() {
                return Err(CaptureError::Vanished { iface: self.info.source.clone() });
            }
        }
        let pumped = self.source.pump(limit);
        self.named(pumped)
    }

    fn can_be_woken(&self) -> bool {
        self.source.can_be_woken()
    }

    fn take_events(&mut self) -> Vec<SourceEvent> {
        self.source.take_events()
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        let stopped = self.source.stop();
        self.look();
        self.named(stopped)
    }
}

/// The control of the source, for callers in any network namespace.
struct InsideControl {
    control: Arc<dyn FeedControl>,
    name: NetnsName,
    netns: Arc<Netns>,
}

impl InsideControl {
    /// Calls `ask` on a thread in the namespace, since the kernel looks up interfaces in the namespace of the calling
    /// thread.
    fn inside<T: Send>(
        &self,
        ask: impl FnOnce(&dyn FeedControl) -> Result<T, CaptureError> + Send,
    ) -> Result<T, CaptureError> {
        let asked = self.netns.ask(|| ask(&*self.control))?;
        asked.map_err(|error| error.in_netns(&self.name))
    }
}

impl FeedControl for InsideControl {
    fn feeds(&self) -> Vec<FeedHandle> {
        self.control.feeds()
    }

    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError> {
        let mut feed = feed;
        describe(&mut feed, self.netns.owner());
        self.inside(|control| control.add(feed))
    }

    fn wake(&self) {
        self.control.wake();
    }

    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        self.inside(|control| control.remove(feed))
    }

    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        self.inside(|control| control.replace_rings(feed))
    }

    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        self.inside(|control| control.change(feed, change))
    }

    fn attach(
        &self,
        feed: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError> {
        self.control.attach(feed, waker, first_line)
    }

    fn detach(&self, feed: FeedSlot, waker: WakerSlot) {
        self.control.detach(feed, waker);
    }

    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        self.control.ledger(feed).map_err(|error| error.in_netns(&self.name))
    }

    fn interfaces(&self, feed: FeedSlot) -> Result<Vec<InterfaceLedger>, CaptureError> {
        self.control.interfaces(feed).map_err(|error| error.in_netns(&self.name))
    }
}
