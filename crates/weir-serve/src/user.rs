//! Clients that share the limits of one user.

use std::fmt;
use std::sync::Arc;

use weir_plug::Who;

/// A user: all processes of a user together, or a guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// A user of this machine, by id.
    Id(u32),
    /// A virtual machine, by the name that the daemon's file gives it.
    Guest(Arc<str>),
}

impl From<&Who> for User {
    fn from(who: &Who) -> User {
        match who {
            Who::Process(credentials) => User::Id(credentials.uid),
            Who::Guest(name) => User::Guest(Arc::clone(name)),
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Id(uid) => write!(f, "user {uid}"),
            User::Guest(name) => write!(f, "guest {name}"),
        }
    }
}
