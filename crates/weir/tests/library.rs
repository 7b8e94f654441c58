//! `libweir.so` and the Python package that uses it: the tests compile and run programs that read from a daemon.

mod common;
mod library {
    pub mod daemon;
}

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use weir_frame::pcapng::{Interface, SectionInfo, write};
use weir_frame::record::{Flags, Meta};
use weir_lab::testbed::{require_root, require_tool};

use common::{bed, generate, ready, tools};
use library::daemon::{Daemon, Printed, root, run};

/// Frames in the recorded file. Every third one is to port 53.
const RECORDED: u64 = 3000;

/// A source that generates frames until the daemon ends.
const LIVE: &str =
    "[sources.live]\nsource = 'gen:rate=100kpps,flows=multi'\neverybody = true\nring_mib = 16\n";

fn recorded(path: &Path) {
    let mut bytes = Vec::new();
    write::section_header(&mut bytes, &SectionInfo::default());
    let interface = Interface {
        name: "recorded0".into(),
        link_type: 1,
        snaplen: 262_144,
        ..Interface::default()
    };
    write::interface(&mut bytes, &interface);
    for number in 0..RECORDED {
        let payload = number as usize % 1400;
        let mut frame = vec![0; 42 + payload];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
        frame[22..24].copy_from_slice(&[64, 17]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let port: u16 = if number.is_multiple_of(3) { 53 } else { 80 };
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
        frame[42..].fill(number as u8);
        let flags = Some(if number.is_multiple_of(2) { Flags::INBOUND } else { Flags::OUTBOUND });
        let ts_ns = 1_700_000_000_000_000_000 + number * 1001;
        let meta = Meta { ts_ns, wire_len: frame.len() as u32, flags, ..Meta::default() };
        write::frame(&mut bytes, &meta, &frame);
    }
    std::fs::write(path, bytes).unwrap();
}

/// A daemon whose source `file` contains the recorded frames.
fn daemon_of_a_file() -> Daemon {
    let file =
        "[sources.file]\nsource = 'file:DIR/recorded.pcapng'\neverybody = true\nring_mib = 16\n";
    let daemon = Daemon::start(&format!("{LIVE}{file}"));
    recorded(&daemon.path("recorded.pcapng"));
    daemon
}

#[test]
fn a_program_reads_every_frame_and_they_are_accounted_for() {
    let daemon = daemon_of_a_file();
    let read = daemon.read(&["frames", "host:file"]);
    assert_eq!((read.number("frames"), read.number("delivered")), (RECORDED, RECORDED));
    assert_eq!((read.text("interface"), read.number("link_type")), ("file", 1));
    read.closes();
    let read = daemon.read(&["filter", "host:file", "udp port 53"]);
    assert_eq!((read.number("frames"), read.number("filtered")), (RECORDED / 3, RECORDED / 3 * 2));
    read.closes();
}

#[test]
fn blocks_that_are_written_one_after_the_other_are_a_file() {
    let daemon = daemon_of_a_file();
    let written = daemon.path("written.pcapng");
    let read = daemon.read(&["blocks", "host:file", written.to_str().unwrap()]);
    assert_eq!(read.number("frames"), RECORDED);
    assert!(read.number("blocks") < RECORDED / 10, "{read:?}");
    read.closes();
    let ((names, frames), (_, expected)) =
        (tools::read(&written), tools::read(&daemon.path("recorded.pcapng")));
    assert_eq!(names, ["file"], "the daemon's name for it");
    assert_eq!(frames, expected);
    let test = "blocks_that_are_written_one_after_the_other_are_a_file";
    if ["tshark", "capinfos", "tcpdump"].iter().all(|tool| require_tool(test, tool)) {
        tools::all_read(&written, &expected);
    }
    // `weir capture` writes the same frames.
    let command_line = daemon.path("captured.pcapng");
    run(daemon
        .command(env!("CARGO_BIN_EXE_weir"))
        .args(["capture", "host:file", "--socket"])
        .args([daemon.path("socket").as_path(), "--write".as_ref(), &command_line]));
    assert_eq!(tools::read(&command_line).1, frames);
}

#[test]
fn an_event_loop_that_reads_a_frame_each_time_reads_all() {
    let daemon = daemon_of_a_file();
    let read = daemon.read(&["poll", "host:file"]);
    assert_eq!(read.number("frames"), RECORDED);
    read.closes();
    let config =
        "[sources.slow]\nsource = 'gen:frames=5000,rate=5kpps'\neverybody = true\nring_mib = 16\n";
    let daemon = Daemon::start(config);
    let read = daemon.read(&["poll", "host:slow"]);
    assert_eq!(read.number("frames"), 5000);
    read.closes();
}

#[test]
fn root_frames_of_a_link_come_in_order_from_the_rings_of_all_cpus() {
    let test = "root_frames_of_a_link_come_in_order_from_the_rings_of_all_cpus";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    for engine in ["bpf", "af_packet"] {
        let config = format!(
            "[sources.lan]\nsource = 'wrx0'\nengine = '{engine}'\neverybody = true\nring_mib = 16\n"
        );
        let daemon = Daemon::start_in(Some(&bed.rx.netns), &config);
        let mut program = daemon.command(daemon.reader());
        program.args(["frames", "host:lan", "20000"]).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "link_type 1");
        generate(&bed.tx, "--frames 20000 --rate 100kpps --flows 100");
        let read = Printed(lines.map(Result::unwrap).collect::<Vec<_>>().join("\n"));
        assert!(child.wait().unwrap().success(), "{engine}: {read:?}");
        let counts = ["frames", "inbound", "offered", "delivered"].map(|name| read.number(name));
        assert_eq!(counts, [20_000; 4], "{engine}: {read:?}");
        read.closes();
    }
}

