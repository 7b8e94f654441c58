use rustix::fs::SealFlags;
use rustix::net::SendFlags;

use super::*;
use crate::memory::create_memfd;
use crate::reader::{Poll, Start};
use crate::testing::{meta, spec};
use crate::{Batch, Reader, Ring, Writer, WriterKind, doorbell};
use std::time::Instant;

const SOON: Duration = Duration::from_millis(20);

fn ring() -> (Ring<Mapping>, Writer<Mapping>) {
    let ring = create_memfd("weir-test", &spec(4)).unwrap();
    (ring.clone(), Writer::new(ring))
}

fn push(writer: &mut Writer<Mapping>, frames: u64) -> u64 {
    for _ in 0..frames {
        writer.push(&meta(writer.frames()), &[0; 60]);
    }
    writer.publish();
    writer.frames()
}

#[test]
fn n_frames_wake_and_fewer_do_not() {
    let (ring, mut writer) = ring();
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    push(&mut writer, 9);
    assert_eq!(sleeper.sleep(&readers, 10, SOON).unwrap(), Woken::Limit);
    std::thread::scope(|scope| {
        let woken = scope.spawn(|| {
            let begin = Instant::now();
            let woken = sleeper.sleep(&readers, 10, Duration::from_secs(20)).unwrap();
            (woken, begin.elapsed())
        });
        while waker.wake_threshold(0) == AWAKE {
            std::thread::yield_now();
        }
        assert_eq!(waker.wake_threshold(0), 10);
        waker.wake_if_due(0, push(&mut writer, 1));
        let (woken, took) = woken.join().unwrap();
        assert!(
            woken == Woken::Frames && took < Duration::from_secs(10),
            "{woken:?} after {took:?}"
        );
    });
    assert_eq!(waker.wake_threshold(0), AWAKE);
}

fn after_the_gap() {
    std::thread::sleep(RING_GAP);
}

#[test]
fn a_page_full_of_new_thresholds_does_not_cost_a_wake_up_each() {
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let (begin, mut rings) = (Instant::now(), 0);
    for ordinal in 0..100_000 {
        line(&sleeper.page, 0).store(ordinal, Ordering::Relaxed);
        waker.wake_if_due(0, ordinal);
        rings += rung(&sleeper) as u128;
    }
    let gaps = begin.elapsed().as_nanos() / RING_GAP.as_nanos();
    assert!((1..=gaps + 1).contains(&rings), "{rings} rings in {gaps} gaps");
}

#[test]
fn frames_that_come_in_the_quiet_after_a_ring_wake_too() {
    let (ring, mut writer) = ring();
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut readers = [Reader::new(&ring, Start::Oldest).unwrap()];
            let mut batch = Batch::new();
            // A wake-up that is sent just as the sleeper finds the frames itself may end the next sleep instead.
            while readers[0].ordinal() < 500 {
                assert_eq!(
                    sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap(),
                    Woken::Frames
                );
                readers[0].poll(&mut batch).unwrap();
            }
        });
        // Publish one frame as soon as the sleeper waits for it, mostly less than `RING_GAP` after the last wake-up,
        // then none.
        for ordinal in 1..=500 {
            while waker.wake_threshold(0) != ordinal {
                assert!(begin.elapsed() < Duration::from_secs(10), "asleep over frame {ordinal}");
                std::thread::yield_now();
            }
            waker.wake_if_due(0, push(&mut writer, 1));
        }
    });
}

/// Receives all messages of the first channel, and returns the number of wake-ups.
fn rung(sleeper: &Sleeper) -> usize {
    let socket = sleeper.channels()[0].socket.clone().unwrap();
    std::iter::from_fn(|| {
        let mut bytes = [0; 8];
        rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).ok().map(|_| bytes[0])
    })
    .filter(|kind| *kind == message::WAKE)
    .count()
}

#[test]
fn a_threshold_wakes_once_and_only_when_it_is_reached() {
    let sleeper = Sleeper::new(2).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let word = line(&sleeper.page, 1);
    doorbell::set_threshold(word, 100);
    waker.wake_if_due(0, 1000);
    waker.wake_if_due(1, 99);
    assert_eq!(rung(&sleeper), 0);
    waker.wake_if_due(1, 100);
    waker.wake_if_due(1, 120);
    assert_eq!(rung(&sleeper), 1);
    doorbell::set_threshold(word, 150);
    after_the_gap();
    waker.wake_if_due(1, 149);
    assert_eq!(rung(&sleeper), 0);
    waker.wake_if_due(1, 150);
    assert_eq!(rung(&sleeper), 1);
}

