//! Consumers of rings whose owners change the memory at any time. The consumers deliver frames or return an error,
//! their counts add up, and their output stays whole. The fuzz target and the property test share this file.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_consumer::{Begin, Consumer, ConsumerError, JoinedFeed, Ordered, Sink, Step};
use weir_frame::pcapng::{IDB_TYPE, ISB_TYPE, SHB_TYPE, Statistics};
use weir_frame::record::EPB_TYPE;
use weir_print::TimeFormat;
use weir_store::{FileWriter, PrintOptions, Printer};

use crate::driver::{Attacked, Hostile, Input, whole_ring};

/// Outcome of an input, so that a test can check that inputs reach all code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub frames: bool,
    pub left: bool,
    pub abandoned: bool,
    pub ended: bool,
    pub refused: bool,
    pub failed: bool,
}

/// An output that the test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs one input: a consumer, which prints or writes a file, reads two hostile rings, of one feed or of two.
pub fn run(bytes: &[u8]) -> Seen {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut input = Input(first);
    let how = input.byte();
    let first = whole_ring(&mut input, 0);
    let second = whole_ring(&mut Input(second), 1);
    let slack = if how & 1 == 0 { Duration::ZERO } else { Duration::from_secs(3600) };
    let out = Shared::default();
    match how & 2 {
        0 => {
            let printer = Printer::new(
                out.clone(),
                "test",
                PrintOptions { time: TimeFormat::Epoch, ..PrintOptions::default() },
            );
            let (seen, frames) = read(Ordered::new(slack, printer), how, first, second);
            check_lines(&out.0.lock().unwrap(), frames);
            seen
        }
        _ => {
            let file = FileWriter::pipe(out.clone(), "test");
            let (seen, frames) = read(Ordered::new(slack, file), how, first, second);
            check_blocks(&out.0.lock().unwrap(), frames);
            seen
        }
    }
}

/// Reads both rings; returns the number of frames in the output.
fn read<S: Sink>(
    mut consumer: Ordered<S, Hostile>,
    how: u8,
    first: Attacked,
    second: Attacked,
) -> (Seen, u64) {
    let mut seen = Seen::default();
    let feed = |key, rings| JoinedFeed {
        key,
        output: if how & 4 == 0 { 0 } else { key as usize },
        label: String::new(),
        rings,
        first_line: 0,
        channel: Some(0),
        begin: Begin::Oldest,
    };
    let (mut now, mut later) = (Vec::new(), Vec::new());
    now.extend(first.ring);
    if how & 8 == 0 {
        now.extend(second.ring)
    } else {
        later.extend(second.ring)
    }
    let mut result = consumer.join(feed(0, now));
    seen.refused |= result.is_err();
    for look in first.looks.into_iter().chain(second.looks) {
        if result.is_err() {
            break;
        }
        match look {
            0..8 => {
                seen.left = true;
                consumer.rings_mut().leave(u64::from(look % 2), &[u64::from(look), 5]);
            }
            8..12 => seen.abandoned |= consumer.rings_mut().writer_gone(0).is_some(),
            12..32 => {
                result = consumer.join(feed(1, std::mem::take(&mut later)));
                seen.refused |= result.is_err();
            }
            _ => match consumer.step(look.into()) {
                Ok(step) => seen.ended |= step == Step::Ended,
                Err(error) => {
                    seen.failed = true;
                    assert!(matches!(error, ConsumerError::Ring(_)), "{error}");
                    result = Err(error);
                }
            },
        }
    }
    let statistics = [0, 1, 9].map(|id| Statistics { interface_id: id, ..Statistics::default() });
    consumer.finish(&statistics).expect("memory takes everything");
    let (delivered, by_feed) = (consumer.delivered(), consumer.by_interface());
    seen.frames = delivered.frames > 0;
    assert_eq!(delivered.frames, by_feed.iter().map(|taken| taken.frames).sum::<u64>());
    let lapped = by_feed.iter().map(|taken| taken.lapped).fold(0, u64::saturating_add);
    assert_eq!(delivered.lapped, lapped);
    assert!(delivered.late <= delivered.frames);
    assert_eq!(consumer.kept().frames, delivered.frames, "what was taken is out");
    (seen, delivered.frames)
}

/// Asserts that the output has one line for each frame, without control characters.
fn check_lines(out: &[u8], frames: u64) {
    let text = std::str::from_utf8(out).expect("text");
    assert_eq!(text.lines().count() as u64, frames);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

/// Asserts that the output has whole blocks of known types, and that each frame's interface is described before it.
fn check_blocks(mut out: &[u8], frames: u64) {
    let (mut interfaces, mut found) = (0, 0);
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    while !out.is_empty() {
        let (kind, length) = (word(out, 0), word(out, 4) as usize);
        let (block, rest) = out.split_at(length);
        assert_eq!(word(block, length - 4) as usize, length);
        match kind {
            SHB_TYPE => {}
            IDB_TYPE => interfaces += 1,
            EPB_TYPE => {
                found += 1;
                assert!(word(block, 8) < interfaces);
            }
            ISB_TYPE => assert!(word(block, 8) < interfaces),
            other => panic!("a block of type {other:#x}"),
        }
        out = rest;
    }
    assert_eq!(found, frames);
}
