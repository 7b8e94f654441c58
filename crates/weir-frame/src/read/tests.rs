//! Tests of the reader with files of every kind: whole, truncated and damaged; and a comparison with `pcap-parser`.

use super::bytes::Order;
use super::*;
use crate::pcapng::{AddressName, IDB_TYPE, PB_TYPE, SPB_TYPE, SectionInfo, Statistics, write};
use crate::record::EPB_TYPE;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{PcapBlockOwned, PcapError, PcapNGReader};
use proptest::prelude::*;

/// A frame that owns its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Owned {
    ts_ns: u64,
    wire_len: u32,
    interface: u32,
    link_type: u16,
    flags: Option<Flags>,
    queue: Option<u32>,
    data: Vec<u8>,
}

impl From<Frame<'_>> for Owned {
    fn from(f: Frame<'_>) -> Owned {
        let Frame { ts_ns, wire_len, interface, link_type, flags, queue, data } = f;
        Owned { ts_ns, wire_len, interface, link_type, flags, queue, data: data.to_vec() }
    }
}

/// An input that returns its bytes in pieces, and `WouldBlock` between them.
struct Hesitant<'a> {
    bytes: &'a [u8],
    pieces: &'a [usize],
    reads: usize,
    hesitates: bool,
}

impl Read for Hesitant<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.reads += 1;
        if self.hesitates && self.reads.is_multiple_of(2) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let piece = self.pieces[self.reads % self.pieces.len()].min(out.len());
        (&mut self.bytes).take(piece as u64).read(out)
    }
}

/// Returns all whole frames, and the error that follows them, if any.
fn read_all(file: &[u8]) -> (Vec<Owned>, Option<ReadError>) {
    let mut frames = Vec::new();
    let mut reader = match FrameReader::open(file) {
        Ok(reader) => reader,
        Err(e) => return (frames, Some(e)),
    };
    let error = loop {
        match reader.next() {
            Ok(Some(frame)) => frames.push(frame.into()),
            Ok(None) => break None,
            Err(e) => break Some(e),
        }
    };
    assert!(matches!(reader.next(), Ok(None)), "the end is the end");
    assert_eq!(reader.frames(), frames.len() as u64);
    (frames, error)
}

fn frames_of(file: &[u8]) -> Vec<Owned> {
    let (frames, error) = read_all(file);
    assert!(error.is_none(), "{}", error.unwrap());
    frames
}

fn reason_of(file: &[u8]) -> String {
    read_all(file).1.expect("an error").to_string()
}

/// Writes files in either byte order.
struct Build {
    order: Order,
    out: Vec<u8>,
}

impl Build {
    fn pcapng(order: Order) -> Build {
        let mut build = Build { order, out: Vec::new() };
        build.section();
        build
    }

    fn pcap(order: Order, magic: u32, link_type: u32) -> Build {
        let mut build = Build { order, out: Vec::new() };
        build.words(&[magic]);
        build.halves(&[2, 4]);
        build.words(&[0, 0, 65_535, link_type]);
        build
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.out.extend(match self.order {
                Order::Little => word.to_le_bytes(),
                Order::Big => word.to_be_bytes(),
            });
        }
    }

    fn halves(&mut self, halves: &[u16]) {
        for half in halves {
            self.out.extend(match self.order {
                Order::Little => half.to_le_bytes(),
                Order::Big => half.to_be_bytes(),
            });
        }
    }

    fn block(&mut self, block_type: u32, body: impl FnOnce(&mut Build)) -> &mut Build {
        let start = self.out.len();
        self.words(&[block_type, 0]);
        body(self);
        let total = self.out.len() - start + 4;
        self.words(&[total as u32]);
        let length: [u8; 4] = self.out[self.out.len() - 4..].try_into().unwrap();
        self.out[start + 4..start + 8].copy_from_slice(&length);
        self
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.halves(&[code, value.len() as u16]);
        self.out.extend(value);
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    fn section(&mut self) -> &mut Build {
        self.block(SHB_TYPE, |b| {
            b.words(&[0x1a2b_3c4d]);
            b.halves(&[1, 0]);
            b.words(&[u32::MAX, u32::MAX]);
        })
    }

    fn interface(&mut self, link_type: u16, snaplen: u32, resolution: Option<u8>) -> &mut Build {
        self.block(IDB_TYPE, |b| {
            b.halves(&[link_type, 0]);
            b.words(&[snaplen]);
            if let Some(resolution) = resolution {
                b.option(9, &[resolution]);
                b.halves(&[0, 0]);
            }
        })
    }

    fn packet(&mut self, id: u32, ticks: u64, wire_len: u32, data: &[u8]) -> &mut Build {
        self.block(EPB_TYPE, |b| {
            b.words(&[id, (ticks >> 32) as u32, ticks as u32, data.len() as u32, wire_len]);
            b.padded(data);
        })
    }

    fn padded(&mut self, data: &[u8]) {
        self.out.extend(data);
        self.out.resize(self.out.len() + (data.len().next_multiple_of(4) - data.len()), 0);
    }

    fn record(&mut self, seconds: u32, ticks: u32, wire_len: u32, data: &[u8]) -> &mut Build {
        self.words(&[seconds, ticks, data.len() as u32, wire_len]);
        self.out.extend(data);
        self
    }
}

