//! The thread of a machine: its connection to QEMU's monitor, and its answers to requests.

mod claims;
mod connection;
mod detaching;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_client::protocol::GuestState;
use weir_vm::{GuestMemory, Monitor, Pages, Plugged, TakenRing, VmError, hotplug};

use super::inbox::{ClaimReply, Inbox, Request};
use super::{MachineStatus, NOT_SERVED};
use crate::guests::hypervisor::Hypervisor;
use crate::limits::{GUEST_LINGER, RELEASE_WAIT_MAX, UNPLUG_AGAIN_EVERY};
use detaching::Detaching;

/// Parameters of a machine.
pub(crate) struct Spec {
    pub(crate) name: Arc<str>,
    pub(crate) hypervisor: Box<dyn Hypervisor>,
    pub(crate) region_mib: u64,
    pub(crate) pages: Pages,
    /// Whether the guest's sessions use its virtio-serial port: QEMU reports when it is closed.
    pub(crate) has_port: bool,
    /// Ends the guest's session, if it has one.
    pub(crate) end_session: Box<dyn Fn() + Send>,
    /// Writes a line to the daemon's log.
    pub(crate) say: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Serves a machine on its thread.
pub(crate) struct Worker {
    spec: Spec,
    inbox: Arc<Inbox>,
    status: Arc<Mutex<MachineStatus>>,
    monitor: Option<Box<dyn Monitor + Send>>,
    /// When to try next to connect to a missing monitor.
    connect_at: Instant,
    /// When the last connection was made.
    connected_at: Instant,
    /// When the connection has lasted long enough to be logged.
    announce_at: Option<Instant>,
    /// When to read the machine's state again, because events may have been missed.
    state_again_at: VecDeque<Instant>,
    /// QEMU's id of the guest's port, which its events contain.
    port_id: Option<String>,
    is_paused: bool,
    /// Whether the monitor has events that the last turn did not handle.
    has_more_events: bool,
    /// The current fault of the monitor's connection.
    fault: Option<String>,
    /// The fault that was logged last.
    reported_fault: Option<String>,
    /// The reason why no devices could be plugged in. Callers that open a feed get this answer until the given time.
    refusal: Option<(Instant, String)>,
    active: Option<Active>,
    leaving: Leaving,
    waiting: Vec<(Instant, ClaimReply)>,
    is_detached: bool,
    detaching: Option<Detaching>,
    ends_by: Option<Instant>,
}

/// Devices that the guest uses.
struct Active {
    memory: Arc<GuestMemory>,
    plugged: Plugged,
    feeds: usize,
    /// Time since which there are no feeds.
    idle_since: Instant,
    /// Rings that applications in the guest may still read, and since when.
    left: Vec<(Instant, Arc<TakenRing>)>,
}

/// Devices that the guest must release.
struct Leaving {
    all: Vec<Plugged>,
    ask_at: Instant,
    /// When to check again whether QEMU has released the memory of removed devices, and the pause
    /// after that.
    look_at: Option<Instant>,
    look_pause: Duration,
}

impl Worker {
    pub(super) fn new(spec: Spec, inbox: Arc<Inbox>, status: Arc<Mutex<MachineStatus>>) -> Worker {
        let now = Instant::now();
        let look_pause = spec.hypervisor.unplug_look_after();
        Worker {
            spec,
            inbox,
            status,
            monitor: None,
            connect_at: now,
            connected_at: now,
            announce_at: None,
            state_again_at: VecDeque::new(),
            port_id: None,
            is_paused: false,
            has_more_events: false,
            fault: None,
            reported_fault: None,
            refusal: None,
            active: None,
            leaving: Leaving { all: Vec::new(), ask_at: now, look_at: None, look_pause },
            waiting: Vec::new(),
            is_detached: false,
            detaching: None,
            ends_by: None,
        }
    }

    /// Serves the machine until it is told to end.
    pub(crate) fn run(mut self) {
        loop {
            let is_over = self.turn();
            self.update_status();
            if is_over {
                return;
            }
            let monitor = self.monitor.as_ref().and_then(|monitor| monitor.readable());
            self.inbox.wait(monitor, self.due());
        }
    }

    /// Does the work that is due. Returns whether the thread must end.
    fn turn(&mut self) -> bool {
        for request in self.inbox.take() {
            match request {
                Request::End { unplugs: None } => return true,
                Request::End { unplugs: Some(within) } => self.end_within(within),
                other => self.take(other),
            }
        }
        self.connect();
        self.take_events();
        self.read_state_again();
        self.announce();
        self.continue_detaching();
        self.retire();
        self.remove();
        self.answer();
        self.ends_by.is_some_and(|until| self.has_no_devices() || until <= Instant::now())
    }

    fn take(&mut self, request: Request) {
        let now = Instant::now();
        match request {
            Request::Claim(reply) => {
                self.ask_leftovers_now(now);
                self.waiting.push((now + RELEASE_WAIT_MAX, reply));
            }
            Request::Release { memory, left } => {
                // The claim may belong to the memory of a QEMU that has ended: then it is not counted any more.
                let own = self.active.as_mut().filter(|own| Arc::ptr_eq(&own.memory, &memory));
                if let Some(own) = own {
                    own.feeds -= 1;
                    own.idle_since = now;
                    own.left.extend(left.map(|left| (now, left)));
                }
            }
            Request::Detach { within, begun, reply } => self.detach(within, &begun, reply),
            Request::Attach => self.attach(),
            Request::PortEnded => {
                // If QEMU has ended, its monitor has ended, too.
                self.connect_at = self.next_connection();
                let monitor =
                    self.monitor.as_mut().map(|monitor| hotplug::is_paused(monitor.as_mut()));
                if let Some(Err(error)) = monitor {
                    self.failed(&error);
                }
            }
            Request::End { .. } => {}
        }
    }

