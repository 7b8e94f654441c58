//! `weir run` and libweirpcap: unmodified programs that use libpcap capture sources named `host:`.

mod common;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use weir_lab::Testbed;

use common::daemon::Daemon;
use common::libpcap::{self, Tools, compiled, library, reader};
use common::{Ended, Run, bed, folder, generate, path, ready, tools, weir};

const FRAMES: u64 = 2000;

/// `weir run` of a tool with this daemon.
fn run(daemon: &Daemon, line: &[&str]) -> Command {
    assert!(library().is_file(), "{} is not there", library().display());
    let mut command = daemon.weir("run");
    command.arg("--").args(line);
    command
}

/// Starts the reader on `host:lan`, and waits until it has opened its feed.
fn start_reader(bed: &Testbed, daemon: &Daemon, file: &str, args: &[&str]) -> Run {
    let before = clients(&daemon.status(bed));
    let mut run = begin_reader(bed, daemon, file, args);
    // The program opens the feed with its first call that reads.
    run.wait_for("its feed", |_| clients(&daemon.status(bed)) > before);
    run
}

/// Starts the reader on `host:lan`, and waits until it is about to read.
fn begin_reader(bed: &Testbed, daemon: &Daemon, file: &str, args: &[&str]) -> Run {
    let line: Vec<&str> = [&[reader(), "host:lan", file], args].concat();
    let mut run = Run::start(&bed.rx, run(daemon, &line));
    run.wait_for("that it reads", |run| run.stderr().contains("reader: reads"));
    run
}

fn clients(status: &Value) -> usize {
    status["clients"].as_array().map_or(0, Vec::len)
}

/// Waits until this many clients have each had this many frames, and have read all of them.
fn wait_until_read(bed: &Testbed, daemon: &Daemon, readers: usize, frames: u64) {
    let has_read = |client: &Value| {
        client["ledger"]["captured"].as_u64() >= Some(frames) && client["lag"] == 0
    };
    daemon.wait_for(bed, |status| {
        let all = status["clients"].as_array().expect("clients");
        all.len() == readers && all.iter().all(has_read)
    });
}

/// The numbers that a reader printed.
fn numbers(ended: &Ended) -> Vec<u64> {
    ended.text().split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

/// Passes if the pcap file has exactly the frames of the pcapng file.
#[track_caller]
fn same_frames(found: &Path, expected: &Path) {
    let (_, expected) = tools::read(expected);
    let expected: Vec<_> =
        expected.into_iter().map(|frame| (frame.ts_ns, frame.wire_len, frame.data)).collect();
    let found = tools::pcap(found);
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "other frames, or in another order");
}

#[test]
fn root_every_way_to_read_by_libpcap_gives_every_frame() {
    let test = "root_every_way_to_read_by_libpcap_gives_every_frame";
    let Some(_alone) = ready(test, &["cc"]) else { return };
    let bed = bed();
    for engine in ["bpf", "af_packet"] {
        let daemon = Daemon::of_lan(&bed, &format!("engine = \"{engine}\""));
        let dir = folder();
        let count = FRAMES.to_string();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).expect("permissions");
        let (whole, whole_text) = path(&dir, "whole.pcapng");
        let capture = daemon.capture(
            &bed,
            &format!("host:lan --filter udp --frames {FRAMES} --write {whole_text}"),
        );
        let ways = [
            "loop", "dispatch", "select", "epoll", "next", "next_ex", "fork", "forksel", "split",
            "setuid", "busy", "nested",
        ];
        let readers = ways.map(|way| {
            let (file, text) = path(&dir, &format!("{way}.pcap"));
            (way, file, start_reader(&bed, &daemon, &text, &[way, &count, "udp"]))
        });
        generate(&bed.tx, &format!("--frames {FRAMES} --rate 50kpps --flows 100"));
        capture.end().expect(0);
        for (way, file, reader) in readers {
            let ended = reader.end().expect(0);
            let told = numbers(&ended);
            assert_eq!(told.last(), Some(&FRAMES), "{engine}, {way}: {told:?}");
            // The child of `split` counts from its fork on, and `busy` has already closed its handle.
            if !["split", "busy"].contains(&way) {
                assert_eq!(told, [FRAMES, 0, 0, FRAMES], "{engine}, {way}");
            }
            same_frames(&file, &whole);
        }
    }
}

