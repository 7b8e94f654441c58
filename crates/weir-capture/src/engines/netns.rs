//! A source in another network namespace, under its full name in all that it says.

use std::sync::Arc;
use std::time::Duration;

use weir_ring::Ledger;
use weir_ring::wake::Waker;

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::change::Change;
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::interfaces::InterfaceLedger;
use crate::feed::location::FilterLocation;
use crate::kernel::netns::Netns;
use crate::source::{Info, Pumped, Source, SourceEvent};

struct Inside {
    source: Box<dyn Source>,
    name: String,
    /// Where it was opened, whatever has that name later.
    netns: Arc<Netns>,
    info: Info,
}

/// Opens a source in the network namespace that `ip netns` knows as `name`, into which it moves the
/// calling thread for good. Two interfaces of one name are told apart: in the source's info and errors.
///
/// # Errors
/// As [`Netns::open`] and [`Netns::enter`], or what `open` says.
pub fn open(
    name: &str,
    open: impl FnOnce() -> Result<Box<dyn Source>, CaptureError>,
) -> Result<Box<dyn Source>, CaptureError> {
    let netns = Arc::new(Netns::open(name)?);
    netns.enter()?;
    let source = open().map_err(|error| error.in_netns(name))?;
    let mut inside = Inside { source, name: name.to_owned(), netns, info: Info::default() };
    inside.look();
    Ok(Box::new(inside))
}

impl Inside {
    /// Takes over what the source says about itself, which may change at its start and stop.
    fn look(&mut self) {
        self.info = self.source.info().clone();
        self.info.source = format!("netns:{}/{}", self.name, self.info.source);
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
        let pumped = self.source.pump(limit);
        self.named(pumped)
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

/// The same from threads outside.
struct InsideControl {
    control: Arc<dyn FeedControl>,
    name: String,
    netns: Arc<Netns>,
}

impl InsideControl {
    /// On a thread in the namespace: the kernel looks for an interface in that of the thread that asks.
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
        self.inside(|control| control.add(feed))
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
