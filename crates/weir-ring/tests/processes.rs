//! One writer and several readers, each in its own process, with the memory, sockets and signals of service.
//!
//! Each other process is this test program, started again for the one test [`reader_process`], with its role in the
//! environment and its socket as standard input.
#![cfg(not(loom))]

mod common;
#[path = "common/process.rs"]
mod process;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::process::{Pid, Signal, kill_process};
use weir_ring::memory::{self, Access, Trust};
use weir_ring::wake::{Sleeper, Waker, Woken};
use weir_ring::{Batch, Mapping, Poll, Reader, Ring, RingError, Start, Words, Writer, pass};

use process::{Other, PATIENCE, ROLE};

const PATH: &str = "WEIR_TEST_RING_PATH";
const READER: &str = "reader_process";

impl Other {
    fn hand_over(&self, ring: &Ring<Mapping>) {
        pass::send(&self.stream, &[ring.memory().as_fd()]).unwrap();
    }

    /// Waits until the other side has its reader.
    fn wait_until_ready(&mut self) {
        self.stream.read_exact(&mut [0]).unwrap();
    }

    fn take_waker(&self) -> Waker {
        let [page, waker]: [OwnedFd; 2] =
            pass::receive(&self.stream, 2).unwrap().try_into().unwrap();
        Waker::attach(page, waker, 1).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The two numbers that the other process writes at its end: for most roles, the delivered and the lapped frames.
    fn finish(mut self) -> (u64, u64) {
        let mut line = String::new();
        BufReader::new(&self.stream).read_line(&mut line).expect("a reader that ends");
        assert!(self.child.wait().unwrap().success());
        let mut numbers = line.split_whitespace().map(|word| word.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }
}

/// The length of a frame, determined by its ordinal. Most frames are small, some are long.
fn caplen(ordinal: u64) -> u32 {
    let mixed = common::mix(ordinal ^ 0x5eed) as u32;
    if mixed.is_multiple_of(16) { 1514 } else { 60 + mixed % 8 }
}

/// Writes bursts of frames for this time; returns the number of frames of the ring.
fn write_for(
    writer: &mut Writer<Mapping>,
    time: Duration,
    wakers: &mut [Waker],
    mut at_times: impl FnMut(Duration),
) -> u64 {
    let begin = Instant::now();
    let mut frame = vec![0; 1514];
    while begin.elapsed() < time {
        for _ in 0..64 {
            let ordinal = writer.frames();
            let caplen = caplen(ordinal);
            let frame = &mut frame[..caplen as usize];
            common::fill(frame, ordinal);
            writer.push(&common::meta(ordinal, caplen), frame);
        }
        writer.publish();
        for waker in wakers.iter_mut() {
            waker.wake_if_due(0, writer.frames());
        }
        at_times(begin.elapsed());
    }
    writer.frames()
}

#[test]
fn every_reader_process_gets_each_frame_whole_or_knows_how_many_it_missed() {
    let ring = memory::create_memfd("weir-test", &common::spec(16)).unwrap();
    let mut writer = Writer::new(ring.clone());
    let roles = ["fast", "sleepy", "stopped", "killed", "hostile"];
    let mut others = roles.map(|role| Other::start(READER, role, &[]));
    let mut wakers = Vec::new();
    for (other, role) in others.iter_mut().zip(roles) {
        other.hand_over(&ring);
        if matches!(role, "sleepy" | "hostile") {
            wakers.push(other.take_waker());
        }
        other.wait_until_ready();
    }
    let [fast, sleepy, stopped, killed, hostile] = others;
    let mut acts = vec![
        (Duration::from_millis(2000), &stopped, Signal::CONT),
        (Duration::from_millis(1000), &stopped, Signal::STOP),
        (Duration::from_millis(500), &killed, Signal::KILL),
    ];
    let time = Duration::from_secs(3);
    let captured = write_for(&mut writer, time, &mut wakers, |elapsed| {
        if let Some((_, other, signal)) = acts.pop_if(|(when, ..)| *when <= elapsed) {
            other.signal(signal);
        }
    });
    assert!(acts.is_empty());
    writer.close();
    wakers.iter().for_each(Waker::wake);
    for (other, role) in [(fast, "fast"), (sleepy, "sleepy"), (stopped, "stopped")] {
        let (delivered, lapped) = other.finish();
        eprintln!("{role}: {captured} captured, {delivered} delivered, {lapped} lapped");
        assert_eq!(delivered + lapped, captured, "{role}");
        assert!(delivered > 0, "{role}");
        assert!(role != "stopped" || lapped > 0, "a reader that stood still was not lapped");
    }
    drop((killed, hostile));
}

#[test]
fn a_ring_in_a_file_is_read_by_another_process() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("ring");
    let mut writer = Writer::new(memory::create_file(&path, &common::spec(4)).unwrap());
    let mut other = Other::start(READER, "fast", &[(PATH, path.as_os_str())]);
    other.wait_until_ready();
    let captured = write_for(&mut writer, Duration::from_millis(500), &mut [], |_| {});
    writer.close();
    let (delivered, lapped) = other.finish();
    assert_eq!(delivered + lapped, captured);
}

#[test]
fn a_sleeping_process_wakes_after_n_frames_and_after_t() {
    let ring = memory::create_memfd("weir-test", &common::spec(4)).unwrap();
    let mut writer = Writer::new(ring.clone());
    let mut other = Other::start(READER, "sleeper", &[]);
    other.hand_over(&ring);
    let mut waker = other.take_waker();
    other.wait_until_ready();
    let begin = Instant::now();
    while waker.wake_threshold(0) != 100 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let mut push = |frames, waker: &mut Waker| {
        for _ in 0..frames {
            writer.push(&common::meta(writer.frames(), 60), &common::frame(writer.frames(), 60));
            writer.publish();
            waker.wake_if_due(0, writer.frames());
        }
    };
    // One frame less than the threshold: the reader stays asleep.
    push(99, &mut waker);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(waker.wake_threshold(0), 100);
    push(1, &mut waker);
    // The first sleep ends because the frames have come, the second because its time limit has passed.
    let (frames, by_time) = other.finish();
    assert_eq!((frames, by_time), (100, 1));
}

#[test]
fn an_owner_that_takes_its_memory_away_ends_no_reader() {
    // The owner is the other process. It tries in every way to take the memory away while this process reads.
    let mut owner = Other::start(READER, "owner", &[]);
    let ring = pass::receive_rings(&owner.stream, 1, Trust::Anybody).unwrap().pop().unwrap();
    let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
    say_ready(&owner.stream);
    let (mut batch, mut frames) = (Batch::new(), 0);
    let begin = Instant::now();
    loop {
        match reader.poll(&mut batch).unwrap() {
            Poll::Frames(more) => frames += u64::from(more),
            Poll::Closed => break,
            Poll::Lapped(_) | Poll::Empty => assert!(begin.elapsed() < PATIENCE),
        }
    }
    // Every page of the memory can still be read at the end.
    let sum = ring.memory().words().iter().fold(0, |sum: u64, word| {
        sum.wrapping_add(word.load(std::sync::atomic::Ordering::Relaxed))
    });
    assert!(sum != 0);
    owner.wait_until_ready();
    let (written, succeeded) = owner.finish();
    assert_eq!((frames, succeeded), (written, 0), "attacks that the kernel let through");
}

#[test]
fn memory_of_an_owner_that_could_take_it_away_is_refused() {
    // One memory of each kind. The owner takes pages away from all of them once they have been received.
    let owner = Other::start(READER, "hostile_owner", &[]);
    let received = pass::receive(&owner.stream, 8).unwrap();
    say_ready(&owner.stream);
    let mut stream = &owner.stream;
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!(received.len(), 4);
    for (number, fd) in received.into_iter().enumerate() {
        let error = memory::attach(fd, Trust::Anybody).err();
        assert!(matches!(error, Some(RingError::NotSealed)), "{number}: {error:?}");
    }
    owner.finish();
}

#[test]
fn a_writer_that_is_killed_is_noticed_by_every_reader() {
    let mut writer = Other::start(READER, "writer", &[]);
    let ring = pass::receive_rings(&writer.stream, 1, Trust::Anybody).unwrap().pop().unwrap();
    let sleepers = [Sleeper::new(1).unwrap(), Sleeper::new(1).unwrap()];
    sleepers.iter().for_each(|sleeper| pass::send_channel(&writer.stream, sleeper).unwrap());
    writer.wait_until_ready();
    let read = |sleeper: &Sleeper| {
        let mut readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        let (mut batch, mut frames) = (Batch::new(), 0);
        loop {
            match readers[0].poll(&mut batch).unwrap() {
                Poll::Frames(more) => {
                    frames += u64::from(more);
                    if frames == 100 {
                        say_ready(&writer.stream);
                    }
                }
                Poll::Empty => match sleeper.sleep(&readers, 1, PATIENCE).unwrap() {
                    Woken::Frames => {}
                    other => return (other, frames, ring.is_closed()),
                },
                other => panic!("{other:?} of a writer that does not close"),
            }
        }
    };
    let ends = std::thread::scope(|scope| {
        let readers: Vec<_> =
            sleepers.iter().map(|sleeper| scope.spawn(move || read(sleeper))).collect();
        // The writer says when both readers have read all frames; after that it is alive, but writes no more.
        (&writer.stream).read_exact(&mut [0]).unwrap();
        assert!(readers.iter().all(|reader| !reader.is_finished()));
        writer.signal(Signal::KILL);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(ends, [(Woken::WriterGone(0), 100, false); 2]);
}

/// Not a test by itself: the code of the other processes.
#[test]
fn reader_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    match &role[..] {
        "writer" => be_a_writer(&stream),
        "owner" => return be_an_owner_under_attack(&stream),
        "hostile_owner" => return be_a_hostile_owner(&stream),
        _ => {}
    }
    let ring = match std::env::var_os(PATH) {
        Some(path) => memory::open_file(Path::new(&path)).unwrap(),
        None => pass::receive_rings(&stream, 1, Trust::Anybody).unwrap().pop().unwrap(),
    };
    let reader = Reader::new(&ring, Start::Oldest).unwrap();
    let (first, second) = match &role[..] {
        "hostile" => be_hostile(&ring, &stream),
        "sleeper" => sleep_twice(reader, &stream),
        "sleepy" => {
            let sleeper = Sleeper::new(1).unwrap();
            pass::send_channel(&stream, &sleeper).unwrap();
            say_ready(&stream);
            read_to_the_end(reader, Some(&sleeper))
        }
        _ => {
            say_ready(&stream);
            read_to_the_end(reader, None)
        }
    };
    writeln!(&stream, "{first} {second}").unwrap();
}

fn say_ready(mut stream: &UnixStream) {
    stream.write_all(b"r").unwrap();
}

/// Writes 100 frames for two readers, and then nothing until it is killed.
fn be_a_writer(mut stream: &UnixStream) -> ! {
    let ring = memory::create_memfd("weir-test", &common::spec(4)).unwrap();
    pass::send(stream, &[ring.memory().as_fd()]).unwrap();
    let mut wakers = [0, 1].map(|_| {
        let [page, socket]: [OwnedFd; 2] = pass::receive(stream, 2).unwrap().try_into().unwrap();
        Waker::attach(page, socket, 1).unwrap()
    });
    say_ready(stream);
    let mut writer = Writer::new(ring);
    for ordinal in 0..100 {
        writer.push(&common::meta(ordinal, 60), &common::frame(ordinal, 60));
        writer.publish();
        wakers.iter_mut().for_each(|waker| waker.wake_if_due(0, writer.frames()));
    }
    // A wake-up may be suppressed because of the gap between two wake-ups; the sleepers then find the frames
    // themselves.
    stream.read_exact(&mut [0; 2]).unwrap();
    say_ready(stream);
    loop {
        std::thread::sleep(PATIENCE);
    }
}

/// Owns a ring, and tries to take its pages away while it writes. Reports the number of frames written, and the number
/// of attempts that the kernel did not refuse.
fn be_an_owner_under_attack(mut stream: &UnixStream) {
    use rustix::fs::FallocateFlags;
    let ring = memory::create_memfd("weir-test", &common::spec(4)).unwrap();
    let mut writer = Writer::new(ring.clone());
    pass::send(stream, &[ring.memory().as_fd()]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let (fd, words) = (ring.memory().as_fd(), ring.memory().words());
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let attack = |at: u64| {
        let page = words[(at / 8) as usize..].as_ptr().cast_mut().cast();
        // SAFETY: the page belongs to a mapping that is alive. If it were taken away, its words would be zeros, which
        // is a valid value of any word of a ring.
        let removed = unsafe { rustix::mm::madvise(page, 4096, rustix::mm::Advice::LinuxRemove) };
        let attempts = [
            rustix::fs::ftruncate(fd, at),
            rustix::fs::ftruncate(fd, 64 << 20),
            rustix::fs::fallocate(fd, hole, at, 4096),
            rustix::fs::fallocate(fd, FallocateFlags::COLLAPSE_RANGE, at, 4096),
            removed,
        ];
        attempts.iter().filter(|attempt| attempt.is_ok()).count() as u64
    };
    let mut succeeded = 0;
    for ordinal in 0..2000 {
        writer.push(&common::meta(ordinal, 60), &common::frame(ordinal, 60));
        writer.publish();
        succeeded += attack(ordinal % 1280 * 4096);
    }
    writer.close();
    say_ready(stream);
    writeln!(stream, "2000 {succeeded}").unwrap();
}

/// Hands over memory that can be truncated, have holes punched, or both, and then does so: a memfd without seals,
/// memfds without one of the required seals, and a file.
fn be_a_hostile_owner(mut stream: &UnixStream) {
    let ring = memory::create_memfd("weir-test", &common::spec(4)).unwrap();
    let bytes: Vec<u8> = (ring.memory().words().iter())
        .flat_map(|word| word.load(std::sync::atomic::Ordering::Relaxed).to_le_bytes())
        .collect();
    let with = |seals| {
        let fd = rustix::fs::memfd_create("weir-test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::pwrite(&fd, &bytes, 0).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = std::fs::File::create_new(dir.path().join("ring")).unwrap();
    rustix::io::pwrite(&file, &bytes, 0).unwrap();
    let memory = [
        with(SealFlags::empty()),
        with(SealFlags::SHRINK | SealFlags::GROW),
        with(SealFlags::GROW | SealFlags::FUTURE_WRITE),
        file.into(),
    ];
    pass::send(stream, &[0, 1, 2, 3].map(|i: usize| memory[i].as_fd())).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    for fd in &memory {
        let holed = rustix::fs::fallocate(fd, hole, 0, 5 << 20).is_ok();
        let cut = rustix::fs::ftruncate(fd, 0).is_ok();
        assert!(holed || cut, "memory that cannot be taken away");
    }
    say_ready(stream);
    writeln!(stream, "0 0").unwrap();
}

/// Checks every byte of every frame; returns delivered and lapped.
fn read_to_the_end(mut reader: Reader<Mapping>, sleeper: Option<&Sleeper>) -> (u64, u64) {
    let mut batch = Batch::new();
    let mut scratch = Vec::new();
    let (mut delivered, mut lapped) = (0, 0);
    loop {
        let before = reader.ordinal();
        match reader.poll(&mut batch).unwrap() {
            Poll::Frames(frames) => {
                delivered += u64::from(frames);
                for (ordinal, record) in (before..).zip(batch.records()) {
                    let whole = common::is_whole(&record, ordinal, caplen(ordinal), &mut scratch);
                    assert!(whole, "frame {ordinal} is not what was written: {record:?}");
                }
            }
            Poll::Lapped(frames) => lapped += frames,
            Poll::Closed => break,
            Poll::Empty => {
                if let Some(sleeper) = sleeper {
                    let readers = std::slice::from_ref(&reader);
                    sleeper.sleep(readers, 5000, Duration::from_millis(2)).unwrap();
                } else {
                    std::thread::yield_now();
                }
            }
        }
    }
    assert_eq!((reader.delivered(), reader.lapped(), reader.joined_at()), (delivered, lapped, 0));
    (delivered, lapped)
}

/// Sleeps until there are 100 frames, reads them, and sleeps for 100 more, which never come. Returns the number of
/// frames read, and 1 if the second sleep ended because of its time limit.
fn sleep_twice(mut reader: Reader<Mapping>, stream: &UnixStream) -> (u64, u64) {
    let sleeper = Sleeper::new(1).unwrap();
    pass::send_channel(stream, &sleeper).unwrap();
    say_ready(stream);
    let woken = sleeper.sleep(std::slice::from_ref(&reader), 100, PATIENCE).unwrap();
    assert_eq!(woken, Woken::Frames);
    let mut batch = Batch::new();
    let mut frames = 0;
    while let Poll::Frames(more) = reader.poll(&mut batch).unwrap() {
        frames += u64::from(more);
    }
    let (limit, begin) = (Duration::from_millis(50), Instant::now());
    let woken = sleeper.sleep(std::slice::from_ref(&reader), 100, limit).unwrap();
    let by_time =
        woken == Woken::Limit && begin.elapsed() >= limit && begin.elapsed() < PATIENCE / 2;
    (frames, by_time.into())
}

/// Tries with its wake page and its waker to delay the writer in every possible way, until it is killed.
fn be_hostile(ring: &Ring<Mapping>, stream: &UnixStream) -> ! {
    let page = rustix::fs::memfd_create("weir-test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&page, 4096).unwrap();
    // SAFETY: a memfd of this size that nobody shortens, reached as `AtomicU64` only.
    let page = unsafe { Mapping::map(page, 4096, Access::Write) }.unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&page, seals).unwrap();
    let (kind, flags) = (rustix::net::SocketType::SEQPACKET, rustix::net::SocketFlags::CLOEXEC);
    let pair = rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None);
    let (waker, writer_socket) = pair.unwrap();
    pass::send(stream, &[page.as_fd(), writer_socket.as_fd()]).unwrap();
    say_ready(stream);
    // Both sockets block, and nobody reads from the waker.
    for fd in [&waker, &writer_socket] {
        rustix::fs::fcntl_setfl(fd, OFlags::empty()).unwrap();
    }
    loop {
        // Fill the socket, from which the writer may have to read.
        let flags = rustix::net::SendFlags::DONTWAIT;
        while rustix::net::send(&waker, &[255; 64], flags).is_ok() {}
        let threshold = &page.words()[0];
        threshold.store(ring.frames_written() / 2 * 2, std::sync::atomic::Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(100));
    }
}
