//! Any interleaving of one writer and several readers, one step at a time: every frame is delivered
//! whole and in order, or counted.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use weir_frame::read::FrameReader;
use weir_ring::geometry::WriterWord;
use weir_ring::snapshot::snapshot;
use weir_ring::{
    AtomicU64, Batch, Geometry, Poll, Reader, Ring, Start, Tally, Writer, header, memory,
};

type Memory = Vec<AtomicU64>;

const READERS: usize = 3;
/// The longest frame of the toy ring, and the space that a record needs at most.
const TOY_CAPLEN_MAX: u32 = 120;
const TOY_ROOM: u32 = 28 + TOY_CAPLEN_MAX + 20 + 4 + 12;

#[derive(Clone, Debug)]
enum Op {
    Push { frames: u32, caplen: u32 },
    Publish,
    CloseBlock,
    Poll { reader: usize, times: u32 },
    Count { reader: usize, frames_max: u32 },
    Rejoin { reader: usize, start: Start, distance: u32 },
    Snapshot,
}

fn ops(caplen: impl Strategy<Value = u32>, burst: u32) -> impl Strategy<Value = Vec<Op>> {
    let reader = 0..READERS;
    let ordinal = (0..2000u64).prop_map(Start::Ordinal);
    let start = prop_oneof![2 => Just(Start::Oldest), 2 => Just(Start::Newest), 3 => ordinal];
    let op = prop_oneof![
        8 => (1..=burst, caplen).prop_map(|(frames, caplen)| Op::Push { frames, caplen }),
        4 => Just(Op::Publish),
        1 => Just(Op::CloseBlock),
        5 => (reader.clone(), 1..20u32).prop_map(|(reader, times)| Op::Poll { reader, times }),
        3 => (reader.clone(), 0..300u32)
            .prop_map(|(reader, frames_max)| Op::Count { reader, frames_max }),
        1 => (reader, start, 0..5000u32).prop_map(|(reader, start, distance)| {
            Op::Rejoin { reader, start, distance }
        }),
        1 => Just(Op::Snapshot),
    ];
    proptest::collection::vec(op, 1..120)
}

/// Pushed frames: the caplen of each frame and the number of its block.
#[derive(Default)]
struct Pushed {
    caplens: Vec<u32>,
    blocks: Vec<u64>,
}

struct Run {
    ring: Ring<Memory>,
    writer: Writer<Memory>,
    pushed: Pushed,
    readers: Vec<Reader<Memory>>,
    distances: [u32; READERS],
    batch: Batch,
    scratch: Vec<u8>,
}

