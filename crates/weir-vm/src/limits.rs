//! Limits of this crate.

use std::time::Duration;

/// Longest message of QEMU. `query-pci` of a machine with all its slots taken is a tenth of it.
pub const QMP_LINE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of messages with events that nobody has taken yet; then the oldest go. An event has some 150 bytes.
pub const QMP_EVENTS_BYTES_MAX: usize = 1 << 20;
/// Most characters of a text of QEMU's that an error repeats.
pub const QMP_TEXT_CHARS_MAX: usize = 300;
/// Longest wait for the answer to a command. QEMU answers between two turns of its main loop, which writing a snapshot
/// can stop for seconds.
pub const QMP_COMMAND_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest time for a look at all parts of a machine, which takes several commands: one for each of its ports, and
/// more.
pub const QMP_LOOK_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest wait for virsh, beyond the time that the command itself may take.
pub const VIRSH_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a command of virsh's that a person waits for: libvirt may first try all that its QEMU can do.
pub const VIRSH_COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest text of virsh that is read: the XML of a domain has some 10 KiB.
pub const VIRSH_BYTES_MAX: usize = 4 << 20;
/// Most events of virsh that nobody has taken yet; then the oldest go.
pub const VIRSH_EVENTS_MAX: usize = 4096;

/// Most PCIe ports of a machine that are looked at: a bus number each, of which there are 256.
pub const PORTS_MAX: usize = 256;
/// Most virtio-serial ports of a machine that are looked at; a controller has 31.
pub const VIRTIO_PORTS_MAX: usize = 64;
/// Most pairs of devices of ours that are looked for in a machine, those with the largest numbers. A daemon that is
/// killed leaves one.
pub const PLUGGED_MAX: usize = 16;
/// Longest wait for a guest to release a device whose companion could not be plugged in.
pub const TAKE_BACK_TIME_MAX: Duration = Duration::from_secs(5);
