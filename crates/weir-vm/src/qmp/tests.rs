use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

use proptest::prelude::*;

use super::*;

const GREETS: &str =
    r#"{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}}, "capabilities": []}}"#;
const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

/// A QEMU that greets, and then sends for each command the text that `answer` returns, unchanged.
fn qemu(
    mut answer: impl FnMut(&Value) -> String + Send + 'static,
) -> (Result<Qmp, VmError>, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
        let mut out = &theirs;
        let _ = writeln!(out, "{GREETS}\r");
        while let Some(Ok(line)) = lines.next() {
            let command: Value = serde_json::from_str(&line).unwrap();
            let text = if command["execute"] == "qmp_capabilities" {
                done(&command)
            } else {
                answer(&command)
            };
            if out.write_all(text.as_bytes()).is_err() {
                break;
            }
        }
    });
    (Qmp::negotiate(ours.into(), LONG), thread)
}

fn done(command: &Value) -> String {
    format!("{}\r\n", json!({"return": {}, "id": command["id"]}))
}

fn event(name: &str, device: &str) -> String {
    format!("{}\r\n", json!({"event": name, "data": {"device": device}}))
}

#[test]
fn commands_are_answered_and_events_wait_in_order() {
    let (qmp, thread) = qemu(|command| {
        let first = event("DEVICE_DELETED", "a") + &event("SHUTDOWN", "");
        let value =
            json!({"return": [command["execute"], command["arguments"]], "id": command["id"]});
        format!("{first}\r\n{value}\r\n{}", event("DEVICE_DELETED", "b"))
    });
    let mut qmp = qmp.unwrap();
    assert_eq!(qmp.version(), "10.0.2");
    let value = qmp.execute("query-pci", json!({"a": 1}), LONG).unwrap();
    assert_eq!(value, json!(["query-pci", {"a": 1}]));
    let of_b = qmp.wait_event(LONG, &mut |event| event.text("device") == Some("b")).unwrap();
    assert_eq!(of_b.unwrap().name, "DEVICE_DELETED");
    let name = |event: Option<Event>| event.map(|event| event.name);
    assert_eq!(name(qmp.next_event(SOON).unwrap()).as_deref(), Some("DEVICE_DELETED"));
    assert_eq!(name(qmp.next_event(SOON).unwrap()).as_deref(), Some("SHUTDOWN"));
    assert_eq!(qmp.next_event(Duration::ZERO).unwrap(), None);
    drop(qmp);
    thread.join().unwrap();
}

/// The answer and the event are one write to the socket, so both are read at once.
#[test]
fn an_event_that_comes_with_an_answer_is_not_waited_for() {
    let (qmp, _thread) = qemu(|command| done(command) + &event("STOP", ""));
    let mut qmp = qmp.unwrap();
    qmp.execute("stop", json!({}), LONG).unwrap();
    let start = Instant::now();
    assert_eq!(qmp.next_event(LONG).unwrap().unwrap().name, "STOP");
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
}

#[test]
fn a_refusal_leaves_the_connection_as_it_was() {
    let (qmp, _thread) = qemu(|command| {
        let error = json!({"class": "DeviceNotFound", "desc": "Device 'x' not found"});
        match command["execute"].as_str() {
            Some("device_del") => format!("{}\n", json!({"error": error, "id": command["id"]})),
            _ => done(command),
        }
    });
    let mut qmp = qmp.unwrap();
    let refused = qmp.execute("device_del", json!({"id": "x"}), LONG).unwrap_err();
    assert!(refused.is_device_missing(), "{refused:?}");
    assert!(refused.to_string().contains("Device 'x' not found"), "{refused}");
    qmp.execute("stop", json!({}), LONG).unwrap();
}

#[test]
fn a_late_answer_is_not_that_of_the_next_command() {
    let mut withheld = None;
    let (qmp, _thread) = qemu(move |command| match withheld.take() {
        None => {
            withheld = Some(done(command));
            String::new()
        }
        Some(late) => late + &format!("{}\n", json!({"return": "second", "id": command["id"]})),
    });
    let mut qmp = qmp.unwrap();
    let late = qmp.execute("query-pci", json!({}), SOON).unwrap_err();
    assert!(matches!(late, VmError::TimeOut { command: "query-pci", limit_ms: 50 }), "{late:?}");
    assert_eq!(qmp.execute("query-pci", json!({}), LONG).unwrap(), "second");
}

#[test]
fn a_late_answer_may_come_among_events() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut out = &theirs;
    writeln!(out, "{GREETS}\n{}", json!({"return": {}, "id": 1})).unwrap();
    let mut qmp = Qmp::negotiate(ours.into(), LONG).unwrap();
    assert!(qmp.execute("stop", json!({}), SOON).is_err());
    write!(out, "{}\n{}", json!({"return": {}, "id": 2}), event("STOP", "")).unwrap();
    assert_eq!(qmp.next_event(LONG).unwrap().unwrap().name, "STOP");
    writeln!(out, "{}", json!({"return": {}, "id": 3})).unwrap();
    assert!(matches!(qmp.next_event(LONG), Err(VmError::Protocol { .. })));
}

