//! `weir lab reread`: measures the time to the first frame of a daemon's feed, and how fast rings are read that no
//! longer change.
//!
//! In a guest, the rings are memory that the host shares with the guest, and no writer runs beside the reader.

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_client::protocol::Open;
use weir_client::{Connection, FeedReader, error_text};
use weir_consumer::Pulled;
use weir_ring::{Mapping, Poll, Reader, Ring, Start, Tally, Words as _};

use crate::{Error, Result};

/// Longest wait for the first frame.
const FIRST_FRAME: Duration = Duration::from_secs(20);
/// The rings count as quiet after this time without a new frame.
const QUIET: Duration = Duration::from_millis(500);
/// Longest wait for quiet rings.
const QUIET_WITHIN: Duration = Duration::from_secs(60);
/// Most frames that one call of the reader counts.
const RUN_FRAMES: u32 = 4096;
/// Passes over the memory. The fastest one is the result.
const PASSES: u32 = 3;

/// Final output of `weir lab reread --json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reread {
    /// Time from the connection to the daemon to the first received frame, in milliseconds.
    pub first_ms: f64,
    /// Frames that were read. Each pass counts them again.
    pub frames: u64,
    /// Time that the reading took, in seconds.
    #[serde(rename = "duration_s")]
    pub seconds: f64,
    /// Million frames a second.
    pub mpps: f64,
    /// Rate at which the words of the rings are read in sequence, bytes per second; 0 if not
    /// measured.
    pub bytes_per_second: f64,
}

/// Opens a feed of `source` and waits for its first frame. Then waits until no more frames come, and reads all frames
/// in the rings repeatedly for `seconds` (0 skips this part).
///
/// # Errors
/// [`Error::Measure`] if the daemon refuses, no frame comes, the frames do not stop, or new frames are written during
/// the measurement.
pub fn reread(socket: &Path, source: &str, seconds: f64) -> Result<Reread> {
    let failed = |reason: String| Error::Measure { what: format!("host:{source}"), reason };
    let refused = |error: weir_client::ClientError| failed(error_text(&error));
    let open = Open { source: source.to_owned(), ..Open::default() };
    let begin = Instant::now();
    let mut reader = FeedReader::connect(socket, &open).map_err(refused)?;
    match reader.next(1, FIRST_FRAME).map_err(refused)? {
        Pulled::Frames(_) => {}
        other => {
            return Err(failed(format!("no frame within {} s ({other:?})", FIRST_FRAME.as_secs())));
        }
    }
    let mut found = Reread { first_ms: begin.elapsed().as_secs_f64() * 1e3, ..Reread::default() };
    if seconds <= 0.0 {
        return Ok(found);
    }
    let connection = Connection::open(socket).map_err(refused)?;
    let feed = connection.open_feed(&open).map_err(refused)?;
    let written = || feed.rings().iter().map(Ring::frames_written).sum::<u64>();
    let before = wait_for_quiet(&written).map_err(failed)?;
    drop(reader);
    for _ in 0..PASSES {
        found.bytes_per_second = found.bytes_per_second.max(bandwidth(feed.rings()));
    }
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds {
        for ring in feed.rings() {
            found.frames += count(ring).map_err(|error| failed(error_text(&error)))?;
        }
    }
    found.seconds = begin.elapsed().as_secs_f64();
    found.mpps = found.frames as f64 / found.seconds / 1e6;
    match written() == before {
        true => Ok(found),
        false => Err(failed("frames came while the rings were read".to_owned())),
    }
}

/// Waits until no more frames are written. Returns the number of frames written so far.
fn wait_for_quiet(written: &dyn Fn() -> u64) -> std::result::Result<u64, String> {
    let begin = Instant::now();
    let (mut seen, mut since) = (written(), Instant::now());
    loop {
        sleep(Duration::from_millis(20));
        let now = written();
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= QUIET {
            return Ok(seen);
        }
        if begin.elapsed() > QUIET_WITHIN {
            return Err(format!("frames have not ceased within {} s", QUIET_WITHIN.as_secs()));
        }
    }
}

/// Counts the frames in the ring, in one pass from the oldest frame on.
fn count(ring: &Ring<Mapping>) -> std::result::Result<u64, weir_ring::RingError> {
    let mut reader = Reader::new(ring, Start::Oldest)?;
    let mut tally = Tally::default();
    while let Poll::Frames(_) | Poll::Lapped(_) = reader.count_in_place(&mut tally, RUN_FRAMES)? {}
    Ok(tally.frames)
}

/// Measures one pass over all words, in bytes per second.
fn bandwidth(rings: &[Ring<Mapping>]) -> f64 {
    let (begin, mut bytes) = (Instant::now(), 0);
    for ring in rings {
        let words = ring.memory().words();
        bytes += size_of_val(words);
        black_box(words.iter().fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed)));
    }
    bytes as f64 / begin.elapsed().as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn rings_are_quiet_once_nothing_has_come_for_a_while() {
        let calls = Cell::new(0);
        let written = || {
            calls.set(calls.get() + 1);
            u64::min(calls.get(), 5)
        };
        let begin = Instant::now();
        assert_eq!(wait_for_quiet(&written), Ok(5));
        assert!(begin.elapsed() >= QUIET);
    }

    #[test]
    fn without_a_daemon_there_is_no_feed() {
        let error = reread(Path::new("/nowhere/weir.sock"), "lan", 1.0).unwrap_err().to_string();
        assert!(error.starts_with("host:lan: "), "{error}");
    }
}
