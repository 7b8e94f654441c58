//! A source in another network namespace, under its full name in all that it says.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

use crate::error::CaptureError;
use crate::feed::block_lists::BlockLists;
use crate::feed::change::Change;
use crate::kernel::interface::enter_netns;
use crate::source::{Info, Pumped, Source};

struct Inside {
    source: Box<dyn Source>,
    netns: String,
    info: Info,
}

/// Opens a source in the network namespace that `ip netns` knows as `netns`, into which it moves the
/// calling thread for good. Two interfaces of one name are told apart: in the source's info and errors.
///
/// # Errors
/// As [`enter_netns`], or what `open` says.
pub fn open(
    netns: &str,
    open: impl FnOnce() -> Result<Box<dyn Source>, CaptureError>,
) -> Result<Box<dyn Source>, CaptureError> {
    enter_netns(netns)?;
    let source = open().map_err(|error| error.in_netns(netns))?;
    let mut inside = Inside { source, netns: netns.to_owned(), info: Info::default() };
    inside.look();
    Ok(Box::new(inside))
}

impl Inside {
    /// Takes over what the source says about itself, which may change at its start and stop.
    fn look(&mut self) {
        self.info = self.source.info().clone();
        self.info.source = format!("netns:{}/{}", self.netns, self.info.source);
    }

    fn named<T>(&self, result: Result<T, CaptureError>) -> Result<T, CaptureError> {
        result.map_err(|error| error.in_netns(&self.netns))
    }
}

impl Source for Inside {
    fn info(&self) -> &Info {
        &self.info
    }

    fn rings(&self) -> &[Ring<Mapping>] {
        self.source.rings()
    }

    fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.notify_fd()
    }

    fn add_waker(&mut self, waker: Waker, first: usize) -> Result<(), CaptureError> {
        self.source.add_waker(waker, first)
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

    fn ledgers(&mut self) -> Result<Vec<Ledger>, CaptureError> {
        let ledgers = self.source.ledgers();
        self.named(ledgers)
    }

    fn lists(&self) -> Option<BlockLists> {
        self.source.lists()
    }

    fn change(&mut self, feed: usize, change: Change) -> Result<(), CaptureError> {
        let changed = self.source.change(feed, change);
        self.look();
        self.named(changed)
    }

    fn stop(&mut self) -> Result<Ledger, CaptureError> {
        let stopped = self.source.stop();
        self.look();
        self.named(stopped)
    }
}
