//! Block 0: the pcapng header area and the description of the ring.
//!
//! The header area is a valid start of a pcapng file: section header, one interface description for
//! each interface of this ring's own feed, and a local-use block that fills the area. So block 0 or its
//! trimmed header, followed by any closed data blocks, is a file that every tool reads.
//!
//! Interfaces are numbered from 0 in each ring. More interfaces may join while the ring is in use: the owner writes the
//! new description after the last one, and then increments the count, before the first record of the interface is
//! written. The count and the length of all descriptions are in one word, so a reader always sees values that belong
//! together.

use weir_frame::pcapng::{self, Interface, SectionInfo};

use crate::error::RingError;
use crate::geometry::{
    BLOCK_BYTES, Geometry, HEADER_AREA_BYTES, INTERFACES_WORD, META_TYPE, META_WORD,
    PADDING_MIN_BYTES,
};
use crate::sync::{AtomicU64, Ordering, load_acquire};

/// Version of everything in this crate that other processes read.
pub const FORMAT_VERSION: u32 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRRNG1");
/// Most bytes of the pcapng header. The rest of the area must hold the smallest block that can fill it.
const HEADER_BYTES_MAX: u32 = HEADER_AREA_BYTES - PADDING_MIN_BYTES;
/// Bytes of an interface description without options.
const INTERFACE_BYTES_MIN: u32 = 20;
/// Bytes of a section header without options.
const SECTION_BYTES_MIN: usize = 28;
/// Most interfaces that a header can describe; a larger count is an error.
pub(crate) const INTERFACES_MAX: u32 = HEADER_BYTES_MAX / INTERFACE_BYTES_MIN;

/// Clock of the timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Nanoseconds since the Unix epoch, following clock steps.
    Realtime,
    /// Timestamps of a file, or generated ones: not from a clock of this machine.
    Foreign,
}

/// Kind of writer of the ring, which decides how a sleeping reader is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterKind {
    /// A thread of the owner, which reads the wake pages itself.
    User,
    /// BPF programs. They ring a doorbell that the owner arms, so a reader notifies the owner before it sleeps.
    Bpf,
}

/// Settings of a new ring.
#[derive(Clone, Debug)]
pub struct RingSpec {
    /// Data blocks of 1 MiB, a power of two.
    pub data_blocks: u64,
    /// The interfaces of the ring's own feed, in the order of their ids. All have the same link type and snaplen.
    pub interfaces: Vec<Interface>,
    /// CPU whose frames are written to this ring, if there is a ring for each CPU.
    pub cpu: Option<u32>,
    /// Clock of the timestamps.
    pub clock: Clock,
    /// Kind of writer.
    pub writer: WriterKind,
}

/// Description of a ring, as block 0 contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Offsets and sizes.
    pub geometry: Geometry,
    /// Number of interfaces described so far. Every record's interface id is below it. It grows when an interface
    /// joins.
    pub interfaces: u32,
    /// Most bytes kept of a frame.
    pub snaplen: u32,
    /// Link type, as in the interface description (1 = Ethernet).
    pub link_type: u16,
    /// CPU whose frames are written to this ring, if there is a ring for each CPU.
    pub cpu: Option<u32>,
    /// Clock of the timestamps.
    pub clock: Clock,
    /// Kind of writer.
    pub writer: WriterKind,
    /// Section header and interface descriptions, without the block that fills the area. Every file with blocks of this
    /// ring begins with these bytes.
    pub pcapng_header: Vec<u8>,
}

impl Identity {
    /// Iterates over the interface descriptions in the order of their ids, as pcapng blocks.
    pub fn interface_blocks(&self) -> impl Iterator<Item = &[u8]> {
        // `read` has checked that these are complete blocks, and that the first one is the section header.
        let mut rest = &self.pcapng_header[..];
        std::iter::from_fn(move || {
            let head = rest.get(4..8)?;
            let bytes = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let (block, behind) = rest.split_at_checked(bytes.max(1))?;
            rest = behind;
            Some(block)
        })
        .skip(1)
    }
}

