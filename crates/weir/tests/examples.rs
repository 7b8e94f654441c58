//! Runs the examples of the help and the man pages as they are printed. Times and counts are reduced, and commands that
//! do not end by themselves are ended by Ctrl-C.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::testbed::{End, require_tool};

use common::libpcap::library;
use common::manual::{all_verbs, examples, help};
use common::{Run, ready, sh, weir};

/// The command line of an example, and how it is run.
#[derive(Clone, Copy)]
struct Case {
    line: &'static str,
    /// Words of the line that are replaced, and their replacements.
    changes: &'static [(&'static str, &'static str)],
    /// Text on standard error after which Ctrl-C is sent; if empty, it is sent a moment after the start.
    stopped_at: Option<&'static str>,
    status: i32,
}

/// A command that ends by itself, with exit status 0.
const fn run(line: &'static str) -> Case {
    Case { line, changes: &[], stopped_at: None, status: 0 }
}

/// A command that runs until Ctrl-C.
const fn stop(line: &'static str, stopped_at: &'static str) -> Case {
    Case { stopped_at: Some(stopped_at), ..run(line) }
}

impl Case {
    const fn with(self, changes: &'static [(&'static str, &'static str)]) -> Case {
        Case { changes, ..self }
    }

    const fn exits(self, status: i32) -> Case {
        Case { status, ..self }
    }

    fn command(&self, dir: &TempDir) -> Command {
        let mut line = self.line.to_owned();
        for (from, to) in self.changes {
            assert!(line.contains(from), "'{from}' is not in: {line}");
            line = line.replace(from, to);
        }
        let own = Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("a folder");
        let paths = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}/bin:{}:{paths}:/usr/sbin", dir.path().display(), own.display());
        let mut shell = Command::new("bash");
        // Ctrl-C is sent to the line's own process group, as a terminal does.
        shell.args(["-o", "pipefail", "-c", &line]).process_group(0).current_dir(dir.path());
        shell.env("PATH", path).env("WEIR_SOCKET", "daemon.sock");
        shell
    }
}

/// Examples that need no rights. They run in this order.
const HERE: &[Case] = &[
    run("weir capture file:out.pcapng --print"),
    run("weir flows file:out.pcapng --plain"),
    run("weir extract dumps/ --from -5m -w out.pcapng"),
    run("weir extract dumps/ host 10.0.0.1 -w - | tshark -r -"),
    run("weir extract dumps/ --flow 1:mAXT6aO4kEhrDCQ0EqLqe3xIVLc= --stats"),
    run("weir index dumps/"),
    run("weir index dumps/ --check"),
    run("weir lab simulate --seeds 100").with(&[("100", "3")]),
    run("weir lab simulate --seed 17 --shrink"),
    run("weir lab disk /var/tmp")
        .with(&[("/var/tmp", ". --rounds 1 --duration 0.1s --block-sizes 1MiB")]),
    run("weir demo --replay"),
    run("weir vm prepare web1"),
    run("weir vm prepare web1 --vsock"),
    run("weir pages pages/"),
];

/// Examples that run while other commands run in the background.
struct Scene {
    /// Commands in the background. Each is started once the one before it is ready, and stopped at the end.
    meanwhile: &'static [Case],
    lines: &'static [Case],
}

/// The message of a capture of this link once it captures.
const CAPTURES: &str = "weir: eth0: ";

