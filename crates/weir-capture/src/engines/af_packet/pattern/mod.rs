//! Capture of interfaces by pattern: one packet socket that is not bound to an interface, and so gets the frames of all
//! interfaces in its network namespace. Its filter rejects frames of interfaces that are not members, and counts the
//! frames of each member.
//!
//! Members share the socket, its blocks and one set of rings. Interfaces join and leave by their name, which rtnetlink
//! reports. Each member has a number in the rings. An interface that appears again under the same name gets its old
//! number.

mod filter;
mod members;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_ring::{Clock, Ledger};

use super::blocks::BlockBytes;
use super::count::reject_all;
use super::receiver::Receiver;
use super::socket::Socket;
use crate::engines::pattern::{Change, PatternLinks};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::control::FeedControl;
use crate::feed::feeds::Feeds;
use crate::feed::filters::Prefilter;
use crate::feed::interfaces::{EngineCounts, Interfaces};
use crate::kernel::interface::{Link, LinkPattern, frame_bytes_max};
use crate::kernel::rcu;
use crate::limits::PATTERN_INTERFACES_MAX;
use crate::setup::{Setup, refuse_queue};
use crate::source::{Info, Pumped, Source, SourceEvent};
use filter::Maps;
use members::Members;

/// Time between two readings of the interfaces' losses, which take one request for each interface.
const ASK_MISSED_EVERY: Duration = Duration::from_secs(10);
/// Most interfaces that have left and are still in the table. With more, the source waits until it has copied their
/// frames, and then removes them from the table.
const LEFT_MAX: usize = PATTERN_INTERFACES_MAX as usize;

/// The source that captures the interfaces of a pattern.
pub(super) struct Pattern {
    info: Info,
    links: PatternLinks,
    promiscuous: bool,
    is_started: bool,
    feeds: Feeds,
    receiver: Receiver<Members>,
    socket: Arc<Socket>,
    maps: Maps,
    asked_missed: Instant,
    closed: bool,
}

impl Pattern {
    /// Creates the socket and its blocks, and adds the present interfaces. The socket receives nothing before `start`.
    ///
    /// # Errors
    /// [`CaptureError`]: missing privileges, or no memory.
    pub(super) fn open(
        pattern: &LinkPattern,
        mut setup: Setup,
        why: String,
    ) -> Result<Pattern, CaptureError> {
        setup.check()?;
        setup.refuse_queues("a packet socket")?;
        rcu::prepare();
        setup.set_link_type(LINKTYPE_ETHERNET)?;
        let direction = setup.direction();
        let name = pattern.to_string();
        let links = PatternLinks::open(pattern, setup.owner_finder.as_ref())?;
        // If an interface with longer frames joins later, its frames are truncated.
        let longest = links.fitting().map(|link| frame_bytes_max(link.index, link.mtu)).max();
        let socket =
            Socket::new(&name, direction, BlockBytes::for_frames_of(longest.unwrap_or(0)))?;
        let socket = Arc::new(socket);
        let (maps, mut at_socket) = Maps::attach(&socket, &setup)?;
        let admit = move |feed: &mut Feed| {
            Setup::admit_direction(direction, feed)?;
            refuse_queue(feed, "a packet socket")
        };
        let counts: Box<dyn EngineCounts> = Box::new(maps.clone());
        let several = (Interfaces::new(name.clone()), counts);
        let (feeds, fanout) = Feeds::create_of(&setup, Clock::Realtime, Box::new(admit), several)?;
        let location = at_socket.choose(&setup.feeds)?;
        feeds.set_prefilter(Box::new(at_socket), location);
        let receiver = Receiver::new(&socket, fanout, &setup, Members::default())?;
        let info = Info {
            source: name,
            engine: "af_packet",
            hook: Some("socket"),
            why,
            notes: Vec::new(),
            owner: None,
        };
        let mut source = Pattern {
            info,
            links,
            promiscuous: setup.promiscuous,
            is_started: false,
            feeds,
            receiver,
            socket,
            maps,
            asked_missed: Instant::now(),
            closed: false,
        };
        source.change_members()?;
        source.info.notes.extend(source.links.note_members(direction));
        Ok(source)
    }

    /// Reads the changes of interfaces, and applies them.
    fn follow_links(&mut self) -> Result<(), CaptureError> {
        self.links.read()?;
        self.change_members()
    }

    fn change_members(&mut self) -> Result<(), CaptureError> {
        while let Some(change) = self.links.next() {
            match change {
                Change::Leaves(index) => self.leave(index),
                Change::HasOtherMtu(link) => self.receiver.origins().set_mtu(&link),
                Change::HasOwner(link) => self.renumber(&link)?,
                Change::Joins(link) => match self.number_of(&link) {
                    Ok(number) => {
                        self.empty_blocks_for(link.index, number)?;
                        match self.join(&link, number) {
                            Ok(()) => self.links.joined(&link),
                            Err(error) => {
                                self.leave(link.index);
                                self.links.left_out(&link, &error);
                            }
                        }
                    }
                    Err(error) => self.links.left_out(&link, &error),
                },
            }
        }
        Ok(())
    }

    /// Returns the number for an interface, by its name and its owner.
    fn number_of(&self, link: &Link) -> Result<u32, CaptureError> {
        self.feeds.add_interface(&link.name, self.links.owner_of(link))
    }