#[test]
fn root_a_read_is_ended_by_a_signal_another_thread_and_ctrl_c() {
    let test = "root_a_read_is_ended_by_a_signal_another_thread_and_ctrl_c";
    let Some(_alone) = ready(test, &["cc"]) else { return };
    let (bed, dir) = (bed(), folder());
    let daemon = Daemon::of_lan(&bed, "");
    for way in ["thread", "alarm", "loop", "next_ex", "select"] {
        let (_, file) = path(&dir, way);
        let args = [way, "0", "udp"];
        let reader = if ["thread", "alarm"].contains(&way) {
            // It ends by itself after 200 ms.
            begin_reader(&bed, &daemon, &file, &args)
        } else {
            let mut reader = start_reader(&bed, &daemon, &file, &args);
            reader.signal(libc::SIGINT);
            reader
        };
        assert_eq!(numbers(&reader.end().expect(0)), [0, 0, 0, 0], "{way}");
    }
}

#[test]
fn root_a_thread_that_reads_may_be_cancelled() {
    let test = "root_a_thread_that_reads_may_be_cancelled";
    let Some(_alone) = ready(test, &["cc"]) else { return };
    let bed = bed();
    let live = "[sources.live]\nsource = \"gen:rate=50kpps,flows=multi\"\neverybody = true\n";
    let daemon = Daemon::start(&bed, &format!("{live}ring_mib = 16\n"), "");
    let (_dir, program) = compiled("cancel");
    for way in ["loop", "dispatch", "next", "next_ex", "callback", "disabled"] {
        let rounds = if way == "disabled" { 2 } else { 6 };
        let cancels = Run::start(&bed.rx, run(&daemon, &[&program, "host:live", way]));
        assert_eq!(numbers(&cancels.end().expect(0)), [rounds], "{way}");
    }
    // The same in the real libpcap, whose calls pass through our library.
    for way in ["loop", "next_ex"] {
        let cancels = Run::start(&bed.rx, run(&daemon, &[&program, &bed.rx.iface, way]));
        assert_eq!(numbers(&cancels.end().expect(0)), [6], "{way}");
    }
}

#[test]
fn root_a_signal_handler_asks_for_statistics_while_its_program_reads() {
    let test = "root_a_signal_handler_asks_for_statistics_while_its_program_reads";
    let Some(_alone) = ready(test, &["cc", "tcpdump"]) else { return };
    let (bed, dir) = (bed(), folder());
    let daemon = Daemon::of_lan(&bed, "");
    let (_, file) = path(&dir, "usr1");
    let mut reader = start_reader(&bed, &daemon, &file, &["loop", "0", "udp"]);
    let mut tcpdump = Run::start(
        &bed.rx,
        run(&daemon, &["tcpdump", "-ni", "host:lan", "-w", "/dev/null", "udp"]),
    );
    tcpdump.wait_for("that it listens", |run| run.stderr().contains("listening on"));
    daemon.wait_for_clients(&bed, 2);
    let asked = |run: &Run, word: &str| run.stderr().matches(word).count();
    // While the programs are idle, and while frames arrive.
    for count in 1..=20 {
        if count == 10 {
            generate(&bed.tx, "--frames 1000 --rate 20kpps");
        }
        reader.signal(libc::SIGUSR1);
        tcpdump.signal(libc::SIGUSR1);
        reader.wait_for("an answer", |run| asked(run, "asked") >= count);
        tcpdump.wait_for("an answer", |run| asked(run, "packets captured") >= count);
    }
    wait_until_read(&bed, &daemon, 2, 1000);
    assert_eq!(numbers(&reader.stop().expect(0)), [1000, 0, 0, 1000]);
    let said = tcpdump.stop().expect(0).stderr;
    assert!(said.contains("1000 packets captured"), "{said}");
}