const BOTH: [Order; 2] = [Order::Little, Order::Big];

#[test]
fn classic_pcap_of_both_orders_and_resolutions() {
    for order in BOTH {
        for (magic, ns_per_tick) in [(0xa1b2_c3d4, 1000), (0xa1b2_3c4d, 1)] {
            // The top bits of the link type word say that frames have an FCS, and how long it is.
            let mut file = Build::pcap(order, magic, 0x4400_0071);
            file.record(1_700_000_000, 7, 60, b"abc").record(1, 0, 2, b"defg");
            let frames = frames_of(&file.out);
            assert_eq!(frames[0].ts_ns, 1_700_000_000_000_000_000 + 7 * ns_per_tick);
            assert_eq!((frames[0].wire_len, frames[0].link_type), (60, 0x71));
            assert_eq!((&frames[0].data[..], &frames[1].data[..]), (&b"abc"[..], &b"defg"[..]));
            assert_eq!(frames[1].wire_len, 4, "never below what is kept");
        }
    }
}

#[test]
fn pcapng_of_both_orders_with_every_packet_block() {
    for order in BOTH {
        let mut file = Build::pcapng(order);
        file.interface(1, 4, None).interface(113, 0, Some(9));
        file.packet(1, 5 << 32 | 6, 1500, b"enhanced");
        file.block(SPB_TYPE, |b| {
            b.words(&[9]);
            b.padded(b"simp"); // 4 of 9 by the snaplen
        });
        file.block(PB_TYPE, |b| {
            b.halves(&[0, 17]); // interface, drops
            b.words(&[0, 3, 3, 64]);
            b.padded(b"old");
            b.option(2, &[2, 0, 0, 0]);
            b.halves(&[0, 0]);
        });
        let frames = frames_of(&file.out);
        assert_eq!(frames[0].ts_ns, 5 << 32 | 6);
        assert_eq!((frames[0].interface, frames[0].link_type), (1, 113));
        assert_eq!(frames[0].data, b"enhanced");
        assert_eq!((frames[1].ts_ns, frames[1].wire_len), (0, 9));
        assert_eq!(frames[1].data, b"simp");
        assert_eq!((frames[2].ts_ns, frames[2].wire_len), (3000, 64));
        assert_eq!(frames[2].data, b"old");
        assert!(frames[2].flags.is_some());
    }
}

#[test]
fn sections_may_differ_in_byte_order_and_count_interfaces_anew() {
    let mut file = Build::pcapng(Order::Little);
    file.interface(1, 0, Some(9)).packet(0, 1, 1, b"a");
    file.order = Order::Big;
    file.section().interface(113, 0, Some(0x80 | 1)).packet(0, 3, 1, b"b");
    let mut reader = FrameReader::open(&file.out[..]).unwrap();
    assert_eq!(reader.interfaces().len(), 1, "open stops at the first interface");
    assert_eq!(reader.next().unwrap().unwrap().interface, 0);
    let second = reader.next().unwrap().unwrap();
    assert_eq!((second.interface, second.link_type), (1, 113));
    assert_eq!(second.ts_ns, 1_500_000_000);
    assert_eq!(reader.interfaces().len(), 2);
}

#[test]
fn interface_options_are_kept_and_a_time_offset_is_added() {
    let mut file = Build::pcapng(Order::Big);
    file.block(IDB_TYPE, |b| {
        b.halves(&[1, 0]);
        b.words(&[128]);
        b.option(2, b"eth0\0");
        b.option(3, b"the uplink");
        b.option(11, b"\0udp port 53");
        b.option(14, &100i64.to_be_bytes());
        b.option(5, &[1, 2, 3]);
        b.halves(&[0, 0]);
    });
    file.packet(0, 1, 1, b"x");
    let mut reader = FrameReader::open(&file.out[..]).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().ts_ns, 100_000_001_000);
    let wanted = Interface {
        name: "eth0".into(),
        description: Some("the uplink".into()),
        filter: Some("udp port 53".into()),
        link_type: 1,
        snaplen: 128,
    };
    assert_eq!(reader.interfaces(), [wanted]);
}

