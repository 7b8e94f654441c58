//! The memory that a guest maps: two memfds, which QEMU gives the guest as devices.
//!
//! | memory | seals | mode | contents |
//! |---|---|---|---|
//! | region | `SHRINK`, `GROW`, `FUTURE_WRITE` | 0444 | header, then the rings of the guest's feeds |
//! | words | `SHRINK`, `GROW` | 0666 | header, then the guest's thresholds and positions |
//!
//! The memfds have no names, so only processes that get a descriptor can access them: the guest's own QEMU, which opens
//! the descriptor again by its number in `/proc/self/fd`, whatever user it runs as. The modes are needed for that. The
//! seals also bind root: nobody can write the region except by the mapping in this process, and nobody can truncate
//! either memfd.
//!
//! All pages are allocated from the start: so neither this process, nor QEMU, nor the guest can access a page for which
//! there is no memory. The words are never mapped in this process, because QEMU can remove pages from them. They are
//! read with `pread`.

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

/// QEMU may read.
const REGION_MODE: u32 = 0o444;
/// QEMU may read and write.
const WORDS_MODE: u32 = 0o666;

/// The region and the words of one guest. Rings that are still held when this value is dropped stay mapped.
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
    /// Creates both, with all their pages and a new token. `pages` is the kind of the region's pages.
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

    /// Returns the token by which the guest can tell this memory from other memory, such as that of an earlier daemon.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns the descriptor of the region, for QEMU.
    #[must_use]
    pub fn region_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }

    /// Returns the descriptor of the words, for QEMU.
    #[must_use]
    pub fn words_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// Returns the size of the region in bytes, a power of two.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the size of the words in bytes.
    #[must_use]
    pub fn words_bytes(&self) -> u64 {
        WORDS_BYTES
    }

    /// Returns the number of the region's bytes that rings use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        taken::lock(&self.book).used_bytes()
    }

    /// Returns the number of rings in the region, including those that only a writer or a reader still holds.
    #[must_use]
    pub fn rings(&self) -> usize {
        taken::lock(&self.book).rings()
    }

    /// Creates a ring in the region. Its memory is zeroed by stores and not by punching a hole: so the pages stay
    /// allocated, neither this process nor QEMU can access a missing page, and all pages are mapped before the first
    /// frame.
    ///
    /// # Errors
    /// [`VmError::NoPlace`] if the region is too full; the error has the sizes. [`VmError::Ring`] for an impossible
    /// spec.
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

    /// Returns the ordinal at which a reader in the guest wants to be woken for the feed of this slot; [`AWAKE`] if no
    /// reader sleeps. The guest writes this word, so it may have any value.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn threshold(&self, slot: u32) -> u64 {
        read_word(&self.words, threshold_at(slot)).unwrap_or(AWAKE)
    }

    /// Returns the ordinal of the frame that the slowest reader in the guest reads next, as the guest reports it;
    /// `None` if the word cannot be read.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn position(&self, slot: u32) -> Option<u64> {
        read_word(&self.words, position_at(slot))
    }

    /// Resets the line of this slot, in which the last feed has left values. This only improves the reported lag, so an
    /// error is ignored: the guest can write such values at any time.
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
        // The kernel returns up to 256 bytes completely (getrandom(2)).
        Ok(_) => Err(VmError::Random { source: Errno::IO.into() }),
        Err(errno) => Err(VmError::Random { source: errno.into() }),
    }
}

/// Creates the words: a header, and a line for each slot, in which no reader sleeps.
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

/// Reads one of the guest's words; `None` if it cannot be read.
fn read_word(file: &File, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = retry_on_intr(|| rustix::io::pread(file, &mut bytes, at));
    (read == Ok(bytes.len())).then(|| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
