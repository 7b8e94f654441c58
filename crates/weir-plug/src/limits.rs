//! Limits of messages and connections.

use std::time::Duration;

/// Longest message that a client accepts, in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Longest message that a server accepts, in bytes, by default.
pub const SERVER_MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// Longest message before a client's hello, in bytes. It is short, because any process may connect.
pub const HELLO_BYTES_MAX: u32 = 4 << 10;
/// Longest text of an error, in characters.
pub const ERROR_CHARS_MAX: usize = 1000;
/// Additional connections that are reserved for users who manage the server.
pub const MANAGERS_MAX: usize = 8;
/// A message may have at most one JSON value for this many bytes of its size limit. The text of a value may be only two
/// bytes long, but an object with one member takes some 600 bytes in memory.
pub const BYTES_OF_A_VALUE: u32 = 32;
/// Longest id of a request, and longest part of a name that an answer repeats, in bytes.
pub const REPEATED_BYTES_MAX: usize = 64;
/// Most descriptors of one message that a client accepts: a ring for each CPU of a large machine. The process's
/// limit of open files also applies.
pub const CLIENT_DESCRIPTORS_MAX: usize = 1024;
/// Most descriptors of one message that a server accepts, by default.
pub const SERVER_DESCRIPTORS_MAX: usize = 16;
/// Most descriptors that are sent with one byte. The kernel allows 253 (`SCM_MAX_FD`).
pub const RUN_DESCRIPTORS_MAX: usize = 128;
/// Most connections to a server at a time.
pub const CONNECTIONS_MAX: usize = 256;
/// Most connections of one user at a time, so that other users can still connect.
pub const CONNECTIONS_OF_A_USER_MAX: usize = 32;
/// Most messages that a server reads from a connection in a second. Further messages are read later.
pub const MESSAGES_PER_SECOND_MAX: u32 = 200;
/// Most messages that wait for a peer to read them. If there are more, the connection is closed.
pub const OUTGOING_MAX: usize = 256;
/// Time limit for the rest of a message once it has begun, for sending an answer, and for the first message of a
/// connection.
pub const PATIENCE_MAX: Duration = Duration::from_secs(30);