impl Run {
    fn new(ring: Ring<Memory>) -> Run {
        let reader = || Reader::new(&ring, Start::Oldest).unwrap();
        Run {
            readers: (0..READERS).map(|_| reader()).collect(),
            distances: [0; READERS],
            writer: Writer::new(ring.clone()),
            ring,
            pushed: Pushed::default(),
            batch: Batch::new(),
            scratch: Vec::new(),
        }
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Push { frames, caplen } => self.push(frames, caplen),
            Op::Publish => self.writer.publish(),
            Op::CloseBlock => self.writer.close_block(),
            Op::Poll { reader, times } => {
                for _ in 0..times {
                    if self.poll(reader)? == Poll::Empty {
                        break;
                    }
                }
            }
            Op::Count { reader, frames_max } => drop(self.count_in_place(reader, frames_max)?),
            Op::Rejoin { reader, start, distance } => self.rejoin(reader, start, distance)?,
            Op::Snapshot => self.snapshot()?,
        }
        prop_assert!(self.ring.frames_written() <= self.writer.frames());
        Ok(())
    }

    fn push(&mut self, frames: u32, caplen: u32) {
        for _ in 0..frames {
            let ordinal = self.writer.frames();
            let kept = caplen.min(weir_frame::record::CAPLEN_MAX);
            let frame = common::frame(ordinal, caplen);
            self.writer.push(&common::meta(ordinal, kept), &frame);
            self.pushed.caplens.push(kept);
            self.pushed.blocks.push(self.ring.writer_word(WriterWord::Opened) - 1);
        }
    }

    /// The caplen with which a frame was recorded. The kept bytes are the first bytes of the whole frame.
    fn caplen(&self, ordinal: u64) -> u32 {
        self.pushed.caplens[ordinal as usize]
    }

    fn poll(&mut self, i: usize) -> Result<Poll, TestCaseError> {
        let before = self.readers[i].clone();
        let poll = self.readers[i].poll(&mut self.batch).unwrap();
        self.check(i, &before, poll)?;
        if let Poll::Frames(frames) = poll {
            prop_assert_eq!(self.batch.len() as u32, frames);
            let mut bytes = 0;
            for (ordinal, record) in (before.ordinal()..).zip(self.batch.records()) {
                let caplen = self.pushed.caplens[ordinal as usize];
                let whole = common::is_whole(&record, ordinal, caplen, &mut self.scratch);
                prop_assert!(whole, "frame {ordinal}: {record:?}");
                bytes += record.block.len();
            }
            prop_assert_eq!(self.batch.block_bytes().len(), bytes);
        } else {
            prop_assert!(self.batch.is_empty());
        }
        Ok(poll)
    }

    fn count_in_place(&mut self, i: usize, frames_max: u32) -> Result<Poll, TestCaseError> {
        let before = self.readers[i].clone();
        let mut tally = Tally::default();
        let poll = self.readers[i].count_in_place(&mut tally, frames_max).unwrap();
        if frames_max == 0 {
            prop_assert_eq!(poll, Poll::Empty);
            return Ok(poll);
        }
        self.check(i, &before, poll)?;
        let mut want = Tally::default();
        if let Poll::Frames(frames) = poll {
            prop_assert!((1..=frames_max).contains(&frames));
            for ordinal in before.ordinal()..before.ordinal() + u64::from(frames) {
                let meta = common::meta(ordinal, self.caplen(ordinal));
                want.frames += 1;
                want.kept_bytes += u64::from(self.caplen(ordinal));
                want.wire_bytes += u64::from(meta.wire_len);
                want.last_ns = meta.ts_ns;
            }
        }
        prop_assert_eq!(tally, want);
        Ok(poll)
    }

    /// Checks the conditions that hold after each poll or count, whatever its result.
    fn check(&self, i: usize, before: &Reader<Memory>, poll: Poll) -> Result<(), TestCaseError> {
        let reader = &self.readers[i];
        let published = self.ring.frames_written();
        let moved = reader.ordinal() - before.ordinal();
        let (delivered, lapped) = match poll {
            Poll::Frames(frames) => (u64::from(frames), 0),
            Poll::Lapped(frames) => (0, frames),
            // The writer does not run meanwhile, so nothing that was published may be left unread.
            Poll::Empty => {
                let all = reader.ordinal() == published;
                prop_assert!(all || self.distances[i] > 0 || self.overtaken(reader.ordinal()));
                (0, 0)
            }
            Poll::Closed => {
                prop_assert_eq!(reader.ordinal(), self.writer.frames());
                (0, 0)
            }
        };
        prop_assert!(matches!(poll, Poll::Empty | Poll::Closed) || delivered + lapped > 0);
        prop_assert_eq!(moved, delivered + lapped);
        prop_assert_eq!(reader.delivered(), before.delivered() + delivered);
        prop_assert_eq!(reader.lapped(), before.lapped() + lapped);
        prop_assert!(reader.ordinal() <= published);
        if lapped > 0 {
            prop_assert!(self.overtaken(before.ordinal()), "lapped without need: {poll:?}");
            prop_assert!(!self.overtaken(reader.ordinal() + 1), "not at a safe place: {poll:?}");
        }
        Ok(())
    }

    /// Whether the block of the frame before this one has been claimed for newer frames.
    fn overtaken(&self, ordinal: u64) -> bool {
        let block = ordinal.checked_sub(1).map_or(0, |last| self.pushed.blocks[last as usize]);
        block + self.ring.geometry().data_blocks < self.ring.writer_word(WriterWord::Opened)
    }

    fn rejoin(&mut self, i: usize, start: Start, distance: u32) -> Result<(), TestCaseError> {
        let mut reader = Reader::new(&self.ring, start).unwrap();
        prop_assert_eq!(reader.delivered(), 0);
        match start {
            // Overwritten frames count as lapped. A reader that starts beyond the last frame waits there.
            Start::Ordinal(ordinal) => {
                prop_assert_eq!(reader.joined_at(), ordinal.min(self.ring.frames_written()));
            }
            _ => prop_assert_eq!(reader.lapped(), 0),
        }
        prop_assert!(reader.joined_at() <= self.writer.frames());
        let opened = self.ring.writer_word(WriterWord::Opened);
        if start == Start::Oldest && opened <= self.ring.geometry().data_blocks {
            prop_assert_eq!(reader.joined_at(), 0);
        }
        // Half of the readers stay some bytes behind the writer.
        self.distances[i] = distance.saturating_sub(2500);
        reader.keep_distance(self.distances[i]);
        self.readers[i] = reader;
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), TestCaseError> {
        if self.ring.geometry().block_bytes < weir_ring::geometry::BLOCK_BYTES {
            return Ok(()); // a toy ring has no header
        }
        let mut file = Vec::new();
        let taken = snapshot(&self.ring, &mut file).unwrap();
        prop_assert_eq!(taken.lapped, 0);
        let published = self.ring.frames_written();
        let mut reader = FrameReader::open(&file[..]).unwrap();
        for ordinal in published - taken.frames..published {
            let frame = reader.next().unwrap().expect("as many frames as it says");
            let caplen = self.pushed.caplens[ordinal as usize];
            prop_assert_eq!(frame.meta(), common::meta(ordinal, caplen));
            prop_assert!(frame.data == &common::frame(ordinal, caplen)[..], "frame {ordinal}");
        }
        prop_assert!(reader.next().unwrap().is_none());
        Ok(())
    }

    /// Closes the ring, and lets every reader read to the end.
    fn finish(mut self) -> Result<(), TestCaseError> {
        // While the writer does not write, repeated polls find all frames, at any distance.
        self.writer.publish();
        for i in 0..READERS {
            let mut empty = 0;
            while empty < 3 {
                empty += u32::from(self.poll(i)? == Poll::Empty);
            }
            prop_assert_eq!(self.readers[i].ordinal(), self.ring.frames_written());
        }
        self.writer.close();
        for i in 0..READERS {
            while self.poll(i)? != Poll::Closed {}
            let reader = &self.readers[i];
            let captured = self.writer.frames() - reader.joined_at();
            prop_assert_eq!(reader.delivered() + reader.lapped(), captured);
        }
        self.snapshot()
    }
}