/// Returns the fields of the section header of Weir's rings and files.
#[must_use]
pub fn section_info() -> SectionInfo {
    SectionInfo {
        userappl: Some(concat!("Weir ", env!("CARGO_PKG_VERSION")).to_owned()),
        ..SectionInfo::default()
    }
}

/// Writes block 0 of a new ring; the rest of the memory must be zero.
///
/// # Errors
/// [`RingError`] if the memory is too small, the block count is not allowed, or the interfaces are too many or of
/// different kinds.
///
/// # Panics
/// If the spec has no interface.
pub fn format(words: &[AtomicU64], spec: &RingSpec) -> Result<Geometry, RingError> {
    let geometry = Geometry::new(spec.data_blocks)?;
    if words.len() < geometry.total_words() {
        let have = words.len() as u64 * 8;
        return Err(RingError::TooSmall { have, need: geometry.total_bytes() });
    }
    format_block_0(words, spec)
}

/// Writes block 0 of a new ring like [`format`], but needs no more than the memory of this block: mapping the pages of
/// a whole ring takes long. The caller ensures that the ring has the memory for all of its blocks.
///
/// # Errors
/// As [`format`]; [`RingError::TooSmall`] if the memory is smaller than a block.
///
/// # Panics
/// As [`format`].
pub fn format_block_0(words: &[AtomicU64], spec: &RingSpec) -> Result<Geometry, RingError> {
    let geometry = Geometry::new(spec.data_blocks)?;
    let need = u64::from(BLOCK_BYTES);
    if (words.len() as u64) < need / 8 {
        return Err(RingError::TooSmall { have: words.len() as u64 * 8, need });
    }
    let own = spec.interfaces.first().expect("a ring belongs to an interface");
    let mut area = Vec::with_capacity(HEADER_AREA_BYTES as usize);
    pcapng::write::section_header(&mut area, &section_info());
    for interface in &spec.interfaces {
        same_kind(interface, own.link_type, own.snaplen)?;
        pcapng::write::interface(&mut area, interface);
    }
    let used = fits(area.len(), spec.interfaces.len())?;
    pcapng::write::padding_block(&mut area, HEADER_AREA_BYTES - used);
    for (word, bytes) in words.iter().zip(area.chunks_exact(8)) {
        let bytes: [u8; 8] = bytes.try_into().expect("chunks of 8");
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
    let meta_bytes = BLOCK_BYTES - HEADER_AREA_BYTES;
    let cpu = spec.cpu.unwrap_or(u32::MAX);
    let fixed = [
        pair(META_TYPE, meta_bytes),
        MAGIC,
        pair(FORMAT_VERSION, u32::from(spec.writer == WriterKind::Bpf)),
        pair(BLOCK_BYTES, geometry.data_blocks as u32),
        pair(spec.interfaces.len() as u32, used),
        pair(own.snaplen, u32::from(own.link_type)),
        pair(cpu, u32::from(spec.clock == Clock::Foreign)),
    ];
    // The magic is stored last, with release, so a process that sees it sees the rest, too.
    for (i, value) in fixed.iter().enumerate().filter(|(i, _)| *i != 1) {
        words[META_WORD + i].store(*value, Ordering::Relaxed);
    }
    let last = BLOCK_BYTES as usize / 8 - 1;
    words[last].store(pair(0, meta_bytes), Ordering::Relaxed);
    words[META_WORD + 1].store(fixed[1], Ordering::Release);
    Ok(geometry)
}

/// The stores by which the owner describes one more interface in a ring, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The new interface's id.
    pub id: u32,
    /// Indexes of words of block 0, and their new values.
    pub stores: Vec<(u32, u64)>,
    /// The word that counts the interfaces, and its new value: stored last, with release.
    pub count: (u32, u64),
}