#[test]
fn root_a_filter_acts_at_the_host_and_can_change_while_frames_come() {
    let test = "root_a_filter_acts_at_the_host_and_can_change_while_frames_come";
    let Some(_alone) = ready(test, &["cc"]) else { return };
    let (bed, dir) = (bed(), folder());
    let daemon = Daemon::of_lan(&bed, "");
    let (file, text) = path(&dir, "filtered.pcap");
    // The other reader shares the rings, as long as both have the same filter.
    let (_, other) = path(&dir, "other.pcap");
    let filters = ["refilter", "400", "udp[1] & 1 == 0", "udp[1] & 1 == 1"];
    let changes = start_reader(&bed, &daemon, &text, &filters);
    let stays = start_reader(&bed, &daemon, &other, &["loop", "0", filters[2]]);
    for _ in 0..20 {
        generate(&bed.tx, "--frames 1000 --rate 50kpps --flows 1000");
        if changes.stderr().contains("anew") {
            break;
        }
    }
    generate(&bed.tx, "--frames 4000 --rate 50kpps --flows 1000");
    let told = numbers(&changes.end().expect(0));
    assert_eq!(told[3], 400, "{told:?}");
    let is_even = |frame: &(u64, u32, Vec<u8>)| frame.2[35].is_multiple_of(2);
    let frames = tools::pcap(&file);
    assert_eq!(frames.len(), 400);
    assert!(frames[..200].iter().all(is_even), "before the change");
    assert!(!frames[200..].iter().any(is_even), "behind it");
    let told = numbers(&stays.stop().expect(0));
    assert!(told[3] > 200 && told[1] == 0, "{told:?}");
    assert!(tools::pcap(Path::new(&other)).iter().all(is_even));
}

#[test]
fn root_no_frame_of_before_a_change_comes_behind_it() {
    let test = "root_no_frame_of_before_a_change_comes_behind_it";
    let Some(_alone) = ready(test, &["cc"]) else { return };
    let (bed, dir) = (bed(), folder());
    let daemon = Daemon::of_lan(&bed, "");
    let (_, file) = path(&dir, "repoll.pcap");
    let filters = ["repoll", "2000", "udp[1] & 1 == 0", "udp[1] & 1 == 1"];
    let reader = start_reader(&bed, &daemon, &file, &filters);
    // Frames come until it has its own: how many pass while a filter changes depends on the machine.
    let line = format!("gen {} --rate 2kpps --flows 1000", bed.tx.iface);
    let generator = Run::start(&bed.tx, weir(&line));
    assert_eq!(numbers(&reader.end().expect(0)).last(), Some(&2000));
    generator.stop().expect(0);
}

#[test]
fn root_no_frame_that_is_cut_is_lost_behind_a_change_of_the_filter() {
    let test = "root_no_frame_that_is_cut_is_lost_behind_a_change_of_the_filter";
    let Some(_alone) = ready(test, &["cc"]) else { return };
    let (bed, dir) = (bed(), folder());
    let daemon = Daemon::of_lan(&bed, "");
    let (file, text) = path(&dir, "cut.pcap");
    // Both filters accept every frame. The second reads a byte that the daemon has, but the program, whose frames are
    // cut to 64 bytes, has not.
    let filters = ["cut", "400", "udp", "udp and ether[100] >= 0"];
    let mut reader = start_reader(&bed, &daemon, &text, &filters);
    generate(&bed.tx, "--frames 4000 --rate 5kpps --size 200");
    wait_until_read(&bed, &daemon, 1, 4000);
    assert!(reader.stderr().contains("anew"), "{}", reader.stderr());
    reader.signal(libc::SIGINT);
    assert_eq!(numbers(&reader.end().expect(0)), [4000, 0, 0, 4000]);
    assert!(tools::pcap(&file).iter().all(|frame| frame.1 > 100 && frame.2.len() == 64));
}

#[test]
fn root_a_daemon_that_is_killed_is_read_on_from() {
    let test = "root_a_daemon_that_is_killed_is_read_on_from";
    let Some(_alone) = ready(test, &["cc"]) else { return };
    let (bed, dir) = (bed(), folder());
    let mut daemon = Daemon::of_lan(&bed, "");
    let ways = ["loop", "select"];
    let mut readers = ways.map(|way| {
        let (_, file) = path(&dir, way);
        start_reader(&bed, &daemon, &file, &[way, "0", "udp"])
    });
    for _ in 0..2 {
        generate(&bed.tx, "--frames 1000 --rate 50kpps");
        wait_until_read(&bed, &daemon, 2, 1000);
        daemon.kill();
        daemon.restart(&bed);
        daemon.wait_for_clients(&bed, 2);
    }
    generate(&bed.tx, "--frames 1000 --rate 50kpps");
    wait_until_read(&bed, &daemon, 2, 1000);
    for reader in &mut readers {
        reader.signal(libc::SIGINT);
    }
    for (way, reader) in ways.into_iter().zip(readers) {
        assert_eq!(numbers(&reader.end().expect(0)), [3000, 0, 0, 3000], "{way}");
    }
}