#[test]
fn blocks_without_frames_are_passed_over() {
    let mut file = Build::pcapng(Order::Little);
    file.interface(1, 0, Some(9));
    for block_type in [4, 5, 0xbad, 0x4000_0bad, 0x8000_5745, 0xffff_ffff] {
        file.block(block_type, |b| b.out.extend(vec![0; 100_000]));
        file.packet(0, u64::from(block_type), 1, b"x");
    }
    assert_eq!(frames_of(&file.out).len(), 6);
}

#[test]
fn an_option_without_its_value_does_not_undo_an_earlier_one() {
    // Found by fuzzing the record and this reader against each other.
    let mut file = Build::pcapng(Order::Little);
    file.interface(1, 0, Some(9));
    file.block(EPB_TYPE, |b| {
        b.words(&[0, 0, 1, 4, 4]);
        b.padded(b"abcd");
        b.option(6, &[7, 0, 0, 0]);
        b.halves(&[6, 4]); // a queue whose value lies beyond the block
    });
    let frames = frames_of(&file.out);
    assert_eq!((frames.len(), frames[0].queue), (1, Some(7)));
}

#[test]
fn what_is_no_capture_says_what_to_do() {
    let first = |bytes: &[u8]| reason_of(&[bytes, &[0; 40]].concat());
    assert!(reason_of(&[]).contains("empty"));
    assert!(reason_of(&[0x0a, 0x0d]).contains("cut off"));
    assert!(first(b"\x1f\x8b\x08\x00").contains("gzip -dc"));
    assert!(first(&0xa1b2_cd34u32.to_le_bytes()).contains("editcap -F pcapng"));
    assert!(first(&0xa1b2_cd34u32.to_be_bytes()).contains("modified"));
    assert!(first(b"GET ").contains("0x47455420"));
    let mut old = Build::pcap(Order::Little, 0xa1b2_c3d4, 1);
    old.out[6] = 1;
    assert!(reason_of(&old.out).contains("version 2.1"));
    assert!(first(&Build::pcapng(Order::Big).out[..8]).contains("byte-order"));
}

#[test]
fn damage_names_the_place_and_what_contradicts() {
    let whole = || {
        let mut file = Build::pcapng(Order::Little);
        file.interface(1, 0, Some(9)).packet(0, 1, 4, b"good").packet(0, 2, 4, b"bad!");
        file.out
    };
    let at = 28 + 32 + 36; // section, interface, first packet
    let damaged = |offset: usize, value: u32| {
        let mut file = whole();
        file[at + offset..at + offset + 4].copy_from_slice(&value.to_le_bytes());
        let (frames, error) = read_all(&file);
        let error = error.expect("an error");
        assert_eq!((frames.len(), error.frames, error.offset), (1, 1, at as u64));
        error.reason
    };
    assert!(matches!(damaged(4, 34), Reason::BlockLength { bytes: 34, .. }));
    assert!(matches!(damaged(4, 0), Reason::BlockLength { bytes: 0, .. }));
    assert!(matches!(damaged(4, 1 << 30), Reason::BlockTooLong { .. }));
    assert!(matches!(damaged(4, 1 << 20), Reason::CutOff { have: 36, .. }));
    assert!(matches!(damaged(32, 40), Reason::LengthsDiffer { head: 36, tail: 40 }));
    assert!(matches!(damaged(8, 1), Reason::UnknownInterface { id: 1, known: 1 }));
    assert!(matches!(damaged(20, 5), Reason::FrameOverruns { caplen: 5, room: 4 }));
    assert!(matches!(damaged(20, u32::MAX), Reason::FrameOverruns { .. }));
    let text = reason_of(&whole()[..at + 20]);
    assert_eq!(
        text,
        "byte 96, after frame 1: the file is cut off here: 20 of a block's 36 bytes are there"
    );
}

#[test]
fn limits_hold() {
    let mut file = Build::pcap(Order::Little, 0xa1b2_c3d4, 1);
    file.words(&[0, 0, 600_000, 600_000]);
    assert!(reason_of(&file.out).contains("limit of 528384"));
    let mut file = Build::pcapng(Order::Little);
    file.interface(1, 0, None).interface(1, 0, None);
    let limits = Limits { interfaces: 1, ..Limits::default() };
    let mut reader = FrameReader::with_limits(&file.out[..], limits).unwrap();
    assert!(matches!(reader.next().unwrap_err().reason, Reason::TooManyInterfaces(1)));
}

