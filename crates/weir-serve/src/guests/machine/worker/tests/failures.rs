//! Monitors that fail, machines that are not available, and requests that are not carried out any more.

use super::*;
use crate::guests::machine::NOT_SERVED;
use crate::limits::{CLAIM_WAIT_MAX, DETACH_WAIT_MAX, PLUG_REFUSAL_STAYS, UNPLUG_LOOK_AFTER};

/// Most looks within the time `passed`, one each time that `every` passes, and one more at each end.
fn looks_within(passed: Duration, every: Duration) -> u128 {
    passed.as_millis() / every.as_millis() + 2
}

#[test]
fn a_monitor_that_fails_at_once_is_not_connected_without_a_pause() {
    let (qemu, start) = (Fake::new(), Instant::now());
    qemu.look(|qemu| qemu.fails_events = true);
    let guest = Guest::new(qemu.clone());
    qemu.wait("connecting again", |qemu| qemu.connections >= 4);
    let (connections, passed) = (qemu.look(|qemu| qemu.connections), start.elapsed());
    assert!(connections as u128 <= looks_within(passed, LOOK_EVERY), "{connections} {passed:?}");
    assert_eq!(guest.log().len(), 1, "{:?}", guest.log());
    qemu.change(|qemu| qemu.fails_events = false);
    guest.wait_for(GuestState::Ready);
    within_limit("it is told that QEMU is there", || guest.log().len() == 2);
    assert_eq!(guest.log()[1], "guest web1: QEMU 7.2.22 is there");
    // Then the same fault is logged again.
    qemu.change(|qemu| qemu.fails_events = true);
    within_limit("it is told again", || guest.log().len() == 3);
    assert_eq!(guest.log()[0], guest.log()[2]);
}

#[test]
fn a_machine_that_comes_up_is_told_of_once() {
    let qemu = Fake::new();
    qemu.look(|qemu| qemu.is_there = false);
    let guest = Guest::new(qemu.clone());
    within_limit("it is told that QEMU is not there", || !guest.log().is_empty());
    qemu.change(|qemu| qemu.is_there = true);
    within_limit("it is told that QEMU is there", || guest.log().len() == 2);
    assert!(guest.log()[1].contains("QEMU 7.2.22 is there"), "{:?}", guest.log());
    drop(guest.claim());
    assert_eq!(guest.log().len(), 2, "{:?}", guest.log());
}

#[test]
fn a_machine_without_room_is_refused_before_there_is_memory_and_is_not_asked_each_time() {
    let qemu = Fake::new();
    qemu.look(|qemu| qemu.has_no_ports = true);
    // Memory of 24 MiB cannot be created, so a refusal that names the ports shows that they were checked first.
    let (guest, start) = (Guest::with_region(qemu.clone(), 24), Instant::now());
    guest.wait_for(GuestState::Ready);
    for _ in 0..20 {
        let refusal = guest.refusal();
        assert!(refusal.contains("pcie-root-port"), "{refusal}");
    }
    let (looks, passed) = (qemu.look(|qemu| qemu.port_looks), start.elapsed());
    assert!(looks as u128 <= looks_within(passed, PLUG_REFUSAL_STAYS), "{looks} {passed:?}");
    // Once the user has added ports, the refusal ends soon.
    qemu.look(|qemu| qemu.has_no_ports = false);
    within_limit("it is looked at again", || guest.refusal().contains("power of two"));
}

#[test]
fn a_look_that_takes_too_long_is_not_taken_for_each_feed_anew() {
    let qemu = Fake::new();
    qemu.look(|qemu| (qemu.has_no_ports, qemu.times_out) = (true, Some("query-pci")));
    let (guest, start) = (Guest::new(qemu.clone()), Instant::now());
    guest.wait_for(GuestState::Ready);
    for _ in 0..20 {
        let refusal = guest.refusal();
        assert!(refusal.contains("query-pci"), "{refusal}");
    }
    let (looks, passed) = (qemu.look(|qemu| qemu.port_looks), start.elapsed());
    assert!(looks as u128 <= looks_within(passed, PLUG_REFUSAL_STAYS), "{looks} {passed:?}");
    qemu.look(|qemu| (qemu.has_no_ports, qemu.times_out) = (false, None));
    within_limit("it is looked at again", || guest.machine.claim().is_ok());
}

