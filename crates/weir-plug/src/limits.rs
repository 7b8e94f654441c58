//! Limits of messages and connections.

use std::time::Duration;

/// Longest message that a client takes, in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Longest message that a server takes, in bytes, unless told otherwise.
pub const SERVER_MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// The same before a client has said hello: anybody may connect.
pub const HELLO_BYTES_MAX: u32 = 4 << 10;
/// Longest text of an error, in characters.
pub const ERROR_CHARS_MAX: usize = 1000;
/// Connections of those who manage the server, beside all others.
pub const MANAGERS_MAX: usize = 8;
/// A message may have a value for so many of the bytes that it may have: a value may be two bytes of text, and an
/// object with one member takes some 600 in memory.
pub const BYTES_OF_A_VALUE: u32 = 32;
/// Longest id of a request, and longest part of a name that an answer repeats, in bytes.
pub const REPEATED_BYTES_MAX: usize = 64;
/// Most descriptors of one message that a client takes: a ring per CPU of a large machine. The process's own limit of
/// open files holds as well.
pub const CLIENT_DESCRIPTORS_MAX: usize = 1024;
/// Most descriptors of one message that a server takes, unless told otherwise.
pub const SERVER_DESCRIPTORS_MAX: usize = 16;
/// Most descriptors that travel beside one byte. The kernel takes 253 (`SCM_MAX_FD`).
pub const RUN_DESCRIPTORS_MAX: usize = 128;
/// Connections to a server at a time.
pub const CONNECTIONS_MAX: usize = 256;
/// Those of one user: the others keep places.
pub const CONNECTIONS_OF_A_USER_MAX: usize = 32;
/// Messages a second that a server takes from a connection; it reads no faster.
pub const MESSAGES_PER_SECOND_MAX: u32 = 200;
/// Messages that wait for a peer to read them. One more, and the peer is hung up.
pub const OUTGOING_MAX: usize = 256;
/// How long a message, its answer's way out, or the first message of a connection may take.
pub const PATIENCE_MAX: Duration = Duration::from_secs(30);