#[test]
fn a_threshold_set_while_the_last_one_wakes_is_not_lost() {
    // The threshold that was found due is remembered. Were it read again here, the second threshold
    // would count as woken for before it is reached, and never wake after.
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let word = line(&sleeper.page, 0);
    doorbell::set_threshold(word, 100);
    let due = doorbell::due(word, 100).unwrap();
    doorbell::set_threshold(word, 200);
    waker.wake_once(0, due);
    assert_eq!(rung(&sleeper), 1);
    after_the_gap();
    waker.wake_if_due(0, 200);
    assert_eq!(rung(&sleeper), 1);
}

#[test]
fn an_end_wakes_until_it_is_seen_and_then_lets_sleep() {
    let (ended, mut writer) = ring();
    let (live, _writer) = ring();
    let sleeper = Sleeper::new(2).unwrap();
    let mut readers = [&ended, &live].map(|ring| Reader::new(ring, Start::Oldest).unwrap());
    writer.close();
    let begin = Instant::now();
    assert_eq!(sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap(), Woken::Frames);
    assert!(begin.elapsed() < Duration::from_secs(10));
    let mut batch = Batch::new();
    assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Closed);
    let begin = Instant::now();
    assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
    assert!(begin.elapsed() >= SOON);
    assert_eq!(line(&sleeper.page, 0).load(Ordering::Relaxed), AWAKE);
}

#[test]
fn a_waker_that_is_full_or_made_to_block_does_not_stop_the_writer() {
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    // Effects of a hostile consumer on the open files that it shares.
    let own = sleeper.channels()[0].socket.clone().unwrap();
    for fd in [own.as_fd(), waker.as_fd()] {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).unwrap();
    }
    for ordinal in 0..5000 {
        line(&sleeper.page, 0).store(ordinal, Ordering::Relaxed);
        waker.wake_if_due(0, ordinal);
    }
    drop(sleeper);
    waker.wake();
}

#[test]
fn a_writer_that_is_told_reads_what_a_hostile_consumer_sends_and_never_waits() {
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let own = sleeper.channels()[0].socket.clone().unwrap();
    for fd in [own.as_fd(), waker.as_fd()] {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).unwrap();
    }
    assert_eq!(waker.take_messages(), Asked::Nothing);
    let long = [message::REQUEST; 1000];
    for message in [&[message::REQUEST][..], &[0], &[255; 3], &long] {
        rustix::net::send(&own, message, SendFlags::DONTWAIT).unwrap();
        assert_eq!(waker.take_messages(), Asked::Look);
    }
    // The consumer sends as many messages as it can, and reads none. The writer must not wait.
    let full = (0..1_000_000)
        .find(|_| rustix::net::send(&own, &[message::LOOK], SendFlags::DONTWAIT).is_err());
    assert!(full.is_some());
    sleeper.tell_new();
    assert_eq!(waker.take_messages(), Asked::Look);
    waker.begin_confirmation();
    waker.finish_confirmation();
    // The end of the channel is reported after the messages in it, and is not taken for a message.
    drop(own);
    drop(sleeper);
    let gone = (0..1_000_000).find(|_| waker.take_messages() == Asked::Gone);
    assert!(gone.is_some());
    waker.wake();
}

#[test]
fn a_channel_that_is_full_harms_no_other_consumer() {
    let (ring, mut writer) = ring();
    let (hostile, honest) = (Sleeper::new(1).unwrap(), Sleeper::new(1).unwrap());
    let mut wakers = [hostile.waker().unwrap(), honest.waker().unwrap()];
    (0..100_000).for_each(|_| wakers[0].wake());
    let socket = hostile.channels()[0].socket.clone().unwrap();
    while rustix::net::send(&socket, &[message::LOOK], SendFlags::DONTWAIT).is_ok() {}
    let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    std::thread::scope(|scope| {
        let woken = scope.spawn(|| honest.sleep(&readers, 1, Duration::from_secs(60)).unwrap());
        let begin = Instant::now();
        while wakers[1].wake_threshold(0) == AWAKE && begin.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        let ordinal = push(&mut writer, 1);
        wakers.iter_mut().for_each(|waker| waker.wake_if_due(0, ordinal));
        assert_eq!(woken.join().unwrap(), Woken::Frames);
    });
}