#[test]
fn a_signal_handler_ends_a_wait() {
    let daemon = Daemon::start(LIVE);
    let read = daemon.read(&["break", "host:live"]);
    let told = ["result", "then", "ahead", "again"].map(|name| read.text(name));
    assert_eq!(told, ["-2", "0", "-2", "0"]);
}

#[test]
fn a_thread_that_reads_may_be_cancelled() {
    let daemon = Daemon::start(LIVE);
    let read = daemon.read(&["cancel", "host:live"]);
    assert_eq!(read.number("cancelled"), 12);
}

#[test]
fn both_sides_of_a_fork_read_on() {
    let daemon = Daemon::start(LIVE);
    let read = daemon.read(&["fork", "host:live"]);
    let (child, parent) = read.0.split_once("parent 1").unwrap();
    let (child, parent) = (Printed(child.into()), Printed(parent.into()));
    for side in [&child, &parent] {
        assert_eq!(side.number("frames"), 500, "{read:?}");
    }
    assert_eq!(child.text("first"), parent.text("first"));
    assert_eq!(child.text("zeros"), parent.text("zeros"));
}

#[test]
fn root_rights_may_be_dropped_behind_the_opening() {
    if !require_root("root_rights_may_be_dropped_behind_the_opening") {
        return;
    }
    let daemon = daemon_of_a_file();
    let read = daemon.read(&["setuid", "host:file"]);
    assert_eq!(read.number("frames"), RECORDED);
    read.closes();
}

#[test]
fn filters_and_entries_change_what_comes() {
    let daemon = Daemon::start(LIVE);
    let read = daemon.read(&["change", "host:live"]);
    assert_eq!(read.number("changed"), 1);
    assert!(read.text("wrong").starts_with("-6 "), "{read:?}");
    assert!(
        read.text("entry").starts_with("-6 ") && read.text("entry").contains("no entry"),
        "{read:?}"
    );
    assert!(read.text("expires").starts_with("-6 "), "1 ms is too short: {read:?}");
}

#[test]
fn what_is_wrong_is_said() {
    let daemon = Daemon::start(LIVE);
    let read = daemon.read(&["refused", "host:live", "/no/such/socket"]);
    for (name, parts) in [
        ("name", &["-3 ", "host:SOURCE"][..]),
        ("source", &["-5 ", "host:none", "no such source", "weir status", "weir_list_sources()"]),
        ("socket", &["-4 ", "/no/such/socket", "No such file", "weir serve"]),
        ("cut", &["-4 connect"]),
        ("filter", &["-6 "]),
        ("mended", &["0"]),
        ("null", &["-3 -3"]),
    ] {
        let told = read.text(name);
        assert!(parts.iter().all(|part| told.contains(part)), "{name}: {told}");
    }
    let listed = daemon.read(&["list"]);
    assert_eq!(listed.number("count"), 1);
    assert!(listed.text("source").starts_with("host:live "), "{listed:?}");
}

/// The signals that this thread of a process blocks.
fn blocked_signals(pid: u32, thread: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let all = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let mut named = all.filter(|status| status.starts_with(&format!("Name:\t{thread}\n")));
    let status = named.next().expect("the thread");
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).expect("a mask");
    u64::from_str_radix(line.trim(), 16).expect("a number")
}

