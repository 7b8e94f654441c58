//! The memory that a guest maps: two memfds that QEMU gives it as devices.
//!
//! | memory | seals | mode | what it holds |
//! |---|---|---|---|
//! | region | `SHRINK`, `GROW`, `FUTURE_WRITE` | 0444 | header, then the rings of the guest's feeds |
//! | words | `SHRINK`, `GROW` | 0666 | header, then the guest's thresholds and positions |
//!
//! They have no names, so only processes that are given a descriptor reach them: the guest's own QEMU, which opens it
//! again by its number in `/proc/self/fd`, whatever user it runs as; hence the modes. The seals hold for root as well:
//! nobody writes the region but by the mapping that is here, and nobody cuts either short.
//!
//! All pages are there from the start: neither this process, nor QEMU, nor the guest can touch one that cannot be had.
//! The words are never mapped here: QEMU can take pages out of them. They are read with `pread`.

mod taken;

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use weir_region::limits::{REGION_BYTES_MAX, REGION_BYTES_MIN, SLOTS_MAX, UNIT_BYTES, WORDS_BYTES};
use weir_region::words::{AWAKE, position_at, threshold_at};
use weir_region::{Header, Kind, Token};
use weir_ring::memory::{HUGE_PAGE_BYTES, Pages, Placement, create_region};
use weir_ring::{Geometry, Mapping, Ring, RingSpec, Words, header};

use crate::error::VmError;
pub use taken::TakenRing;
use taken::{Book, Lease};

/// QEMU reads.
const REGION_MODE: u32 = 0o444;
/// QEMU reads and writes.
const WORDS_MODE: u32 = 0o666;

/// The region and the words of one guest. Rings that are still held when it is dropped stay mapped.
#[derive(Debug)]
pub struct GuestMemory {
    region: Arc<Mapping>,
    region_bytes: u64,
    words: File,
    token: Token,
    page_bytes: u64,
    book: Arc<Mutex<Book>>,
}

impl GuestMemory {
    /// Makes both, with all their pages and a fresh token: the region of such pages.
    ///
    /// # Errors
    /// [`VmError::RegionSize`], [`VmError::NoMemory`], [`VmError::Words`] or [`VmError::Random`].
    pub fn create(region_mib: u64, pages: Pages) -> Result<GuestMemory, VmError> {
        let region_bytes = check_size(region_mib)?;
        let token = fresh_token()?;
        let page_bytes = if pages == Pages::Reserved { HUGE_PAGE_BYTES } else { 4096 };
        let placement = Placement { pages, ..Placement::default() };
        let region = create_region("weir-region", region_bytes, placement)
            .map_err(|source| VmError::NoMemory { mib: region_mib, source })?;
        let line = Header { kind: Kind::Region, token, bytes: region_bytes }.encode();
        for (word, bytes) in region.words().iter().zip(line.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
        }
        let mode = rustix::fs::Mode::from_raw_mode(REGION_MODE);
        rustix::fs::fchmod(&region, mode).map_err(|errno| VmError::Words {
            doing: "open the region to QEMU",
            source: errno.into(),
        })?;
        let words = create_words(token)?;
        let book = Arc::new(Mutex::new(Book::new(region_bytes, page_bytes)));
        Ok(GuestMemory { region: Arc::new(region), region_bytes, words, token, page_bytes, book })
    }

