//! Appends pcapng blocks to a `Vec<u8>`.
//!
//! All values are little-endian and padded to 32 bits. No function fails: a text too long for an option is cut at a
//! character boundary, and lengths that only our own code can get wrong are asserted.

use std::net::IpAddr;

use super::{
    AddressName, BLOCK_MIN_BYTES, BYTE_ORDER_MAGIC, IDB_TYPE, ISB_TYPE, Interface, NRB_TYPE,
    PADDING_TYPE, SHB_TYPE, SectionInfo, Statistics, option,
};
use crate::record::{self, CAPLEN_MAX, Meta};

/// Nanoseconds, as a negative power of ten. Weir writes no other resolution.
const TSRESOL_NS: u8 = 9;
/// First byte of `if_filter`: text in the pcap filter language follows.
const FILTER_IS_TEXT: u8 = 0;

/// Appends a Section Header Block, version 1.0, of unknown section length.
///
/// Source: draft-ietf-opsawg-pcapng, section 4.1.
pub fn section_header(out: &mut Vec<u8>, info: &SectionInfo) {
    block(out, SHB_TYPE, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend_from_slice(&1u16.to_le_bytes()); // major
        out.extend_from_slice(&0u16.to_le_bytes()); // minor
        out.extend_from_slice(&(-1i64).to_le_bytes()); // section length: not known in advance
        let mut options = Options::new(out);
        options.text(option::SHB_HARDWARE, info.hardware.as_deref());
        options.text(option::SHB_OS, info.os.as_deref());
        options.text(option::SHB_USERAPPL, info.userappl.as_deref());
        options.end();
    });
}

/// Appends an Interface Description Block. The interface's id is the number of such blocks before it in the section.
///
/// Source: draft-ietf-opsawg-pcapng, section 4.2.
pub fn interface(out: &mut Vec<u8>, interface: &Interface) {
    block(out, IDB_TYPE, |out| {
        out.extend_from_slice(&interface.link_type.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes()); // reserved
        out.extend_from_slice(&interface.snaplen.to_le_bytes());
        let mut options = Options::new(out);
        options.text(option::IF_NAME, Some(interface.name.as_str()));
        options.text(option::IF_DESCRIPTION, interface.description.as_deref());
        options.bytes(option::IF_TSRESOL, &[TSRESOL_NS]);
        if let Some(filter) = interface.filter.as_deref().filter(|f| !f.is_empty()) {
            let kept = cut_at_char(filter, OPTION_MAX_BYTES - 1);
            options.parts(option::IF_FILTER, &[FILTER_IS_TEXT], kept.as_bytes());
        }
        options.end();
    });
}

/// Types of records in a Name Resolution Block.
pub(super) const NRB_RECORD_END: u16 = 0;
pub(super) const NRB_RECORD_IPV4: u16 = 1;
pub(super) const NRB_RECORD_IPV6: u16 = 2;
/// Addresses in one block. Even with the longest names, the block is far below the limits of readers.
const NAMES_PER_BLOCK: usize = 100;

/// Appends Name Resolution Blocks: none if there are no names. A name ends at a NUL. The blocks belong after the
/// section's first interface: Wireshark 4.0's tools cannot convert a file in which such a block comes before it.
///
/// Source: draft-ietf-opsawg-pcapng, section 4.5.
pub fn names(out: &mut Vec<u8>, names: &[AddressName]) {
    let bare = |name: &AddressName| name.name.split('\0').next().unwrap_or_default().to_owned();
    let named: Vec<(IpAddr, String)> = names
        .iter()
        .map(|name| (name.address, bare(name)))
        .filter(|(_, name)| !name.is_empty())
        .collect();
    for some in named.chunks(NAMES_PER_BLOCK) {
        block(out, NRB_TYPE, |out| {
            for (address, name) in some {
                match address {
                    IpAddr::V4(v4) => name_record(out, NRB_RECORD_IPV4, &v4.octets(), name),
                    IpAddr::V6(v6) => name_record(out, NRB_RECORD_IPV6, &v6.octets(), name),
                }
            }
            out.extend_from_slice(&NRB_RECORD_END.to_le_bytes());
            out.extend_from_slice(&0u16.to_le_bytes());
        });
    }
}

/// Appends a record of an address, its name, and a terminating NUL.
fn name_record(out: &mut Vec<u8>, kind: u16, address: &[u8], name: &str) {
    let name = cut_at_char(name, NAME_MAX_BYTES);
    let len = address.len() + name.len() + 1;
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(len as u16).to_le_bytes());
    out.extend_from_slice(address);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.resize(out.len() + (len.next_multiple_of(4) - len), 0);
}

