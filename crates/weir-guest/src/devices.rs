//! The two devices that the host plugs in: the region with the rings, and the words that the guest writes.
//!
//! Both are QEMU devices of type `ivshmem-plain`: PCI devices 1af4:1110 whose BAR 2 is memory that the host shares
//! (QEMU, docs/specs/ivshmem-spec). They need no kernel module: in sysfs, root can map a BAR as the file `resource2`.
//! Other programs may have devices of the same type, and devices of an earlier session may still exist. So the memory
//! of each device is read: that of a daemon begins with a header, which has a token that identifies the session.
//!
//! A device's files appear in sysfs before its BAR has an address, and its memory can be read only after the device was
//! enabled. So failures are retried until a time limit.
//!
//! # When the host removes a device
//! If a process then reads the device's memory, Linux 5.10 kills it by SIGBUS; on 6.1 it reads zeros. The host is
//! trusted not to remove a device while a feed is open.

mod pci;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use weir_region::limits::{LINE_BYTES, WORDS_BYTES};
use weir_region::{Header, Kind, Place, Token};
use weir_ring::memory::Access;
use weir_ring::{Mapping, Ring, RingError, Words as _};

use crate::error::{DeviceError, GuestError, SeenDevice};
use crate::limits::{MEASURED_BYTES_MAX, MEASURING_TIME_MAX, UNCACHED_BELOW};
use crate::words::Words;
use pci::Device;

/// Words that are read at a time to measure the speed of the region.
const PIECE_WORDS: usize = (64 << 10) / 8;
/// Pause between two searches for the devices.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The speed of reading a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Bytes a second.
    pub bytes_per_second: f64,
}

impl Bandwidth {
    /// Whether the processor seems to cache the mapping ([`UNCACHED_BELOW`]).
    #[must_use]
    pub fn is_cached(self) -> bool {
        self.bytes_per_second >= UNCACHED_BELOW
    }

    /// Returns a note for the user, with a remedy, if the region is uncached.
    #[must_use]
    pub fn note(self) -> Option<String> {
        let megabytes = self.bytes_per_second / 1e6;
        (!self.is_cached()).then(|| {
            format!(
                "the host's memory is read at {megabytes:.0} MB/s: this machine's processor does not cache it, as \
                 guests on AMD hosts do not; have a filter or --snaplen leave out what is not needed"
            )
        })
    }
}

/// The host's two devices.
#[derive(Debug)]
pub struct Devices {
    region: OwnedFd,
    region_bytes: u64,
    /// The beginning of the region.
    head: Mapping,
    words: OwnedFd,
}

impl Devices {
    /// Finds the devices with this token in a folder of PCI devices (`/sys/bus/pci/devices`). Retries until `limit` has
    /// passed.
    ///
    /// Enables all devices of this type, even those that turn out to belong to another program, because their memory
    /// cannot be read before that.
    ///
    /// # Errors
    /// [`GuestError::NotFound`], with the error of each device of this type; [`GuestError::NoPci`].
    pub fn find(pci: &Path, token: Token, limit: Duration) -> Result<Devices, GuestError> {
        let begin = Instant::now();
        loop {
            let error = match look(pci, token) {
                Ok(Found {
                    region: Some((region, region_bytes, head)),
                    words: Some(words),
                    ..
                }) => {
                    return Ok(Devices { region, region_bytes, head, words });
                }
                Ok(Found { region, words, seen }) => {
                    let missing = match (region, words) {
                        (None, None) => "the host's region and words",
                        (None, _) => "the host's region",
                        (Some(_), _) => "the host's words",
                    };
                    GuestError::NotFound { missing, token, waited: begin.elapsed(), seen }
                }
                Err(source) => GuestError::NoPci { folder: pci.to_owned(), source },
            };
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(error);
            }
            thread::sleep(RETRY_PAUSE.min(left));
        }
    }

    /// Returns the region's memory, opened read-only, for a reader in another process to map.
    #[must_use]
    pub fn region_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }

    /// Returns the size of the region in bytes.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Maps the words.
    ///
    /// # Errors
    /// [`GuestError::Os`].
    pub fn words(&self) -> Result<Words, GuestError> {
        let fd = duplicate(self.words.as_fd())?;
        // SAFETY: `look` has found this many bytes in the BAR, and a BAR keeps its size while its device exists (for
        // when it does not, see the head of this file). `Words` and `read_header` access them as `AtomicU64`.
        unsafe { Words::map(fd) }.map_err(|error| match error {
            RingError::Os { source, .. } => GuestError::Os { doing: "mapping the words", source },
            other => {
                GuestError::Os { doing: "mapping the words", source: std::io::Error::other(other) }
            }
        })
    }

    /// Opens the ring at a place.
    ///
    /// # Errors
    /// [`GuestError::Place`] if the place is outside of the region, [`GuestError::Ring`] if it has no ring, or one that
    /// is longer than the place.
    pub fn ring(&self, place: &Place) -> Result<Ring<Mapping>, GuestError> {
        if !place.fits(self.region_bytes) {
            return Err(GuestError::Place { place: *place, region_bytes: self.region_bytes });
        }
        let fd = duplicate(self.region.as_fd())?;
        // SAFETY: the place is within the region, whose size `look` has found in the BAR, and a BAR keeps its size
        // while its device exists (for when it does not, see the head of this file). Rings are accessed as `Words`
        // only.
        let mapping = unsafe { Mapping::map_part(fd, place.offset, place.bytes, Access::Read) };
        // `Ring::open` refuses a ring that is longer than the mapping. The geometry is read once.
        let ring = mapping.and_then(|mapping| Ring::open(Arc::new(mapping)));
        ring.map_err(|source| GuestError::Ring { place: *place, source })
    }

    /// Measures how fast this process reads the region: the highest rate of the pieces at its beginning, of at most
    /// [`MEASURED_BYTES_MAX`] in [`MEASURING_TIME_MAX`].
    #[must_use]
    pub fn bandwidth(&self) -> Bandwidth {
        let begin = Instant::now();
        let mut best: f64 = 0.0;
        for piece in self.head.words().chunks(PIECE_WORDS) {
            // In the second round all pages of the piece are mapped, here and at the host. Other programs may use the
            // processor meanwhile, so one fast piece is enough.
            for _ in 0..2 {
                let begin = Instant::now();
                let each = piece.iter().map(|word| word.load(Ordering::Relaxed));
                std::hint::black_box(each.fold(0, |sum: u64, word| sum ^ word));
                let seconds = begin.elapsed().as_secs_f64().max(1e-9);
                best = best.max(size_of_val(piece) as f64 / seconds);
            }
            if begin.elapsed() > MEASURING_TIME_MAX {
                break;
            }
        }
        Bandwidth { bytes_per_second: best }
    }
}