/// Returns the stores that describe one more interface, without making them. Only one caller at a time may append an
/// interface.
///
/// # Errors
/// [`RingError::HeaderTooLong`] when the header area is full, [`RingError::OtherKind`] for an interface of another link
/// type or snaplen, and the errors of [`read`].
pub fn append(words: &[AtomicU64], interface: &Interface) -> Result<Append, RingError> {
    let identity = read(words)?;
    same_kind(interface, identity.link_type, identity.snaplen)?;
    let mut area = identity.pcapng_header;
    let before = area.len() / 8;
    pcapng::write::interface(&mut area, interface);
    let id = identity.interfaces;
    let used = fits(area.len(), id as usize + 1)?;
    pcapng::write::padding_block(&mut area, HEADER_AREA_BYTES - used);
    let value = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
    let stores = (area.chunks_exact(8).map(value).enumerate().skip(before))
        .filter(|&(index, value)| words[index].load(Ordering::Relaxed) != value)
        .map(|(index, value)| (index as u32, value))
        .collect();
    Ok(Append { id, stores, count: (INTERFACES_WORD as u32, pair(id + 1, used)) })
}

fn same_kind(interface: &Interface, link_type: u16, snaplen: u32) -> Result<(), RingError> {
    if (interface.link_type, interface.snaplen) == (link_type, snaplen) {
        return Ok(());
    }
    Err(RingError::OtherKind { interface: interface.name.clone(), link_type, snaplen })
}

/// Checks that a pcapng header leaves space for the block that fills the area, and returns its length as `u32`.
fn fits(bytes: usize, interfaces: usize) -> Result<u32, RingError> {
    let have = HEADER_BYTES_MAX as usize;
    if bytes > have {
        return Err(RingError::HeaderTooLong { interfaces, need: bytes, have });
    }
    Ok(bytes as u32)
}

/// Reads block 0 of a ring that another process may have made. `words` may end after block 0.
///
/// # Errors
/// [`RingError`] if it is not a ring, has another version, or is inconsistent.
pub fn read(words: &[AtomicU64]) -> Result<Identity, RingError> {
    let need = BLOCK_BYTES as usize / 8;
    if words.len() < need {
        return Err(RingError::TooSmall { have: words.len() as u64 * 8, need: need as u64 * 8 });
    }
    let fixed = |i: usize| words[META_WORD + i].load(Ordering::Relaxed);
    if load_acquire(&words[META_WORD + 1]) != MAGIC {
        return Err(RingError::NotARing { offset: (META_WORD + 1) * 8 });
    }
    let (version, bpf) = unpair(fixed(2));
    if version != FORMAT_VERSION {
        return Err(RingError::Version { found: version, known: FORMAT_VERSION });
    }
    let corrupt = |what| RingError::Corrupt { block: 0, offset: HEADER_AREA_BYTES, what };
    let (block_bytes, data_blocks) = unpair(fixed(3));
    if block_bytes != BLOCK_BYTES {
        return Err(corrupt("block size"));
    }
    // P, pairs with O in `Ring::append_interface`: the descriptions of all counted interfaces are complete.
    let (interfaces, used) = unpair(load_acquire(&words[INTERFACES_WORD]));
    let (snaplen, link_type) = unpair(fixed(5));
    let (cpu, foreign) = unpair(fixed(6));
    let link_type = u16::try_from(link_type).map_err(|_| corrupt("link type"))?;
    if interfaces == 0 || interfaces > INTERFACES_MAX {
        return Err(corrupt("interface count"));
    }
    if used > HEADER_BYTES_MAX || !used.is_multiple_of(4) {
        return Err(corrupt("length of the pcapng header"));
    }
    let mut pcapng_header: Vec<u8> = words[..used.div_ceil(8) as usize]
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
        .collect();
    pcapng_header.truncate(used as usize);
    if count_interfaces(&pcapng_header, link_type, snaplen) != Some(interfaces) {
        return Err(corrupt("pcapng header"));
    }
    Ok(Identity {
        geometry: Geometry::new(u64::from(data_blocks))?,
        interfaces,
        snaplen,
        link_type,
        cpu: (cpu != u32::MAX).then_some(cpu),
        clock: if foreign == 0 { Clock::Realtime } else { Clock::Foreign },
        writer: if bpf == 0 { WriterKind::User } else { WriterKind::Bpf },
        pcapng_header,
    })
}

