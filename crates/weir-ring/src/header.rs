//! Block 0: the pcapng header area and the fixed facts of a ring.
//!
//! The header area is a valid start of a pcapng file: section header, one interface description for
//! each interface id up to this ring's own, and a local-use block that fills the area. So block 0 or
//! its trimmed header, followed by any closed data blocks, is a file that every tool reads.

use weir_frame::pcapng::{self, Interface, SectionInfo};

use crate::error::RingError;
use crate::geometry::{BLOCK_BYTES, Geometry, HEADER_AREA_BYTES, META_TYPE, PADDING_MIN_BYTES};
use crate::sync::{AtomicU64, Ordering, load_acquire};

/// Version of everything in this crate that another process sees.
pub const FORMAT_VERSION: u32 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRRNG1");
const META_WORD: usize = HEADER_AREA_BYTES as usize / 8;

/// Which clock the timestamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Nanoseconds since the Unix epoch, following clock steps.
    Realtime,
    /// Stamps from a file or made up: not this machine's clock.
    Foreign,
}

/// Who writes the ring, which decides how a sleeping reader is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterKind {
    /// A thread of the owner: it looks at the wake pages itself.
    User,
    /// BPF programs: they ring a doorbell that the owner arms, so a reader notifies the owner first.
    Bpf,
}

/// What a ring is made for.
#[derive(Clone, Debug)]
pub struct RingSpec {
    /// Data blocks of 1 MiB, a power of two.
    pub data_blocks: u64,
    /// The run's interfaces in the order of their ids, up to and including this ring's.
    pub interfaces: Vec<Interface>,
    /// CPU whose frames come here, for per-CPU rings.
    pub cpu: Option<u32>,
    /// Clock of the timestamps.
    pub clock: Clock,
    /// Who writes.
    pub writer: WriterKind,
}

/// What block 0 says about a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Where everything lies.
    pub geometry: Geometry,
    /// Interface id in every record of this ring.
    pub interface_id: u32,
    /// Most bytes kept of a frame.
    pub snaplen: u32,
    /// Link type, as in the interface description (1 = Ethernet).
    pub link_type: u16,
    /// CPU whose frames come here, for per-CPU rings.
    pub cpu: Option<u32>,
    /// Clock of the timestamps.
    pub clock: Clock,
    /// Who writes.
    pub writer: WriterKind,
    /// Section header and interface descriptions, without the block that fills the area: the start
    /// of any file made from this ring.
    pub pcapng_header: Vec<u8>,
}

/// The section header that Weir's rings and files begin with.
#[must_use]
pub fn section_info() -> SectionInfo {
    SectionInfo {
        userappl: Some(concat!("Weir ", env!("CARGO_PKG_VERSION")).to_owned()),
        ..SectionInfo::default()
    }
}

/// Writes block 0 of a new ring; all else in the memory must be zero.
///
/// # Errors
/// [`RingError`] where the memory is too small, the block count impossible or the interfaces too many.
///
/// # Panics
/// If there is no interface for the ring to belong to.
pub fn format(words: &[AtomicU64], spec: &RingSpec) -> Result<Geometry, RingError> {
    assert!(!spec.interfaces.is_empty(), "a ring belongs to an interface");
    let geometry = Geometry::new(spec.data_blocks)?;
    if words.len() < geometry.total_words() {
        let have = words.len() as u64 * 8;
        return Err(RingError::TooSmall { have, need: geometry.total_bytes() });
    }
    let mut area = Vec::with_capacity(HEADER_AREA_BYTES as usize);
    pcapng::write::section_header(&mut area, &section_info());
    for interface in &spec.interfaces {
        pcapng::write::interface(&mut area, interface);
    }
    let (used, have) = (area.len(), (HEADER_AREA_BYTES - PADDING_MIN_BYTES) as usize);
    if used > have {
        let interfaces = spec.interfaces.len();
        return Err(RingError::HeaderTooLong { interfaces, need: used, have });
    }
    pcapng::write::padding_block(&mut area, HEADER_AREA_BYTES - used as u32);
    for (word, bytes) in words.iter().zip(area.chunks_exact(8)) {
        let bytes: [u8; 8] = bytes.try_into().expect("chunks of 8");
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
    let id = spec.interfaces.len() as u32 - 1;
    let own = &spec.interfaces[id as usize];
    let meta_bytes = BLOCK_BYTES - HEADER_AREA_BYTES;
    let cpu = spec.cpu.unwrap_or(u32::MAX);
    let fixed = [
        pair(META_TYPE, meta_bytes),
        MAGIC,
        pair(FORMAT_VERSION, u32::from(spec.writer == WriterKind::Bpf)),
        pair(BLOCK_BYTES, geometry.data_blocks as u32),
        pair(id, spec.interfaces.len() as u32),
        pair(own.snaplen, u32::from(own.link_type)),
        pair(cpu, u32::from(spec.clock == Clock::Foreign)),
        pair(used as u32, 0),
    ];
    // The magic comes last, behind a release: who finds it finds the rest.
    for (i, value) in fixed.iter().enumerate().filter(|(i, _)| *i != 1) {
        words[META_WORD + i].store(*value, Ordering::Relaxed);
    }
    let last = BLOCK_BYTES as usize / 8 - 1;
    words[last].store(pair(0, meta_bytes), Ordering::Relaxed);
    words[META_WORD + 1].store(fixed[1], Ordering::Release);
    Ok(geometry)
}

/// Reads block 0 of somebody's ring; `words` may be no more than that block.
///
/// # Errors
/// [`RingError`] if it is no ring, of another version, or contradicts itself.
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
    let (interface_id, interfaces) = unpair(fixed(4));
    let (snaplen, link_type) = unpair(fixed(5));
    let (cpu, foreign) = unpair(fixed(6));
    let (used, _) = unpair(fixed(7));
    if interfaces != interface_id.wrapping_add(1) || interfaces == 0 {
        return Err(corrupt("interface count"));
    }
    if used > HEADER_AREA_BYTES || !used.is_multiple_of(4) {
        return Err(corrupt("length of the pcapng header"));
    }
    let mut pcapng_header: Vec<u8> = words[..used.div_ceil(8) as usize]
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
        .collect();
    pcapng_header.truncate(used as usize);
    if count_interfaces(&pcapng_header) != Some(interfaces) {
        return Err(corrupt("pcapng header"));
    }
    Ok(Identity {
        geometry: Geometry::new(u64::from(data_blocks))?,
        interface_id,
        snaplen,
        link_type: u16::try_from(link_type).map_err(|_| corrupt("link type"))?,
        cpu: (cpu != u32::MAX).then_some(cpu),
        clock: if foreign == 0 { Clock::Realtime } else { Clock::Foreign },
        writer: if bpf == 0 { WriterKind::User } else { WriterKind::Bpf },
        pcapng_header,
    })
}