/// The longest name that Wireshark shows completely (`MAXNAMELEN`, epan/addr_resolv.h), and the longest name of DNS.
pub(super) const NAME_MAX_BYTES: usize = 255;

/// Appends one frame as an Enhanced Packet Block, by [`record::append`].
///
/// A frame longer than [`CAPLEN_MAX`] is cut to this length. `meta.wire_len` is written unchanged.
pub fn frame(out: &mut Vec<u8>, meta: &Meta, frame: &[u8]) {
    record::append(out, meta, &frame[..frame.len().min(CAPLEN_MAX as usize)]);
}

/// Appends an Interface Statistics Block.
///
/// Source: draft-ietf-opsawg-pcapng, section 4.6.
pub fn statistics(out: &mut Vec<u8>, stats: &Statistics) {
    block(out, ISB_TYPE, |out| {
        out.extend_from_slice(&stats.interface_id.to_le_bytes());
        out.extend_from_slice(&time(stats.ts_ns));
        let mut options = Options::new(out);
        for (code, ns) in
            [(option::ISB_STARTTIME, stats.start_ns), (option::ISB_ENDTIME, stats.end_ns)]
        {
            if let Some(ns) = ns {
                options.bytes(code, &time(ns));
            }
        }
        for (code, count) in [
            (option::ISB_IFRECV, stats.received),
            (option::ISB_IFDROP, stats.interface_drops),
            (option::ISB_FILTERACCEPT, stats.filter_accepted),
            (option::ISB_OSDROP, stats.os_drops),
            (option::ISB_USRDELIV, stats.delivered),
        ] {
            if let Some(count) = count {
                options.bytes(code, &count.to_le_bytes());
            }
        }
        options.end();
    });
}

/// Appends a padding block of exactly `total_bytes`, with a body of zeroes.
///
/// # Panics
/// If `total_bytes` is below [`BLOCK_MIN_BYTES`] or not a multiple of 4: no such block exists.
pub fn padding_block(out: &mut Vec<u8>, total_bytes: u32) {
    assert!(
        total_bytes >= BLOCK_MIN_BYTES && total_bytes.is_multiple_of(4),
        "no block has {total_bytes} bytes"
    );
    out.extend_from_slice(&PADDING_TYPE.to_le_bytes());
    out.extend_from_slice(&total_bytes.to_le_bytes());
    out.resize(out.len() + (total_bytes - BLOCK_MIN_BYTES) as usize, 0);
    out.extend_from_slice(&total_bytes.to_le_bytes());
}

/// Appends a block around the bytes that `body` appends, which must be a multiple of 4.
fn block(out: &mut Vec<u8>, block_type: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&block_type.to_le_bytes());
    out.extend_from_slice(&[0; 4]); // total length, written below
    body(out);
    let total = (out.len() - start) as u32 + 4;
    debug_assert!(total.is_multiple_of(4));
    out[start + 4..start + 8].copy_from_slice(&total.to_le_bytes());
    out.extend_from_slice(&total.to_le_bytes());
}

