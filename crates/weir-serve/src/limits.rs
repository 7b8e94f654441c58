//! How much a client may have, unless the daemon's file says otherwise.

use std::time::Duration;

/// Feeds that a client, which is a user, has open at a time: half of those that a source can have, so that one user
/// does not take them all.
pub const CLIENT_FEEDS_MAX: usize = 16;
/// MiB of rings that a client reads. Rings that others read as well count in full.
pub const CLIENT_MEMORY_MIB_MAX: u64 = 2048;
/// Feeds that a client opens, or changes, in a second: each may load a program into the kernel.
pub const CLIENT_OPENS_PER_SECOND_MAX: u32 = 20;
/// Filters of a client that are compiled at a time, each in a separate process.
pub const CLIENT_COMPILERS_MAX: usize = 2;
/// How long a client waits for its turn to have a filter compiled.
pub const COMPILE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Refused feeds that are logged in a minute, each in a line with at most `REFUSAL_CHARS_MAX` characters.
pub const REFUSALS_A_MINUTE_MAX: u32 = 20;
/// See [`REFUSALS_A_MINUTE_MAX`].
pub const REFUSAL_CHARS_MAX: usize = 300;
/// Entries of each feed that the text of an error names: the text has at most 1,000 characters.
pub const TOLD_ENTRIES_MAX: usize = 3;
/// Longest configuration file, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// How often a guest's port that is not there is looked for.
pub const GUEST_CONNECT_EVERY: Duration = Duration::from_secs(1);
/// How often a domain of libvirt's that does not run is looked for: two processes each time, one for its monitor and
/// one for its port.
pub const LIBVIRT_LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time for QEMU to greet a client of its monitor.
pub const QMP_PATIENCE_MAX: Duration = Duration::from_secs(5);
/// Events of QEMU's that are looked at before anything else is.
pub const QMP_EVENTS_AT_A_TIME: usize = 256;
/// Maximum time that a client which opens a guest's feed waits for the devices.
pub const CLAIM_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long it waits for the guest to release those that are leaving.
pub const RELEASE_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often a guest is asked to release its devices.
pub const UNPLUG_AGAIN_EVERY: Duration = Duration::from_secs(1);
/// Time until the first check whether QEMU has released memory whose device is gone. Each pause is twice as long as
/// the one before it, up to [`UNPLUG_AGAIN_EVERY`].
pub const UNPLUG_LOOK_AFTER: Duration = Duration::from_millis(10);
/// The same for a domain of libvirt's, where each look is two processes.
pub const LIBVIRT_UNPLUG_LOOK_AFTER: Duration = Duration::from_millis(200);
/// When the state of a domain of libvirt's is asked for again, after the connection to its monitor: events of the first
/// moments may be missed.
pub const LIBVIRT_STATE_AGAIN_AFTER: [Duration; 2] =
    [Duration::from_secs(1), Duration::from_secs(10)];
/// When the devices of a guest could not be plugged in, its requests for feeds are answered with the same error for so
/// long, without another try. A guest may ask often, and each try may cost the zeroing of its whole region.
pub const PLUG_REFUSAL_STAYS: Duration = Duration::from_secs(1);
/// How often the log reports a new session of a guest's broker: the guest decides how often it begins one.
pub const SESSIONS_TOLD_EVERY: Duration = Duration::from_secs(10);
/// Default time for a guest to release its devices when it is detached.
pub const DETACH_WAIT: Duration = Duration::from_secs(10);
/// The longest time that a detach command may name.
pub const DETACH_WAIT_MAX: Duration = Duration::from_secs(300);
/// Time that a caller which detaches a guest waits beyond that for its machine's thread, which may wait
/// for QEMU.
pub const DETACH_EXTRA_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long the end of the daemon, or the restart of a guest's threads, waits for the old threads.
pub const GUEST_END_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long the devices of a guest without feeds stay, and the places of feeds that it had when its session ended: its
/// applications read the remaining frames, and open feeds again.
pub const GUEST_LINGER: Duration = Duration::from_secs(5);
/// Frames that are copied to a guest together, and published together where they come without a pause.
pub const RELAY_RUN_FRAMES: u64 = 1024;
/// How long the end of copying to a guest is waited for: rings that stay open are read for 1 s more.
pub const RELAY_END_TIME_MAX: Duration = Duration::from_secs(3);
/// How long copying to a guest sleeps at a time. All that it waits for wakes it, and an idle host is to stay idle.
pub const RELAY_SLEEP_MAX: Duration = Duration::from_secs(3600);
/// How long frames are held on their way to a guest, for older ones of other CPUs.
pub const RELAY_SLACK: Duration = Duration::from_millis(10);
/// Sleepers that a feed wakes: a client with several consumers has one for each.
pub const SLEEPERS_OF_A_FEED_MAX: usize = 16;
/// How long a feed that was moved to fresh rings waits for its client. A client of ours comes within 0.2 s; frames
/// that it leaves longer may be overwritten by then, and hold memory.
pub const MOVED_FEEDS_WAIT_MAX: Duration = Duration::from_secs(10);