#[test]
fn nobody_waits_for_ever() {
    // A QEMU that sends nothing.
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let silent = Qmp::negotiate(ours.into(), SOON);
    assert!(matches!(silent, Err(VmError::TimeOut { .. })), "{silent:?}");
    // A QEMU that greets, but reads no command: a long command does not fit in the socket's buffer.
    let (ours, theirs) = UnixStream::pair().unwrap();
    writeln!(&theirs, "{GREETS}\n{}", json!({"return": {}, "id": 1})).unwrap();
    let mut qmp = Qmp::negotiate(ours.into(), LONG).unwrap();
    let long = json!({"text": "x".repeat(8 << 20)});
    assert!(matches!(qmp.execute("stop", long, SOON), Err(VmError::TimeOut { .. })));
    // Half of a command was sent, so no other command can follow.
    assert!(matches!(qmp.execute("stop", json!({}), SOON), Err(VmError::Closed { .. })));
    // A QEMU that sends an endless series of events instead of an answer.
    let (qmp, _thread) = qemu(|_| event("RTC_CHANGE", "").repeat(1_000_000));
    let start = Instant::now();
    let flooded = qmp.unwrap().execute("stop", json!({}), SOON);
    assert!(matches!(flooded, Err(VmError::TimeOut { .. })), "{flooded:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn an_end_is_told() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    writeln!(&theirs, "{GREETS}\n{}", json!({"return": {}, "id": 1})).unwrap();
    let mut qmp = Qmp::negotiate(ours.into(), LONG).unwrap();
    drop(theirs);
    assert!(matches!(qmp.execute("stop", json!({}), LONG), Err(VmError::Closed { .. })));
    assert!(matches!(qmp.next_event(LONG), Err(VmError::Closed { .. })));
}

#[test]
fn what_is_no_qmp_is_an_error_in_bounded_memory() {
    let protocol = |text: &[u8]| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let text = text.to_vec();
        // The text may not fit in the socket's buffer. Then the write ends when the other end is closed.
        let thread = std::thread::spawn(move || {
            let _ = (&theirs).write_all(&text);
            theirs
        });
        let result = Qmp::negotiate(ours.into(), LONG);
        thread.join().unwrap();
        assert!(matches!(result, Err(VmError::Protocol { .. })), "{result:?}");
    };
    protocol(b"SSH-2.0-OpenSSH_9.2p1\r\n");
    protocol(b"{\"return\": {}, \"id\": 1}\n");
    protocol(&[b'x'; 4 << 20]);
    protocol(format!("{GREETS}\n{{\"return\": {{}}, \"id\": 77}}\n").as_bytes());
    protocol(format!("{GREETS}\n{GREETS}\n").as_bytes());
}

#[test]
fn events_that_nobody_takes_go_oldest_first() {
    let (qmp, _thread) = qemu(|command| {
        let text = "x".repeat(1000);
        let events: String = (0..3000).map(|n| event(&format!("E{n}"), &text)).collect();
        events + &done(command)
    });
    let mut qmp = qmp.unwrap();
    qmp.execute("stop", json!({}), LONG).unwrap();
    assert!(qmp.lost_events() > 1000, "{}", qmp.lost_events());
    assert!(qmp.events_bytes <= QMP_EVENTS_BYTES_MAX);
    let first = qmp.next_event(SOON).unwrap().unwrap();
    assert_eq!(first.name, format!("E{}", qmp.lost_events()));
    while qmp.next_event(Duration::ZERO).unwrap().is_some() {}
    assert_eq!(qmp.events_bytes, 0);
}

#[test]
fn a_socket_that_another_program_has_says_so() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("qmp");
    let connected = Qmp::connect(&path, SOON);
    assert!(matches!(&connected, Err(error) if error.is_absence()), "{connected:?}");
    // Other errors do not mean that the machine is absent.
    std::fs::write(folder.path().join("file"), "").unwrap();
    let connected = Qmp::connect(&folder.path().join("file/qmp"), SOON).unwrap_err();
    assert!(matches!(connected, VmError::NotConnected { .. }), "{connected}");
    let kinds = [io::ErrorKind::PermissionDenied, io::ErrorKind::OutOfMemory];
    let emfile = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
    for source in kinds.map(io::Error::from).into_iter().chain([emfile]) {
        let error = VmError::not_connected(&path, source);
        assert!(!error.is_absence(), "{error}");
    }
    let listener = UnixListener::bind(&path).unwrap();
    let connected = Qmp::connect(&path, SOON);
    assert!(matches!(connected, Err(VmError::MonitorBusy { .. })), "{connected:?}");
    // The listener's backlog is full.
    let mut waiting = Vec::new();
    let full = loop {
        let address = SocketAddrUnix::new(&path).unwrap();
        let flags = SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        if rustix::net::connect(&socket, &address).is_err() || waiting.len() > 10_000 {
            break waiting.len() <= 10_000;
        }
        waiting.push(socket);
    };
    assert!(full);
    let connected = Qmp::connect(&path, SOON);
    assert!(matches!(connected, Err(VmError::MonitorBusy { .. })), "{connected:?}");
    drop(listener);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes after the greeting, calls end within their limits, with an answer or an error.
    #[test]
    fn hostile_answers_end_in_time(
        lines in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                Just(b"{\"return\": {}, \"id\": 1}".to_vec()),
                Just(b"{\"return\": {}, \"id\": 2}".to_vec()),
                Just(b"{\"error\": {\"class\": \"GenericError\"}}".to_vec()),
                Just(b"{\"event\": \"RESET\"}".to_vec()),
                Just(b"\r".to_vec()),
            ],
            0..8,
        ),
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut out = &theirs;
        writeln!(out, "{GREETS}").unwrap();
        for line in &lines {
            out.write_all(line).unwrap();
            out.write_all(b"\n").unwrap();
        }
        let start = Instant::now();
        let limit = Duration::from_millis(5);
        if let Ok(mut qmp) = Qmp::negotiate(ours.into(), limit) {
            let _ = qmp.execute("stop", json!({}), limit);
            let _ = qmp.next_event(limit);
        }
        prop_assert!(start.elapsed() < Duration::from_secs(2));
    }
}
