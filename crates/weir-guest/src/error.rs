//! Errors of the host's devices and their contents.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use weir_region::limits::SLOTS_MAX;
use weir_region::{NotOurs, Place, Token};
use weir_ring::RingError;

/// Why the host's rings cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuestError {
    /// One or both devices with this token do not exist.
    #[error(
        "{missing} (token {token}) did not appear among the PCI devices in {} ms; {}{}",
        waited.as_millis(), SeenList(seen), remedy(seen)
    )]
    NotFound {
        /// The missing device, or both.
        missing: &'static str,
        /// The token that was searched for.
        token: Token,
        /// How long the search took.
        waited: Duration,
        /// The existing devices of this type, and why each of them was not used.
        seen: Vec<SeenDevice>,
    },
    /// The folder of PCI devices cannot be read.
    #[error("cannot list the PCI devices in {}; is sysfs mounted, and has this machine PCI?", folder.display())]
    NoPci {
        /// Path of the folder.
        folder: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The host named a place that is not possible in the region.
    #[error(
        "the host names a place in the region that cannot be: {} bytes at {}, slot {}, in a region of {region_bytes} \
         bytes; use the same release of Weir on both sides",
        place.bytes, place.offset, place.slot
    )]
    Place {
        /// The place that the host named.
        place: Place,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// The data at a place is not a ring that can be read.
    #[error(
        "the host's ring at {} of the region, {} bytes, cannot be read; open the feed again",
        place.offset, place.bytes
    )]
    Ring {
        /// The place that the host named.
        place: Place,
        /// Error of the ring.
        #[source]
        source: RingError,
    },
    /// The slot does not exist.
    #[error(
        "there is no slot {slot}: the words have {SLOTS_MAX}; use the same release of Weir on both sides"
    )]
    Slot {
        /// The requested slot.
        slot: u32,
    },
    /// The sleeper's wake page does not have this line.
    #[error("the sleeper has {lines} lines and waits on line {line}; refuse it")]
    Line {
        /// Number of the line.
        line: usize,
        /// Number of lines of the page.
        lines: usize,
    },
    /// A system call failed.
    #[error("{doing} failed")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl GuestError {
    pub(crate) fn os<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> GuestError {
        move |source| GuestError::Os { doing, source: source.into() }
    }
}

/// A device of the right type that is another one, or cannot be used yet.
#[derive(Debug)]
pub struct SeenDevice {
    /// PCI address of the device, in the format of sysfs.
    pub address: String,
    /// Why the device was not used.
    pub why: DeviceError,
}

/// Errors of a device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A file of the device in sysfs could not be used.
    #[error("{doing} `{file}` failed")]
    File {
        /// The action that failed: reading, writing, opening.
        doing: &'static str,
        /// Name of the file.
        file: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The device's BAR has no address.
    #[error("its memory (BAR 2) has no address yet, or there is no room for it")]
    NoBar,
    /// The device's BAR is too short even for a header.
    #[error("its memory (BAR 2) has {bytes} bytes")]
    Short {
        /// Bytes of the BAR, or of its file.
        bytes: u64,
    },
    /// The device's BAR cannot be mapped.
    #[error("its memory (BAR 2) cannot be mapped")]
    Map(#[source] RingError),
    /// The device's memory does not begin with a valid header.
    #[error("its memory is not a Weir daemon's")]
    NotOurs(#[source] NotOurs),
    /// The device belongs to an earlier session, or to another daemon.
    #[error("it has another token, {0}")]
    OtherToken(Token),
    /// The length in the device's header is not that of its BAR.
    #[error("its header says {header} bytes, and its memory (BAR 2) has {bar}")]
    Bytes {
        /// Bytes that the header states.
        header: u64,
        /// Bytes that the kernel states.
        bar: u64,
    },
}

/// Formats the devices that were seen, each with its error and that error's sources, which the caller cannot get
/// otherwise.
struct SeenList<'a>(&'a [SeenDevice]);

impl fmt::Display for SeenList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "no such device (1af4:1110, ivshmem) is there");
        }
        write!(f, "of this kind (1af4:1110, ivshmem) are there: ")?;
        for (number, SeenDevice { address, why }) in self.0.iter().enumerate() {
            write!(f, "{}{address}: {why}", if number == 0 { "" } else { ", " })?;
            let mut cause = std::error::Error::source(why);
            while let Some(error) = cause {
                write!(f, ": {error}")?;
                cause = error.source();
            }
        }
        Ok(())
    }
}

/// Returns a remedy for devices that did not appear.
fn remedy(seen: &[SeenDevice]) -> &'static str {
    let is_denied = |why: &DeviceError| {
        let kind = match why {
            DeviceError::File { source, .. } | DeviceError::Map(RingError::Os { source, .. }) => {
                source.kind()
            }
            _ => return false,
        };
        kind == io::ErrorKind::PermissionDenied
    };
    if seen.iter().any(|device| is_denied(&device.why)) {
        return "; run as root, and without kernel lockdown (Secure Boot), which forbids to map PCI memory";
    }
    if seen.iter().any(|device| matches!(device.why, DeviceError::NoBar)) {
        return "; reserve address space for it: on q35 `pref64-reserve` of its pcie-root-port (`weir vm check` on the \
                host)";
    }
    "; look on the host whether they are plugged in (`weir vm check`), and here whether the kernel hot-plugs PCI \
     devices (acpiphp, on q35 pciehp)"
}
