//! Filter expressions become programs, or errors that give the reason.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weir_filter::{Frame, interpret};
use weir_filter_compile::{CompileError, Compiler, TEXT_MAX};
use weir_lab::testbed::require_root;

fn compiler() -> Compiler {
    Compiler::default().with_program(Path::new(env!("CARGO_BIN_EXE_weir-filter-compile")))
}

#[test]
fn an_expression_becomes_a_program() {
    let program = compiler().compile("ether[0] = 7 and len > 20").expect("an expression");
    for (first, len, taken) in [(7, 60, true), (8, 60, false), (7, 20, false)] {
        let mut bytes = vec![0; len];
        bytes[0] = first;
        assert_eq!(interpret::run(&program, &Frame::whole(&bytes)) > 0, taken, "{first}, {len}");
    }
    let all = compiler().compile("").expect("no expression");
    assert!(interpret::run(&all, &Frame::whole(&[])) > 0);
    // Raw IP packets have no Ethernet header, so the program has other offsets.
    let raw = compiler().with_link_type(101).compile("tcp").expect("raw IP");
    assert_ne!(raw, compiler().compile("tcp").expect("Ethernet"));
    let hosts: Vec<_> = (0..100).map(|n| format!("host 10.{}.{}.9", n / 256, n % 256)).collect();
    let long = compiler().compile(&hosts.join(" or ")).expect("100 hosts");
    assert!(long.insns().len() > 200);
}

