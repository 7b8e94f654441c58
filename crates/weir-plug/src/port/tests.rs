use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// Both ends of a serial port, and the number of bells that each has received.
struct Ends {
    host: Arc<Port>,
    guest: Arc<Port>,
    rung: [Arc<AtomicUsize>; 2],
}

fn ends() -> Ends {
    let (host, guest) = UnixStream::pair().unwrap();
    let rung: [Arc<AtomicUsize>; 2] = Default::default();
    let port = |stream: UnixStream, rung: &Arc<AtomicUsize>| {
        let rung = Arc::clone(rung);
        Port::new(stream.into(), move || _ = rung.fetch_add(1, Ordering::Relaxed)).unwrap()
    };
    Ends { host: port(host, &rung[0]), guest: port(guest, &rung[1]), rung }
}

fn session(ends: &Ends, number: u64) -> (PortTransport, PortTransport) {
    thread::scope(|scope| {
        let host = scope.spawn(|| ends.host.accept(LONG).unwrap().unwrap());
        let guest = ends.guest.connect(number, LONG).unwrap();
        (host.join().unwrap(), guest)
    })
}

fn read_all(transport: &PortTransport, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut some = [0; 1000];
        let bytes = transport.read(&mut some).unwrap();
        assert_ne!(bytes, 0, "the end behind {} bytes", all.len());
        all.extend(&some[..bytes]);
    }
    all
}

#[test]
fn bytes_go_both_ways_and_bells_beside_them() {
    let ends = ends();
    let (host, guest) = session(&ends, 7);
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = &bytes[..];
            while !left.is_empty() {
                left = &left[host.write(left).unwrap()..];
                ends.host.ring();
            }
        });
        assert!(read_all(&guest, bytes.len()) == bytes);
    });
    // The last bell may come after the last byte, and must not be taken for data.
    ends.guest.ring();
    assert!(!guest.wait(Some(Duration::from_millis(50))).unwrap(), "a bell is no data");
    assert!(!host.wait(Some(Duration::from_millis(50))).unwrap());
    let rung = ends.rung.each_ref().map(|rung| rung.load(Ordering::Relaxed));
    assert!(rung[0] == 1 && (1..=25).contains(&rung[1]), "{rung:?}");
}

#[test]
fn a_guest_that_begins_anew_ends_the_session_and_hears_nothing_of_it() {
    let ends = ends();
    let (host, _guest) = session(&ends, 1);
    host.write(b"half a mess").unwrap();
    let (again, guest) = thread::scope(|scope| {
        let host = scope.spawn(|| {
            // The old session ends, even while a thread waits for its data.
            assert!(host.wait(Some(LONG)).unwrap());
            assert_eq!(host.read(&mut [0; 9]).unwrap(), 0);
            assert!(host.write(b"too late").is_err());
            ends.host.accept(LONG).unwrap().unwrap()
        });
        let guest = ends.guest.connect(2, LONG).unwrap();
        (host.join().unwrap(), guest)
    });
    again.write(b"new").unwrap();
    assert_eq!(read_all(&guest, 3), b"new");
}

#[test]
fn a_host_that_is_started_again_has_its_guest_begin_anew() {
    let ends = ends();
    let (_host, guest) = session(&ends, 1);
    ends.host.announce().unwrap();
    assert!(guest.wait(Some(LONG)).unwrap());
    assert_eq!(guest.read(&mut [0; 9]).unwrap(), 0);
    let (host, guest) = session(&ends, 3);
    guest.write(b"\xff\x01\xff").unwrap();
    assert_eq!(read_all(&host, 3), b"\xff\x01\xff");
}

#[test]
fn hanging_up_ends_a_wait_and_the_port_is_still_there() {
    let ends = ends();
    let (host, guest) = session(&ends, 1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| guest.wait(None).unwrap());
        guest.hang_up();
        assert!(waits.join().unwrap());
    });
    assert_eq!(guest.read(&mut [0; 9]).unwrap(), 0);
    drop(host);
    session(&ends, 2);
}

#[test]
fn nobody_who_answers_is_said_in_time() {
    let (here, _there) = UnixStream::pair().unwrap();
    let port = Port::new(here.into(), || ()).unwrap();
    let limit = Duration::from_millis(20);
    assert_eq!(port.connect(5, limit).err().unwrap().kind(), ErrorKind::TimedOut);
    assert!(port.accept(limit).unwrap().is_none());
    // The other end is closed.
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    let port = Port::new(here.into(), || ()).unwrap();
    assert_eq!(port.accept(limit).err().unwrap().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn bells_that_nobody_reads_are_one_and_what_comes_without_end_holds_nobody() {
    let (here, there) = UnixStream::pair().unwrap();
    let port = Port::new(here.into(), || ()).unwrap();
    // Make the output buffer long.
    let filler = vec![b'x'; 1 << 20];
    let _ = port.outgoing.lock().map(|mut outgoing| outgoing.extend(&filler));
    (0..1000).for_each(|_| port.ring());
    let pending = port.outgoing.lock().unwrap().len();
    assert!(pending <= filler.len(), "{pending}");
    let mut there = there;
    std::io::Write::write_all(&mut there, &b"\xff\x02x".repeat(10_000)).unwrap();
    assert!(port.accept(Duration::from_millis(20)).unwrap().is_none());
}

#[test]
fn no_bell_is_lost_between_threads() {
    let ends = ends();
    let (host, guest) = session(&ends, 1);
    let (heard, port) = (&ends.rung[1], &ends.host);
    thread::scope(|scope| {
        let reads = scope.spawn(|| while guest.read(&mut [0; 99]).is_ok_and(|bytes| bytes > 0) {});
        let writes = scope.spawn(|| (0..20_000).for_each(|_| drop(host.write(b"message"))));
        // Each of these bells arrives at some time, alone or together with later ones.
        for _ in 0..500 {
            let before = heard.load(Ordering::SeqCst);
            port.ring();
            let begin = Instant::now();
            while heard.load(Ordering::SeqCst) == before {
                assert!(begin.elapsed() < LONG, "a bell was lost");
                thread::yield_now();
            }
        }
        writes.join().unwrap();
        guest.hang_up();
        reads.join().unwrap();
    });
}

#[test]
fn a_session_that_somebody_still_has_takes_nothing_of_the_next_one() {
    let ends = ends();
    let (_host, old) = session(&ends, 1);
    let (host, guest) = session(&ends, 2);
    host.write(b"new").unwrap();
    assert_eq!(old.read(&mut [0; 9]).unwrap(), 0);
    assert!(old.write(b"old").is_err());
    assert_eq!(read_all(&guest, 3), b"new");
}
