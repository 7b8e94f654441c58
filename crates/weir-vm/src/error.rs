//! What can go wrong between the host and a virtual machine.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use weir_region::places::NoPlace;
use weir_ring::RingError;

use crate::limits::GUEST_NAME_BYTES_MAX;

/// Why a guest has no shared memory, or QEMU did not do what it was told.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VmError {
    /// The name cannot be part of a file name.
    #[error(
        "{name:?} cannot name the files of a guest; use 1 to {GUEST_NAME_BYTES_MAX} bytes without `/` and control \
         characters, and no `.` in front"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A size that no region can have.
    #[error(
        "a region of {mib} MiB is impossible; use a power of two from {min} to {max} (region_mib)"
    )]
    RegionSize {
        /// What was asked for.
        mib: u64,
        /// Smallest region, MiB.
        min: u64,
        /// Largest region, MiB.
        max: u64,
    },
    /// The folder is on a disk.
    #[error(
        "{folder} is on neither tmpfs nor hugetlbfs, so QEMU and its guest would wait for a disk; use a folder in \
         /dev/shm or /run, or mount a tmpfs there"
    )]
    NotMemory {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder whose path cannot be sent to QEMU.
    #[error("{folder:?} is not UTF-8, and QEMU takes paths as JSON text; use another folder")]
    NotText {
        /// The folder.
        folder: PathBuf,
    },
    /// Huge pages that are larger than the region.
    #[error(
        "a page of {folder} has {page_mib} MiB, more than half of the region of {mib} MiB; give the guest more \
         (region_mib), or use a folder with smaller pages"
    )]
    PageSize {
        /// The folder.
        folder: PathBuf,
        /// MiB of a page.
        page_mib: u64,
        /// MiB of the region.
        mib: u64,
    },
    /// No memory for a file.
    #[error(
        "{path}: its {bytes} bytes cannot be reserved; make the file system larger (`mount -o remount,size=`; for \
         hugetlbfs `sysctl vm.nr_hugepages`), or the region smaller (region_mib)"
    )]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file or folder refused something.
    #[error("{path}: cannot {doing}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The region has no place for a ring.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// The ring itself is impossible, or cannot be mapped.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// There is no random number for a token.
    #[error("the kernel gives no random numbers (getrandom)")]
    Random {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Nobody answers at the monitor's socket.
    #[error(
        "{path}: no QEMU answers there; is the machine running, with `-qmp unix:{path},server=on,wait=off`?"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Another program is connected to the monitor.
    #[error(
        "{path}: QEMU does not greet, as it talks to one program at a time at this socket; end the other program, or \
         give the machine another `-qmp` socket"
    )]
    MonitorBusy {
        /// The socket.
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
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// QEMU does not answer.
    #[error("QEMU did not answer `{command}` within {limit_ms} ms; is its process stopped?")]
    TimeOut {
        /// The command.
        command: &'static str,
        /// The limit, ms.
        limit_ms: u64,
    },
    /// What came is no QMP.
    #[error(
        "the other end of the monitor does not speak QMP ({what}); is the socket that of a `-qmp` option?"
    )]
    Protocol {
        /// What is wrong with it.
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
    /// There are not enough ports to plug devices into, or none that has room for the region.
    #[error(
        "this machine ({machine}) takes hot-plugged devices in PCIe root ports only. Two are needed, one with room for \
         {mib} MiB, and {free} are free; start it with `-device pcie-root-port,id=weir0,chassis=201,hotplug=on,\
         pref64-reserve={reserve_mib}M -device pcie-root-port,id=weir1,chassis=202,hotplug=on`"
    )]
    NoPort {
        /// QEMU's name of the kind of machine.
        machine: String,
        /// Free ports.
        free: usize,
        /// MiB of the region.
        mib: u64,
        /// MiB that a port has to reserve, so that the region fits wherever the firmware places them.
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
        /// The limit, ms.
        limit_ms: u64,
        /// QEMU's last refusal, if there was one.
        #[source]
        source: Option<Box<VmError>>,
    },
    /// QEMU keeps memory whose device is gone.
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
    /// Whether QEMU says that there is no such device.
    pub(crate) fn is_device_missing(&self) -> bool {
        matches!(self, VmError::Refused { class, .. } if class == "DeviceNotFound")
    }

    /// Whether QEMU refused, which leaves the connection as it was.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, VmError::Refused { .. })
    }
}
