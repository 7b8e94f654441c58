//! Starts, stops, lists and detaches guests.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use weir_client::protocol;
use weir_plug::message::RpcError;
use weir_plug::{Serving, Who};

use crate::board::tell_gone;
use crate::config::GuestConfig;
use crate::daemon::Daemon;
use crate::guests::hypervisor;
use crate::guests::machine::{Machine, Spec};
use crate::guests::session::GuestSession;
use crate::guests::{Guest, GuestServer, GuestThreads, ThreadGuard};
use crate::limits::{DETACH_WAIT, DETACH_WAIT_MAX, GUEST_END_WAIT_MAX};
use crate::reader::Reader;

/// The end of the thread of a guest's machine. When this is dropped, also after a panic, the guest's other thread and
/// its session end, too.
struct MachineThread {
    guest: Arc<Guest>,
    _thread: ThreadGuard,
}

impl Drop for MachineThread {
    fn drop(&mut self) {
        self.guest.threads.end();
        self.guest.session.end_session();
    }
}

impl Daemon {
    /// Serves each guest of the file over `serving`, on separate threads, until [`end_guests`](Daemon::end_guests).
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn serve_guests(self: &Arc<Daemon>, serving: &Arc<Serving>) -> io::Result<()> {
        let _changes = self.guests.lock_changes();
        let own = Arc::downgrade(self);
        let say =
            move |line: &str| own.upgrade().iter().for_each(|daemon| daemon.journal.say(line));
        *self.guests.server() =
            Some(GuestServer { serving: Arc::downgrade(serving), say: Arc::new(say) });
        let config = self.config();
        config.guests.iter().try_for_each(|(name, guest)| self.begin_guest(name, guest, None))
    }

