//! An engine in memory: it offers the frames that it is given, through the fan-out that all engines in user space
//! use.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_capture::PlainEngine;
use weir_capture::feed::{Fanout, Feeds};
use weir_capture::{CaptureError, Feed, FeedControl, Info, Pumped, Setup, Source};
use weir_ring::Ledger;
use weir_ring::memory::Pages;

use crate::frame::Frame;
use crate::planted::Planted;
use crate::planted_control::PlantedControl;

/// Rings have the smallest size, so that they are soon full.
const RING_BYTES: u64 = 4 << 20;

/// An item of a source's turn.
pub enum Item {
    /// A frame is offered.
    Frame(Frame),
    /// A frame is lost before any feed could select it.
    Lost,
    /// The frames so far become visible, and the turn continues.
    Publish,
    /// Another thread changes the feeds, between two frames.
    Meanwhile(Box<dyn FnOnce() + Send>),
    /// The turn ends the source.
    End(Result<(), CaptureError>),
}

/// The items of a source's next turn.
#[derive(Clone, Default)]
pub struct Script(Arc<Mutex<VecDeque<Item>>>);

impl Script {
    /// Appends items.
    pub fn push(&self, items: impl IntoIterator<Item = Item>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(items);
    }

    fn next(&self) -> Option<Item> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The engine.
pub struct FakeSource {
    info: Info,
    feeds: Feeds,
    fanout: Fanout,
    script: Script,
    /// Frames that were offered, including lost ones.
    offered: u64,
    lost: u64,
    is_closed: bool,
    planted: Option<Planted>,
    control: Arc<PlantedControl>,
}

impl FakeSource {
    /// Opens a source with these feeds.
    ///
    /// # Errors
    /// If there is no memory for the rings.
    pub fn open(
        feeds: Vec<Feed>,
        script: Script,
        planted: Option<Planted>,
    ) -> Result<FakeSource, CaptureError> {
        let mut setup = Setup {
            feeds,
            ring_bytes: RING_BYTES,
            promiscuous: false,
            may_change: true,
            // There are hundreds of rings, with little data in each.
            ring_pages: Pages::WhenTouched,
            ..Setup::default()
        };
        let (feeds, fanout) = PlainEngine::ethernet("the simulator").open_feeds(&mut setup)?;
        let control = Arc::new(PlantedControl::new(feeds.control(), planted));
        let info = Info { engine: "simulator", ..Info::default() };
        let (offered, lost, is_closed) = (0, 0, false);
        Ok(FakeSource { info, feeds, fanout, script, offered, lost, is_closed, planted, control })
    }

    /// Publishes the counts so far: before frames become visible, and before a feed joins or leaves.
    fn count(&self) {
        let mut ledger = Ledger { offered: self.offered, ..Ledger::default() };
        if self.planted == Some(Planted::OfferedTooEarly) {
            ledger.offered -= 1.min(self.offered);
        }
        if self.lost > 0 && self.planted != Some(Planted::DropsForgotten) {
            ledger.drops.insert("kernel", self.lost);
        }
        self.control.turn_ends();
        self.feeds.count(ledger);
    }

    fn frame(&mut self, frame: &Frame) {
        self.offered += 1;
        let bytes = match self.planted {
            Some(Planted::BytesOfAnother) if frame.number % 64 == 63 => {
                let number = frame.number ^ 1;
                Frame { number, ..*frame }.make()
            }
            _ => frame.make(),
        };
        let times = match self.planted {
            Some(Planted::FrameLost) if frame.number % 128 == 127 => 0,
            Some(Planted::FrameTwice) if frame.number % 128 == 127 => 2,
            _ => 1,
        };
        (0..times).for_each(|_| self.fanout.push(&frame.meta(), &bytes));
        self.control.frame_passed();
    }
}

impl Source for FakeSource {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        Arc::clone(&self.control) as Arc<dyn FeedControl>
    }

    fn pump(&mut self, _limit: Duration) -> Result<Pumped, CaptureError> {
        let mut pumped = Ok(Pumped::More);
        while let Some(item) = self.script.next() {
            match item {
                Item::Frame(frame) => self.frame(&frame),
                Item::Lost => {
                    self.offered += 1;
                    self.lost += 1;
                }
                Item::Publish => {
                    self.count();
                    self.fanout.publish();
                }
                Item::Meanwhile(change) => {
                    self.count();
                    change();
                }
                Item::End(end) => pumped = end.map(|()| Pumped::Ended),
            }
        }
        self.count();
        self.fanout.leave();
        pumped
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        if !std::mem::replace(&mut self.is_closed, true) {
            self.fanout.close();
        }
        Ok(())
    }
}
