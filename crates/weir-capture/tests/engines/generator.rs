use std::time::{Duration, Instant};

use weir_capture::generator::{GenSpec, MemGen, SYNTHETIC_START_NS};
use weir_capture::{Pumped, Source};
use weir_lab::generator::template::number_of;
use weir_ring::{Batch, Clock, Poll};

use super::common::{pump_until, read_closed, reader_of, run_to_end, setup};

fn open(spec: &str) -> MemGen {
    MemGen::open(spec.parse::<GenSpec>().unwrap(), setup(16), false).unwrap()
}

#[test]
fn frames_are_numbered_and_exactly_as_many_as_asked_for() {
    for (spec, frames, bytes) in [
        ("frames=1", 1, 60),
        ("frames=63", 63, 60),
        ("frames=100001,flows=1000", 100_001, 60),
        ("size=1518,frames=1000,flows=multi", 1000, 1514),
        ("size=65553,frames=100", 100, 65_549),
    ] {
        let mut source = open(spec);
        let (seen, ledger, result) = run_to_end(&mut source);
        result.unwrap();
        assert_eq!((ledger.offered, ledger.captured), (frames, frames), "{spec}");
        assert_eq!(ledger.wire_bytes, frames * bytes);
        assert_eq!(seen.len() as u64, frames);
        let step = seen.get(1).map_or(0, |second| second.meta.ts_ns - SYNTHETIC_START_NS);
        for (number, seen) in (0u64..).zip(&seen) {
            assert_eq!(number_of(&seen.frame), Some(number), "{spec}");
            assert_eq!(seen.frame.len() as u64, bytes);
            assert_eq!(seen.meta.ts_ns, SYNTHETIC_START_NS + number * step);
        }
    }
}

#[test]
fn snaplen_cuts_what_is_kept_and_not_what_was() {
    let mut setup = setup(16);
    setup.feeds[0].snaplen = 50;
    let mut source = MemGen::open("frames=100".parse().unwrap(), setup, false).unwrap();
    let (seen, ledger, _) = run_to_end(&mut source);
    assert_eq!((ledger.kept_bytes, ledger.wire_bytes), (5000, 6000));
    assert!(seen.iter().all(|seen| seen.frame.len() == 50 && seen.meta.wire_len == 60));
}

#[test]
fn a_rate_is_kept() {
    let mut tries = (0..3).map(|_| {
        let mut source = open("rate=100kpps,frames=20000");
        let begin = Instant::now();
        let (seen, ..) = run_to_end(&mut source);
        let took = begin.elapsed().as_secs_f64();
        assert_eq!(seen.len(), 20_000);
        assert!(took > 0.199, "{took} s instead of 0.2");
        assert_eq!(seen[1].meta.ts_ns - seen[0].meta.ts_ns, 10_000);
        took
    });
    // The generator is never faster than its rate; on a busy machine it may be slower.
    assert!(tries.any(|took| took < 1.0), "more than 1 s instead of 0.2, three times");
}

#[test]
fn stamps_can_be_the_clocks() {
    for spec in ["frames=1000,clock=real", "frames=1000,clock=burst"] {
        let mut source = open(spec);
        assert_eq!(source.rings()[0].identity().unwrap().clock, Clock::Realtime);
        let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let before = clock();
        let (seen, ..) = run_to_end(&mut source);
        let after = clock();
        assert!(seen.is_sorted_by_key(|seen| seen.meta.ts_ns));
        assert!(seen.iter().all(|seen| (before..=after).contains(&seen.meta.ts_ns)), "{spec}");
    }
    assert_eq!(open("").rings()[0].identity().unwrap().clock, Clock::Foreign);
}

#[test]
fn a_run_without_end_stops_when_it_is_told() {
    let mut source = open("");
    source.start().unwrap();
    let begin = Instant::now();
    assert_eq!(source.pump(Duration::from_millis(30)).unwrap(), Pumped::More);
    assert!(begin.elapsed() < Duration::from_secs(2));
    let ledger = source.finish().unwrap();
    assert!(ledger.closes() && ledger.captured > 1000, "{ledger}");
    assert_eq!(source.finish().unwrap(), ledger);
}

#[test]
fn readers_that_are_waited_for_miss_nothing() {
    const FRAMES: u64 = 400_000; // 35 MiB of records through a ring of 4 MiB
    let spec: GenSpec = format!("frames={FRAMES}").parse().unwrap();
    let mut source = MemGen::open(spec, setup(4), true).unwrap();
    let pace = source.control().feeds()[0].pace.clone().expect("it waits");
    let mut threads = Vec::new();
    for slow in [false, true] {
        let mut reader = reader_of(&source);
        let place = pace.join(reader.ordinal());
        threads.push(std::thread::spawn(move || {
            let (mut batch, mut next) = (Batch::new(), 0);
            loop {
                match reader.poll(&mut batch).unwrap() {
                    Poll::Frames(_) => {
                        for record in batch.records() {
                            assert_eq!(number_of(record.frame), Some(next));
                            next += 1;
                        }
                        if slow && next % 7 == 0 {
                            std::thread::sleep(Duration::from_micros(200));
                        }
                        place.reached(reader.ordinal());
                    }
                    Poll::Closed => return (next, reader.lapped()),
                    Poll::Empty => std::thread::yield_now(),
                    Poll::Lapped(frames) => panic!("lapped by {frames} frames at {next}"),
                }
            }
        }));
    }
    // A reader that leaves during the run does not stop the writer.
    let leaver = pace.join(0);
    source.start().unwrap();
    assert_eq!(source.pump(Duration::from_millis(50)).unwrap(), Pumped::More);
    assert!(source.ledger().unwrap().captured < FRAMES, "the ring holds no more than 4 MiB");
    drop(leaver);
    assert_eq!(pump_until(&mut source, u64::MAX).unwrap(), Pumped::Ended);
    assert!(source.finish().unwrap().closes());
    for thread in threads {
        assert_eq!(thread.join().unwrap(), (FRAMES, 0));
    }
}

#[test]
fn who_is_not_waited_for_is_lapped_and_told() {
    let mut source = MemGen::open("frames=400k".parse().unwrap(), setup(4), false).unwrap();
    let mut reader = reader_of(&source);
    source.start().unwrap();
    pump_until(&mut source, u64::MAX).unwrap();
    source.finish().unwrap();
    let mut batch = Batch::new();
    assert!(matches!(reader.poll(&mut batch).unwrap(), Poll::Lapped(_)));
    let rest = read_closed(&mut reader).len() as u64;
    assert_eq!(reader.delivered() + reader.lapped(), 400_000);
    assert_eq!(reader.delivered(), rest);
}