/// Returns the number of interfaces that a section header and the blocks after it describe. Returns `None` if these
/// bytes are not complete little-endian blocks, or if an interface has another link type or snaplen than the ring.
/// Files begin with these bytes, so a hostile ring must not be able to put anything else there.
fn count_interfaces(header: &[u8], link_type: u16, snaplen: u32) -> Option<u32> {
    let (mut rest, mut found) = (header, 0);
    while !rest.is_empty() {
        let (head, _) = rest.split_first_chunk::<8>()?;
        let (block_type, bytes) = unpair(u64::from_le_bytes(*head));
        let bytes = bytes as usize;
        // The minimum size depends on the block type, and is checked below.
        if !bytes.is_multiple_of(4) || bytes > rest.len() {
            return None;
        }
        let (block, behind) = rest.split_at(bytes);
        let first = rest.len() == header.len();
        match block_type {
            pcapng::SHB_TYPE if first && bytes >= SECTION_BYTES_MIN => {
                if block[8..12] != pcapng::BYTE_ORDER_MAGIC.to_le_bytes() {
                    return None;
                }
            }
            pcapng::IDB_TYPE if !first && bytes >= INTERFACE_BYTES_MIN as usize => {
                let (own_type, own_snaplen) = (&block[8..10], &block[12..16]);
                if own_type != link_type.to_le_bytes() || own_snaplen != snaplen.to_le_bytes() {
                    return None;
                }
                found += 1;
            }
            _ => return None,
        }
        if block[bytes - 4..] != head[4..] {
            return None;
        }
        rest = behind;
    }
    Some(found)
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn unpair(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::{heap_ring, spec, zeroed};

    fn formatted(spec: &RingSpec) -> Vec<AtomicU64> {
        let words = zeroed(5 << 17);
        format(&words, spec).unwrap();
        words
    }

    /// A spec whose pcapng header has exactly this many bytes, because of the length of its filter text.
    fn spec_of_bytes(bytes: u32) -> RingSpec {
        let mut spec = spec(4);
        let bytes_with = |spec: &mut RingSpec, text: usize| {
            spec.interfaces[0].filter = Some("x".repeat(text));
            let mut header = Vec::new();
            pcapng::write::section_header(&mut header, &section_info());
            spec.interfaces.iter().for_each(|i| pcapng::write::interface(&mut header, i));
            header.len()
        };
        // One byte of the option is the kind of filter.
        let least = bytes_with(&mut spec, 3);
        assert_eq!(bytes_with(&mut spec, 3 + bytes as usize - least), bytes as usize);
        spec
    }

    #[test]
    fn block_0_alone_is_formatted_as_in_a_whole_ring() {
        let spec = spec(4);
        let block = zeroed(BLOCK_BYTES as usize / 8);
        assert_eq!(format_block_0(&block, &spec).unwrap(), Geometry::new(4).unwrap());
        let values = |words: &[AtomicU64]| -> Vec<u64> {
            words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
        };
        assert!(values(&block) == values(&formatted(&spec)[..block.len()]));
        let less = format_block_0(&block[1..], &spec);
        assert!(matches!(less, Err(RingError::TooSmall { .. })), "{less:?}");
    }

    #[test]
    fn what_is_formatted_is_read_back() {
        let mut spec = spec(4);
        spec.interfaces.push(Interface { name: "eth1".to_owned(), ..spec.interfaces[0].clone() });
        for (cpu, clock, writer) in
            [(None, Clock::Realtime, WriterKind::Bpf), (Some(3), Clock::Foreign, WriterKind::User)]
        {
            (spec.cpu, spec.clock, spec.writer) = (cpu, clock, writer);
            let identity = read(&formatted(&spec)).unwrap();
            assert_eq!((identity.cpu, identity.clock, identity.writer), (cpu, clock, writer));
            assert_eq!((identity.interfaces, identity.snaplen, identity.link_type), (2, 65535, 1));
            assert_eq!(identity.geometry, Geometry::new(4).unwrap());
            let mut header = Vec::new();
            pcapng::write::section_header(&mut header, &section_info());
            let section = header.len();
            spec.interfaces.iter().for_each(|i| pcapng::write::interface(&mut header, i));
            assert_eq!(identity.pcapng_header, header);
            let blocks: Vec<_> = identity.interface_blocks().collect();
            assert_eq!((blocks.len(), blocks.concat()), (2, header[section..].to_vec()));
        }
    }

    /// `None` if `read` accepts a header, else the check that refused it.
    fn refusal(words: &[AtomicU64]) -> Option<&'static str> {
        match read(words) {
            Ok(_) => None,
            Err(RingError::NotARing { offset: 0x10008 }) => Some("magic"),
            Err(RingError::Version { known: FORMAT_VERSION, .. }) => Some("version"),
            Err(RingError::Corrupt { block: 0, offset: 0x10000, what }) => Some(what),
            Err(RingError::BadBlockCount { .. }) => Some("block count"),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Each check is tested with the values on both sides of its bound, so the test fails if a check is changed by one,
    /// inverted or removed.
    #[test]
    fn each_bound_of_a_header_holds_by_itself() {
        let words = formatted(&spec(4));
        let used = read(&words).unwrap().pcapng_header.len() as u32;
        // The section header alone: whole blocks that describe no interface.
        let (_, section) = unpair(words[0].load(Ordering::Relaxed));
        let (count, length) = ("interface count", "length of the pcapng header");
        let (link_type, header) = ("link type", "pcapng header");
        let meta = |i| META_WORD + i;
        let cases = [
            (meta(1), 0, Some("magic")),
            (meta(1), MAGIC - 1, Some("magic")),
            (meta(1), MAGIC + 1, Some("magic")),
            (meta(2), pair(FORMAT_VERSION - 1, 0), Some("version")),
            (meta(2), pair(FORMAT_VERSION, u32::MAX), None),
            (meta(2), pair(FORMAT_VERSION + 1, 0), Some("version")),
            (meta(3), pair(4096, 4), Some("block size")),
            (meta(3), pair(BLOCK_BYTES - 1, 4), Some("block size")),
            (meta(3), pair(BLOCK_BYTES + 1, 4), Some("block size")),
            (meta(3), pair(BLOCK_BYTES, 0), Some("block count")),
            (meta(3), pair(BLOCK_BYTES, 2), Some("block count")),
            (meta(3), pair(BLOCK_BYTES, 5), Some("block count")),
            (meta(3), pair(BLOCK_BYTES, 8192), None),
            (meta(3), pair(BLOCK_BYTES, 16384), Some("block count")),
            (meta(3), pair(BLOCK_BYTES, u32::MAX), Some("block count")),
            (meta(4), pair(0, section), Some(count)),
            (meta(4), pair(1, section), Some(header)),
            (meta(4), pair(0, used), Some(count)),
            (meta(4), pair(2, used), Some(header)),
            (meta(4), pair(INTERFACES_MAX, used), Some(header)),
            (meta(4), pair(INTERFACES_MAX + 1, used), Some(count)),
            (meta(4), pair(u32::MAX, used), Some(count)),
            (meta(4), pair(1, 0), Some(header)),
            (meta(4), pair(1, used - 4), Some(header)),
            (meta(4), pair(1, used - 1), Some(length)),
            (meta(4), pair(1, used + 1), Some(length)),
            (meta(4), pair(1, used + 2), Some(length)),
            (meta(4), pair(1, used + 4), Some(header)),
            (meta(4), pair(1, used + 12), Some(header)),
            (meta(4), pair(1, HEADER_BYTES_MAX), Some(header)),
            (meta(4), pair(1, HEADER_BYTES_MAX + 4), Some(length)),
            (meta(4), pair(1, HEADER_AREA_BYTES), Some(length)),
            (meta(4), pair(1, u32::MAX - 3), Some(length)),
            (meta(4), pair(1, u32::MAX), Some(length)),
            (meta(5), pair(65535, 0), Some(header)),
            (meta(5), pair(65535, 2), Some(header)),
            (meta(5), pair(65535, 0xffff), Some(header)),
            (meta(5), pair(65535, 0x1_0000), Some(link_type)),
            // It would be Ethernet if only 16 bits were compared.
            (meta(5), pair(65535, 0x1_0001), Some(link_type)),
            (meta(5), pair(65534, 1), Some(header)),
            (meta(5), pair(65536, 1), Some(header)),
            (0, pair(pcapng::SHB_TYPE, 0), Some(header)),
            (0, pair(pcapng::SHB_TYPE, u32::MAX - 3), Some(header)),
            (0, pair(pcapng::IDB_TYPE, used), Some(header)),
            (0, pair(pcapng::SHB_TYPE, used), Some(header)),
            (1, pair(pcapng::BYTE_ORDER_MAGIC.swap_bytes(), 1), Some(header)),
        ];
        for (word, value, refused) in cases {
            let kept = words[word].load(Ordering::Relaxed);
            words[word].store(value, Ordering::Relaxed);
            assert_eq!(refusal(&words), refused, "word {word} = {value:#x}");
            words[word].store(kept, Ordering::Relaxed);
        }
        assert_eq!(refusal(&words), None);
    }

    #[test]
    fn each_value_of_a_fixed_word_is_read_for_what_it_says() {
        let words = formatted(&spec(4));
        let with = |i: usize, value| {
            words[META_WORD + i].store(value, Ordering::Relaxed);
            read(&words).unwrap()
        };
        for (writer, kind) in
            [(0, WriterKind::User), (1, WriterKind::Bpf), (u32::MAX, WriterKind::Bpf)]
        {
            assert_eq!(with(2, pair(FORMAT_VERSION, writer)).writer, kind, "{writer}");
        }
        for (cpu, known) in
            [(0, Some(0)), (u32::MAX - 1, Some(u32::MAX - 1)), (u32::MAX, None), (1, Some(1))]
        {
            assert_eq!(with(6, pair(cpu, 0)).cpu, known, "{cpu}");
        }
        for (foreign, clock) in
            [(0, Clock::Realtime), (1, Clock::Foreign), (u32::MAX, Clock::Foreign)]
        {
            assert_eq!(with(6, pair(0, foreign)).clock, clock, "{foreign}");
        }
    }

    /// The format in numbers, for readers in other languages. If one changes, the version of the format must change.
    #[test]
    fn every_word_of_a_new_block_0_is_the_one_that_the_format_says() {
        let mut spec = spec(8);
        (spec.cpu, spec.clock, spec.writer) = (Some(3), Clock::Realtime, WriterKind::Bpf);
        let words = zeroed(9 << 17);
        format(&words, &spec).unwrap();
        let mut header = Vec::new();
        pcapng::write::section_header(&mut header, &section_info());
        pcapng::write::interface(&mut header, &spec.interfaces[0]);
        let used = header.len() as u32;
        let mut area = block(0x8000_5745, 65536 - used, &[]);
        header.append(&mut area);
        let mut block_0: Vec<u64> =
            header.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(block_0.len(), 8192);
        block_0.extend([
            pair(0x8000_5746, 0xf_0000),
            u64::from_le_bytes(*b"WEIRRNG1"),
            pair(2, 1),
            pair(1 << 20, 8),
            pair(1, used),
            pair(65535, 1),
            pair(3, 0),
        ]);
        block_0.resize((1 << 17) - 1, 0);
        block_0.push(pair(0, 0xf_0000));
        for (index, word) in words.iter().enumerate() {
            let expected = block_0.get(index).copied().unwrap_or(0);
            assert_eq!(word.load(Ordering::Relaxed), expected, "word {index:#x}");
        }
        (spec.cpu, spec.clock, spec.writer) = (None, Clock::Foreign, WriterKind::User);
        format(&words, &spec).unwrap();
        let fixed = [2, 6].map(|i| unpair(words[8192 + i].load(Ordering::Relaxed)));
        assert_eq!(fixed, [(2, 0), (u32::MAX, 1)]);
    }

    #[test]
    fn a_header_fits_to_its_last_byte() {
        let most = 65536 - 12;
        assert_eq!(fits(most, 1).unwrap(), most as u32);
        match fits(most + 1, 7) {
            Err(RingError::HeaderTooLong { interfaces: 7, need, have }) => {
                assert_eq!((need, have), (most + 1, most));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(INTERFACES_MAX, most as u32 / 20);
    }

    #[test]
    fn block_0_is_enough_to_read_and_no_less() {
        let words = formatted(&spec(4));
        let need = BLOCK_BYTES as usize / 8;
        assert!(read(&words[..need]).is_ok());
        let (have, need) = (u64::from(BLOCK_BYTES) - 8, u64::from(BLOCK_BYTES));
        match read(&words[..need as usize / 8 - 1]) {
            Err(RingError::TooSmall { have: found, need: asked }) => {
                assert_eq!((found, asked), (have, need));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_is_formatted_to_its_last_word_and_not_beyond() {
        let words = zeroed(5 << 17);
        assert!(format(&words, &spec(4)).is_ok());
        let short = zeroed((5 << 17) - 1);
        match format(&short, &spec(4)) {
            Err(RingError::TooSmall { have, need }) => {
                assert_eq!((have, need), ((5 << 20) - 8, 5 << 20));
            }
            other => panic!("{other:?}"),
        }
        assert!(short.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn the_longest_header_is_written_and_read_and_no_longer_one() {
        let words = formatted(&spec_of_bytes(HEADER_BYTES_MAX));
        let identity = read(&words).unwrap();
        assert_eq!(identity.pcapng_header.len(), HEADER_BYTES_MAX as usize);
        // The block that fills the area has its smallest size, and ends with its length.
        let last = words[META_WORD - 1].load(Ordering::Relaxed);
        assert_eq!(unpair(last), (PADDING_MIN_BYTES, PADDING_MIN_BYTES));
        match format(&zeroed(5 << 17), &spec_of_bytes(HEADER_BYTES_MAX + 4)) {
            Err(RingError::HeaderTooLong { interfaces, need, have }) => {
                let most = HEADER_BYTES_MAX as usize;
                assert_eq!((interfaces, need, have), (1, most + 4, most));
            }
            other => panic!("{other:?}"),
        }
        // A header that leaves less room than the smallest block needs is invalid.
        words[META_WORD + 4].store(pair(1, HEADER_BYTES_MAX + 4), Ordering::Relaxed);
        assert!(matches!(read(&words), Err(RingError::Corrupt { .. })));
    }

    /// A block without options: type, length, body of zeros, length.
    fn block(block_type: u32, bytes: u32, body: &[(usize, &[u8])]) -> Vec<u8> {
        let mut block = vec![0; bytes as usize];
        block[..4].copy_from_slice(&block_type.to_le_bytes());
        block[4..8].copy_from_slice(&bytes.to_le_bytes());
        body.iter().for_each(|(at, bytes)| block[*at..at + bytes.len()].copy_from_slice(bytes));
        let end = block.len() - 4;
        block[end..].copy_from_slice(&bytes.to_le_bytes());
        block
    }

    fn section(bytes: u32) -> Vec<u8> {
        block(pcapng::SHB_TYPE, bytes, &[(8, &pcapng::BYTE_ORDER_MAGIC.to_le_bytes())])
    }

    /// An interface of link type 1 and snaplen 2.
    fn interface(bytes: u32) -> Vec<u8> {
        block(pcapng::IDB_TYPE, bytes, &[(8, &[1]), (12, &[2])])
    }

    fn count(blocks: &[Vec<u8>]) -> Option<u32> {
        count_interfaces(&blocks.concat(), 1, 2)
    }

    #[test]
    fn each_bound_of_a_pcapng_header_holds_by_itself() {
        assert_eq!(count(&[]), Some(0));
        assert_eq!(count(&[section(28)]), Some(0));
        assert_eq!(count(&[section(28), interface(20)]), Some(1));
        assert_eq!(count(&[section(32), interface(20), interface(24)]), Some(2));
        // The smallest sizes.
        assert_eq!(count(&[section(24), interface(20)]), None);
        assert_eq!(count(&[section(28), interface(16)]), None);
        // Kinds and their order.
        assert_eq!(count(&[interface(20)]), None);
        assert_eq!(count(&[section(28), section(28)]), None);
        assert_eq!(count(&[section(28), block(6, 32, &[])]), None);
        assert_eq!(count(&[section(28), block(crate::geometry::PADDING_TYPE, 12, &[])]), None);
        // A length that is not a multiple of 4, that is beyond the end, that differs from its repetition.
        let mut odd = interface(24);
        odd[4] = 22;
        odd[18..22].copy_from_slice(&22u32.to_le_bytes());
        odd.truncate(22);
        assert_eq!(count(&[section(28), odd]), None);
        let mut long = interface(20);
        long[4] = 24;
        assert_eq!(count(&[section(28), long]), None);
        let mut twice = interface(20);
        twice[16] = 24;
        assert_eq!(count(&[section(28), twice]), None);
        for bytes in [0, 4, 8] {
            let mut short = interface(20);
            short[4] = bytes;
            assert_eq!(count(&[section(28), short]), None, "length {bytes}");
        }
        // After the last block, fewer bytes than the head of a block.
        for extra in 1..8 {
            assert_eq!(count(&[section(28), interface(20), vec![0; extra]]), None, "{extra}");
        }
        // Byte order, link type, snaplen.
        let mut swapped = section(28);
        swapped[8..12].reverse();
        assert_eq!(count(&[swapped, interface(20)]), None);
        for (at, value) in [(8, 0), (9, 1), (12, 0), (15, 1)] {
            let mut other = interface(20);
            other[at] = value;
            assert_eq!(count(&[section(28), interface(20), other]), None, "byte {at}");
        }
    }

    #[test]
    fn most_interfaces_are_as_many_as_fit_without_options() {
        let mut header = section(28);
        let most = (HEADER_BYTES_MAX - 28) / INTERFACE_BYTES_MIN;
        (0..most).for_each(|_| header.extend(interface(20)));
        let words = formatted(&spec(4));
        for (word, bytes) in words.iter().zip(header.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        words[META_WORD + 5].store(pair(2, 1), Ordering::Relaxed);
        words[INTERFACES_WORD].store(pair(most, header.len() as u32), Ordering::Relaxed);
        let identity = read(&words).unwrap();
        assert_eq!(
            (identity.interfaces, identity.interface_blocks().count()),
            (most, most as usize)
        );
        assert!(most <= INTERFACES_MAX);
    }

    #[test]
    fn interfaces_that_join_one_by_one_make_the_header_that_all_at_once_make() {
        let mut spec = spec(4);
        let own = spec.interfaces[0].clone();
        let ring = heap_ring();
        for number in 1..40 {
            let name = format!("vnet{number}");
            let joined = Interface { name, ..own.clone() };
            assert_eq!(ring.append_interface(&joined).unwrap(), number);
            spec.interfaces.push(joined);
            assert_eq!(ring.interfaces(), number + 1);
            let all = formatted(&spec);
            let same = |(a, b): (&AtomicU64, &AtomicU64)| {
                assert_eq!(a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
            };
            ring.memory().iter().zip(&all).take(BLOCK_BYTES as usize / 8).for_each(same);
        }
        let identity = ring.identity().unwrap();
        assert_eq!(identity.interface_blocks().count(), 40);
    }

    #[test]
    fn room_for_interfaces_ends_with_an_error_that_leaves_the_ring_as_it_was() {
        let ring = heap_ring();
        let filter = Some("x".repeat(5000));
        let joined = Interface { filter, ..spec(4).interfaces[0].clone() };
        let mut ids = 1..;
        let error = loop {
            match ring.append_interface(&joined) {
                Ok(id) => assert_eq!(Some(id), ids.next()),
                Err(error) => break error,
            }
        };
        let interfaces = ids.start;
        assert!(interfaces > 10);
        assert!(matches!(error, RingError::HeaderTooLong { .. }), "{error}");
        assert_eq!(ring.identity().unwrap().interfaces, interfaces);
        // A shorter one still fits.
        let short = Interface { filter: None, ..joined.clone() };
        assert_eq!(ring.append_interface(&short).unwrap(), interfaces);
        for other in
            [Interface { link_type: 101, ..short.clone() }, Interface { snaplen: 1, ..short }]
        {
            let error = ring.append_interface(&other).unwrap_err();
            assert!(matches!(error, RingError::OtherKind { .. }), "{error}");
        }
        assert_eq!(ring.interfaces(), interfaces + 1);
    }

    #[test]
    fn a_count_that_cannot_be_is_cut_before_anybody_makes_a_table_of_it() {
        let ring = heap_ring();
        ring.memory()[INTERFACES_WORD].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(ring.interfaces(), INTERFACES_MAX);
        assert!(ring.identity().is_err());
    }
}
