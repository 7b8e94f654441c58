//! What looks after a machine.

mod claims;
mod connection;

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_client::protocol::GuestState;
use weir_vm::{GuestMemory, Monitor, Pages, Plugged, TakenRing, VmError, hotplug};

use super::inbox::{Inbox, Request};
use super::{Claim, Shown};
use crate::guests::hypervisor::Hypervisor;
use crate::limits::{GUEST_LINGER, RELEASE_WAIT_MAX, UNPLUG_AGAIN_EVERY, UNPLUG_LOOK_EVERY};

/// What a machine is made of.
pub(crate) struct Spec {
    pub(crate) name: Arc<str>,
    pub(crate) hypervisor: Box<dyn Hypervisor>,
    pub(crate) region_mib: u64,
    pub(crate) pages: Pages,
    /// Ends the guest's session, if it has one.
    pub(crate) end_session: Box<dyn Fn() + Send>,
    /// Told what whoever runs the daemon should know.
    pub(crate) say: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Looks after a machine.
pub(crate) struct Worker {
    spec: Spec,
    inbox: Arc<Inbox>,
    shown: Arc<Mutex<Shown>>,
    monitor: Option<Box<dyn Monitor + Send>>,
    /// When a monitor that is not there is looked for.
    connect_at: Instant,
    /// QEMU's id of our port, by which it tells of it.
    port_id: Option<String>,
    is_paused: bool,
    /// Events wait in the monitor that there was no turn for.
    has_more_events: bool,
    /// What is wrong with the monitor.
    fault: Option<String>,
    active: Option<Active>,
    leaving: Leaving,
    waiting: Vec<(Instant, SyncSender<Result<Claim, String>>)>,
    is_detached: bool,
    detaching: Option<Detaching>,
    ends_by: Option<Instant>,
}

/// Devices that the guest reads.
struct Active {
    memory: Arc<GuestMemory>,
    plugged: Plugged,
    feeds: usize,
    /// Since when there are no feeds.
    idle_since: Instant,
    /// Places that applications in the guest may still read, and since when.
    left: Vec<(Instant, Arc<TakenRing>)>,
}

/// Devices that the guest is to release.
struct Leaving {
    all: Vec<Plugged>,
    ask_at: Instant,
    /// QEMU still has memory of devices that are gone.
    look_at: Option<Instant>,
}

/// A detachment that somebody waits for.
struct Detaching {
    /// Feeds that the guest has not let go of by then go with its session.
    session_until: Instant,
    /// Places that may still be read stay no longer.
    places_until: Instant,
    until: Instant,
    reply: Option<SyncSender<Result<(), String>>>,
}

impl Worker {
    pub(super) fn new(spec: Spec, inbox: Arc<Inbox>, shown: Arc<Mutex<Shown>>) -> Worker {
        let now = Instant::now();
        Worker {
            spec,
            inbox,
            shown,
            monitor: None,
            connect_at: now,
            port_id: None,
            is_paused: false,
            has_more_events: false,
            fault: None,
            active: None,
            leaving: Leaving { all: Vec::new(), ask_at: now, look_at: None },
            waiting: Vec::new(),
            is_detached: false,
            detaching: None,
            ends_by: None,
        }
    }

    /// Looks after the machine until it is told to end.
    pub(crate) fn run(mut self) {
        loop {
            let is_over = self.turn();
            self.show();
            if is_over {
                return;
            }
            let monitor = self.monitor.as_ref().and_then(|monitor| monitor.readable());
            self.inbox.wait(monitor, self.due());
        }
    }

    /// Does what is to be done now; whether the thread is to end.
    fn turn(&mut self) -> bool {
        for request in self.inbox.take() {
            match request {
                Request::End { unplugs: None } => return true,
                Request::End { unplugs: Some(within) } => {
                    let now = Instant::now();
                    self.ends_by = Some(now + within);
                    self.is_detached = true;
                    self.detaching = Some(Detaching::new(now, within, None));
                }
                other => self.take(other),
            }
        }
        self.connect();
        self.take_events();
        self.go_on_detaching();
        self.retire();
        self.remove();
        self.answer();
        let is_bare = self.active.is_none() && self.leaving.all.is_empty();
        self.ends_by.is_some_and(|until| is_bare || until <= Instant::now())
    }

