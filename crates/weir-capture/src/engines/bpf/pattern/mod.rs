//! Capture of interfaces by pattern: one loaded program for each side, attached to every member, and one set of rings.
//!
//! The program looks up the number of a frame's interface in a map, by the kernel's interface index. Interfaces join
//! and leave by their name, which rtnetlink reports. Each member has a number in the rings. An interface that appears
//! again under the same name gets its old number.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_frame::pcapng::LINKTYPE_ETHERNET;

use super::clsact::Lock;
use super::serving::{Serving, TurnEnd};
use super::shared::{Shared, State};
use super::{BpfOptions, TURN_MAX, attach, check_kernel, check_options};
use crate::engines::pattern::{Change, PatternLinks};
use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::kernel::interface::{Interface, Link, LinkPattern, Missed, Promiscuity};
use crate::kernel::rcu;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source, SourceEvent};

/// Time between two readings of the interfaces' losses, which take one request for each interface.
const ASK_MISSED_EVERY: Duration = Duration::from_secs(10);
/// Time after which changes of members are tried again if a change of feeds was in progress.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Number of open sources of this process that capture by pattern.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Returns true if this process has sources that capture by pattern. They attach programs to interfaces that join.
pub fn has_patterns() -> bool {
    OPEN.load(Ordering::Acquire) > 0
}

/// A source that captures the interfaces of a pattern.
pub(super) struct BpfPattern {
    info: Info,
    pub(super) serving: Serving,
    links: PatternLinks,
    /// The members, by the kernel's interface index.
    members: HashMap<u32, Member>,
    promiscuity: Option<Promiscuity>,
    /// The lock that the records of the source's clsact filters share; `None` if this user cannot create records.
    lock: Option<Arc<Lock>>,
    asked_missed: Instant,
    missed: Option<u64>,
}

/// An interface that has joined the source.
struct Member {
    /// The interface's number in the rings.
    number: u32,
    link: Link,
    missed: Missed,
}

impl BpfPattern {
    /// Loads the programs, creates their rings, and adds the present interfaces. Attaches nothing before `start`.
    ///
    /// # Errors
    /// [`CaptureError`]: missing privileges, contradictory options, or the kernel refuses the programs.
    pub(super) fn open(
        pattern: &LinkPattern,
        mut setup: Setup,
        options: BpfOptions,
        why: String,
    ) -> Result<BpfPattern, CaptureError> {
        let source = pattern.to_string();
        check_options(&source, &setup, &options)?;
        check_kernel()?;
        rcu::prepare();
        setup.set_link_type(LINKTYPE_ETHERNET)?;
        let direction = setup.direction();
        let promiscuity = setup.promiscuous.then(|| Promiscuity::of_none(&source)).transpose()?;
        let links = PatternLinks::open(pattern, setup.owner_finder.as_ref())?;
        let (serving, notes) = Serving::open(&source, None, setup, options)?;
        attach::sweep(&serving.shared.state().programs);
        let info = Info { source, engine: "bpf", hook: Some("tc"), why, notes, owner: None };
        let mut source = BpfPattern {
            info,
            serving,
            links,
            members: HashMap::new(),
            promiscuity,
            lock: Lock::make().ok(),
            asked_missed: Instant::now(),
            missed: None,
        };
        OPEN.fetch_add(1, Ordering::AcqRel);
        source.change_members();
        source.info.notes.extend(source.links.note_members(direction));
        Ok(source)
    }

    /// Reads the changes of interfaces, and applies them.
    fn follow_links(&mut self) -> Result<(), CaptureError> {
        self.links.read()?;
        self.change_members();
        Ok(())
    }

    /// Applies the changes that were read. If a change of feeds is in progress, which may take as long as loading a
    /// program, this postpones them: this thread wakes readers, so it must not wait.
    fn change_members(&mut self) {
        let shared = Arc::clone(&self.serving.shared);
        let Some(mut state) = shared.try_state() else { return };
        while let Some(change) = self.links.next() {
            match change {
                Change::Leaves(index) => self.leave(&shared, &mut state, index),
                Change::HasOwner(link) => self.renumber(&shared, &mut state, &link),
                // The MTU is not needed: the kernel marks each super-frame.
                Change::HasOtherMtu(_) => {}
                Change::Joins(link) => match self.join(&shared, &mut state, &link) {
                    Ok(()) => self.links.joined(&link),
                    Err(error) => self.links.left_out(&link, &error),
                },
            }
        }
    }

