//! Limits of this crate.

use std::time::Duration;

/// Longest message of QEMU, in bytes. The answer to `query-pci` of a machine without free slots has a tenth of it.
pub const QMP_LINE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of messages with events that were not taken yet; above that, the oldest are discarded. An event has some
/// 150 bytes.
pub const QMP_EVENTS_BYTES_MAX: usize = 1 << 20;
/// Most characters of a text of QEMU that an error repeats.
pub const QMP_TEXT_CHARS_MAX: usize = 300;
/// Longest wait for the answer to a command. QEMU answers in its main loop, which can be blocked for seconds while a
/// snapshot is written.
pub const QMP_COMMAND_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest time to search all parts of a machine. That takes several commands: one for each of its ports, and more.
pub const QMP_LOOK_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest run time of virsh, in addition to the time of the command itself.
pub const VIRSH_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a virsh command that a person has started: libvirt may first probe the features of its QEMU.
pub const VIRSH_COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Most bytes that are read from virsh: the XML of a domain has some 10 KiB.
pub const VIRSH_BYTES_MAX: usize = 4 << 20;
/// Most events from virsh that were not taken yet; above that, the oldest are discarded.
pub const VIRSH_EVENTS_MAX: usize = 4096;

/// Most PCIe ports of a machine that are checked: each has a bus number, of which there are 256.
pub const PORTS_MAX: usize = 256;
/// Most virtio-serial ports of a machine that are checked; a controller has 31.
pub const VIRTIO_PORTS_MAX: usize = 64;
/// Most pairs of our devices that are handled in a machine, those with the largest numbers. A killed daemon leaves one
/// pair.
pub const PLUGGED_MAX: usize = 16;
/// Longest wait for a guest to release the region after the words could not be plugged in.
pub const TAKE_BACK_TIME_MAX: Duration = Duration::from_secs(5);