#[test]
fn a_daemon_that_is_killed_and_started_again_is_read_on_from() {
    let mut daemon = Daemon::start(LIVE);
    let mut program = daemon.command(daemon.reader());
    let mut child = program.args(["outlive", "host:live"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "reading 1");
    // The thread of the library must not handle the program's signals.
    let blocked = blocked_signals(child.id(), "plug-client");
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD] {
        assert_ne!(blocked & 1 << (signal - 1), 0, "signal {signal}: {blocked:#x}");
    }
    daemon.kill();
    daemon.serve();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "{rest:?}");
    assert_eq!(Printed(rest.join("\n")).number("lives"), 2);
}

#[test]
fn the_header_is_for_cpp_too_and_pkg_config_finds_the_library() {
    let daemon = Daemon::start(LIVE);
    let source = daemon.path("version.cpp");
    std::fs::write(
        &source,
        "#include <weir.h>\nint main() { weir_options o = weir_default_options(); return o.snaplen || \
         weir_version() != WEIR_VERSION; }\n",
    )
    .unwrap();
    let program = daemon.compile(&["g++", "-std=c++11"], &source, "version");
    run(&mut daemon.command(program));
    let text = std::fs::read_to_string(root().join("packaging/weir.pc.in")).unwrap();
    let text = text.replace("@PREFIX@", "/opt/weir").replace("@LIBDIR@", "${prefix}/lib");
    std::fs::write(daemon.path("weir.pc"), text).unwrap();
    let mut asked = Command::new("pkg-config");
    asked.env("PKG_CONFIG_PATH", daemon.dir.path()).args(["--cflags", "--libs", "weir"]);
    assert_eq!(run(&mut asked).trim(), "-I/opt/weir/include -L/opt/weir/lib -lweir");
}

/// Python with the environment to find the package, the library and the daemon.
fn python(daemon: &Daemon) -> Command {
    let mut python = daemon.command("python3");
    python.env("PYTHONPATH", root().join("python/src")).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("WEIR_TEST_FILE", daemon.path("recorded.pcapng")).current_dir(daemon.dir.path());
    python
}

#[test]
fn the_python_package_reads_waits_and_changes() {
    if !require_tool("the_python_package_reads_waits_and_changes", "python3") {
        return;
    }
    let daemon = daemon_of_a_file();
    let mut python = python(&daemon);
    run(python.args(["-m", "unittest", "discover", "-v", "-s"]).arg(root().join("python/tests")));
}

/// The programs in docs/library.md that are marked as checked.
fn programs_of_the_page(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/library.md")).unwrap();
    let mark = format!("<!-- checked: {language} -->\n```{language}\n");
    let sections = page.split(&mark).skip(1);
    let programs = sections.map(|section| section.split("```").next().unwrap().to_owned());
    programs.collect()
}

#[test]
fn the_programs_of_the_page_run() {
    let daemon = daemon_of_a_file();
    let [program] = &programs_of_the_page("c")[..] else { panic!("one program in C") };
    let source = daemon.path("page.c");
    std::fs::write(&source, program).unwrap();
    let program = daemon.compile(&["cc", "-std=c11"], &source, "page");
    let told = run(daemon.command(program).arg("host:file"));
    let bytes: u64 = (0..RECORDED).map(|number| 42 + number % 1400).sum();
    assert_eq!(
        told,
        format!("{RECORDED} frames, {bytes} bytes\n0 lost at the host, 0 overwritten here\n")
    );

    if !require_tool("the_programs_of_the_page_run", "python3") {
        return;
    }
    let [print, write] = &programs_of_the_page("python")[..] else { panic!("two in Python") };
    let told = run(python(&daemon).args(["-c", print, "host:file"]));
    assert_eq!(told.lines().count() as u64, RECORDED + 1);
    let (first, last) = (told.lines().next().unwrap(), told.lines().last().unwrap());
    assert_eq!(first, "1700000000000000000 in 42 0000000000000000000000000800");
    assert_eq!(last, "3000 frames, 0 lost at the host {}, 0 overwritten here");
    run(python(&daemon).args(["-c", write, "host:file"]));
    let (written, file) = (daemon.path("all.pcapng"), daemon.path("recorded.pcapng"));
    assert_eq!(tools::read(&written).1, tools::read(&file).1);
}