#[test]
fn a_writer_that_is_gone_is_said_once_for_each_channel() {
    let (ring, _writer) = ring();
    let sleeper = Sleeper::new(1).unwrap();
    let wakers = [sleeper.waker().unwrap(), sleeper.waker().unwrap()];
    let more = wakers[0].try_clone().unwrap();
    let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    let sleep = |limit| sleeper.sleep(&readers, 1, limit).unwrap();
    let [first, second] = wakers;
    drop(first);
    assert_eq!(sleep(SOON), Woken::Limit, "its clone is there");
    assert_eq!(sleeper.find_gone_writer(), None);
    drop(second);
    assert_eq!(sleep(Duration::from_secs(60)), Woken::WriterGone(1));
    assert_eq!(sleep(SOON), Woken::Limit);
    drop(more);
    assert_eq!(sleeper.find_gone_writer(), Some(0));
    assert_eq!((sleeper.find_gone_writer(), sleep(SOON)), (None, Woken::Limit));
    // A channel that the consumer closes itself is not reported.
    let third = sleeper.waker().unwrap();
    sleeper.close_channel(2);
    assert_eq!(sleep(SOON), Woken::Limit);
    let mut third = third;
    assert_eq!(third.take_messages(), Asked::Gone);
}

#[test]
fn a_sleep_without_a_limit_is_ended_by_another_thread() {
    let (ring, _writer) = ring();
    let sleeper = Sleeper::new(1).unwrap();
    let interrupter = sleeper.interrupter().unwrap();
    let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    std::thread::scope(|scope| {
        let woken = scope.spawn(|| sleeper.sleep(&readers, 1, Duration::MAX).unwrap());
        interrupter.interrupt();
        assert_eq!(woken.join().unwrap(), Woken::Interrupted);
    });
    assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
}

/// Receives all messages of the consumer, as an owner of BPF rings does. Returns how often it was asked to look.
fn looks(waker: &mut Waker) -> u32 {
    std::iter::from_fn(|| (waker.take_messages() == Asked::Look).then_some(1)).sum()
}

#[test]
fn until_it_is_confirmed_a_threshold_is_looked_after_and_then_no_more() {
    let (ring, mut writer) = ring();
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    waker.announce_confirmations();
    let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    // Frames without a wake-up are found by the next check of the ring.
    std::thread::scope(|scope| {
        let woken = scope.spawn(|| sleeper.sleep(&readers, 1, Duration::from_secs(60)).unwrap());
        while waker.wake_threshold(0) == AWAKE {
            std::thread::yield_now();
        }
        push(&mut writer, 1);
        assert_eq!(woken.join().unwrap(), Woken::Frames);
    });
    while looks(&mut waker) > 0 {}
    // After a confirmation the sleep is one wait, so frames without a wake-up are not noticed.
    std::thread::scope(|scope| {
        let woken = scope.spawn(|| sleeper.sleep(&readers, 2, Duration::from_secs(60)).unwrap());
        let begin = Instant::now();
        while !waker.wants_confirmation() {
            waker.take_messages();
            assert!(begin.elapsed() < Duration::from_secs(20), "no request");
            std::thread::sleep(Duration::from_millis(1));
        }
        waker.begin_confirmation();
        assert!(waker.relies_on_confirmation());
        waker.finish_confirmation();
        assert!(waker.relies_on_confirmation());
        // The sleeper may have asked again before it received the confirmation.
        std::thread::sleep(5 * UNCONFIRMED_LIMIT);
        looks(&mut waker);
        if waker.wants_confirmation() {
            waker.begin_confirmation();
            waker.finish_confirmation();
        }
        // Long enough for the sleeper to ask again, if it still checked the ring.
        std::thread::sleep(5 * UNCONFIRMED_LIMIT);
        assert_eq!((looks(&mut waker), waker.wants_confirmation()), (0, false));
        let ordinal = push(&mut writer, 1);
        waker.wake_if_due(0, ordinal);
        assert!(!waker.relies_on_confirmation());
        assert_eq!(woken.join().unwrap(), Woken::Frames);
    });
}

