//! Limits of exports.

use std::time::Duration;

/// Most records in a batch.
pub const BATCH_RECORDS_MAX: usize = 1024;
/// Most batches that wait for one export: 128 Ki records, 16 MiB.
pub const BATCHES_MAX: usize = 128;
/// After the end of a live capture, waiting batches are sent for this time. For a trace all of them are sent, unless it
/// is stopped.
pub const FINISH_TIME_MAX: Duration = Duration::from_secs(5);
/// How long an export may block beyond its time limit before its thread is abandoned.
pub const HANG_TIME_MAX: Duration = Duration::from_secs(8);
/// How long an export that has to end at once may continue its present work.
pub const AT_ONCE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long an export tries again while the disk is full, if not configured. Then the export ends.
pub const FULL_TIME_MAX: Duration = Duration::from_secs(60);

/// Smallest permitted size of an IPFIX message over UDP, in bytes. Our longest record, the names of an interface, fits.
pub const DATAGRAM_BYTES_MIN: usize = 576;
/// Largest size of an IPFIX message over UDP, in bytes: the payload of an IPv4 datagram.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Size of an IPFIX message over UDP if not configured, in bytes. It fits an Ethernet frame with IPv6 and some tunnel
/// headers.
pub const DATAGRAM_BYTES: usize = 1400;
/// Largest size of an IPFIX message over TCP, in bytes: the header has 16 bits for the length.
pub const MESSAGE_BYTES_MAX: usize = 65_535;
/// Longest text in an options record, in bytes; longer ones are cut. From 255 on, IPFIX encodes the length differently.
pub const TEXT_BYTES_MAX: usize = 254;
/// Most addresses of a collector's name that are tried.
pub const ADDRESSES_MAX: usize = 4;
/// How long an attempt to connect over TCP may take.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a datagram waits for room in the socket's buffer. Sending it over a link of 1 Mbit/s takes 12 ms.
pub const DATAGRAM_TIME_MAX: Duration = Duration::from_millis(20);
/// How long writing a message over TCP may take before the connection counts as broken.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(2);
/// How long sent data may stay unacknowledged before the connection counts as broken.
pub const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of an export over TCP waits for acknowledgements of the last messages.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// How long the end of an export over UDP waits for an ICMP error about the last message.
pub const REFUSAL_TIME_MAX: Duration = Duration::from_millis(50);
/// First pause before a lost connection is made again. Each failure doubles the pause.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a lost connection is made again.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// After a pause, an export with a rate limit may at once send as much as the rate allows in this time: a few messages,
/// much less than a socket's buffer.
pub const PACE_CREDIT_MAX: Duration = Duration::from_millis(2);
/// Rate limit for templates and options over UDP, in bytes a second. The names of 500 interfaces, 254 bytes each, then
/// take 65 ms; sent at once, they would fill a socket's buffer of 208 KiB. Flows that come meanwhile wait in the queue.
pub const NOTES_PACE_BYTES: u32 = 4_000_000;
