//! The programs, rings, counts and wakers of a source, which has one interface or several.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;
use rustix::event::{PollFd, PollFlags};

use super::block::Blocks;
use super::confirm::Confirmer;
use super::control::Control;
use super::doorbell::Doorbell;
use super::feed_control::BpfControl;
use super::members::Members;
use super::plan::{self, Plan};
use super::program::{Maps, Programs};
use super::relay::{self, Relay};
use super::shared::{self, Shared};
use super::{BpfOptions, Hook, TURN_MIN, cpus, memory};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::channel_poll::ChannelPoll;
use crate::feed::control::{FeedControl, FeedSlot};
use crate::feed::direction::Direction;
use crate::feed::location::FilterLocation;
use crate::kernel::interface::Interface;
use crate::limits::HOOK_FEEDS_MAX;
use crate::setup::Setup;

/// The state of the source's thread.
pub(super) struct Serving {
    pub(super) shared: Arc<Shared>,
    doorbell: Doorbell,
    confirmer: Confirmer,
    /// Number of turns of `answer` so far.
    #[cfg(test)]
    pub(super) turns: u64,
}

/// The reason why [`Serving::answer`] returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// Its time is over, or a signal came.
    Limit,
    /// The descriptor that the caller passed is readable.
    Also,
    /// Another thread woke the source.
    Interrupted,
}

impl Serving {
    /// Loads the programs and creates their rings; attaches nothing. Also returns notes for the user. `interface`:
    /// `None` for a source that captures by pattern; `source` is the pattern then.
    ///
    /// # Errors
    /// [`CaptureError`]: missing privileges, no memory, or the kernel refuses the programs.
    pub(super) fn open(
        source: &str,
        interface: Option<&Interface>,
        setup: Setup,
        options: BpfOptions,
    ) -> Result<(Serving, Vec<String>), CaptureError> {
        let prepare = |plan| Prepared::new(source, interface, &setup, &options, plan);
        let plan = Plan::of(options.hook, &setup, HOOK_FEEDS_MAX);
        let prepared = match (plan.has_filters, prepare(plan)) {
            // The filters and the program that contains them may be too long together.
            (true, Err(first @ CaptureError::Bpf { .. })) => {
                let plan = Plan::without_filters(&setup, HOOK_FEEDS_MAX);
                let mut prepared = prepare(plan).map_err(|_| first)?;
                let note = "the kernel does not take these filters as part of the capture program: all of them \
                                run in user space";
                prepared.notes.push(note.to_owned());
                prepared
            }
            (_, prepared) => prepared?,
        };
        let Prepared { plan, derived, places, arrays, blocks, mut programs, mut notes } = prepared;
        notes.extend(notes_on(&setup, &options));
        let written = memory::attach(&arrays)?;
        let cpus = cpus::entries()? as usize;
        let control = Control::map(&programs.control, cpus, places.len())?;
        let relay = match plan.derived.is_empty() {
            true => None,
            false => {
                let base = &written[plan.at_hook.len() * cpus..];
                let slot = |feed: &usize| FeedSlot::new(*feed as u32);
                let slots: Vec<FeedSlot> = plan.derived.iter().map(slot).collect();
                Some(Relay::new(&derived, base, &slots)?)
            }
        };
        let members = |maps| Members::new(source.to_owned(), maps, cpus, places.len());
        let members = programs.members.take().map(members).transpose()?;
        let doorbell = Doorbell::new(&programs.doorbell)?;
        let locations = locations(&setup, &plan, relay.as_ref());
        let shared = Shared::new(shared::Parts {
            options,
            setup,
            plan,
            places,
            blocks,
            written,
            relay,
            programs,
            control,
            channels: Arc::new(ChannelPoll::new()?),
            members,
            locations,
            cpus,
        })?;
        let confirmer = Confirmer::new()?;
        let serving = Serving {
            shared: Arc::new(shared),
            doorbell,
            confirmer,
            #[cfg(test)]
            turns: 0,
        };
        Ok((serving, notes))
    }

    /// Returns the handle by which any thread can change the source.
    pub(super) fn control(&self) -> Arc<dyn FeedControl> {
        Arc::new(BpfControl(Arc::clone(&self.shared)))
    }

