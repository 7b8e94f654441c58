//! Limits of exports.

use std::time::Duration;

/// Records of a batch, at most.
pub const BATCH_RECORDS_MAX: usize = 1024;
/// Batches that wait for one export: 128 Ki records, 16 MiB.
pub const BATCHES_MAX: usize = 128;
/// How long batches of a capture still go out after its end. A trace waits for all of them, unless it is stopped.
pub const FINISH_TIME_MAX: Duration = Duration::from_secs(5);
/// How long behind that an export may be in the middle of something before it is left there.
pub const HANG_TIME_MAX: Duration = Duration::from_secs(8);
/// How long an export that is to end at once may go on with its present work.
pub const AT_ONCE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a disk that is full is tried again, if not said, until an export into files ends.
pub const FULL_TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes of an IPFIX message over UDP, at least: the longest record of ours (names of an interface) fits.
pub const DATAGRAM_BYTES_MIN: usize = 576;
/// Bytes of an IPFIX message over UDP, at most: the payload of an IPv4 datagram.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Bytes of an IPFIX message over UDP, if not said: fits an Ethernet frame behind IPv6, with room for tunnels.
pub const DATAGRAM_BYTES: usize = 1400;
/// Bytes of an IPFIX message over TCP: its header has 16 bits for the length.
pub const MESSAGE_BYTES_MAX: usize = 65_535;
/// Bytes of a name that a collector is told; longer ones are cut. 255 would take another form of length.
pub const TEXT_BYTES_MAX: usize = 254;
/// Addresses of a collector's name that are tried.
pub const ADDRESSES_MAX: usize = 4;
/// A collector that does not answer a connection by then is away.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a datagram waits for room in the socket. A link of 1 Mbit/s makes it in 12 ms.
pub const DATAGRAM_TIME_MAX: Duration = Duration::from_millis(20);
/// A collector that has not taken a message over TCP by then is away.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(2);
/// A collector that acknowledges nothing for so long is away.
pub const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last messages wait to be acknowledged when an export ends.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// How long the answer of a machine where nobody listens is waited for when an export over UDP ends.
pub const REFUSAL_TIME_MAX: Duration = Duration::from_millis(50);
/// The first pause before a collector that was lost is connected to again; each failure doubles it.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest of these pauses.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// How much a paced export may send at once after a pause: a few messages, far less than a socket's buffer.
pub const PACE_CREDIT_MAX: Duration = Duration::from_millis(2);
/// Bytes of templates and options a second over UDP, at most: names of 500 interfaces, 254 bytes each, take 65 ms
/// instead of filling a socket's buffer of 208 KiB at once, and flows that come meanwhile wait as batches do.
pub const NOTES_PACE_BYTES: u32 = 4_000_000;
