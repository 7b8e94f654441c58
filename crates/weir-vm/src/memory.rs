//! The memory that a guest maps: two files that QEMU gives it as devices.
//!
//! | file | mode | what it holds |
//! |---|---|---|
//! | `NAME.region` | 0640: QEMU reads | header, then the rings of the guest's feeds |
//! | `NAME.words` | 0660: QEMU writes | header, then the guest's thresholds and positions |
//!
//! All pages are there from the start: neither this process, nor QEMU, nor the guest can touch one that cannot be had.
//! The words are never mapped here once QEMU can open them: it could cut the file short, and a load would end this
//! process. They are read with `pread`.
//!
//! The modes hold only for a QEMU that runs as another user than this process. One that runs as the same user, or as
//! root, is trusted not to cut the region short.

mod file;
mod taken;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::io::{Errno, retry_on_intr};
use weir_region::limits::{REGION_BYTES_MAX, REGION_BYTES_MIN, SLOTS_MAX, UNIT_BYTES, WORDS_BYTES};
use weir_region::words::{AWAKE, position_at, threshold_at};
use weir_region::{Header, Kind, Token};
use weir_ring::memory::Access;
use weir_ring::{Geometry, Mapping, Ring, RingSpec, Words, header};

use crate::error::VmError;
use crate::limits::GUEST_NAME_BYTES_MAX;
use file::{MemoryFile, page_bytes};
pub use taken::TakenRing;
use taken::{Book, Lease};

/// Owner writes, the group reads.
const REGION_MODE: u32 = 0o640;
/// Owner and group write.
const WORDS_MODE: u32 = 0o660;

/// The region and the words of one guest. Dropping it removes their files; rings that are still held stay mapped.
#[derive(Debug)]
pub struct GuestMemory {
    region: MemoryFile,
    words: MemoryFile,
    token: Token,
    page_bytes: u64,
    book: Arc<Mutex<Book>>,
}

impl GuestMemory {
    /// Makes both files in `folder`, with all their pages and a fresh token, and gives them to the group `gid` if there
    /// is one: that of QEMU. Files of the same names, which an earlier daemon left, are replaced; a QEMU that has them
    /// open keeps the old ones.
    ///
    /// # Errors
    /// [`VmError::Name`], [`VmError::RegionSize`], [`VmError::NotMemory`], [`VmError::NotText`],
    /// [`VmError::PageSize`], [`VmError::NoMemory`], [`VmError::File`] or [`VmError::Random`]. No file is left then.
    pub fn create(
        folder: &Path,
        name: &str,
        region_mib: u64,
        gid: Option<u32>,
    ) -> Result<GuestMemory, VmError> {
        check_name(name)?;
        let region_bytes = check_size(region_mib)?;
        if folder.to_str().is_none() {
            return Err(VmError::NotText { folder: folder.to_owned() });
        }
        let page_bytes = page_bytes(folder)?;
        if page_bytes > region_bytes / 2 {
            let page_mib = page_bytes / UNIT_BYTES;
            let folder = folder.to_owned();
            return Err(VmError::PageSize { folder, page_mib, mib: region_mib });
        }
        let token = fresh_token()?;
        let region = MemoryFile::create(folder.join(format!("{name}.region")), region_bytes)?;
        write_header(&region, page_bytes, Kind::Region, token)?;
        region.open_to(gid, REGION_MODE)?;
        let words_bytes = WORDS_BYTES.next_multiple_of(page_bytes);
        let words = MemoryFile::create(folder.join(format!("{name}.words")), words_bytes)?;
        write_header(&words, page_bytes, Kind::Words, token)?;
        words.open_to(gid, WORDS_MODE)?;
        let book = Arc::new(Mutex::new(Book::new(region_bytes, page_bytes)));
        Ok(GuestMemory { region, words, token, page_bytes, book })
    }

    /// The number by which the guest tells this memory from other, and from that of an earlier daemon.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The file of the region.
    #[must_use]
    pub fn region_path(&self) -> &Path {
        self.region.path()
    }

    /// The file of the words.
    #[must_use]
    pub fn words_path(&self) -> &Path {
        self.words.path()
    }

    /// Bytes of the region, a power of two.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region.bytes()
    }

    /// Bytes of the file of the words: a page of its file system, which on hugetlbfs is more than the words take.
    #[must_use]
    pub fn words_bytes(&self) -> u64 {
        self.words.bytes()
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
        let fd = self.region.duplicate()?;
        // SAFETY: the file is as long as `place.offset + place.bytes` and stays so: `Places` keeps places inside of the
        // region, and only the file's owner, whose process this is, may write and so cut it short, because its mode
        // gives QEMU's group reading at most (module documentation). Ring memory is reached as `Words` only.
        let mapping =
            unsafe { Mapping::map_part(fd.into(), place.offset, place.bytes, Access::Write) }?;
        mapping.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let geometry = header::format(mapping.words(), spec)?;
        let memory = Arc::new(mapping);
        lease.watch(&memory);
        Ok(TakenRing::new(Ring::new(memory, geometry)?, lease))
    }

    /// The ordinal at which somebody in the guest wants to be woken for the feed of this slot; [`AWAKE`] where nobody
    /// sleeps, and where QEMU has cut the file short. It is what the guest says, and may be anything.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn threshold(&self, slot: u32) -> u64 {
        read_word(self.words.file(), threshold_at(slot)).unwrap_or(AWAKE)
    }

    /// The ordinal that the slowest reader in the guest takes next, by what the guest says; `None` where QEMU has cut
    /// the file short.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn position(&self, slot: u32) -> Option<u64> {
        read_word(self.words.file(), position_at(slot))
    }

    /// Removes what the last feed of this slot left in its line. Only for better figures, so a failure makes no
    /// difference: the guest can write the same at any time. (hugetlbfs has no `write`; there the line stays.)
    fn reset_line(&self, slot: u32) {
        let mut line = [0; 16];
        line[..8].copy_from_slice(&AWAKE.to_le_bytes());
        let _ = rustix::io::pwrite(self.words.file(), &line, threshold_at(slot));
    }
}

fn check_name(name: &str) -> Result<(), VmError> {
    let is_good = (1..=GUEST_NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && !name.chars().any(|c| c == '/' || c.is_control());
    if is_good { Ok(()) } else { Err(VmError::Name { name: name.to_owned() }) }
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

/// Writes the header, and for words a line for each slot in which nobody sleeps. Through a mapping, because
/// hugetlbfs has no `write`.
fn write_header(
    file: &MemoryFile,
    page_bytes: u64,
    kind: Kind,
    token: Token,
) -> Result<(), VmError> {
    let bytes = match kind {
        Kind::Region => file.bytes(),
        Kind::Words => WORDS_BYTES,
    };
    let line = Header { kind, token, bytes }.encode();
    // SAFETY: the file has at least a page, and stays as long: nobody else can open it yet (`MemoryFile::create`). The
    // mapping goes before others can, and is reached as `Words` only.
    let mapping = unsafe { Mapping::map(file.duplicate()?.into(), page_bytes, Access::Write) }?;
    let words = mapping.words();
    for (word, bytes) in words.iter().zip(line.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
    }
    if kind == Kind::Words {
        for slot in 0..SLOTS_MAX {
            words[(threshold_at(slot) / 8) as usize].store(AWAKE, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// A word of the guest's; `None` if the file ends before it does, or cannot be read.
fn read_word(file: &File, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = retry_on_intr(|| rustix::io::pread(file, &mut bytes, at));
    (read == Ok(bytes.len())).then(|| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