    fn join(
        &mut self,
        shared: &Shared,
        state: &mut State,
        link: &Link,
    ) -> Result<(), CaptureError> {
        let number = shared.join_interface(state, &link.name, self.links.owner_of(link))?;
        let mut missed = Missed::new(link.index);
        missed.begin_after(shared.members().missed_of(number));
        self.members.insert(link.index, Member { number, link: link.clone(), missed });
        if !state.has_begun {
            return Ok(());
        }
        match self.attach(shared, state, link.index) {
            Err(error) if attach::is_there(link.index) => {
                self.leave(shared, state, link.index);
                Err(error)
            }
            // The interface has been removed already; the event for its removal comes next.
            _ => Ok(()),
        }
    }

    /// Gives a member the number for its name and owner. If no number is left, the member keeps its old one.
    fn renumber(&mut self, shared: &Shared, state: &mut State, link: &Link) {
        let (interfaces, owner) = (&shared.members().interfaces, self.links.owner_of(link));
        if !interfaces.may_continue() {
            return;
        }
        let Ok(number) = shared.join_interface(state, &link.name, owner) else { return };
        // Reads the losses a last time for the old number.
        self.ask_missed();
        let Some(member) = self.members.get_mut(&link.index) else { return };
        let old = std::mem::replace(&mut member.number, number);
        member.missed = Missed::new(link.index);
        member.missed.begin_after(shared.members().missed_of(number));
        if old == number {
            return;
        }
        // Takes effect between two frames. This fails only if the map is full, but the map has space for all numbers.
        if state.has_begun {
            let _ = shared.members().insert(link.index, number);
        }
        interfaces.continue_as(old, number);
    }

    /// Attaches the programs to a member.
    fn attach(&self, shared: &Shared, state: &mut State, index: u32) -> Result<(), CaptureError> {
        let Member { number, link, .. } = &self.members[&index];
        let interface = Arc::new(Interface {
            name: link.name.clone(),
            index,
            link_type: LINKTYPE_ETHERNET,
            mtu: link.mtu,
        });
        if let Some(promiscuity) = &self.promiscuity {
            let refused = "promiscuous mode is refused; capture without it (--no-promiscuous)";
            promiscuity.add(index).map_err(CaptureError::os(refused))?;
        }
        // This comes before the programs are attached, so that every frame has a number.
        shared.members().insert(index, *number)?;
        state.attachments.extend(attach::attach_member(
            &interface,
            &state.programs.at,
            self.lock.as_ref(),
        )?);
        Ok(())
    }

    fn leave(&mut self, shared: &Shared, state: &mut State, index: u32) {
        let Some(Member { number, .. }) = self.members.remove(&index) else { return };
        shared.members().remove(index);
        state.attachments.retain(|attachment| !attachment.is_of(index));
        if let Some(promiscuity) = &self.promiscuity {
            promiscuity.remove(index);
        }
        if self.members.values().all(|member| member.number != number) {
            shared.members().interfaces.leave(number);
        }
    }

    fn ask_missed(&mut self) {
        self.asked_missed = Instant::now();
        let ask = |member: &mut Member| {
            member.missed.ask();
            (member.number, member.missed.frames())
        };
        let asked = self.members.values_mut().map(ask);
        self.missed = self.serving.shared.members().set_missed(asked);
    }
}

impl Drop for BpfPattern {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Source for BpfPattern {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.serving.control()
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.follow_links()?;
        let shared = Arc::clone(&self.serving.shared);
        let mut state = shared.state();
        shared.control.follow_tai();
        state.has_begun = true;
        let links: Vec<Link> = self.members.values().map(|member| member.link.clone()).collect();
        for link in links {
            if let Err(error) = self.attach(&shared, &mut state, link.index)
                && attach::is_there(link.index)
            {
                self.leave(&shared, &mut state, link.index);
                self.links.leave_out_member(link.index, &error);
            }
        }
        Ok(())
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let deadline = Instant::now() + limit.min(TURN_MAX);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = if self.links.is_behind() { left.min(AGAIN_AFTER) } else { left };
            let end = self.serving.answer(wait, Some(self.links.as_fd()))?;
            if end == TurnEnd::Also || self.links.is_behind() {
                self.follow_links()?;
            }
            if end != TurnEnd::Limit || Instant::now() >= deadline {
                break;
            }
        }
        if self.asked_missed.elapsed() >= ASK_MISSED_EVERY {
            self.ask_missed();
        }
        let shared = &self.serving.shared;
        shared.control.follow_tai();
        shared.count(self.missed);
        Ok(Pumped::More)
    }

    fn can_be_woken(&self) -> bool {
        true
    }

    fn take_events(&mut self) -> Vec<SourceEvent> {
        self.links.take_events()
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        let ended = self.serving.shared.end();
        self.promiscuity = None;
        self.ask_missed();
        self.serving.shared.count(self.missed);
        ended
    }
}