#[test]
fn a_mistake_is_told_with_its_place() {
    let cases = [
        (
            "tcp prt 80",
            "syntax error at 'prt', character 5; the syntax is described in pcap-filter(7)",
        ),
        ("tcp port", "syntax error at its end: something is missing"),
        ("tcp and (udp or icmp", "at its end"),
        ("tcp port 80 and and udp", "at 'and', character 17"),
        ("host ä and and b", "at 'ä', character 6"),
        ("port 80)", "at ')', character 8"),
        ("port nosuchport", "unknown port 'nosuchport'"),
        ("net 10.1.0.0/33", "mask length must be <= 32"),
        ("ether[0:3] = 1", "data size must be 1, 2, or 4"),
        ("tcp port 80 and ip broadcast", "netmask not known"),
        ("ip protochain 6", "it jumps back"),
        ("inbound", "add --direction in"),
        ("tcp\0", "a zero byte"),
    ];
    for (text, expected) in cases {
        let error = compiler().compile(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn hostile_text_is_ended() {
    // Each of these texts can take libpcap much longer than 1 s of CPU time, the limit below.
    let nested = "(tcp or udp port 53 or ".repeat(450) + "ip" + &")".repeat(450);
    let indexes = "ether[".repeat(2000) + "0" + &"]".repeat(2000);
    let long = "host 10.0.0.1 and not (port 80 or ip[2:2] > 40) or ".repeat(1200) + "ip";
    let deep = "(".repeat(60_000);
    let not = "not ".repeat(15_000) + "ip";
    let limited = compiler().with_limits(1, Duration::from_secs(60));
    for text in [nested, indexes, long, deep, not] {
        let begin = Instant::now();
        // A newer libpcap may compile some of them quickly. None may fail in any other way than by a limit, or by an
        // error of libpcap.
        if let Err(error) = limited.compile(&text) {
            let known = !matches!(error, CompileError::Child(_) | CompileError::NoAnswer { .. });
            assert!(known && !error.to_string().is_empty(), "{error:?}");
        }
        // The limit is of CPU time, and other programs may run meanwhile.
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    }
    let text = " ".repeat(TEXT_MAX + 1);
    assert!(matches!(compiler().compile(&text), Err(CompileError::TextTooLong { .. })));
}

/// Writes a file that can be executed.
///
/// Another process writes the file. If this process opened it for writing, a child that another thread forks at that
/// time would inherit the descriptor until its exec, and executing the file would fail (`ETXTBSY`).
fn write_program(path: &Path, text: &str) {
    let status = Command::new("sh")
        .args(["-c", r#"printf %s "$2" >"$1" && chmod 755 "$1""#, "sh"])
        .args([path.as_os_str(), OsStr::new(text)])
        .status();
    assert!(status.expect("sh").success(), "{}", path.display());
}

#[test]
fn a_child_that_hangs_dies_or_babbles_is_an_error() {
    let dir = std::env::temp_dir().join(format!("weir-filter-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let child = |name: &str, script: &str| {
        let path = dir.join(name);
        write_program(&path, &format!("#!/bin/sh\n{script}\n"));
        Compiler::default()
            .with_program(&path)
            .with_limits(1, Duration::from_millis(500))
            .compile("ip")
    };
    assert!(matches!(child("hangs", "exec sleep 1000"), Err(CompileError::TooSlow { .. })));
    assert!(matches!(child("dies", "kill -SEGV $$"), Err(CompileError::Crashed { .. })));
    assert!(matches!(child("silent", "exit 3"), Err(CompileError::NoAnswer { .. })));
    assert!(matches!(
        child("babbles", "echo ok; echo 1; echo 255 0 0 0"),
        Err(CompileError::NoAnswer { .. })
    ));
    let missing = Compiler::default().with_program(&dir.join("missing")).compile("ip");
    assert!(matches!(missing, Err(CompileError::Child(_))), "{missing:?}");
    std::fs::remove_dir_all(&dir).expect("ours to remove");
}

/// Starts the child, waits until it has dropped its privileges, and passes the text of /proc/PID/status to `check`.
/// Then the child must still compile the text, which is empty.
fn with_a_child_that_waits_for_its_text(check: impl FnOnce(&str)) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir-filter-compile"))
        .arg0("weir-filter-compiler")
        .args(["1", "5"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child");
    let status =
        || std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it waits");
    let begin = Instant::now();
    // Seccomp is the last step of dropping privileges. The child then waits for a text, which has not been sent yet.
    while word(&status(), "Seccomp:") != "2" {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", status());
        std::thread::sleep(Duration::from_millis(1));
    }
    check(&status());
    drop(child.stdin.take());
    let answer = child.wait_with_output().expect("it ends");
    assert!(answer.status.success() && answer.stdout.starts_with(b"ok\n"), "{answer:?}");
}

/// Returns the first value of a line of /proc/PID/status.
fn word<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.split_whitespace().next().expect("a value")
}

#[test]
fn the_child_is_sandboxed_before_it_reads_the_text() {
    with_a_child_that_waits_for_its_text(|status| {
        assert_eq!(word(status, "NoNewPrivs:"), "1", "{status}");
    });
}

#[test]
fn root_the_child_gives_up_the_rights_of_root_before_it_reads_the_text() {
    let test = "root_the_child_gives_up_the_rights_of_root_before_it_reads_the_text";
    if !require_root(test) {
        return;
    }
    with_a_child_that_waits_for_its_text(|status| {
        for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(word(status, name), "0000000000000000", "{status}");
        }
        assert_ne!(word(status, "Uid:"), "0", "{status}");
    });
}

#[test]
fn names_are_looked_up_by_the_child() {
    let by_name = compiler().compile(r"host localhost and tcp port http and ip proto \tcp");
    // The addresses of `localhost` depend on this machine, so only the program's length is checked.
    assert!(by_name.expect("names that every machine knows").insns().len() > 5);
}

#[test]
fn a_host_that_is_not_known_is_told_from_a_mistake_that_only_reads_like_it() {
    // The message for this mistake quotes the filter, so it contains the words "unknown host".
    let mistake = compiler().compile("unknown host").expect_err("a mistake");
    assert!(
        mistake.to_string().contains("unknown host") && !mistake.is_unknown_host(),
        "{mistake}"
    );
    // This name is longer than the DNS allows, so no resolver sends a query for it.
    let unknown = compiler().compile(&format!("host {}", "x".repeat(300))).expect_err("no host");
    assert!(unknown.is_unknown_host(), "{unknown}");
}