/// Interfaces described by a section header and what follows it; `None` if these are not whole blocks.
/// Files begin with these bytes, so a hostile ring must not make them into something else.
fn count_interfaces(header: &[u8]) -> Option<u32> {
    let (mut rest, mut found) = (header, 0);
    while !rest.is_empty() {
        let (head, _) = rest.split_first_chunk::<8>()?;
        let (block_type, bytes) = unpair(u64::from_le_bytes(*head));
        let bytes = bytes as usize;
        if bytes < PADDING_MIN_BYTES as usize || !bytes.is_multiple_of(4) || bytes > rest.len() {
            return None;
        }
        let (block, behind) = rest.split_at(bytes);
        let first = rest.len() == header.len();
        match block_type {
            pcapng::SHB_TYPE if first && bytes >= 28 => {}
            pcapng::IDB_TYPE if !first && bytes >= 20 => found += 1,
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
    use crate::testing::{spec, zeroed};

    fn formatted(spec: &RingSpec) -> Vec<AtomicU64> {
        let words = zeroed(5 << 17);
        format(&words, spec).unwrap();
        words
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
            assert_eq!(
                (identity.interface_id, identity.snaplen, identity.link_type),
                (1, 65535, 1)
            );
            assert_eq!(identity.geometry, Geometry::new(4).unwrap());
            let mut header = Vec::new();
            pcapng::write::section_header(&mut header, &section_info());
            spec.interfaces.iter().for_each(|i| pcapng::write::interface(&mut header, i));
            assert_eq!(identity.pcapng_header, header);
        }
    }

    #[test]
    fn a_header_that_contradicts_itself_is_refused() {
        let words = formatted(&spec(4));
        let used = read(&words).unwrap().pcapng_header.len() as u32;
        let meta = |i| META_WORD + i;
        let hostile = [
            (meta(1), 0),
            (meta(2), pair(FORMAT_VERSION + 1, 0)),
            (meta(3), pair(4096, 4)),
            (meta(3), pair(BLOCK_BYTES, 0)),
            (meta(3), pair(BLOCK_BYTES, 5)),
            (meta(3), pair(BLOCK_BYTES, u32::MAX)),
            (meta(4), pair(0, 0)),
            (meta(4), pair(u32::MAX, 0)),
            (meta(4), pair(u32::MAX - 1, u32::MAX)),
            (meta(4), pair(1, 2)),
            (meta(5), pair(0, 1 << 16)),
            (meta(7), pair(0, 0)),
            (meta(7), pair(u32::MAX, 0)),
            (meta(7), pair(used - 4, 0)),
            (meta(7), pair(used + 12, 0)),
            (meta(7), pair(HEADER_AREA_BYTES, 0)),
            (0, pair(pcapng::SHB_TYPE, 0)),
            (0, pair(pcapng::SHB_TYPE, u32::MAX - 3)),
            (0, pair(pcapng::IDB_TYPE, used)),
            (0, pair(pcapng::SHB_TYPE, used)),
        ];
        for (word, value) in hostile {
            let kept = words[word].load(Ordering::Relaxed);
            words[word].store(value, Ordering::Relaxed);
            assert!(read(&words).is_err(), "word {word} = {value:#x}");
            words[word].store(kept, Ordering::Relaxed);
        }
        assert!(read(&words).is_ok());
        assert!(matches!(read(&words[..100]), Err(RingError::TooSmall { .. })));
    }
}