fn toy_ring(block_bytes: u32, blocks: u64) -> Ring<Memory> {
    let geometry = Geometry::model(block_bytes, blocks, TOY_ROOM);
    Ring::new(Arc::new(common::zeroed(geometry.total_words())), geometry).unwrap()
}

fn real_ring() -> Ring<Memory> {
    let memory = common::zeroed(5 << 17);
    header::format(&memory, &common::spec(4)).unwrap();
    Ring::open(Arc::new(memory)).unwrap()
}

/// Frame lengths that end at every offset within a word, and on both sides of every class border.
fn caplens() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..80u32,
        2 => 1500..1520u32,
        2 => 2045..2053u32,
        1 => 10_237..10_245u32,
        1 => 16_200..16_500u32,
        1 => 69_629..69_640u32,
        1 => 0..69_633u32,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn toy_ring_every_frame_is_delivered_whole_or_counted(
        words in 24..80u32,
        blocks in 1..=3u32,
        ops in ops(0..=TOY_CAPLEN_MAX, 12),
    ) {
        let mut run = Run::new(toy_ring(words * 8, 1 << blocks));
        for op in &ops {
            run.step(op)?;
        }
        run.finish()?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn real_ring_every_frame_is_delivered_whole_or_counted(ops in ops(caplens(), 60)) {
        let mut run = Run::new(real_ring());
        for op in &ops {
            run.step(op)?;
        }
        run.finish()?;
    }
}

#[test]
fn a_whole_ring_file_is_a_capture_file_for_every_tool() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("ring.pcapng");
    let mut writer = Writer::new(memory::create_file(&path, &common::spec(4)).unwrap());
    // More frames than fit in the ring, so that every block has been closed; the lengths end at every offset.
    let mut opened = Vec::new();
    while writer.ring().writer_word(WriterWord::Opened) < 7 {
        let ordinal = writer.frames();
        let caplen = (common::mix(ordinal) % 3000) as u32;
        writer.push(&common::meta(ordinal, caplen), &common::frame(ordinal, caplen));
        opened.push((writer.ring().writer_word(WriterWord::Opened) - 1, caplen));
    }
    writer.close();
    // Blocks lie in the order of their slots: numbers 4, 5, 6, 3.
    let mut want = Vec::new();
    for block in [4, 5, 6, 3] {
        want.extend((0..opened.len() as u64).filter(|&i| opened[i as usize].0 == block));
    }
    let mut reader = FrameReader::open(std::fs::File::open(&path).unwrap()).unwrap();
    for &ordinal in &want {
        let frame = reader.next().unwrap().expect("a frame of the ring");
        let caplen = opened[ordinal as usize].1;
        assert_eq!(frame.meta(), common::meta(ordinal, caplen));
        assert!(frame.data == &common::frame(ordinal, caplen)[..], "frame {ordinal}");
    }
    assert!(reader.next().unwrap().is_none());
    for (tool, arguments) in [
        ("capinfos", &["-c", "-M", "-T", "-r"][..]),
        ("tshark", &["-T", "fields", "-e", "frame.number", "-r"]),
        ("tcpdump", &["-n", "-r"]),
    ] {
        let output = std::process::Command::new(tool).args(arguments).arg(&path).output();
        let Ok(output) = output else {
            let name = format!("a_whole_ring_file_is_a_capture_file_for_every_tool_{tool}");
            common::skip(&name, "not installed (make setup)");
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
        let frames = match tool {
            "capinfos" => text.split_whitespace().last().unwrap().parse().unwrap(),
            _ => text.lines().filter(|line| !line.starts_with(char::is_whitespace)).count(),
        };
        assert_eq!(frames, want.len(), "{tool}");
    }
}