#[test]
fn a_threshold_that_stands_is_not_told_again_and_wakes() {
    let (ring, mut writer) = ring();
    let sleeper = Sleeper::new(1).unwrap();
    let mut waker = sleeper.waker().unwrap();
    let mut bpf_waker = sleeper.waker().unwrap();
    bpf_waker.announce_confirmations();
    sleeper.receive();
    looks(&mut bpf_waker);
    let mut readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    // Only `LOOK` announces a new threshold; a request does not.
    let told = || {
        let mut looks = 0;
        let socket = bpf_waker.as_fd().try_clone_to_owned().unwrap();
        let mut bytes = [0; 8];
        while rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {
            looks += u32::from(bytes[0] == message::LOOK);
        }
        looks > 0
    };
    for is_told in [true, false, false] {
        assert_eq!(sleeper.sleep(&readers, 2, SOON).unwrap(), Woken::Limit);
        assert_eq!((told(), waker.wake_threshold(0)), (is_told, 2));
    }
    assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
    assert!(told(), "another threshold");
    // One frame comes between two sleeps.
    waker.wake_if_due(0, push(&mut writer, 1));
    assert_eq!(sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap(), Woken::Frames);
    assert_eq!((told(), waker.wake_threshold(0)), (false, AWAKE));
    let mut batch = Batch::new();
    assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Frames(1));
    assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
    assert_eq!((told(), waker.wake_threshold(0)), (true, 2), "the next threshold is new");
    // An end that was seen clears the threshold.
    writer.close();
    assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Closed);
    assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
    assert_eq!(waker.wake_threshold(0), AWAKE);
}

#[test]
fn a_quarter_wakes_once_the_owner_has_armed_its_doorbell_for_it() {
    let spec = crate::RingSpec { writer: WriterKind::Bpf, ..spec(4) };
    let (of_programs, of_a_thread) = (
        create_memfd("weir-test", &spec).unwrap(),
        create_memfd("weir-test", &self::spec(4)).unwrap(),
    );
    let sleeper = Sleeper::new(2).unwrap();
    let own = sleeper.waker().unwrap();
    let mut owner = sleeper.waker().unwrap();
    let reader = Reader::new(&of_programs, Start::Oldest).unwrap();
    let other = Reader::new(&of_a_thread, Start::Oldest).unwrap();
    let one = || [(0, &reader)].into_iter();
    let wait = |limit| sleeper.wait_for_quarter(one(), limit).unwrap();
    let long = Duration::from_secs(20);
    // No owner has announced that its programs wake for quarters.
    assert_eq!(wait(long), None);
    owner.announce_quarters();
    // For a ring that a thread writes, nobody wakes at quarters.
    let both = [(0, &reader), (1, &other)].into_iter();
    assert_eq!(sleeper.wait_for_quarter(both, long).unwrap(), None);
    assert_eq!((owner.wake_threshold(0), owner.take_messages()), (AWAKE, Asked::Look));
    // The sleeper has asked, and has no answer yet.
    assert_eq!((wait(long), wait(long)), (None, None));
    assert_eq!(owner.wake_threshold(0), doorbell::EACH_QUARTER);
    owner.tell_armed();
    assert_eq!(wait(long), None, "told before the request was read");
    assert_eq!((owner.take_messages(), owner.position(0)), (Asked::Look, 0));
    owner.tell_armed();
    assert_eq!(wait(SOON), Some(Woken::Limit));
    // The thresholds stand: nothing more was sent.
    assert_eq!(owner.take_messages(), Asked::Nothing);
    owner.wake_if_due(0, u64::MAX / 2);
    owner.wake_for_quarter(1);
    assert_eq!(wait(SOON), Some(Woken::Limit), "of another ring");
    owner.wake_for_quarter(0);
    assert_eq!(wait(long), Some(Woken::Frames));
    own.wake();
    assert_eq!(wait(long), Some(Woken::Frames));
    // After a line was freed, the sleeper asks again.
    sleeper.free_line(0);
    assert_eq!((wait(long), owner.take_messages()), (None, Asked::Look));
    owner.tell_armed();
    assert_eq!(wait(SOON), Some(Woken::Limit));
    // A new owner is asked, too, even if its announcement is read late.
    let mut second = sleeper.waker().unwrap();
    second.announce_quarters();
    sleeper.free_line(0);
    assert_eq!(wait(long), None);
    assert_eq!((owner.take_messages(), second.take_messages()), (Asked::Look, Asked::Look));
    owner.tell_armed();
    second.tell_armed();
    assert_eq!(wait(SOON), Some(Woken::Limit));
    drop(owner);
    assert_eq!(wait(long), Some(Woken::WriterGone(1)));
    assert_eq!(wait(SOON), Some(Woken::Limit));
    drop(second);
    assert_eq!(wait(long), Some(Woken::WriterGone(2)));
    assert_eq!(wait(long), None);
}

