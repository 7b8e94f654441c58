//! The resources that each client uses. A client is a [`User`]: all of its processes together, or a
//! guest.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use weir_plug::message::{BUSY, RpcError};
use weir_plug::pace::Pace;

use crate::config::ClientLimits;
use crate::limits::{CLIENT_COMPILERS_MAX, COMPILE_WAIT_MAX};
use crate::user::User;

/// The resources that clients use.
#[derive(Debug)]
pub struct Usage {
    limits: RwLock<ClientLimits>,
    clients: Mutex<BTreeMap<User, Client>>,
    /// Notified when a filter was compiled.
    compiled: Condvar,
}

#[derive(Debug)]
struct Client {
    feeds: usize,
    mib: u64,
    compilers: usize,
    opens: Pace,
}

/// Counts a filter that a client compiles, until this value is dropped.
pub struct Compiling<'a> {
    usage: &'a Usage,
    user: User,
}

impl Drop for Compiling<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.usage.clients().get_mut(&self.user) {
            client.compilers -= 1;
        }
        self.usage.compiled.notify_all();
    }
}

impl Client {
    fn new(limits: &ClientLimits) -> Client {
        let opens = Pace::new(limits.opens_per_second, Instant::now());
        Client { feeds: 0, mib: 0, compilers: 0, opens }
    }
}

impl Usage {
    /// Creates the record. No client uses any resources yet.
    #[must_use]
    pub fn new(limits: ClientLimits) -> Usage {
        Usage { limits: RwLock::new(limits), clients: Mutex::default(), compiled: Condvar::new() }
    }

    /// Applies other limits. A client that uses more than its limit keeps it.
    pub fn set_limits(&self, limits: ClientLimits) {
        let (now, per_second) = (Instant::now(), limits.opens_per_second);
        self.clients().values_mut().for_each(|client| client.opens = Pace::new(per_second, now));
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    fn limits(&self) -> ClientLimits {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a feed of the user, with rings of this many MiB.
    ///
    /// # Errors
    /// The user has reached a limit; [`BUSY`]: it opens too many feeds in this second.
    pub fn open(&self, user: &User, mib: u64) -> Result<(), RpcError> {
        self.take_turn(user)?;
        self.open_again(user, mib)
    }

    /// Adds a feed that the user had a moment ago. Does not take a turn.
    ///
    /// # Errors
    /// The user has reached a limit.
    pub fn open_again(&self, user: &User, mib: u64) -> Result<(), RpcError> {
        let limits = self.limits();
        let mut clients = self.clients();
        let client = clients.entry(user.clone()).or_insert_with(|| Client::new(&limits));
        if client.feeds >= limits.feeds {
            let said = format!(
                "this would be feed {} of yours, and `[limits] feeds` in the daemon's file allows {}",
                client.feeds + 1,
                limits.feeds
            );
            return Err(RpcError::refused(said));
        }
        if client.mib + mib > limits.memory_mib {
            let (has, max) = (client.mib, limits.memory_mib);
            let said = format!(
                "its rings would have {mib} MiB beside the {has} MiB of your other feeds, and `[limits] memory_mib` \
                 in the daemon's file allows {max}"
            );
            return Err(RpcError::refused(said));
        }
        client.feeds += 1;
        client.mib += mib;
        Ok(())
    }

    /// Takes a turn for opening or changing a feed.
    ///
    /// # Errors
    /// [`BUSY`] if the user has used up its turns of this second.
    pub fn take_turn(&self, user: &User) -> Result<(), RpcError> {
        let (now, limits) = (Instant::now(), self.limits());
        let per_second = limits.opens_per_second;
        let mut clients = self.clients();
        let client = clients.entry(user.clone()).or_insert_with(|| Client::new(&limits));
        if !client.opens.try_take(now) {
            return Err(busy(format!("{per_second} feeds may be opened or changed in a second")));
        }
        Ok(())
    }

    /// Begins to compile a filter of the user. Waits while too many of the user's filters are being compiled.
    ///
    /// # Errors
    /// [`BUSY`] if the wait takes too long.
    pub fn compile(&self, user: &User) -> Result<Compiling<'_>, RpcError> {
        let limits = self.limits();
        let end = Instant::now() + COMPILE_WAIT_MAX;
        let mut clients = self.clients();
        loop {
            let client = clients.entry(user.clone()).or_insert_with(|| Client::new(&limits));
            if client.compilers < CLIENT_COMPILERS_MAX {
                client.compilers += 1;
                return Ok(Compiling { usage: self, user: user.clone() });
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(busy("other filters of yours are compiled, and take long".into()));
            }
            let waited = self.compiled.wait_timeout(clients, left);
            clients = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Records that the user closes a feed with rings of this many MiB.
    pub fn close(&self, user: &User, mib: u64) {
        if let Some(client) = self.clients().get_mut(user) {
            client.feeds -= 1;
            client.mib -= mib;
        }
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<User, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy(said: String) -> RpcError {
    RpcError::new(BUSY, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_much_and_others_have_as_much() {
        let usage = Usage::new(ClientLimits { feeds: 2, memory_mib: 10, opens_per_second: 1000 });
        usage.open(&User::Id(1), 4).unwrap();
        assert!(
            usage
                .open(&User::Id(1), 7)
                .unwrap_err()
                .message
                .contains("memory_mib` in the daemon's file allows 10")
        );
        usage.open(&User::Id(1), 4).unwrap();
        assert!(usage.open(&User::Id(1), 1).unwrap_err().message.ends_with("allows 2"));
        usage.open(&User::Id(2), 10).unwrap();
        usage.close(&User::Id(1), 4);
        usage.open(&User::Id(1), 6).unwrap();
    }

    #[test]
    fn a_user_has_so_many_filters_compiled_at_a_time_and_others_wait() {
        let usage = Usage::new(ClientLimits::default());
        let all: Vec<_> =
            (0..CLIENT_COMPILERS_MAX).map(|_| usage.compile(&User::Id(1)).unwrap()).collect();
        drop(usage.compile(&User::Id(2)).unwrap());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(usage.compile(&User::Id(1)).unwrap()));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waits.is_finished());
            drop(all);
        });
    }

    #[test]
    fn a_flood_of_opens_is_refused() {
        let usage = Usage::new(ClientLimits { opens_per_second: 3, ..ClientLimits::default() });
        let given = (0..100).filter(|_| usage.open(&User::Id(1), 1).is_ok()).count();
        assert!((3..10).contains(&given), "{given}");
        usage.open(&User::Id(2), 1).unwrap();
    }
}
