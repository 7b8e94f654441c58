//! Limits of messages and connections.

use std::time::Duration;

/// Longest message, in bytes: a full block list, 65,536 flows of IPv6, is 7 MB of text.
pub const MESSAGE_BYTES_MAX: u32 = 16 << 20;
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