/// Returns a time in the format of pcapng: the high word first, each word little-endian.
fn time(ns: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((ns >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(ns as u32).to_le_bytes());
    bytes
}

/// The largest value of an option's 16-bit length.
const OPTION_MAX_BYTES: usize = u16::MAX as usize;

/// Returns `text`, or as many whole characters of it as fit into `max_bytes`.
fn cut_at_char(text: &str, max_bytes: usize) -> &str {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A list of options that is being written. The end marker is written only if there is an option.
struct Options<'a> {
    out: &'a mut Vec<u8>,
    any: bool,
}

impl<'a> Options<'a> {
    fn new(out: &'a mut Vec<u8>) -> Options<'a> {
        Options { out, any: false }
    }

    /// Appends a text. `None` and empty texts are skipped: some readers treat an empty text as an error.
    fn text(&mut self, code: u16, text: Option<&str>) {
        if let Some(text) = text.filter(|t| !t.is_empty()) {
            self.bytes(code, cut_at_char(text, OPTION_MAX_BYTES).as_bytes());
        }
    }

    fn bytes(&mut self, code: u16, value: &[u8]) {
        self.parts(code, value, &[]);
    }

    fn parts(&mut self, code: u16, first: &[u8], second: &[u8]) {
        let len = first.len() + second.len();
        debug_assert!(len <= OPTION_MAX_BYTES);
        self.out.extend_from_slice(&code.to_le_bytes());
        self.out.extend_from_slice(&(len as u16).to_le_bytes());
        self.out.extend_from_slice(first);
        self.out.extend_from_slice(second);
        self.out.resize(self.out.len() + (len.next_multiple_of(4) - len), 0);
        self.any = true;
    }

    fn end(self) {
        if self.any {
            self.out.extend_from_slice(&option::END.to_le_bytes());
            self.out.extend_from_slice(&0u16.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bare_section_header_is_28_bytes() {
        let mut out = Vec::new();
        section_header(&mut out, &SectionInfo::default());
        #[rustfmt::skip]
        assert_eq!(out, [
            0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0,
        ]);
    }

    #[test]
    fn an_interface_carries_name_filter_and_nanoseconds() {
        let mut out = Vec::new();
        let eth0 = Interface {
            name: "eth0".into(),
            description: None,
            filter: Some("arp".into()),
            link_type: 1,
            snaplen: 128,
        };
        interface(&mut out, &eth0);
        #[rustfmt::skip]
        assert_eq!(out, [
            1, 0, 0, 0, 48, 0, 0, 0, 1, 0, 0, 0, 128, 0, 0, 0,
            2, 0, 4, 0, b'e', b't', b'h', b'0',
            9, 0, 1, 0, 9, 0, 0, 0,
            11, 0, 4, 0, 0, b'a', b'r', b'p',
            0, 0, 0, 0, 48, 0, 0, 0,
        ]);
    }

    #[test]
    fn names_stand_behind_their_addresses() {
        let mut out = Vec::new();
        let named = |address: &str, name: &str| AddressName {
            address: address.parse().unwrap(),
            name: name.into(),
        };
        names(&mut out, &[named("10.0.0.7", "web"), named("fe80::1", "db\0x"), named("::1", "")]);
        #[rustfmt::skip]
        assert_eq!(out, [
            4, 0, 0, 0, 52, 0, 0, 0,
            1, 0, 8, 0, 10, 0, 0, 7, b'w', b'e', b'b', 0,
            2, 0, 19, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'd', b'b', 0, 0,
            0, 0, 0, 0, 52, 0, 0, 0,
        ]);
        out.clear();
        names(&mut out, &[]);
        assert_eq!(out, [], "no block without a name");
    }

    #[test]
    fn statistics_put_the_high_word_of_a_time_first() {
        let mut out = Vec::new();
        let stats = Statistics { ts_ns: 1 << 32 | 2, os_drops: Some(3), ..Default::default() };
        statistics(&mut out, &stats);
        #[rustfmt::skip]
        assert_eq!(out, [
            5, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0,
            7, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,
        ]);
    }

    #[test]
    fn padding_is_exactly_as_long_as_asked() {
        for total_bytes in [12, 16, 1 << 20] {
            let mut out = Vec::new();
            padding_block(&mut out, total_bytes);
            assert_eq!(out.len(), total_bytes as usize);
            assert!(out[8..out.len() - 4].iter().all(|b| *b == 0));
        }
    }

    #[test]
    #[should_panic(expected = "no block has 8 bytes")]
    fn padding_shorter_than_a_block_is_our_bug() {
        padding_block(&mut Vec::new(), 8);
    }

    #[test]
    fn a_text_too_long_for_an_option_is_cut_at_a_character() {
        let mut out = Vec::new();
        let info = SectionInfo { os: Some("ö".repeat(40_000)), ..Default::default() };
        section_header(&mut out, &info);
        assert_eq!(out[26..28], 65_534u16.to_le_bytes());
        let len = out.len() as u32;
        assert_eq!(out[4..8], len.to_le_bytes());
        assert_eq!(out[out.len() - 4..], len.to_le_bytes());
    }

    #[test]
    fn a_frame_beyond_the_caplen_limit_is_cut_and_keeps_its_wire_length() {
        let mut out = Vec::new();
        let long = vec![7; CAPLEN_MAX as usize + 1];
        frame(&mut out, &Meta { wire_len: long.len() as u32, ..Meta::default() }, &long);
        let record = record::Record::parse(&out).unwrap();
        assert_eq!(record.frame.len(), CAPLEN_MAX as usize);
        assert_eq!(record.meta.wire_len, CAPLEN_MAX + 1);
    }

    /// The options of a block as `pcap-parser` reads them, without the end marker.
    fn options_of(block: &[u8]) -> Vec<(u16, Vec<u8>)> {
        use pcap_parser::Block;
        let (rest, block) = pcap_parser::pcapng::parse_block_le(block).expect("it reads our block");
        assert!(rest.is_empty());
        let options = match block {
            Block::SectionHeader(block) => block.options,
            Block::InterfaceDescription(block) => block.options,
            Block::InterfaceStatistics(block) => block.options,
            other => panic!("another block: {other:?}"),
        };
        let plain = options.iter().filter(|o| o.code.0 != option::END);
        plain.map(|o| (o.code.0, o.value[..usize::from(o.len)].to_vec())).collect()
    }

    fn some_text() -> impl Strategy<Value = Option<String>> {
        proptest::option::of("[^\\x00]{1,40}")
    }

    proptest! {
        #[test]
        fn pcap_parser_reads_every_name(
            all in proptest::collection::vec(
                (proptest::prelude::any::<std::net::IpAddr>(), "[^\\x00]{1,60}"), 0..250),
        ) {
            let mut out = Vec::new();
            let wanted: Vec<AddressName> =
                all.into_iter().map(|(address, name)| AddressName { address, name }).collect();
            names(&mut out, &wanted);
            let (mut rest, mut found) = (&out[..], Vec::new());
            while !rest.is_empty() {
                let (more, block) = pcap_parser::pcapng::parse_block_le(rest).expect("a block");
                let pcap_parser::Block::NameResolution(block) = block else { panic!("{block:?}") };
                for record in block.nr.iter().filter(|record| record.record_type.0 != 0) {
                    let value = record.record_value;
                    let address = match record.record_type.0 {
                        1 => IpAddr::from(<[u8; 4]>::try_from(&value[..4]).unwrap()),
                        _ => IpAddr::from(<[u8; 16]>::try_from(&value[..16]).unwrap()),
                    };
                    let name = &value[if address.is_ipv4() { 4 } else { 16 }..];
                    let name = name.split(|&byte| byte == 0).next().unwrap();
                    let name = String::from_utf8(name.to_vec()).unwrap();
                    found.push(AddressName { address, name });
                }
                rest = more;
            }
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn pcap_parser_reads_every_section_option(
            hardware in some_text(), os in some_text(), userappl in some_text(),
        ) {
            let mut out = Vec::new();
            let wanted: Vec<_> = [(2, &hardware), (3, &os), (4, &userappl)]
                .into_iter()
                .filter_map(|(code, text)| Some((code, text.as_ref()?.clone().into_bytes())))
                .collect();
            section_header(&mut out, &SectionInfo { hardware, os, userappl });
            prop_assert_eq!(options_of(&out), wanted);
        }

        #[test]
        fn an_interface_comes_back_from_the_reader_and_pcap_parser(
            name in "[^\\x00]{0,16}", description in some_text(), filter in some_text(),
            link_type: u16, snaplen: u32,
        ) {
            let wanted = Interface { name, description, filter, link_type, snaplen };
            let mut file = Vec::new();
            section_header(&mut file, &SectionInfo::default());
            let at = file.len();
            interface(&mut file, &wanted);
            let reader = crate::read::FrameReader::open(&file[..]).unwrap();
            prop_assert_eq!(reader.interfaces(), std::slice::from_ref(&wanted));
            let options = options_of(&file[at..]);
            prop_assert!(options.contains(&(option::IF_TSRESOL, vec![9])));
            let name = (option::IF_NAME, wanted.name.clone().into_bytes());
            prop_assert_eq!(options.contains(&name), !wanted.name.is_empty());
        }

        #[test]
        fn pcap_parser_reads_every_statistic(
            interface_id: u32, ts_ns: u64, times: [Option<u64>; 2], counts: [Option<u64>; 5],
        ) {
            let [start_ns, end_ns] = times;
            let [received, interface_drops, filter_accepted, os_drops, delivered] = counts;
            let mut out = Vec::new();
            statistics(&mut out, &Statistics {
                interface_id, ts_ns, start_ns, end_ns,
                received, interface_drops, filter_accepted, os_drops, delivered,
            });
            let wanted: Vec<_> = times
                .into_iter()
                .map(|ns| ns.map(|ns| ns.rotate_left(32))) // the high word first
                .chain(counts)
                .zip(option::ISB_STARTTIME..)
                .filter_map(|(value, code)| Some((code, value?.to_le_bytes().to_vec())))
                .collect();
            prop_assert_eq!(options_of(&out), wanted);
        }
    }
}