    fn take(&mut self, request: Request) {
        let now = Instant::now();
        match request {
            Request::Claim(reply) => {
                self.hurry(now);
                self.waiting.push((now + RELEASE_WAIT_MAX, reply));
            }
            Request::LetGo { memory, left } => {
                // Of a QEMU that has ended nothing is to be given back.
                let own = self.active.as_mut().filter(|own| Arc::ptr_eq(&own.memory, &memory));
                if let Some(own) = own {
                    own.feeds -= 1;
                    own.idle_since = now;
                    own.left.extend(left.map(|left| (now, left)));
                }
            }
            Request::Detach { within, reply } => {
                if self.monitor.is_none() {
                    let _ = reply.send(Err(self.not_there()));
                } else {
                    self.hurry(now);
                    self.is_detached = true;
                    self.detaching = Some(Detaching::new(now, within, Some(reply)));
                }
            }
            Request::Attach => self.is_detached = false,
            Request::PortEnded => {
                // If QEMU has ended, its monitor has, too.
                self.connect_at = now;
                let monitor =
                    self.monitor.as_mut().map(|monitor| hotplug::is_paused(monitor.as_mut()));
                if let Some(Err(error)) = monitor {
                    self.failed(&error);
                }
            }
            Request::End { .. } => {}
        }
    }

    /// What was to stay for a while is to go now.
    fn hurry(&mut self, now: Instant) {
        if self.leaving.ask_at > now + UNPLUG_AGAIN_EVERY {
            self.leaving.ask_at = now;
        }
    }

    fn not_there(&self) -> String {
        let fault = self.fault.as_deref().unwrap_or("it has not been looked for yet");
        format!("the machine of guest {} cannot be reached: {fault}", self.spec.name)
    }

    /// When something is to be done that nobody asks for.
    fn due(&self) -> Option<Instant> {
        let connect = self.monitor.is_none().then_some(self.connect_at);
        let events = self.has_more_events.then(Instant::now);
        let active = self.active.as_ref().and_then(Active::due);
        let has_monitor = self.monitor.is_some() && !self.leaving.all.is_empty();
        let leaving = has_monitor.then(|| self.leaving.look_at.unwrap_or(self.leaving.ask_at));
        let unreadable = self.monitor.as_ref().is_some_and(|monitor| monitor.readable().is_none());
        let poll = unreadable.then(|| Instant::now() + UNPLUG_AGAIN_EVERY);
        let waiting = self.waiting.iter().map(|(until, _)| *until).min();
        let detaching = self.detaching.as_ref().map(Detaching::due);
        [connect, events, active, leaving, poll, waiting, detaching, self.ends_by]
            .into_iter()
            .flatten()
            .min()
    }

    /// The guest is to release its devices.
    fn give_up(&mut self) {
        if let Some(active) = self.active.take() {
            self.leaving.all.push(active.plugged);
            self.leaving.ask_at = Instant::now();
        }
    }

    fn go_on_detaching(&mut self) {
        let Some(detaching) = &mut self.detaching else { return };
        let now = Instant::now();
        if let Some(active) = &self.active {
            if active.feeds > 0 && detaching.session_until <= now {
                // What it had goes soon after.
                (self.spec.end_session)();
            }
            let is_free = active.feeds == 0 && active.left.is_empty();
            if is_free || detaching.places_until <= now {
                self.give_up();
            }
        }
        let Some(detaching) = &mut self.detaching else { return };
        for due in [&mut detaching.session_until, &mut detaching.places_until] {
            if *due <= now {
                *due = detaching.until;
            }
        }
        let is_bare = self.active.is_none() && self.leaving.all.is_empty();
        if !is_bare && now < detaching.until {
            return;
        }
        if let Some(reply) = detaching.reply.take() {
            let _ = reply.send(if is_bare { Ok(()) } else { Err(self.unreleased()) });
        }
        self.detaching = None;
    }