#[test]
fn root_tcpdump_and_dumpcap_capture_as_they_are() {
    let test = "root_tcpdump_and_dumpcap_capture_as_they_are";
    let Some(_alone) = ready(test, &libpcap::NAMES) else { return };
    let (bed, dir) = (bed(), folder());
    let daemon = Daemon::of_lan(&bed, "");
    let (whole, whole_text) = path(&dir, "whole.pcapng");
    let capture = daemon
        .capture(&bed, &format!("host:lan --filter udp --frames {FRAMES} --write {whole_text}"));
    let frames = FRAMES as usize;
    let start = |line: &[&str]| Run::start(&bed.rx, run(&daemon, line));
    let tools = Tools::start(&dir, "host:lan", frames, "udp", start);
    let status = || Run::start(&bed.rx, daemon.weir("status --json")).end().expect(0).json();
    let begin = std::time::Instant::now();
    while status()["clients"].as_array().map_or(0, Vec::len) < 4 {
        assert!(begin.elapsed() < common::LIMIT, "{:?} {}", tools.said(), status());
    }
    generate(&bed.tx, &format!("--frames {FRAMES} --rate 50kpps --flows 100"));
    capture.end().expect(0);
    let [tcpdump, wireshark @ ..] = tools.end(frames);
    same_frames(&tcpdump, &whole);
    let expected = libpcap::frames(&whole);
    for file in wireshark {
        assert_eq!(libpcap::frames(&file), expected, "{}", file.display());
    }
}

#[test]
fn root_tools_find_host_names_and_hear_what_is_wrong() {
    let test = "root_tools_find_host_names_and_hear_what_is_wrong";
    let Some(_alone) = ready(test, &["cc", "tcpdump"]) else { return };
    let (bed, dir) = (bed(), folder());
    let daemon = Daemon::of_lan(&bed, "");
    let list = Run::start(&bed.rx, run(&daemon, &["tcpdump", "-D"])).end().expect(0).text();
    assert!(list.contains("host:lan (Weir: lan"), "{list}");
    assert!(list.contains(&bed.rx.iface), "the machine's own as ever: {list}");
    let says = |line: &[&str], words: &[&str]| {
        let ended = Run::start(&bed.rx, run(&daemon, line)).end().expect(1);
        for word in words {
            assert!(ended.stderr.contains(word), "{line:?}: {}", ended.stderr);
        }
    };
    says(&["tcpdump", "-ni", "host:none"], &["No such device", "no such source for you"]);
    says(&["tcpdump", "-ni", "host:"], &["write host:SOURCE"]);
    says(&["tcpdump", "-ni", "host:lan", "and and"], &["syntax error"]);
    let (_, file) = path(&dir, "never");
    says(&[reader(), "host:lan", &file, "inject", "1"], &["a feed of a daemon sends nothing"]);
    says(&["tcpdump", "-ni", "none0"], &["none0: No such device exists"]);
    // Interfaces that are not named `host:` are opened by the real libpcap.
    let own = &bed.rx.iface;
    let mut tcpdump = Run::start(&bed.rx, run(&daemon, &["tcpdump", "-ni", own, "-c", "1"]));
    tcpdump.wait_for("that it listens", |run| run.stderr().contains("listening on"));
    generate(&bed.tx, "--frames 10 --rate 1kpps");
    tcpdump.end().expect(0);
    // Without a daemon.
    let mut missing = common::weir("run --socket /nowhere/s --");
    missing.args(["tcpdump", "-ni", "host:lan"]);
    let said = Run::start(&bed.rx, missing).end().expect(1).stderr;
    assert!(said.contains("/nowhere/s") && said.contains("weir serve"), "{said}");
}

#[test]
fn tools_that_load_nothing_are_refused_with_another_way() {
    library();
    let dir = folder();
    let (_, program) = path(&dir, "static");
    let source = dir.path().join("static.c");
    std::fs::write(&source, "int main(void) { return 0; }").expect("a file");
    let built = Command::new("cc").args(["-static", "-o", &program]).arg(&source).status();
    assert!(built.expect("cc starts").success(), "a static program");
    let refused = |line: &[&str], words: &[&str]| {
        let output = common::weir("run --").args(line).output().expect("weir starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{line:?}: {said}");
        }
    };
    refused(&[&program], &["linked statically", "weir attach"]);
    refused(&["no-such-tool"], &["there is no such program"]);
    let output = common::weir("run -- sh -c").arg("echo $LD_PRELOAD").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.trim().ends_with("/libweirpcap.so"), "{said}");
}