    /// The number by which the guest tells this memory from other, and from that of an earlier daemon.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The region, for QEMU.
    #[must_use]
    pub fn region_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }

    /// The words, for QEMU.
    #[must_use]
    pub fn words_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// Bytes of the region, a power of two.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Bytes of the words.
    #[must_use]
    pub fn words_bytes(&self) -> u64 {
        WORDS_BYTES
    }

    /// Bytes of the region that rings have.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        taken::lock(&self.book).used_bytes()
    }

    /// Rings that have a place, those included that only a writer or a reader still holds.
    #[must_use]
    pub fn rings(&self) -> usize {
        taken::lock(&self.book).rings()
    }

    /// Makes a ring in the region. Its memory is zeroed by stores and not by punching a hole: the pages stay, so
    /// neither this process nor QEMU can meet one that is missing, and all of them are mapped before the first frame.
    ///
    /// # Errors
    /// [`VmError::NoPlace`] with numbers where the region is too full, [`VmError::Ring`] for an impossible spec.
    ///
    /// # Panics
    /// If the spec has no interface.
    pub fn take_ring(&self, spec: &RingSpec) -> Result<TakenRing, VmError> {
        let geometry = Geometry::new(spec.data_blocks)?;
        let bytes = geometry.total_bytes().next_multiple_of(self.page_bytes);
        let mut lease = Lease::take(&self.book, bytes)?;
        let place = lease.place();
        self.reset_line(place.slot);
        let mapping = Mapping::part(&self.region, place.offset, place.bytes);
        mapping.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let geometry = header::format(mapping.words(), spec)?;
        let memory = Arc::new(mapping);
        lease.watch(&memory);
        Ok(TakenRing::new(Ring::new(memory, geometry)?, lease))
    }

    /// The ordinal at which somebody in the guest wants to be woken for the feed of this slot; [`AWAKE`] where nobody
    /// sleeps. It comes from the guest, and may be anything.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn threshold(&self, slot: u32) -> u64 {
        read_word(&self.words, threshold_at(slot)).unwrap_or(AWAKE)
    }

    /// The ordinal that the slowest reader in the guest takes next, as the guest reports it; `None` where
    /// it cannot be read.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn position(&self, slot: u32) -> Option<u64> {
        read_word(&self.words, position_at(slot))
    }

    /// Removes data that the last feed of this slot left in its line. Only for better figures, so a failure
    /// makes no difference: the guest can write the same at any time.
    fn reset_line(&self, slot: u32) {
        let mut line = [0; 16];
        line[..8].copy_from_slice(&AWAKE.to_le_bytes());
        let _ = rustix::io::pwrite(&self.words, &line, threshold_at(slot));
    }
}

fn check_size(mib: u64) -> Result<u64, VmError> {
    let (min, max) = (REGION_BYTES_MIN / UNIT_BYTES, REGION_BYTES_MAX / UNIT_BYTES);
    if !(min..=max).contains(&mib) || !mib.is_power_of_two() {
        return Err(VmError::RegionSize { mib, min, max });
    }
    Ok(mib * UNIT_BYTES)
}

fn fresh_token() -> Result<Token, VmError> {
    let mut bytes = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    match retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags)) {
        Ok(16) => Ok(Token(bytes)),
        // The kernel gives up to 256 bytes whole (getrandom(2)).
        Ok(_) => Err(VmError::Random { source: Errno::IO.into() }),
        Err(errno) => Err(VmError::Random { source: errno.into() }),
    }
}

/// The words: a header, and for each slot a line in which nobody sleeps.
fn create_words(token: Token) -> Result<File, VmError> {
    let failed = |doing| move |source| VmError::Words { doing, source };
    let mut page = vec![0; WORDS_BYTES as usize];
    let line = Header { kind: Kind::Words, token, bytes: WORDS_BYTES }.encode();
    page[..line.len()].copy_from_slice(&line);
    for slot in 0..SLOTS_MAX {
        let at = threshold_at(slot) as usize;
        page[at..at + 8].copy_from_slice(&AWAKE.to_le_bytes());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let words = rustix::fs::memfd_create("weir-words", flags);
    let words = File::from(words.map_err(|errno| failed("make them")(errno.into()))?);
    retry_on_intr(|| rustix::fs::fallocate(&words, FallocateFlags::empty(), 0, WORDS_BYTES))
        .map_err(|errno| failed("reserve their page")(errno.into()))?;
    words.write_all_at(&page, 0).map_err(failed("write their header"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&words, seals)
        .map_err(|errno| failed("seal them")(errno.into()))?;
    let mode = Permissions::from_mode(WORDS_MODE);
    words.set_permissions(mode).map_err(failed("open them to QEMU"))?;
    Ok(words)
}

/// A word of the guest's; `None` if it cannot be read.
fn read_word(file: &File, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = retry_on_intr(|| rustix::io::pread(file, &mut bytes, at));
    (read == Ok(bytes.len())).then(|| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
