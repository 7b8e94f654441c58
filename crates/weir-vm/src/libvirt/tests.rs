use std::ffi::OsStr;
use std::fs;

use proptest::prelude::*;

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// Answers as virsh 9.0: the domain `web1` runs, `off` is shut off, and the QEMU of `stuck` does not answer.
const SCRIPT: &str = r#"#!/bin/sh
[ "$1 $2 $3" = "--quiet --connect qemu:///test" ] || exit 9
shift 3
case "$*" in
    *" nobody"*) echo "error: failed to get domain 'nobody'" >&2; exit 1 ;;
    "qemu-monitor-event flood "*) exec yes "event STOP at 1795610184.715683 for domain 'flood': <null>" ;;
    "qemu-monitor-event "*)
        echo "event STOP at 1795610184.715683 for domain 'web1': <null>"
        echo "event VSERPORT_CHANGE at 1795610184.791601 for domain 'web1': {\"open\":false,\"id\":\"channel0\"}"
        # Runs until it is killed, or until a test opens the FIFO for writing and closes it.
        exec cat $0.fifo ;;
    "domstate off") echo "shut off" ;;
    "domstate "*) echo running ;;
    *" off "*) echo "error: Requested operation is not valid: domain is not running" >&2; exit 1 ;;
    "dumpxml web1 --xpath //channel[target/@name='org.weir.0']/source/@path")
        echo ' path="/run/a&amp;b/org.weir.0"' ;;
    "dumpxml "*) echo ;;
    *" stuck "*) exec cat $0.fifo ;;
    *query-version*) echo '{"return":{"qemu":{"micro":22,"minor":2,"major":7},"package":""},"id":"libvirt-4"}' ;;
    *--pass-fds\ 0*add-fd*) echo "{\"return\":{\"fd\":$(wc -c),\"fdset-id\":0},\"id\":\"libvirt-5\"}" ;;
    # Closes its output, and keeps running.
    *" silent "*) exec >&- 2>&-; read line <$0.fifo ;;
    *nosuch*) echo '{"id":"libvirt-6","error":{"class":"CommandNotFound","desc":"The command has not been found"}}' ;;
    *garbage*) echo 'Domain is tired' ;;
    *) echo "error: unexpected: $*" >&2; exit 1 ;;
esac
"#;

struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    fn new() -> Fake {
        let folder = tempfile::tempdir().unwrap();
        // Another process writes the file. If this process opened it for writing, a child that another test starts at
        // that time would inherit the descriptor until its exec, and executing the file would fail (`ETXTBSY`).
        let made = std::process::Command::new("sh")
            .args(["-c", r#"printf %s "$2" >"$1" && chmod 755 "$1" && mkfifo "$1.fifo""#, "sh"])
            .args([folder.path().join("virsh").as_os_str(), OsStr::new(SCRIPT)])
            .status();
        assert!(made.unwrap().success());
        Fake { folder }
    }

    fn domain(&self, name: &str) -> Domain {
        Domain::new(Some("qemu:///test"), name).by(self.folder.path().join("virsh"))
    }
}

#[test]
fn commands_go_by_virsh_and_a_descriptor_with_them() {
    let fake = Fake::new();
    let mut virsh = fake.domain("web1").connect().unwrap();
    assert_eq!(virsh.version(), "7.2.22");
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"seven b").unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let given = virsh.execute_with("add-fd", json!({}), Some(file.as_fd()), LONG).unwrap();
    assert_eq!(given, json!({"fd": 7, "fdset-id": 0}));
    let refused = virsh.execute("nosuch", json!({}), LONG).unwrap_err();
    assert!(matches!(&refused, VmError::Refused { class, .. } if class == "CommandNotFound"));
    let broken = virsh.execute("garbage", json!({}), LONG).unwrap_err();
    assert!(matches!(broken, VmError::Protocol { .. }), "{broken}");
}