/// Examples for root, on a machine with a link of the name eth0.
const ON_A_LINK: &[Scene] = &[
    Scene {
        meanwhile: &[],
        lines: &[
            run("weir doctor eth0"),
            run("weir doctor eth0 --monitoring-port --apply"),
            run("weir doctor eth0 --undo"),
            stop("weir capture eth0", CAPTURES),
            run("weir capture eth0 --print -c 10"),
            stop("weir capture eth0 --write out.pcapng --filter 'tcp port 80'", CAPTURES),
            stop("weir capture eth0 --write dumps/ --quota 20GiB", CAPTURES),
            stop("weir capture eth0 --write - | wireshark -k -i -", CAPTURES),
            stop("weir capture any --follow --print", "weir: any: "),
            run("weir capture eth0 --duration 10s --json --fail-on-loss").with(&[("10s", "0.3s")]),
            stop("weir capture eth0 -w dumps/ --metrics 127.0.0.1:9100", CAPTURES),
            stop("weir flows eth0", CAPTURES),
            stop("weir flows eth0 --http 127.0.0.1:8080", CAPTURES),
            stop("weir flows eth0 --export ipfix://10.0.0.9 --plain", CAPTURES),
            stop("weir flows eth0 --in-kernel --export parquet:flows", CAPTURES),
            stop("weir attach eth0 --netdev weir0", CAPTURES),
            run("weir gen eth0 --rate 1Mpps --duration 10s").with(&[("10s", "0.3s")]),
            run("weir gen eth0 --size imix --flows 1000 --frames 1M").with(&[("1M", "10k")]),
            run("weir gen eth0 --file trace.pcap --speed 2x").with(&[("2x", "max")]),
            run("weir demo"),
            run("weir lab bench --only wire --rounds 3")
                .with(&[("wire", "command --quick"), ("3", "1")]),
        ],
    },
    Scene {
        meanwhile: &[
            stop("weir serve --config weir.toml --socket ./weir.sock", "weir: serving ")
                .with(&[("./weir.sock", "daemon.sock")]),
            stop(READER, "listening on"),
        ],
        lines: &[
            run("weir status"),
            run("weir vm list"),
            run("weir vm check web1").exits(1),
            stop("weir run -- tcpdump -ni host:eth0 'udp port 53'", "listening on"),
            run("weir block 10.0.0.1 --for 10m --feed ids"),
            run("weir block --feed ids"),
            stop("weir block --from eve.json --follow --feed ids", ""),
        ],
    },
    Scene {
        meanwhile: &[stop("weir capture eth0 --control weir.sock", CAPTURES)],
        lines: &[
            run("weir status --control weir.sock"),
            run("weir filter udp port 53 --control weir.sock"),
            run("weir block 'tcp 10.0.0.1:80 10.0.0.2:4711' --control weir.sock"),
        ],
    },
    Scene {
        meanwhile: &[stop(
            "weir capture eth0 --write dumps/ --on-trigger signal --save-before 30s --control weir.sock",
            CAPTURES,
        )],
        lines: &[run("weir trigger --control weir.sock")],
    },
];

/// Opens the feed that the examples of `weir block` change. It is not an example itself.
const READER: &str = "weir run --feed ids -- tcpdump -ni host:eth0";

/// Examples that are not run here, and why.
const NOT_RUN: &[(&str, &str)] = &[
    (
        "weir serve",
        "serves this machine's links by its own file; another line has a file of its own",
    ),
    ("weir guest", "needs a guest: tests/vm.sh has brokers in guests"),
    ("weir guest --users alice", "as above"),
    ("weir vm prepare web1 --libvirt", "needs libvirt: tests/vm/libvirt.sh"),
    ("weir vm prepare web1 --libvirt --apply", "as above"),
    ("weir vm detach web1 --within 30s", "as above"),
    ("weir vm attach web1", "as above"),
    ("weir run -- suricata -c suricata.yaml --pcap=host:eth0", "needs Suricata: tests/tools.sh"),
    ("weir run --feed ids -- suricata -c suricata.yaml --pcap=host:eth0", "as above"),
    (
        "weir attach host:eth0 --netdev weir0 --into docker:ids --wait-for-reader",
        "needs a container: the docker_ tests of attach.rs",
    ),
    ("weir lab bench --quick", "takes minutes; another line runs one part"),
    ("weir lab soak --duration 30s", "takes half a minute even with 0.1s: make soak"),
];

/// Commands none of whose examples can run here.
const COMMANDS_NOT_RUN: [&str; 4] = ["guest", "vm detach", "vm attach", "lab soak"];

fn cases() -> impl Iterator<Item = &'static Case> {
    let on_a_link = ON_A_LINK.iter().flat_map(|scene| scene.meanwhile.iter().chain(scene.lines));
    HERE.iter().chain(on_a_link).filter(|case| case.line != READER)
}

#[test]
fn every_example_is_run_or_named_with_a_reason_and_every_command_has_one_that_is_run() {
    let ran: Vec<&str> = cases().map(|case| case.line).collect();
    let named: BTreeSet<&str> =
        ran.iter().copied().chain(NOT_RUN.iter().map(|(line, _)| *line)).collect();
    assert_eq!(named.len(), ran.len() + NOT_RUN.len(), "a line is named twice");
    let (mut found, mut without) = (BTreeSet::new(), Vec::new());
    for verb in all_verbs() {
        let help = help(&verb.split(' ').collect::<Vec<_>>());
        let examples = examples(&help);
        if !examples.is_empty() && !examples.iter().any(|line| ran.contains(line)) {
            without.push(verb);
        }
        found.extend(examples.into_iter().map(str::to_owned));
    }
    assert_eq!(without, COMMANDS_NOT_RUN, "commands without an example that is run");
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let new: Vec<_> = found.difference(&named).collect();
    assert!(new.is_empty(), "examples that nothing runs: {new:#?}");
    let gone: Vec<_> = named.difference(&found).collect();
    assert!(gone.is_empty(), "no examples any more: {gone:#?}");
}