    /// Makes this turn ask the guest to release devices that an earlier daemon has left. They would stay for some time,
    /// but now a caller waits until they are gone.
    fn ask_leftovers_now(&mut self, now: Instant) {
        if self.leaving.ask_at > now + UNPLUG_AGAIN_EVERY {
            self.leaving.ask_at = now;
        }
    }

    fn has_no_devices(&self) -> bool {
        self.active.is_none() && self.leaving.all.is_empty()
    }

    /// Returns the message that nothing can be done without a monitor.
    fn unreachable(&self) -> String {
        let fault = self.fault.as_deref().unwrap_or("it has not been looked for yet");
        format!("the machine of guest {} cannot be reached: {fault}", self.spec.name)
    }

    /// Returns when the next turn is due, even if no request and no event comes before.
    fn due(&self) -> Option<Instant> {
        let connect = self.monitor.is_none().then_some(self.connect_at);
        let events = self.has_more_events.then(Instant::now);
        let active = self.active.as_ref().and_then(Active::due);
        let has_monitor = self.monitor.is_some() && !self.leaving.all.is_empty();
        let leaving = has_monitor.then(|| self.leaving.look_at.unwrap_or(self.leaving.ask_at));
        // Events of a monitor without a descriptor are asked for.
        let unreadable = self.monitor.as_ref().is_some_and(|monitor| monitor.readable().is_none());
        let poll = unreadable.then(|| Instant::now() + UNPLUG_AGAIN_EVERY);
        let waiting = self.waiting.iter().map(|(until, _)| *until).min();
        let detaching = self.detaching.as_ref().map(Detaching::due);
        let state = self.state_again_at.front().copied();
        [connect, events, active, leaving, poll, waiting, detaching, state, self.announce_at]
            .into_iter()
            .chain([self.ends_by])
            .flatten()
            .min()
    }

    /// Begins to ask the guest to release its devices.
    fn begin_removal(&mut self) {
        if let Some(active) = self.active.take() {
            self.leaving.all.push(active.plugged);
            self.leaving.ask_at = Instant::now();
        }
    }

    /// Removes devices that no feed has used for a while, and frees rings that are not read any
    /// more.
    fn retire(&mut self) {
        let Some(active) = &mut self.active else { return };
        active.left.retain(|(since, _)| since.elapsed() < GUEST_LINGER);
        if active.feeds == 0
            && active.idle_since.elapsed() >= GUEST_LINGER
            && self.waiting.is_empty()
        {
            self.begin_removal();
        }
    }

    /// Asks the guest repeatedly to release devices that are leaving, and removes those that it has
    /// released.
    fn remove(&mut self) {
        let now = Instant::now();
        let Leaving { all, ask_at, look_at, .. } = &mut self.leaving;
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
                // A device is gone before QEMU's other threads have released its memory. Then QEMU refuses to remove
                // the memory.
                result = Ok(());
            }
        }
        all.retain(|plugged| !plugged.is_gone());
        if asks {
            *ask_at = Instant::now() + UNPLUG_AGAIN_EVERY;
        }
        self.plan_next_look();
        match result {
            Ok(()) => self.continue_detaching(),
            Err(error) => self.failed(&error),
        }
    }

    /// Plans the next check of memory that QEMU still holds. The pauses double, up to [`UNPLUG_AGAIN_EVERY`].
    fn plan_next_look(&mut self) {
        let leaving = &mut self.leaving;
        if !leaving.all.iter().any(|plugged| plugged.devices().next().is_none()) {
            leaving.look_at = None;
            leaving.look_pause = self.spec.hypervisor.unplug_look_after();
            return;
        }
        leaving.look_at = Some(Instant::now() + leaving.look_pause);
        let next = (leaving.look_pause * 2).min(UNPLUG_AGAIN_EVERY);
        let is_now_longest = next == UNPLUG_AGAIN_EVERY && leaving.look_pause < next;
        leaving.look_pause = next;
        if is_now_longest {
            (self.spec.say)(&format!(
                "guest {}: QEMU still holds the memory of devices that are gone; it is asked again each second",
                self.spec.name
            ));
        }
    }

    fn update_status(&self) {
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
        let reason = self.fault.clone().or(paused);
        self.set_status(MachineStatus { state, reason, qemu, used_mib });
    }

    fn set_status(&self, status: MachineStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

impl Drop for Worker {
    /// Closes the inbox, also if this thread has panicked, so that waiting callers learn that they get no answer.
    fn drop(&mut self) {
        self.inbox.close();
        if std::thread::panicking() {
            let reason = "its thread in the daemon has failed, which is a bug; restart the daemon";
            (self.spec.say)(&format!("guest {}: {reason}", self.spec.name));
            let (state, reason) = (GuestState::Absent, Some(reason.to_owned()));
            self.set_status(MachineStatus { state, reason, qemu: None, used_mib: 0 });
        }
    }
}

impl Active {
    fn due(&self) -> Option<Instant> {
        let idle = (self.feeds == 0).then_some(self.idle_since);
        let left = self.left.iter().map(|(since, _)| *since);
        idle.into_iter().chain(left).min().map(|since| since + GUEST_LINGER)
    }
}

#[cfg(test)]
mod tests;
