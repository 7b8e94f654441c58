//! Messages of a consumer and a writer's side on their socket.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::SendFlags;

/// Messages that are read from a channel at a time: those of a hostile other side are as many as it likes.
pub(super) const MESSAGES_MAX: usize = 64;

/// The consumer's end of its channel to one writer's side.
#[derive(Debug, Default)]
pub(super) struct Channel {
    /// `None` once the writer's side has gone.
    pub(super) socket: Option<Arc<OwnedFd>>,
    /// The other side confirms thresholds: its programs need it.
    pub(super) confirms: bool,
    /// Number of the thresholds that stand, and whether their confirmation was asked for.
    pub(super) asked: u32,
    pub(super) is_sent: bool,
    /// Number of those that were confirmed last.
    pub(super) confirmed: u32,
    /// The sleeper's descriptor for polling has its socket.
    pub(super) is_watched: bool,
}

// First byte of a message. A number of 4 bytes is behind it: that of a request and its confirmation, else 0.

/// Look at the rings.
pub(super) const WAKE: u8 = 1;
/// This side confirms thresholds.
pub(super) const CONFIRMS: u8 = 2;
/// Thresholds are new.
pub(super) const LOOK: u8 = 3;
/// To be told when all programs see them.
pub(super) const REQUEST: u8 = 4;
/// They are told.
pub(super) const CONFIRMED: u8 = 5;

/// Sends a message, or does without: a socket that takes no more holds messages that nobody has read, and one that is
/// broken has nobody at its other end.
pub(super) fn send(socket: impl AsFd, kind: u8, number: u32) {
    let mut bytes = [kind; 5];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    let _ = rustix::net::send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

pub(super) fn number_of(message: &[u8; 8]) -> u32 {
    u32::from_le_bytes([message[1], message[2], message[3], message[4]])
}