/// A folder with the files that the examples name.
fn files() -> TempDir {
    let dir = common::folder();
    for line in [
        "demo --replay --write out.pcapng",
        "capture file:out.pcapng --write dumps/",
        "extract dumps/ --format pcap --write trace.pcap",
    ] {
        let made = weir(line).current_dir(dir.path()).output().expect("weir");
        assert!(made.status.success(), "{line}: {}", String::from_utf8_lossy(&made.stderr));
    }
    let guest = dir.path().join("web1").display().to_string();
    let config = format!(
        "[sources.eth0]\neverybody = true\n\
         [guests.web1]\nport = \"{guest}/port\"\nqmp = \"{guest}/qmp\"\n"
    );
    fs::write(dir.path().join("weir.toml"), config).expect("a file");
    fs::write(dir.path().join("eve.json"), "").expect("a file");
    // A replacement for Wireshark, which needs a display. Ctrl-C does not end it.
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    fs::write(bin.join("wireshark"), "#!/bin/sh\ntrap '' INT\nexec cat >/dev/null\n")
        .expect("a file");
    fs::set_permissions(bin.join("wireshark"), PermissionsExt::from_mode(0o755)).expect("its mode");
    dir
}

/// Starts a command. If it runs until Ctrl-C, waits until it is ready.
fn start(end: Option<&End>, dir: &TempDir, case: &Case) -> Run {
    let command = case.command(dir);
    let mut run = match end {
        Some(end) => Run::start(end, command),
        None => Run::here(command),
    };
    if let Some(text) = case.stopped_at {
        run.wait_for(text, |run| run.stderr().contains(text));
    }
    run
}

/// Waits for the end of a command, after Ctrl-C if it does not end by itself.
fn end(run: Run, case: &Case) {
    if case.stopped_at.is_some() {
        // SAFETY: takes no pointers. The group is that of a child that nothing has waited for yet.
        unsafe { libc::kill(-run.pid().cast_signed(), libc::SIGINT) };
    }
    let ended = run.end().expect(case.status);
    // No output is expected from `extract` into a file, from `index` if all indexes are valid, and from tshark, since
    // the trace has no frame of the filter's host.
    let is_silent = ["-w out", "| tshark", "weir index"].iter().any(|it| case.line.contains(it));
    let says = case.stopped_at.is_some() || is_silent || !ended.stdout.is_empty();
    assert!(says, "{} says nothing", case.line);
    assert!(!ended.stderr.contains("panicked"), "{}: {}", case.line, ended.stderr);
}

/// Runs the commands one after the other.
fn perform(from: Option<&End>, dir: &TempDir, cases: &[Case]) {
    for case in cases {
        let begin = Instant::now();
        let run = start(from, dir, case);
        if case.stopped_at.is_some() {
            // A command that prints nothing when it is ready gets more time before Ctrl-C.
            let says = !case.stopped_at.unwrap_or_default().is_empty();
            sleep(Duration::from_millis(if says { 200 } else { 2000 }));
        }
        end(run, case);
        println!("{:.1} s: {}", begin.elapsed().as_secs_f64(), case.line);
    }
}

#[test]
fn examples_that_need_no_rights_run() {
    if !require_tool("examples_that_need_no_rights_run", "tshark") {
        return;
    }
    perform(None, &files(), HERE);
}

#[test]
fn root_examples_run_on_a_machine_with_a_link_of_that_name() {
    let test = "root_examples_run_on_a_machine_with_a_link_of_that_name";
    let Some(_alone) = ready(test, &["tcpdump"]) else { return };
    let bed = Testbed::builder().gro(true).build().expect("a testbed");
    let eth0 = End { iface: "eth0".to_owned(), ..bed.rx.clone() };
    let old = &bed.rx.iface;
    sh(&bed.rx, &format!("ip link set {old} down && ip link set {old} name eth0"));
    // The address of a collector, and loopback addresses to listen at.
    sh(&eth0, "ip link set eth0 up && ip link set lo up && ip address add 10.0.0.9/32 dev lo");
    eth0.wait_for_carrier().expect("a link");
    // With GRO on, the peer accepts the frames that the generator sends out of eth0.
    sh(&bed.tx, &format!("ethtool -K {} gro on", bed.tx.iface));
    library();
    let dir = files();
    let _traffic = Run::start(&bed.tx, weir(&format!("gen {} --rate 1kpps", bed.tx.iface)));
    for scene in ON_A_LINK {
        let meanwhile: Vec<_> =
            scene.meanwhile.iter().map(|case| (start(Some(&eth0), &dir, case), case)).collect();
        perform(Some(&eth0), &dir, scene.lines);
        // In reverse order, so that the daemon ends after its clients.
        for (run, case) in meanwhile.into_iter().rev() {
            end(run, case);
        }
    }
}