#[test]
fn a_consumer_that_asks_for_quarters_without_end_gets_one_answer_a_turn() {
    let sleeper = Sleeper::new(1).unwrap();
    let mut owner = sleeper.waker().unwrap();
    doorbell::set_threshold(line(&sleeper.page, 0), doorbell::EACH_QUARTER);
    let socket = sleeper.channels()[0].socket.clone().unwrap();
    for turn in 0..1000 {
        // A full socket refuses messages.
        (0..50).for_each(|number| send(&socket, message::ARM, number));
        assert_eq!(owner.take_messages(), Asked::Look, "turn {turn}");
        owner.tell_armed();
        owner.tell_armed();
        owner.wake_for_quarter(0);
    }
    let kind = || {
        let mut bytes = [0; 8];
        rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).ok().map(|_| bytes[0])
    };
    let kinds: Vec<u8> = std::iter::from_fn(kind).collect();
    let answers = kinds.iter().filter(|kind| **kind == message::ARMED).count();
    // The consumer reads no answer: the owner sent until the socket was full, and never waited.
    assert!(
        answers > 0 && answers.abs_diff(kinds.len() - answers) <= 1,
        "{answers} of {}",
        kinds.len()
    );
}

#[test]
fn what_no_sleeper_made_is_refused() {
    let sleeper = Sleeper::new(1).unwrap();
    let other = sleeper.waker().unwrap();
    let dup = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
    let attach = |page: OwnedFd, rings| Waker::attach(page, dup(&other.as_fd()), rings).err();
    for rings in [0, RINGS_MAX + 1, usize::MAX] {
        let error = attach(dup(&sleeper.page), rings);
        assert!(matches!(error, Some(RingError::NotAWakePage)), "{rings} rings");
    }
    assert!(matches!(attach(dup(&sleeper.page), 4096), Some(RingError::TooSmall { .. })));
    // A plain file, and memfds that could be truncated or have holes punched.
    assert!(matches!(
        attach(tempfile::tempfile().unwrap().into(), 1),
        Some(RingError::NotAWakePage)
    ));
    for seals in [SealFlags::empty(), SealFlags::SHRINK | SealFlags::GROW] {
        let flags = MemfdFlags::ALLOW_SEALING;
        let page = rustix::fs::memfd_create("weir-test", flags).unwrap();
        rustix::fs::ftruncate(&page, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&page, seals).unwrap();
        assert!(matches!(attach(page, 1), Some(RingError::NotAWakePage)), "{seals:?}");
    }
    // Descriptors on which the writer could block, or that are no sockets.
    let (_read, write) = rustix::pipe::pipe().unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let stream = std::os::unix::net::UnixStream::pair().unwrap().0;
    for socket in [write, udp.into(), stream.into(), dup(&sleeper.page)] {
        let error = Waker::attach(dup(&sleeper.page), socket, 1).err();
        assert!(matches!(error, Some(RingError::NotAWaker)));
    }
}

#[test]
fn the_longest_limit_is_no_error() {
    let (ring, _writer) = ring();
    let sleeper = Sleeper::new(1).unwrap();
    let waker = sleeper.waker().unwrap();
    waker.wake();
    let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
    assert_eq!(sleeper.sleep(&readers, u64::MAX, Duration::MAX).unwrap(), Woken::Frames);
}
