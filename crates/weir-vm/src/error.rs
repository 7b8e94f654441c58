//! Errors of the host's side of a virtual machine.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use weir_region::places::NoPlace;
use weir_ring::RingError;

/// The reason why a guest has no shared memory, or why QEMU did not carry out a command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VmError {
    /// No region can have this size.
    #[error(
        "a region of {mib} MiB is impossible; use a power of two from {min} to {max} (region_mib)"
    )]
    RegionSize {
        /// The requested size.
        mib: u64,
        /// Smallest region, in MiB.
        min: u64,
        /// Largest region, in MiB.
        max: u64,
    },
    /// There is no memory for a region.
    #[error(
        "a region of {mib} MiB cannot be had; make it smaller (region_mib), or free memory (huge pages: `sysctl \
         vm.nr_hugepages`, or leave out hugepages)"
    )]
    NoMemory {
        /// Size of the region in MiB.
        mib: u64,
        /// The error.
        #[source]
        source: RingError,
    },
    /// The page of the guest's words cannot be created.
    #[error("the words of a guest: cannot {doing}")]
    Words {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The region has no place for a ring.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// The ring has an impossible size, or cannot be mapped.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The kernel returns no random numbers for a token.
    #[error("the kernel gives no random numbers (getrandom)")]
    Random {
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// No program listens on the monitor's socket.
    #[error(
        "{path}: no QEMU answers there; is the machine running, with `-qmp unix:{path},server=on,wait=off`?"
    )]
    Connect {
        /// The path of the socket.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The monitor's socket cannot be connected to, although a QEMU may be there.
    #[error(
        "{path}: QEMU's monitor cannot be connected to; may the daemon write to this socket, and has it descriptors \
         left?"
    )]
    NotConnected {
        /// The path of the socket.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Another program is connected to the monitor.
    #[error(
        "{path}: QEMU does not greet, as it talks to one program at a time at this socket; end the other program, or \
         give the machine another `-qmp` socket"
    )]
    MonitorBusy {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The connection to QEMU has ended.
    #[error("QEMU has closed its monitor while `{command}` was under way; has the machine ended?")]
    Closed {
        /// The command.
        command: &'static str,
    },
    /// The socket of the monitor failed.
    #[error("the connection to QEMU's monitor failed at `{command}`; connect again")]
    Socket {
        /// The command.
        command: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// QEMU does not answer.
    #[error("QEMU did not answer `{command}` within {limit_ms} ms; is its process stopped?")]
    TimeOut {
        /// The command.
        command: &'static str,
        /// The limit, in ms.
        limit_ms: u64,
    },
    /// The received bytes are not QMP.
    #[error(
        "the other end of the monitor does not speak QMP ({what}); is the socket that of a `-qmp` option?"
    )]
    Protocol {
        /// The reason why they are not.
        what: &'static str,
    },
    /// QEMU refused a command.
    #[error("QEMU refused `{command}`: {text} ({class})")]
    Refused {
        /// The command.
        command: &'static str,
        /// QEMU's class of the error.
        class: String,
        /// QEMU's text, shortened.
        text: String,
    },
    /// Libvirt has not carried out a command.
    #[error("libvirt: {doing} fails: {text}")]
    Libvirt {
        /// The action that failed.
        doing: &'static str,
        /// The message of virsh, shortened.
        text: String,
    },
    /// Libvirt knows no such domain, or the domain does not run.
    #[error("libvirt: the domain {domain} does not run: {text}")]
    NotRunning {
        /// The name of the domain.
        domain: String,
        /// The message of virsh, shortened.
        text: String,
    },
    /// The domain has no channel for feeds.
    #[error(
        "libvirt: the domain {domain} has no channel {target} with a socket, or does not run; `weir vm prepare \
         --libvirt` prints what it needs"
    )]
    NoChannel {
        /// The name of the domain.
        domain: String,
        /// The name of the channel's target.
        target: String,
    },
    /// virsh does not exist, or cannot be started.
    #[error(
        "virsh cannot be started; install libvirt's clients (Debian: libvirt-clients), 8.5 or later"
    )]
    NoVirsh(#[source] io::Error),
    /// There are not enough free ports for the devices, or none has room for the region.
    #[error(
        "this machine ({machine}) takes hot-plugged devices in PCIe root ports only. Two are needed, one with room for \
         {mib} MiB, and {free} are free; start it with `-device pcie-root-port,id=weir0,chassis=201,hotplug=on,\
         pref64-reserve={reserve_mib}M -device pcie-root-port,id=weir1,chassis=202,hotplug=on`"
    )]
    NoPort {
        /// QEMU's name of the machine type.
        machine: String,
        /// Number of free ports.
        free: usize,
        /// Size of the region in MiB.
        mib: u64,
        /// MiB that a port must reserve, so that the region fits wherever the firmware places the port's window.
        reserve_mib: u64,
    },
    /// The guest has not released a device.
    #[error(
        "the guest has not released {devices} within {limit_ms} ms; is it paused, or hung, or not yet booted? Try \
         again when it runs, or after its reset"
    )]
    NotReleased {
        /// Ids of the devices.
        devices: String,
        /// The limit, in ms.
        limit_ms: u64,
        /// QEMU's last refusal, if there was one.
        #[source]
        source: Option<Box<VmError>>,
    },
    /// QEMU still holds memory whose device is gone.
    #[error("QEMU still holds {objects} although the devices are gone; try again")]
    StillHeld {
        /// Ids of the objects.
        objects: String,
        /// QEMU's last refusal.
        #[source]
        source: Box<VmError>,
    },
}

impl VmError {
    /// Tells whether QEMU has answered that there is no such device.
    pub(crate) fn is_device_missing(&self) -> bool {
        matches!(self, VmError::Refused { class, .. } if class == "DeviceNotFound")
    }

    /// Returns the error for a failed connection to a monitor's socket. Only if the socket is missing, or no program
    /// listens on it, has the machine ended.
    pub(crate) fn not_connected(path: &Path, source: io::Error) -> VmError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                VmError::Connect { path, source }
            }
            _ => VmError::NotConnected { path, source },
        }
    }

    /// Tells whether the error means that there is no machine: no program listens on its monitor.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, VmError::Connect { .. } | VmError::NotRunning { .. })
    }

    /// Tells whether QEMU has refused a command: then the connection can still be used.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, VmError::Refused { .. })
    }
}