/// The devices that a search has found.
struct Found {
    /// The region's descriptor, size, and beginning.
    region: Option<(OwnedFd, u64, Mapping)>,
    words: Option<OwnedFd>,
    seen: Vec<SeenDevice>,
}

/// Searches all devices once.
fn look(pci: &Path, token: Token) -> std::io::Result<Found> {
    let mut found = Found { region: None, words: None, seen: Vec::new() };
    for device in pci::ivshmem_devices(pci)? {
        let took = identify(&device, token).and_then(|header| match header.kind {
            Kind::Region => {
                let fd = device.open_bar(Access::Read)?;
                let bytes = header.bytes.min(MEASURED_BYTES_MAX);
                let head = map_head(&device, duplicate_file(&fd)?, bytes)?;
                found.region.get_or_insert((fd, header.bytes, head));
                Ok(())
            }
            Kind::Words => {
                found.words.get_or_insert(device.open_bar(Access::Write)?);
                Ok(())
            }
        });
        if let Err(why) = took {
            found.seen.push(SeenDevice { address: device.address, why });
        }
    }
    Ok(found)
}

/// Enables a device and reads its header, which must have the token and state the size of the BAR.
fn identify(device: &Device, token: Token) -> Result<Header, DeviceError> {
    // Checked before the device is enabled: without an address the kernel refuses to enable it, and logs that each
    // time.
    let bar = device.bar_bytes()?;
    device.enable()?;
    if bar < WORDS_BYTES {
        return Err(DeviceError::Short { bytes: bar });
    }
    let header = read_header(device)?;
    if header.token != token {
        return Err(DeviceError::OtherToken(header.token));
    }
    if header.bytes != bar {
        return Err(DeviceError::Bytes { header: header.bytes, bar });
    }
    Ok(header)
}

fn read_header(device: &Device) -> Result<Header, DeviceError> {
    let page = map_head(device, device.open_bar(Access::Read)?, WORDS_BYTES)?;
    let mut line = [0; LINE_BYTES as usize];
    for (bytes, word) in line.chunks_exact_mut(8).zip(page.words()) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    Header::decode(&line).map_err(DeviceError::NotOurs)
}

/// Maps the beginning of a BAR for reading.
fn map_head(device: &Device, fd: OwnedFd, bytes: u64) -> Result<Mapping, DeviceError> {
    // The file of a BAR has the BAR's size.
    let have = rustix::fs::fstat(&fd)
        .map_err(|errno| device.error("asking for the size of", errno))?
        .st_size as u64;
    if have < bytes {
        return Err(DeviceError::Short { bytes: have });
    }
    // SAFETY: the file has this size, as just checked, and a BAR keeps its size while its device exists (for when it
    // does not, see the head of this file). It is accessed as `Words` only.
    unsafe { Mapping::map_part(fd, 0, bytes, Access::Read) }.map_err(DeviceError::Map)
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, GuestError> {
    fd.try_clone_to_owned().map_err(GuestError::os("duplicating a descriptor"))
}

fn duplicate_file(fd: &OwnedFd) -> Result<OwnedFd, DeviceError> {
    let doing = "duplicating the descriptor of";
    fd.try_clone().map_err(|source| DeviceError::File { doing, file: pci::BAR, source })
}

#[cfg(test)]
mod tests;
