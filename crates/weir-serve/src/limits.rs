//! Limits of clients, guests and the daemon. The daemon's file can set other values for a client's feeds, memory and
//! opens per second.

use std::time::Duration;

/// Most feeds that a client, which is a user, has open at a time: half of the feeds that a source can have, so that one
/// user cannot take all of them.
pub const CLIENT_FEEDS_MAX: usize = 16;
/// Most MiB of rings that a client reads. Rings that others also read count in full.
pub const CLIENT_MEMORY_MIB_MAX: u64 = 2048;
/// Most feeds that a client opens or changes in a second: each may load a program into the kernel.
pub const CLIENT_OPENS_PER_SECOND_MAX: u32 = 20;
/// Most filters of a client that are compiled at a time, each in a separate process.
pub const CLIENT_COMPILERS_MAX: usize = 2;
/// Longest wait of a client for its turn to have a filter compiled.
pub const COMPILE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Most refusals that are logged in a minute, each in a line with at most `REFUSAL_CHARS_MAX` characters.
pub const REFUSALS_A_MINUTE_MAX: u32 = 20;
/// See [`REFUSALS_A_MINUTE_MAX`].
pub const REFUSAL_CHARS_MAX: usize = 300;
/// Most entries of each feed that the text of an error names: the text has at most 1,000 characters.
pub const TOLD_ENTRIES_MAX: usize = 3;
/// Longest configuration file, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Interval at which a guest's missing port is looked for.
pub const GUEST_CONNECT_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a libvirt domain that does not run is looked for. Each attempt starts two
/// processes, one for the monitor and one for the port.
pub const LIBVIRT_LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest wait for the greeting of QEMU's monitor.
pub const QMP_PATIENCE_MAX: Duration = Duration::from_secs(5);
/// Most events of QEMU that are handled before other work is done.
pub const QMP_EVENTS_AT_A_TIME: usize = 256;
/// Longest time that a client which opens a guest's feed waits for the devices.
pub const CLAIM_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time that such a client waits until the guest has released devices that are leaving.
pub const RELEASE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval at which a guest is asked to release its devices.
pub const UNPLUG_AGAIN_EVERY: Duration = Duration::from_secs(1);
/// Time until the first check whether QEMU has released memory whose device is gone. Each pause is twice as long as
/// the one before it, up to [`UNPLUG_AGAIN_EVERY`].
pub const UNPLUG_LOOK_AFTER: Duration = Duration::from_millis(10);
/// The same time for a libvirt domain, where each check starts two processes.
pub const LIBVIRT_UNPLUG_LOOK_AFTER: Duration = Duration::from_millis(200);
/// Times after the connection to the monitor at which the state of a libvirt domain is read again,
/// because the first events may be missed.
pub const LIBVIRT_STATE_AGAIN_AFTER: [Duration; 2] =
    [Duration::from_secs(1), Duration::from_secs(10)];
/// After a failure to plug in a guest's devices, its requests for feeds get the same error for this
/// time without another attempt. A guest may ask often, and each attempt may zero its whole region.
pub const PLUG_REFUSAL_STAYS: Duration = Duration::from_secs(1);
/// Shortest interval between log lines about new sessions of a guest's broker, because the guest
/// decides how often it begins one.
pub const SESSIONS_TOLD_EVERY: Duration = Duration::from_secs(10);
/// Default time for a guest to release its devices when it is detached.
pub const DETACH_WAIT: Duration = Duration::from_secs(10);
/// The longest time that a detach command may name.
pub const DETACH_WAIT_MAX: Duration = Duration::from_secs(300);
/// Additional time that a caller which detaches a guest waits for the machine's thread, which may
/// be waiting for QEMU.
pub const DETACH_EXTRA_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long the end of the daemon, or the restart of a guest's threads, waits for the old threads.
pub const GUEST_END_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long the devices of a guest without feeds stay, and how long its rings stay after the end of its session. During
/// this time, applications in the guest can read the remaining frames, and open feeds again.
pub const GUEST_LINGER: Duration = Duration::from_secs(5);
/// Most frames that are copied to a guest at a time. They are published together if they come without a pause.
pub const RELAY_RUN_FRAMES: u64 = 1024;
/// Longest wait for the end of copying to a guest. Rings that stay open are read for another second.
pub const RELAY_END_TIME_MAX: Duration = Duration::from_secs(3);
/// Longest sleep of the thread that copies to a guest. Every event for which it waits wakes it, and an idle host must
/// stay idle.
pub const RELAY_SLEEP_MAX: Duration = Duration::from_secs(3600);
/// How long frames to a guest are held back for older frames of other CPUs.
pub const RELAY_SLACK: Duration = Duration::from_millis(10);
/// Most sleepers that a feed wakes. A client has a sleeper for each of its consumers.
pub const SLEEPERS_OF_A_FEED_MAX: usize = 16;
/// How long a feed that was moved to new rings waits for its client. Weir's own clients come within 0.2 s. Frames that
/// wait longer hold memory, and may be overwritten.
pub const MOVED_FEEDS_WAIT_MAX: Duration = Duration::from_secs(10);