    /// Answers the doorbell and the consumers' messages for about `limit`, or until `also` is readable, or until
    /// [`FeedControl::wake`].
    pub(super) fn answer(
        &mut self,
        limit: Duration,
        also: Option<BorrowedFd<'_>>,
    ) -> Result<TurnEnd, CaptureError> {
        let deadline = Instant::now() + limit;
        loop {
            let turn = Instant::now();
            #[cfg(test)]
            {
                self.turns += 1;
            }
            let settled = self.shared.answer(&mut self.confirmer);
            let left = deadline.saturating_duration_since(Instant::now());
            let left = if settled { left } else { Duration::ZERO };
            let timeout = left.try_into().expect("a pump's limit fits a timespec");
            let doorbell = self.doorbell.as_fd();
            let mut wait = [
                PollFd::from_borrowed_fd(doorbell, PollFlags::IN),
                PollFd::new(&*self.shared.channels, PollFlags::IN),
                PollFd::from_borrowed_fd(self.confirmer.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(also.unwrap_or(doorbell), PollFlags::IN),
                PollFd::from_borrowed_fd(self.shared.interrupt.as_fd(), PollFlags::IN),
            ];
            match rustix::event::poll(&mut wait, Some(&timeout)) {
                Ok(0) if settled => return Ok(TurnEnd::Limit),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(TurnEnd::Limit),
                Err(errno) => {
                    return Err(CaptureError::os("waiting for the doorbell")(errno.into()));
                }
            }
            let has_more = also.is_some() && !wait[3].revents().is_empty();
            let is_interrupted = !wait[4].revents().is_empty();
            self.doorbell.drain();
            self.shared.wake();
            // Limits the cost of a hostile consumer: each of its thresholds and messages costs a turn, and may make the
            // programs ring the doorbell.
            std::thread::sleep(TURN_MIN.saturating_sub(turn.elapsed()));
            if is_interrupted {
                self.shared.interrupt.take();
                return Ok(TurnEnd::Interrupted);
            } else if has_more {
                return Ok(TurnEnd::Also);
            } else if Instant::now() >= deadline {
                return Ok(TurnEnd::Limit);
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The control may outlive the source, and keeps the attachments alive.
        let _ = self.shared.end();
    }
}

/// Returns notes for the user about frames that the hook cannot see, and about side effects.
fn notes_on(setup: &Setup, options: &BpfOptions) -> Vec<String> {
    let mut notes = Vec::new();
    if options.hook == Hook::Xdp && setup.direction() == Direction::Both {
        let way_out = match options.consume {
            true => "--consume needs XDP",
            false => "--hook tc sees both directions",
        };
        notes.push(format!("XDP sees received frames only; {way_out}"));
    }
    if options.consume && !setup.feeds.iter().any(Feed::takes_all) {
        notes.push("--consume: frames that no feed takes end here, too".to_owned());
    }
    notes
}

/// The objects in the kernel that a source needs beside attachments.
struct Prepared {
    plan: Plan,
    /// The derived feeds.
    derived: Setup,
    /// The feeds whose rings the programs write, and the base feed of the derived feeds, by place.
    places: Vec<Option<Feed>>,
    arrays: Vec<MapHandle>,
    blocks: Option<Blocks>,
    programs: Programs,
    notes: Vec<String>,
}

impl Prepared {
    fn new(
        source: &str,
        interface: Option<&Interface>,
        setup: &Setup,
        options: &BpfOptions,
        plan: Plan,
    ) -> Result<Prepared, CaptureError> {
        let several = interface.is_none();
        if several && !plan.derived.is_empty() {
            return Err(plan::no_relay());
        }
        let own = |feed: &usize| setup.feeds[*feed].clone();
        let derived = setup.of_feeds(plan.derived.iter().map(own).collect());
        let mut at_hook = setup.of_feeds(plan.at_hook.iter().map(own).collect());
        let mut places: Vec<Option<Feed>> = at_hook.feeds.iter().cloned().map(Some).collect();
        if setup.may_change {
            // Free places, for feeds that join later.
            places.resize(HOOK_FEEDS_MAX, None);
        }
        if !plan.derived.is_empty() {
            let base = relay::base(if setup.may_change { setup } else { &derived });
            at_hook.feeds.push(base.clone());
            places.push(Some(base));
        } else if setup.may_change {
            places.push(None);
        }
        let arrays = memory::create(&at_hook, 0..at_hook.feeds.len())?;
        if plan.derived.iter().any(|feed| setup.feeds[*feed].queue.is_some()) {
            return Err(plan::no_place_by_queue(source));
        }
        // The relay's place has no block list.
        let blocks = setup.may_change.then(|| Blocks::new(places.len() - 1)).transpose()?;
        let lists = blocks.as_ref().map(Blocks::maps);
        let cpus = cpus::entries()?;
        let has_filters = plan.has_filters;
        let maps =
            Maps { places: &places, rings: &arrays, cpus, has_filters, blocks: lists, several };
        let (programs, notes) = Programs::load(interface, &at_hook, options, maps)?;
        Ok(Prepared { plan, derived, places, arrays, blocks, programs, notes })
    }
}

/// Returns the place where each feed's filter runs.
fn locations(setup: &Setup, plan: &Plan, relay: Option<&Relay>) -> Vec<FilterLocation> {
    let one_way = setup.is_of_one_direction();
    let location = |(number, feed): (usize, &Feed)| {
        if let Ok(at) = plan.derived.binary_search(&number) {
            return relay.map_or(FilterLocation::Nowhere, |relay| relay.locations()[at]);
        }
        let chooses = setup.may_change || !feed.takes_all() || !one_way;
        if chooses { FilterLocation::Hook } else { FilterLocation::Nowhere }
    };
    setup.feeds.iter().enumerate().map(location).collect()
}