    /// Gives a member the number for its name and owner. If no number is left, it keeps its old one. Frames that come
    /// during the change have one of the two numbers, and the filter may count them under the other.
    fn renumber(&mut self, link: &Link) -> Result<(), CaptureError> {
        if !self.feeds.may_continue() {
            return Ok(());
        }
        let Ok(number) = self.number_of(link) else { return Ok(()) };
        if !self.receiver.origins().has_other(link.index, number) {
            return Ok(());
        }
        // Reads the losses a last time for the old number.
        self.ask_missed();
        self.empty_blocks_for(link.index, number)?;
        let missed_before = self.maps.missed_of(number);
        let old = self.receiver.origins().remove(link.index);
        self.receiver.origins().insert(link, number, missed_before);
        self.maps.insert(link.index, number)?;
        old.into_iter().for_each(|old| self.feeds.continue_as(old, number));
        Ok(())
    }

    /// Prepares for giving the frames of an interface another number, for example after it was renamed: copies the
    /// frames that are already in the blocks, so that they keep the old number. Also does so if many interfaces have
    /// left, to remove them from the table.
    fn empty_blocks_for(&mut self, index: u32, number: u32) -> Result<(), CaptureError> {
        let origins = self.receiver.origins();
        if origins.has_other(index, number) || origins.left() > LEFT_MAX {
            rcu::synchronize()?;
            if self.receiver.drain(&self.feeds)? {
                self.receiver.origins().forget_left();
            }
        }
        Ok(())
    }

    /// Adds an interface. An error concerns only this interface; the capture of the others continues.
    fn join(&mut self, link: &Link, number: u32) -> Result<(), CaptureError> {
        let missed_before = self.maps.missed_of(number);
        self.receiver.origins().insert(link, number, missed_before);
        if self.is_started && self.promiscuous {
            self.make_promiscuous(link.index)?;
        }
        // This comes last, because the socket accepts the interface's frames from here on.
        self.maps.insert(link.index, number)
    }

    fn make_promiscuous(&self, index: u32) -> Result<(), CaptureError> {
        match self.socket.set_promiscuous(index, true) {
            // The interface has been removed already; the event for its removal comes next.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            result => result.map_err(CaptureError::os(
                "promiscuous mode is refused; capture without it (--no-promiscuous)",
            )),
        }
    }

    fn leave(&mut self, index: u32) {
        let Some(number) = self.receiver.origins().remove(index) else { return };
        self.maps.remove(index);
        if self.promiscuous {
            // This fails if the interface has been removed; the kernel then removed its promiscuous memberships, too.
            let _ = self.socket.set_promiscuous(index, false);
        }
        if !self.receiver.origins().has_number(number) {
            self.feeds.remove_interface(number);
        }
    }

    /// Waits for a block or for changes of interfaces. Returns true if there are changes.
    fn wait(&self, limit: Duration) -> Result<bool, CaptureError> {
        let timeout = limit.try_into().unwrap_or(rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 });
        let (socket, links) = (self.socket.as_fd(), self.links.as_fd());
        let mut wait = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&links, PollFlags::IN)];
        match rustix::event::poll(&mut wait, Some(&timeout)) {
            Ok(_) => Ok(!wait[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(CaptureError::Os {
                doing: format!("{}: waiting for frames", self.info.source),
                source: errno.into(),
            }),
        }
    }

    fn ask_missed(&mut self) {
        self.asked_missed = Instant::now();
        for (number, frames) in self.receiver.origins().missed() {
            self.maps.set_missed(number, frames);
        }
    }

    fn count(&mut self) -> Result<(), CaptureError> {
        let statistics = self.socket.statistics()?;
        let (offered, filtered) = self.maps.sums()?;
        let missed_before = self.maps.missed();
        let mut ledger = Ledger { offered, filtered, missed_before, ..Ledger::default() };
        ledger.drops.insert("kernel", statistics.drops);
        self.feeds.count(ledger);
        Ok(())
    }
}

impl Source for Pattern {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.feeds.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.follow_links()?;
        self.is_started = true;
        if self.promiscuous {
            for index in self.receiver.origins().indexes() {
                if let Err(error) = self.make_promiscuous(index) {
                    self.leave(index);
                    self.links.leave_out_member(index, &error);
                }
            }
        }
        self.socket.bind(0)
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let deadline = Instant::now() + limit;
        loop {
            self.receiver.take_blocks(deadline)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.receiver.leave();
            if self.wait(left)? {
                self.follow_links()?;
            }
        }
        // While frames come continuously, the loop above never waits, so changes are read here. This call may also copy
        // frames.
        let followed = self.follow_links();
        self.receiver.leave();
        followed?;
        if self.asked_missed.elapsed() >= ASK_MISSED_EVERY {
            self.ask_missed();
        }
        self.count()?;
        Ok(Pumped::More)
    }

    fn take_events(&mut self) -> Vec<SourceEvent> {
        self.links.take_events()
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        if !self.closed {
            self.closed = true;
            let drained = reject_all(&self.socket).and_then(|()| self.receiver.drain(&self.feeds));
            // Close the rings even after an error, so that readers see the end.
            self.receiver.close();
            drained?;
            self.ask_missed();
        }
        self.count()
    }
}