#[test]
fn events_are_lines_of_a_child() {
    let fake = Fake::new();
    let mut virsh = fake.domain("web1").connect().unwrap();
    let closes = virsh.wait_event(LONG, &mut |event| event.name == "VSERPORT_CHANGE").unwrap();
    let closes = closes.unwrap();
    assert_eq!((closes.text("id"), &closes.data["open"]), (Some("channel0"), &json!(false)));
    let stop = virsh.wait_event(Duration::ZERO, &mut |_| true).unwrap().unwrap();
    assert_eq!((&*stop.name, stop.data), ("STOP", json!({})));
    assert_eq!(virsh.wait_event(Duration::from_millis(20), &mut |_| true).unwrap(), None);
    // The end of the child is the end of the connection.
    fs::OpenOptions::new().write(true).open(fake.folder.path().join("virsh.fifo")).unwrap();
    let ended = virsh.wait_event(LONG, &mut |_| true).unwrap_err();
    assert!(matches!(ended, VmError::Libvirt { .. }), "{ended}");
}

#[test]
fn a_domain_that_is_off_or_unknown_is_absent() {
    let fake = Fake::new();
    for name in ["off", "nobody"] {
        let error = fake.domain(name).connect().unwrap_err();
        assert!(error.is_absence() && error.to_string().contains(name), "{error}");
    }
    assert!(fake.domain("nobody").channel("org.weir.0").unwrap_err().is_absence());
    let missing = Domain::new(None, "web1").by("/no/virsh".into()).connect().unwrap_err();
    assert!(missing.to_string().contains("libvirt-clients"), "{missing}");
}

#[test]
fn the_channels_socket_is_found() {
    let fake = Fake::new();
    let path = fake.domain("web1").channel("org.weir.0").unwrap();
    assert_eq!(path, PathBuf::from("/run/a&b/org.weir.0"));
    let error = fake.domain("web1").channel("org.other").unwrap_err();
    assert!(matches!(error, VmError::NoChannel { .. }), "{error}");
}

#[test]
fn a_virsh_that_does_not_end_is_ended() {
    let fake = Fake::new();
    let start = Instant::now();
    let domain = fake.domain("stuck");
    let mut command = domain.command(&["qemu-monitor-command", "stuck", "{}"], None).unwrap();
    let error = run(&mut command, Duration::from_millis(100), "query-status").unwrap_err();
    assert!(matches!(error, VmError::TimeOut { limit_ms: 100, .. }), "{error}");
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn a_virsh_that_closes_its_output_and_does_not_end_is_ended() {
    let fake = Fake::new();
    let start = Instant::now();
    let domain = fake.domain("silent");
    let mut command = domain.command(&["qemu-monitor-command", "silent", "{}"], None).unwrap();
    let error = run(&mut command, Duration::from_millis(100), "query-status").unwrap_err();
    assert!(matches!(error, VmError::TimeOut { limit_ms: 100, .. }), "{error}");
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

/// Events that come faster than they are handled neither delay a caller beyond its limit nor fill its memory.
#[test]
fn a_flood_of_events_is_bounded() {
    let fake = Fake::new();
    let mut virsh = fake.domain("flood").connect().unwrap();
    let start = Instant::now();
    while virsh.queue.len() < VIRSH_EVENTS_MAX {
        assert!(start.elapsed() < LONG, "{}", virsh.queue.len());
        let none = virsh.wait_event(Duration::from_millis(50), &mut |_| false).unwrap();
        assert_eq!(none, None);
    }
    let none = virsh.wait_event(Duration::from_millis(50), &mut |_| false).unwrap();
    assert_eq!((none, virsh.queue.len()), (None, VIRSH_EVENTS_MAX));
    assert_eq!(virsh.wait_event(Duration::ZERO, &mut |_| true).unwrap().unwrap().name, "STOP");
    assert_eq!(virsh.version(), "7.2.22");
}

proptest! {
    #[test]
    fn any_line_is_an_event_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = event(&bytes);
        let line = [b"event A at 1 for domain 'x': ", &*bytes].concat();
        prop_assert!(event(&line).is_none_or(|event| event.name == "A"));
    }
}