#[test]
fn a_section_without_frames_ends_well() {
    assert_eq!(frames_of(&Build::pcapng(Order::Big).out), []);
}

/// Frames to write. Each belongs to one of `interfaces` interfaces.
fn any_frames(interfaces: u32) -> impl Strategy<Value = Vec<(Meta, Vec<u8>)>> {
    let options =
        (proptest::option::of(any::<u32>().prop_map(Flags)), proptest::option::of(any::<u32>()));
    let frame = (
        0..interfaces,
        any::<u64>(),
        0u32..9000,
        options,
        proptest::collection::vec(any::<u8>(), 0..300),
    );
    let frame = frame.prop_map(|(interface_id, ts_ns, more, (flags, queue), data)| {
        let wire_len = data.len() as u32 + more;
        (Meta { interface_id, ts_ns, wire_len, flags, queue }, data)
    });
    proptest::collection::vec(frame, 0..20)
}

/// A file as Weir writes it, and the offset at which each frame's block ends. It has two interfaces, of link types 1
/// and 113, names, padding and statistics.
fn weir_file(frames: &[(Meta, Vec<u8>)]) -> (Vec<u8>, Vec<usize>) {
    let mut file = Vec::new();
    write::section_header(
        &mut file,
        &SectionInfo { os: Some("Linux".into()), ..Default::default() },
    );
    let name =
        |address: &str| AddressName { address: address.parse().unwrap(), name: "web".into() };
    write::names(&mut file, &[name("10.0.0.7"), name("fe80::7")]);
    for link_type in [1, 113] {
        let interface = Interface { name: "eth0".into(), link_type, ..Default::default() };
        write::interface(&mut file, &interface);
    }
    write::padding_block(&mut file, 4096);
    let mut ends = Vec::new();
    for (i, (meta, data)) in frames.iter().enumerate() {
        write::frame(&mut file, meta, data);
        ends.push(file.len());
        if i % 3 == 2 {
            write::padding_block(&mut file, 12 + 4 * i as u32);
        }
    }
    write::statistics(&mut file, &Statistics { received: Some(1), ..Default::default() });
    (file, ends)
}

fn wanted(frames: &[(Meta, Vec<u8>)]) -> Vec<Owned> {
    let owned = |(meta, data): &(Meta, Vec<u8>)| Owned {
        ts_ns: meta.ts_ns,
        wire_len: meta.wire_len,
        interface: meta.interface_id,
        link_type: [1, 113][meta.interface_id as usize],
        flags: meta.flags,
        queue: meta.queue,
        data: data.clone(),
    };
    frames.iter().map(owned).collect()
}

/// Offsets at which the blocks of a little-endian file end.
fn block_ends(file: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    while let Some(bytes) = Order::Little.u32_at(file, at + 4) {
        at += bytes as usize;
        ends.push(at);
    }
    ends
}