    /// Ends the threads of all guests and waits for them, but only for a limited time: a thread may wait for a QEMU
    /// that does not answer. Plugged devices stay; the next daemon unplugs them.
    pub fn end_guests(&self) {
        let _changes = self.guests.lock_changes();
        let all = self.guests.all();
        for guest in &all {
            guest.threads.end();
            guest.session.end_session();
            guest.machine.end(None);
        }
        let until = Instant::now() + GUEST_END_WAIT_MAX;
        for guest in &all {
            guest.threads.wait(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Applies a new configuration: new or changed guests start, removed or changed ones end, and
    /// their devices are unplugged. The caller holds [`lock_changes`](crate::guests::Guests) and
    /// the [`handing`](Daemon::handing) of all sources, and closes the guests' feeds.
    pub(crate) fn change_guests(&self) {
        let (config, mut ended) = (self.config(), Vec::new());
        for guest in self.guests.all() {
            if config.guests.get(&*guest.name) != Some(&guest.config) {
                self.guests.remove(&guest);
                guest.machine.end(Some(DETACH_WAIT));
                ended.push(guest);
            }
        }
        for (name, guest) in &config.guests {
            if self.guests.get(name).is_some() {
                continue;
            }
            let before = ended.iter().find(|ended| *ended.name == **name).cloned();
            if let Err(error) = self.begin_guest(name, guest, before) {
                self.journal.say(&format!("guest {name}: it is not served: {error}"));
            }
        }
    }

    /// Starts the threads of a guest, after those of an earlier guest of this name have ended.
    fn begin_guest(
        &self,
        name: &str,
        config: &GuestConfig,
        before: Option<Arc<Guest>>,
    ) -> io::Result<()> {
        let Some(GuestServer { serving, say }) = self.guests.server().clone() else {
            return Ok(());
        };
        let (name, session): (Arc<str>, _) = (name.into(), Arc::new(GuestSession::default()));
        let ended = Arc::clone(&session);
        let spec = Spec {
            name: Arc::clone(&name),
            hypervisor: hypervisor::of(config),
            region_mib: config.region_mib,
            pages: config.pages(),
            has_port: config.vsock.is_none(),
            end_session: Box::new(move || ended.end_session()),
            say: Arc::clone(&say),
        };
        let (machine, worker) = Machine::new(spec)?;
        let (config, threads) = (config.clone(), Arc::new(GuestThreads::new()?));
        let guest = Arc::new(Guest {
            name,
            config,
            session,
            machine,
            threads,
            session_told: Mutex::default(),
        });
        let own = MachineThread { guest: Arc::clone(&guest), _thread: guest.threads.count_one() };
        let (earlier, counted) = (before.clone(), guest.threads.count_one());
        let wait = move |before: Option<Arc<Guest>>| {
            before.iter().for_each(|before| before.threads.wait(DETACH_WAIT + GUEST_END_WAIT_MAX));
        };
        let thread = thread::Builder::new().name(format!("machine {}", guest.name));
        thread.spawn(move || {
            wait(earlier);
            worker.run();
            // Dropped only now: until the devices are unplugged, the guest can report that it has closed its feeds.
            drop(own);
        })?;
        let served = Arc::clone(&guest);
        let thread = thread::Builder::new().name(format!("guest {}", guest.name));
        let spawned = thread.spawn(move || {
            wait(before);
            let hypervisor = hypervisor::of(&served.config);
            served.serve(hypervisor.as_ref(), &serving, say.as_ref());
            drop(counted);
        });
        if let Err(error) = spawned {
            guest.machine.end(None);
            return Err(error);
        }
        self.guests.add(&guest);
        Ok(())
    }

    /// Returns the guests that are served. Does not wait for machines.
    #[must_use]
    pub fn guests(&self) -> Vec<protocol::Guest> {
        let of = |guest: &Arc<Guest>| {
            let status = guest.machine.status();
            let sources = self.sources(&Who::Guest(Arc::clone(&guest.name)));
            protocol::Guest {
                name: guest.name.to_string(),
                state: status.state,
                reason: status.reason,
                qemu: status.qemu,
                has_session: guest.session.has_session(),
                sources: sources.into_keys().collect(),
                feeds: self.feeds_of(&guest.name).len(),
                region_mib: guest.config.region_mib,
                used_mib: status.used_mib,
            }
        };
        self.guests.all().iter().map(of).collect()
    }

    /// Closes the feeds of a guest and unplugs its devices. The guest cannot open feeds until
    /// [`attach_guest`](Daemon::attach_guest).
    ///
    /// # Errors
    /// There is no such guest, its machine cannot be reached, or it has not released the devices in time.
    pub fn detach_guest(&self, name: &str, within_ms: Option<u64>) -> Result<(), RpcError> {
        let guest = self.known_guest(name)?;
        let within = within_ms.map_or(DETACH_WAIT, Duration::from_millis).min(DETACH_WAIT_MAX);
        let detached = guest.machine.detach(within, || {
            let reason = format!(
                "detached from the host; feeds open again after `weir vm attach {name}` there"
            );
            self.close_feeds_of(name, &reason);
        });
        detached.map_err(RpcError::refused)
    }

    /// Allows a guest to open feeds again.
    ///
    /// # Errors
    /// There is no such guest.
    pub fn attach_guest(&self, name: &str) -> Result<(), RpcError> {
        self.known_guest(name)?.machine.attach();
        Ok(())
    }

    fn known_guest(&self, name: &str) -> Result<Arc<Guest>, RpcError> {
        self.guests.get(name).ok_or_else(|| {
            let all: Vec<String> =
                self.guests.all().iter().map(|guest| guest.name.to_string()).collect();
            let name: String = name.chars().take(64).collect();
            let there = match all.is_empty() {
                true => "has none".to_owned(),
                false => format!("has {}", all.join(", ")),
            };
            RpcError::params(format!(
                "there is no guest '{name}': [guests] of the daemon's file {there}"
            ))
        })
    }

    /// Returns the open feeds of a guest.
    fn feeds_of(&self, guest: &str) -> Vec<Arc<Reader>> {
        let is_own = |who: &Who| matches!(who, Who::Guest(name) if **name == *guest);
        let mut readers = self.board.readers();
        readers.retain(|reader| is_own(&reader.who) && !reader.is_closed());
        readers
    }

    /// Closes the feeds of a guest, and waits for their copies together.
    fn close_feeds_of(&self, guest: &str, reason: &str) {
        let mut readers = self.feeds_of(guest);
        for reader in &readers {
            tell_gone(reader, Some(reason));
        }
        readers.retain(|reader| self.begin_close_alone(reader));
        self.finish_all(&readers);
    }
}