    fn unreleased(&self) -> String {
        let why = if self.is_paused { "it is paused" } else { "is it hung, or not yet booted?" };
        format!(
            "guest {} has not released its devices yet ({why}); they go when it answers, which it is asked to each \
             second, or with its reset: try again then",
            self.spec.name
        )
    }

    /// Has devices go that nobody has needed for a while, and places with them.
    fn retire(&mut self) {
        let Some(active) = &mut self.active else { return };
        active.left.retain(|(since, _)| since.elapsed() < GUEST_LINGER);
        if active.feeds == 0
            && active.idle_since.elapsed() >= GUEST_LINGER
            && self.waiting.is_empty()
        {
            self.give_up();
        }
    }

    /// Asks the guest to release what is leaving, again and again, and takes back what it has released.
    fn remove(&mut self) {
        let now = Instant::now();
        let Leaving { all, ask_at, look_at } = &mut self.leaving;
        let Some(monitor) = self.monitor.as_mut().filter(|_| !all.is_empty()) else { return };
        let asks = *ask_at <= now;
        if !asks && look_at.is_none_or(|at| at > now) {
            return;
        }
        let mut result = Ok(());
        for plugged in all.iter_mut() {
            if asks && result.is_ok() {
                result = hotplug::ask(monitor.as_mut(), plugged).map(drop);
            }
            if result.is_ok() {
                result = hotplug::take_back(monitor.as_mut(), plugged);
            }
            if matches!(&result, Err(VmError::Refused { .. })) {
                // A device is gone before QEMU's other threads have let go of its memory.
                result = Ok(());
            }
        }
        all.retain(|plugged| !plugged.is_gone());
        if asks {
            *ask_at = Instant::now() + UNPLUG_AGAIN_EVERY;
        }
        let is_held = all.iter().any(|plugged| plugged.devices().next().is_none());
        *look_at = is_held.then(|| Instant::now() + UNPLUG_LOOK_EVERY);
        match result {
            Ok(()) => self.go_on_detaching(),
            Err(error) => self.failed(&error),
        }
    }

    fn show(&self) {
        let state = match (&self.active, &self.monitor) {
            (Some(_), _) => GuestState::Plugged,
            (None, None) => GuestState::Absent,
            (None, Some(_)) if !self.leaving.all.is_empty() => GuestState::Leaving,
            (None, Some(_)) if self.is_detached => GuestState::Detached,
            (None, Some(_)) => GuestState::Ready,
        };
        let is_pausing = self.is_paused && self.monitor.is_some();
        let paused = is_pausing.then(|| "the machine is paused".to_owned());
        let used_mib = self.active.as_ref().map_or(0, |active| active.memory.used_bytes() >> 20);
        let qemu = self.monitor.as_ref().map(|monitor| monitor.version().to_owned());
        let shown = Shown { state, reason: self.fault.clone().or(paused), qemu, used_mib };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }
}

impl Active {
    fn due(&self) -> Option<Instant> {
        let idle = (self.feeds == 0).then_some(self.idle_since);
        let left = self.left.iter().map(|(since, _)| *since);
        idle.into_iter().chain(left).min().map(|since| since + GUEST_LINGER)
    }
}

impl Detaching {
    /// A quarter of the time for the guest to let go of its feeds, half of it for those who may still read them.
    fn new(
        now: Instant,
        within: Duration,
        reply: Option<SyncSender<Result<(), String>>>,
    ) -> Detaching {
        let (session_until, places_until) = (now + within / 4, now + within * 3 / 4);
        Detaching { session_until, places_until, until: now + within, reply }
    }

    fn due(&self) -> Instant {
        self.session_until.min(self.places_until).min(self.until)
    }
}

#[cfg(test)]
mod tests;
