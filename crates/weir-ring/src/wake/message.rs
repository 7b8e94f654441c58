//! The messages between a consumer and a writer's side.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::SendFlags;

/// Most messages that are read from a channel at a time, because a hostile peer could send without end.
pub(super) const MESSAGES_MAX: usize = 64;

/// The consumer's end of its channel to one writer's side.
#[derive(Debug, Default)]
pub(super) struct Channel {
    /// `None` once the channel is closed.
    pub(super) socket: Option<Arc<OwnedFd>>,
    /// Whether the writer's side confirms thresholds, because BPF programs write its rings.
    pub(super) confirms: bool,
    /// Whether the writer's side also wakes for each quarter of a ring.
    pub(super) knows_quarters: bool,
    /// Number of the present thresholds for quarters, and of those for which the doorbell was armed last.
    pub(super) quarters_asked: u32,
    pub(super) quarters_armed: u32,
    /// Number of the present thresholds, and whether a confirmation of them was requested.
    pub(super) asked: u32,
    pub(super) is_sent: bool,
    /// Number of the thresholds that were confirmed last.
    pub(super) confirmed: u32,
    /// Whether the sleeper's epoll descriptor watches this socket.
    pub(super) is_watched: bool,
}

// First byte of a message. A number of 4 bytes follows: that of a request or of its answer, or as described, else 0.

/// To the consumer: read the rings.
pub(super) const WAKE: u8 = 1;
/// To the consumer: this side confirms thresholds. The number is [`QUARTERS`] if it also wakes for each quarter of a
/// ring, else 0.
pub(super) const CONFIRMS: u8 = 2;
/// To the writer's side: thresholds are new.
pub(super) const LOOK: u8 = 3;
/// To the writer's side: thresholds are new, and a confirmation is requested.
pub(super) const REQUEST: u8 = 4;
/// To the consumer: all programs see the thresholds.
pub(super) const CONFIRMED: u8 = 5;
/// To the writer's side: thresholds are new, among them some for each quarter of a ring. Asks for a message when the
/// doorbell is armed for them.
pub(super) const ARM: u8 = 6;
/// To the consumer: the doorbell is armed for the thresholds of this number.
pub(super) const ARMED: u8 = 7;

/// The number of [`CONFIRMS`] of a side that wakes for each quarter of a ring.
pub(super) const QUARTERS: u32 = 1;

/// Sends a message. Errors are ignored: if the socket is full, unread messages will wake the peer; if the connection is
/// broken, there is no peer.
pub(super) fn send(socket: impl AsFd, kind: u8, number: u32) {
    let mut bytes = [kind; 5];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    let _ = rustix::net::send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

pub(super) fn number_of(message: &[u8; 8]) -> u32 {
    u32::from_le_bytes([message[1], message[2], message[3], message[4]])
}