#[test]
fn what_nobody_waits_for_any_more_is_not_plugged_in() {
    let guest = Guest::new(Fake::new());
    guest.wait_for(GuestState::Ready);
    guest.qemu.look(|qemu| qemu.is_stopped = true);
    // The machine's thread waits for QEMU, and handles the claim only after its caller has given up.
    guest.machine.port_ended();
    let start = Instant::now();
    let refusal = guest.refusal();
    assert!(refusal.contains("not plugged in yet") && start.elapsed() >= CLAIM_WAIT_MAX);
    guest.qemu.change(|qemu| qemu.is_stopped = false);
    // Requests are handled in order, so the claim was handled before this one.
    assert_eq!(guest.machine.detach(LIMIT, || ()), Ok(()));
    assert_eq!(guest.qemu.look(|qemu| qemu.objects_added), 0);
}

#[test]
fn a_detachment_that_is_refused_closes_no_feed() {
    let guest = Guest::new(Fake::new());
    let claim = guest.claim();
    guest.qemu.look(|qemu| (qemu.is_out_of_reach, qemu.breaks) = (true, true));
    guest.machine.port_ended();
    within_limit("the monitor has gone", || guest.machine.status().qemu.is_none());
    let refused = guest.machine.detach(LIMIT, || panic!("its feeds are closed")).unwrap_err();
    assert!(refused.contains("cannot be reached"), "{refused}");
    guest.qemu.look(|qemu| qemu.is_out_of_reach = false);
    within_limit("the version", || guest.machine.status().qemu.is_some());
    assert_eq!(guest.claim().memory().token(), claim.memory().token());
}

#[test]
fn a_detachment_whose_refusal_takes_time_closes_no_feed() {
    let guest = Guest::new(Fake::new());
    let _claim = guest.claim();
    guest.qemu.look(|qemu| {
        (qemu.is_out_of_reach, qemu.breaks, qemu.is_stopped) = (true, true, true);
    });
    // The machine's thread waits for QEMU, which turns out to have ended.
    guest.machine.port_ended();
    let (machine, within) = (Arc::clone(&guest.machine), Duration::from_secs(2));
    let detaching =
        thread::spawn(move || machine.detach(within, || panic!("its feeds are closed")));
    thread::sleep(within / 2);
    guest.qemu.change(|qemu| qemu.is_stopped = false);
    let refused = detaching.join().unwrap().unwrap_err();
    assert!(refused.contains("cannot be reached"), "{refused}");
}

#[test]
fn a_monitor_that_cannot_be_connected_to_ends_no_session() {
    let guest = Guest::new(Fake::new());
    let claim = guest.claim();
    guest.qemu.look(|qemu| (qemu.is_out_of_reach, qemu.breaks) = (true, true));
    guest.machine.port_ended();
    let before = guest.qemu.look(|qemu| qemu.connections);
    guest.qemu.wait("trying again", |qemu| qemu.connections >= before + 2);
    within_limit("the reason", || {
        guest.machine.status().reason.is_some_and(|reason| reason.contains("cannot be connected"))
    });
    assert_eq!(guest.state(), GuestState::Plugged);
    assert_eq!(guest.claim().memory().token(), claim.memory().token());
    guest.qemu.look(|qemu| qemu.is_out_of_reach = false);
    within_limit("the version", || guest.machine.status().qemu.is_some());
    assert_eq!(guest.claim().memory().token(), claim.memory().token());
    assert_eq!(guest.sessions_ended.load(Ordering::SeqCst), 0);
}

#[test]
fn a_second_detachment_joins_the_first() {
    let guest = Guest::new(Fake::new());
    drop(guest.claim());
    guest.qemu.tell("STOP", json!({}));
    guest.qemu.change(|qemu| qemu.is_deaf = true);
    let machine = Arc::clone(&guest.machine);
    let first = thread::spawn(move || machine.detach(LIMIT, || ()));
    guest.wait_for(GuestState::Leaving);
    let second = guest.machine.detach(Duration::from_millis(100), || ()).unwrap_err();
    assert!(second.contains("paused"), "{second}");
    guest.qemu.change(|qemu| qemu.is_deaf = false);
    assert_eq!(first.join().unwrap(), Ok(()));
}