/// The frames of a pcapng file as `pcap-parser` reads them: interface, ticks, lengths, bytes.
fn by_pcap_parser(file: &[u8]) -> Vec<(u32, u64, u32, Vec<u8>)> {
    let mut reader = PcapNGReader::new(1 << 20, file).expect("pcap-parser opens it");
    let mut frames = Vec::new();
    loop {
        match reader.next() {
            Ok((used, block)) => {
                if let PcapBlockOwned::NG(pcap_parser::Block::EnhancedPacket(epb)) = block {
                    let ticks = u64::from(epb.ts_high) << 32 | u64::from(epb.ts_low);
                    frames.push((epb.if_id, ticks, epb.origlen, epb.packet_data().to_vec()));
                }
                reader.consume(used);
            }
            Err(PcapError::Eof) => return frames,
            Err(PcapError::Incomplete(_)) => reader.refill().expect("memory can be read"),
            Err(e) => panic!("pcap-parser: {e:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_written_is_read_back(frames in any_frames(2)) {
        prop_assert_eq!(frames_of(&weir_file(&frames).0), wanted(&frames));
    }

    #[test]
    fn a_file_cut_anywhere_gives_its_whole_frames_first(
        frames in any_frames(2), cut in any::<proptest::sample::Index>(),
    ) {
        let (file, ends) = weir_file(&frames);
        let cut = cut.index(file.len());
        let whole = ends.iter().take_while(|end| **end <= cut).count();
        let (read, error) = read_all(&file[..cut]);
        prop_assert_eq!(&read[..], &wanted(&frames)[..whole]);
        let between_blocks = cut > 0 && block_ends(&file).contains(&cut);
        prop_assert_eq!(error.is_none(), between_blocks);
        if let Some(error) = error {
            prop_assert_eq!(error.frames, whole as u64);
            prop_assert!(error.offset as usize <= cut);
        }
    }

    #[test]
    fn an_input_that_hesitates_gives_the_same_frames(
        frames in any_frames(2), pieces in proptest::collection::vec(1usize..200, 1..20),
        cut in any::<proptest::sample::Index>(),
    ) {
        let (file, _) = weir_file(&frames);
        let cut = file[..cut.index(file.len() - 300) + 300].to_vec();
        let mut pcap = Build::pcap(Order::Little, 0xa1b2_3c4d, 1);
        for (meta, data) in &frames {
            pcap.record(meta.ts_ns as u32, 5, data.len() as u32, data);
        }
        for file in [file, cut, pcap.out] {
            let input = Hesitant { bytes: &file, pieces: &pieces, reads: 0, hesitates: false };
            let mut reader = FrameReader::open(input).expect("a file");
            reader.get_mut().hesitates = true;
            let mut read: Vec<Owned> = Vec::new();
            let ended = loop {
                match reader.next() {
                    Ok(Some(frame)) => read.push(frame.into()),
                    Ok(None) => break None,
                    Err(error) if error.is_would_block() => {}
                    Err(error) => break Some(error.to_string()),
                }
            };
            let (frames, error) = read_all(&file);
            prop_assert_eq!(read, frames);
            prop_assert_eq!(ended, error.map(|error| error.to_string()));
        }
    }

    #[test]
    fn classic_round_trip(
        big: bool, ns: bool,
        records in proptest::collection::vec(
            (any::<u32>(), 0u32..1_000_000, 0u32..9000, proptest::collection::vec(any::<u8>(), 0..300)),
            0..20,
        ),
    ) {
        let order = if big { Order::Big } else { Order::Little };
        let magic = if ns { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut file = Build::pcap(order, magic, 1);
        for (seconds, ticks, more, data) in &records {
            file.record(*seconds, *ticks, data.len() as u32 + more, data);
        }
        let read = frames_of(&file.out);
        prop_assert_eq!(read.len(), records.len());
        for (frame, (seconds, ticks, more, data)) in read.iter().zip(&records) {
            let ns_per_tick = if ns { 1 } else { 1000 };
            prop_assert_eq!(frame.ts_ns, u64::from(*seconds) * 1_000_000_000 + u64::from(*ticks) * ns_per_tick);
            prop_assert_eq!((&frame.data, frame.wire_len), (data, data.len() as u32 + more));
        }
        // pcap-parser agrees on the records.
        let (mut rest, header) = pcap_parser::parse_pcap_header(&file.out).expect("it opens it");
        prop_assert_eq!(header.is_nanosecond_precision(), ns);
        for frame in &read {
            let parsed = if big {
                pcap_parser::pcap::parse_pcap_frame_be(rest)
            } else {
                pcap_parser::pcap::parse_pcap_frame(rest)
            };
            let (left, theirs) = parsed.expect("it reads it");
            prop_assert_eq!(theirs.data, &frame.data[..]);
            prop_assert_eq!(theirs.origlen, frame.wire_len);
            rest = left;
        }
    }

    #[test]
    fn pcap_parser_sees_the_same_frames(big: bool, frames in any_frames(2)) {
        let theirs = by_pcap_parser(&weir_file(&frames).0);
        let ours: Vec<_> = frames
            .iter()
            .map(|(m, data)| (m.interface_id, m.ts_ns, m.wire_len, data.clone()))
            .collect();
        prop_assert_eq!(&theirs, &ours);

        let mut file = Build::pcapng(if big { Order::Big } else { Order::Little });
        file.interface(1, 0, Some(9)).interface(113, 0, Some(9));
        for (meta, data) in &frames {
            file.packet(meta.interface_id, meta.ts_ns, meta.wire_len, data);
        }
        let read: Vec<_> = frames_of(&file.out)
            .into_iter()
            .map(|f| (f.interface, f.ts_ns, f.wire_len, f.data))
            .collect();
        prop_assert_eq!(by_pcap_parser(&file.out), read);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn hostile_bytes_never_panic(
        magic in proptest::sample::select(vec![0x0a0d_0d0au32, 0xa1b2_c3d4, 0xa1b2_3c4d, 0]),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut file = magic.to_le_bytes().to_vec();
        file.extend(&bytes);
        read_all(&file);
    }

    #[test]
    fn damaged_files_never_panic(
        frames in any_frames(2),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let (mut file, _) = weir_file(&frames[..frames.len().min(4)]);
        for (at, value) in damage {
            let at = at.index(file.len());
            file[at] = value;
        }
        read_all(&file);
    }
}