#[test]
fn an_attachment_ends_the_detachment_that_is_under_way() {
    let guest = Guest::new(Fake::new());
    let claim = guest.claim();
    let machine = Arc::clone(&guest.machine);
    let (closing, closes) = std::sync::mpsc::channel();
    let detaching = thread::spawn(move || machine.detach(LIMIT, || closing.send(()).unwrap()));
    closes.recv().unwrap();
    guest.machine.attach();
    let refused = detaching.join().unwrap().unwrap_err();
    assert!(refused.contains("attached again"), "{refused}");
    assert_eq!(guest.claim().memory().token(), claim.memory().token());
    assert_eq!(guest.sessions_ended.load(Ordering::SeqCst), 0);
}

#[test]
fn nobody_waits_for_a_machine_that_is_looked_after_no_more() {
    let mut guest = Guest::new(Fake::new());
    let claim = guest.claim();
    guest.qemu.look(|qemu| qemu.is_deaf = true);
    let machine = Arc::clone(&guest.machine);
    let detaching = thread::spawn(move || machine.detach(DETACH_WAIT_MAX, || ()));
    // Before the detachment begins, a feed may still be opened.
    let is_detached = |refused: String| refused.contains("weir vm attach");
    within_limit("it is detached", || guest.machine.claim().err().is_some_and(is_detached));
    // As by a reload: the refusal must not tell the user to attach a guest that is not in the file any more.
    guest.machine.end(Some(LIMIT));
    assert_eq!(guest.refusal(), NOT_SERVED);
    assert_eq!(guest.machine.detach(LIMIT, || ()), Err(NOT_SERVED.to_owned()));
    let start = Instant::now();
    guest.machine.end(None);
    guest.thread.take().unwrap().join().unwrap();
    assert_eq!(detaching.join().unwrap(), Err(NOT_SERVED.to_owned()));
    assert_eq!(guest.refusal(), NOT_SERVED);
    assert_eq!(guest.machine.detach(DETACH_WAIT_MAX, || ()), Err(NOT_SERVED.to_owned()));
    drop(claim);
    assert!(start.elapsed() < CLAIM_WAIT_MAX / 2, "{:?}", start.elapsed());
}

#[test]
fn a_thread_that_panics_answers_those_who_wait() {
    let mut guest = Guest::new(Fake::new());
    guest.wait_for(GuestState::Ready);
    guest.qemu.look(|qemu| qemu.panics = true);
    assert_eq!(guest.refusal(), NOT_SERVED);
    assert!(guest.thread.take().unwrap().join().is_err());
    let status = guest.machine.status();
    assert!(status.reason.is_some_and(|reason| reason.contains("bug")));
    assert!(guest.log().last().unwrap().contains("bug"), "{:?}", guest.log());
}

#[test]
fn memory_that_qemu_keeps_is_looked_at_less_and_less_often() {
    let guest = Guest::new(Fake::new());
    drop(guest.claim());
    guest.qemu.look(|qemu| qemu.holds_memory = true);
    let start = Instant::now();
    assert!(guest.machine.detach(Duration::from_millis(10), || ()).is_err());
    guest.qemu.wait("refusals", |qemu| qemu.refused >= 9);
    // Two refusals come with the requests to the guest in the first second. The pauses before the others sum up to 10 +
    // 20 + 40 + 80 + 160 + 320 ms.
    assert!(start.elapsed() >= UNPLUG_LOOK_AFTER * 63, "{:?}", start.elapsed());
    let told = || guest.log().iter().filter(|line| line.contains("still holds")).count();
    within_limit("it is told", || told() == 1);
    guest.qemu.look(|qemu| qemu.holds_memory = false);
    guest.wait_for(GuestState::Detached);
    assert_eq!(told(), 1);
}

#[test]
fn what_no_event_has_told_is_asked_for_again() {
    let guest = Guest::new(Fake::new());
    let _claim = guest.claim();
    guest.qemu.look(|qemu| (qemu.is_deaf, qemu.is_port_closed) = (true, true));
    guest.wait_for_ended(1);
    within_limit("it is seen to be paused", || {
        guest.machine.status().reason.as_deref() == Some("the machine is paused")
    });
}
