//! Wireshark's extcap interface, as tshark and dumpcap use it, on a real daemon and a real link.

mod common;

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::testbed::volume;

use common::frames::{Sender, ipv4};
use common::tools::{Got, bytes_of, in_time_order, read, statistics, tool};
use common::{LIMIT, Run, bed, generate, number, program, ready, settle, weir};

/// The user nobody, who has no rights.
const NOBODY: u32 = 65_534;

/// A daemon in the receiver's namespace, and a Wireshark configuration with the extcap program of our package.
struct Wireshark {
    dir: TempDir,
    daemon: Option<Run>,
}

impl Wireshark {
    /// The configuration without a daemon.
    fn folders() -> Wireshark {
        let dir = TempDir::new().expect("a folder");
        // Wireshark runs as another user, who needs access to this folder.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
        for folder in ["bin", "config", "config/extcap", "out"] {
            fs::create_dir(dir.path().join(folder)).expect("a folder");
        }
        fs::set_permissions(dir.path().join("out"), Permissions::from_mode(0o777))
            .expect("permissions");
        let (own, program) = (env!("CARGO_BIN_EXE_weir"), dir.path().join("bin/weir"));
        fs::hard_link(own, &program)
            .or_else(|_| fs::copy(own, &program).map(drop))
            .expect("a copy");
        let wrapper = dir.path().join("config/extcap/weirextcap");
        let packaged = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/weirextcap");
        fs::copy(packaged, &wrapper).expect("a copy");
        fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).expect("permissions");
        Wireshark { dir, daemon: None }
    }

    fn new(bed: &Testbed) -> Wireshark {
        let mut wireshark = Wireshark::folders();
        let config = "[sources.lan]\nsource = \"wrx0\"\nring_mib = 16\neverybody = true\n";
        fs::write(wireshark.file("weir.toml"), config).expect("a file");
        wireshark.serve(bed);
        wireshark
    }

    fn serve(&mut self, bed: &Testbed) {
        let (config, socket) = (self.text("weir.toml"), self.text("s"));
        let line = format!("serve --config {config} --socket {socket}");
        let mut run = Run::start(&bed.rx, weir(&line));
        run.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
        self.daemon = Some(run);
    }

    fn end_daemon(&mut self) {
        self.daemon.take().expect("it runs").stop().expect(0);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.file(name).to_str().expect("a plain path").to_owned()
    }

    /// Runs tshark, dumpcap or `weir` with this configuration.
    fn command(&self, line: &str) -> Command {
        let mut command = program(line);
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{path}", self.text("bin")));
        command.env("WIRESHARK_CONFIG_DIR", self.text("config"));
        command.env("WEIR_SOCKET", self.text("s"));
        command
    }

    /// The same as a user without rights, who is in the group that may run dumpcap.
    fn as_nobody(&self, line: &str) -> Command {
        let dumpcap = tool("sh", &["-c", "command -v dumpcap"]);
        let group = fs::metadata(dumpcap.trim()).expect("dumpcap").gid();
        let mut command = self.command(&format!(
            "setpriv --reuid {NOBODY} --regid {NOBODY} --groups {group} --inh-caps=-all {line}"
        ));
        command.env("HOME", self.text("out"));
        command
    }

    /// `weir capture` of the same source, for comparison.
    fn capture(&self, bed: &Testbed, args: &str) -> Run {
        let line = format!("weir capture host:lan --socket {} --json {args}", self.text("s"));
        Run::capture_by(&bed.rx, self.command(&line))
    }

    fn status(&self, bed: &Testbed) -> Value {
        let line = format!("weir status --json --socket {}", self.text("s"));
        Run::start(&bed.rx, self.command(&line)).end().expect(0).json()
    }

    /// Waits until the daemon has this many clients.
    #[track_caller]
    fn wait_for_clients(&self, bed: &Testbed, count: usize) {
        self.wait_for(bed, |status| status["clients"].as_array().map(Vec::len) == Some(count));
    }

    #[track_caller]
    fn wait_for(&self, bed: &Testbed, is_so: impl Fn(&Value) -> bool) {
        let begin = Instant::now();
        loop {
            let status = self.status(bed);
            if is_so(&status) {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "{status}");
        }
    }

    /// A fifo for the frames, such as Wireshark creates.
    fn fifo(&self) -> String {
        let path = self.text("fifo");
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        path
    }
}

fn to_port_53(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[36..38].copy_from_slice(&53_u16.to_be_bytes());
    frame
}

/// Passes if both have the same frames with the same stamps, in time order.
#[track_caller]
fn same(found: &[Got], expected: &[Got]) {
    assert_eq!(found.len(), expected.len());
    in_time_order(found);
    assert_eq!(bytes_of(found), bytes_of(expected));
    let stamps = |frames: &[Got]| frames.iter().map(|frame| frame.ts_ns).collect::<Vec<_>>();
    assert_eq!(stamps(found), stamps(expected));
}

fn lines(run: &Run) -> usize {
    run.stdout().iter().filter(|byte| **byte == b'\n').count()
}

#[test]
fn root_tshark_lists_what_the_daemon_offers() {
    let test = "root_tshark_lists_what_the_daemon_offers";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    let bed = bed();
    let mut wireshark = Wireshark::new(&bed);
    let list =
        |wireshark: &Wireshark| Run::start(&bed.rx, wireshark.command("tshark -D")).end().expect(0);
    let listed = list(&wireshark).text();
    assert!(listed.contains(". host:lan (Weir: lan of this host)\n"), "{listed}");
    let types = Run::start(&bed.rx, wireshark.command("tshark -L -i host:lan")).end().expect(0);
    assert!(types.text().contains("EN10MB (Ethernet)"), "{types:?}");

    // Without a daemon its sources are missing from the list, and no error is shown.
    wireshark.end_daemon();
    let without = list(&wireshark);
    assert!(!without.text().contains("host:lan"), "{without:?}");
    assert!(without.text().contains(". weir-stored (Weir: stored traffic)\n"), "{without:?}");
    assert!(!without.stderr.contains("weir"), "{without:?}");
    let alone = "weir extcap --extcap-interfaces --extcap-version=4.0";
    let alone = Run::start(&bed.rx, wireshark.command(alone)).end().expect(0);
    assert!(alone.text().starts_with("extcap {version=") && alone.stderr.is_empty(), "{alone:?}");
    assert_eq!(alone.text().lines().count(), 2, "{alone:?}");
}

#[test]
fn root_tshark_without_rights_captures_live_what_weir_captures() {
    let test = "root_tshark_without_rights_captures_live_what_weir_captures";
    let Some(_alone) = ready(test, &["tshark", "setpriv"]) else { return };
    let (bed, count) = (bed(), volume(5000));
    let wireshark = Wireshark::new(&bed);
    let (by_tshark, by_weir) = (wireshark.text("out/tshark.pcapng"), wireshark.text("weir.pcapng"));
    let whole = wireshark.capture(&bed, &format!("--write {by_weir} --snaplen 262144"));
    let line = format!("tshark -i host:lan -w {by_tshark} -P -l -T fields -e frame.number");
    let mut tshark = Run::start(&bed.rx, wireshark.as_nobody(&line));
    wireshark.wait_for_clients(&bed, 2);
    // A single frame is passed on at once, not only when a buffer is full.
    let sender = Sender::new(&bed.tx);
    sender.send(&ipv4(100));
    tshark.wait_for("the only frame", |run| lines(run) == 1);
    generate(&bed.tx, &format!("--frames {count} --rate 50kpps --size imix --flows 100"));
    tshark.wait_for("every frame", |run| lines(run) as u64 == count + 1);
    let tshark = tshark.stop().expect(0);
    assert!(!tshark.stderr.contains("extcap pipe"), "{}", tshark.stderr);
    whole.stop().expect(0);
    same(&read(by_tshark.as_ref()).1, &read(by_weir.as_ref()).1);
    wireshark.wait_for_clients(&bed, 0);
}

#[test]
fn root_a_capture_filter_of_tshark_acts_at_the_host() {
    let test = "root_a_capture_filter_of_tshark_acts_at_the_host";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    let bed = bed();
    let wireshark = Wireshark::new(&bed);
    let file = wireshark.text("tshark.pcapng");
    let mut tshark =
        wireshark.command(&format!("tshark -i host:lan -w {file} -P -l -T fields -e udp.dstport"));
    tshark.args(["-f", "udp port 53"]);
    let mut tshark = Run::start(&bed.rx, tshark);
    wireshark.wait_for_clients(&bed, 1);
    let (sender, dns) = (Sender::new(&bed.tx), to_port_53(&ipv4(90)));
    for _ in 0..50 {
        sender.send(&ipv4(100));
        sender.send(&dns);
    }
    tshark.wait_for("what the filter takes", |run| lines(run) == 50);
    let status = wireshark.status(&bed);
    assert_eq!(status["feeds"][0]["filter"], "udp port 53", "{status}");
    let ledger = &status["feeds"][0]["ledger"];
    assert_eq!((number(ledger, "filtered"), number(ledger, "captured")), (50, 50), "{status}");
    tshark.stop().expect(0);
    assert!(bytes_of(&read(file.as_ref()).1).iter().all(|frame| *frame == dns));
}

#[test]
fn root_a_wrong_filter_is_explained() {
    let test = "root_a_wrong_filter_is_explained";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    let bed = bed();
    let wireshark = Wireshark::new(&bed);
    let why = "syntax error at 'prt'";
    let mut tshark = wireshark.command("tshark -i host:lan");
    tshark.args(["-f", "udp prt 53"]);
    let ended = Run::start(&bed.rx, tshark).end().expect(1);
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    // Wireshark runs this command while the user types a capture filter.
    let ask = |filter| {
        let mut ask =
            wireshark.command("weir extcap --extcap-interface host:lan --extcap-capture-filter");
        Run::start(&bed.rx, {
            ask.arg(filter);
            ask
        })
        .end()
        .expect(0)
        .text()
    };
    let wrong = ask("udp prt 53");
    assert!(wrong.contains(why) && wrong.lines().count() == 1, "{wrong}");
    assert_eq!(ask("udp port 53"), "");
    assert_eq!(ask(""), "");
}

#[test]
fn root_options_of_the_dialog_reach_the_daemon() {
    let test = "root_options_of_the_dialog_reach_the_daemon";
    let Some(_alone) = ready(test, &["dumpcap", "mkfifo"]) else { return };
    let (bed, count) = (bed(), volume(1000));
    for (options, is_whole) in [
        ("--snaplen 64", true),
        ("--direction in", true),
        ("--direction out", false),
        ("--part 1/2", false),
        ("--sample-frames 10", false),
        ("--sample-flows 4", false),
    ] {
        let wireshark = Wireshark::new(&bed);
        let (fifo, file) = (wireshark.fifo(), wireshark.text("dumpcap.pcapng"));
        let line =
            format!("weir extcap --capture --fifo {fifo} --extcap-interface host:lan {options}");
        let extcap = Run::start(&bed.rx, wireshark.command(&line));
        let dumpcap =
            Run::start(&bed.rx, wireshark.command(&format!("dumpcap -i {fifo} -w {file}")));
        wireshark.wait_for_clients(&bed, 1);
        generate(&bed.tx, &format!("--frames {count} --rate 50kpps --size 128 --flows 100"));
        settle();
        let mut ended = extcap;
        ended.signal(libc::SIGTERM);
        let ended = ended.end().expect(0);
        assert!(ended.stderr.is_empty() && ended.stdout.is_empty(), "{ended:?}");
        // At the end of the pipe it ends; after a signal it would leave what is in the pipe.
        dumpcap.end();
        let (_, frames) = read(file.as_ref());
        let (found, all) = (frames.len() as u64, count);
        match options {
            _ if is_whole => assert_eq!(found, all, "{options}"),
            "--direction out" => assert_eq!(found, 0, "{options}"),
            // Each CPU's ring keeps the first of every ten of its frames.
            "--sample-frames 10" => {
                assert!((all / 10..all / 5).contains(&found), "{found} of {all}")
            }
            _ => assert!((1..all).contains(&found), "{options}: {found} of {all}"),
        }
        let longest = if options.contains("snaplen") { 64 } else { 124 };
        assert!(frames.iter().all(|frame| frame.data.len() == longest), "{options}");
        assert!(frames.iter().all(|frame| frame.wire_len == 124), "{options}");
    }
}

#[test]
fn root_a_capture_ends_with_the_reader_of_the_fifo_and_says_what_was_lost() {
    let test = "root_a_capture_ends_with_the_reader_of_the_fifo_and_says_what_was_lost";
    let Some(_alone) = ready(test, &["mkfifo"]) else { return };
    let (bed, count) = (bed(), 40_000);
    let wireshark = Wireshark::new(&bed);
    let fifo = wireshark.fifo();
    let line = format!("weir extcap --capture --fifo {fifo} --extcap-interface host:lan");

    // The reader ends while no frames are captured.
    let extcap = Run::start(&bed.rx, wireshark.command(&line));
    let reader = File::open(&fifo).expect("it opens once somebody writes");
    wireshark.wait_for_clients(&bed, 1);
    drop(reader);
    extcap.end().expect(0);

    // The reader reads only after the rings were overwritten.
    let mut extcap = Run::start(&bed.rx, wireshark.command(&line));
    let mut reader = File::open(&fifo).expect("it opens once somebody writes");
    wireshark.wait_for_clients(&bed, 1);
    generate(&bed.tx, &format!("--frames {count} --rate 50kpps --size 1518 --flows 100"));
    extcap.signal(libc::SIGTERM);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).expect("a fifo");
    let ended = extcap.end().expect(0);
    let file = wireshark.file("read.pcapng");
    fs::write(&file, bytes).expect("a file");
    let kept = read(&file).1.len() as u64;
    let said = ended.stderr.lines().last().expect("it says what was lost");
    let words: Vec<&str> = said.split(" of ").collect();
    let digits = |text: &str| {
        text.replace(|c: char| !c.is_ascii_digit(), "").parse::<u64>().expect("a number")
    };
    assert!(said.contains("frames were lost: lapped "), "{said}");
    assert!(kept < count && kept + digits(words[0]) == count, "{kept} kept: {said}");
    let ending = &statistics(&file)[0];
    assert_eq!((ending.received, ending.delivered), (Some(count), Some(kept)), "{ending:?}");
}

#[test]
fn root_a_capture_outlives_the_daemon_but_does_not_begin_without_it() {
    let test = "root_a_capture_outlives_the_daemon_but_does_not_begin_without_it";
    let Some(_alone) = ready(test, &["dumpcap", "mkfifo"]) else { return };
    let bed = bed();
    let mut wireshark = Wireshark::new(&bed);
    let (fifo, file) = (wireshark.fifo(), wireshark.text("dumpcap.pcapng"));
    let extcap = format!("weir extcap --capture --fifo {fifo} --extcap-interface host:lan");
    let dumpcap = format!("dumpcap -i {fifo} -w {file} -c 2");
    let run = |line: &str| Run::start(&bed.rx, wireshark.command(line));
    let (capture, reader) = (run(&extcap), run(&dumpcap));
    wireshark.wait_for_clients(&bed, 1);
    let sender = Sender::new(&bed.tx);
    sender.send(&ipv4(100));
    wireshark.wait_for(&bed, |status| status["feeds"][0]["ledger"]["captured"] == 1);
    wireshark.end_daemon();
    wireshark.serve(&bed);
    wireshark.wait_for_clients(&bed, 1);
    sender.send(&ipv4(200));
    reader.end().expect(0);
    capture.end().expect(0);
    let lengths = bytes_of(&read(file.as_ref()).1).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths, [100, 200]);

    wireshark.end_daemon();
    let run = |line: &str| Run::start(&bed.rx, wireshark.command(line));
    let (capture, reader) = (run(&extcap), run(&dumpcap));
    capture.end().refused(&["daemon", &wireshark.text("s")]);
    // dumpcap does not wait for a writer that will never open the fifo.
    assert_ne!(reader.end().code, Some(0));
}

/// A Wireshark configuration without a daemon, with a recording in `rec`; also returns the recorded frames.
fn stored() -> (Wireshark, Vec<Got>) {
    let wireshark = Wireshark::folders();
    let whole = wireshark.text("whole.pcapng");
    let run = |line: &str| {
        let output = wireshark.command(line).output().expect("weir");
        assert!(output.status.success(), "{line}: {output:?}");
    };
    run(&format!("weir capture gen:size=400,flows=200,frames=20000,rate=1Mpps --write {whole}"));
    let recorder = format!("--write {}/ --rotate-size 4MiB", wireshark.text("rec"));
    run(&format!("weir capture file:{whole} {recorder}"));
    let frames = read(whole.as_ref()).1;
    assert_eq!(frames.len(), 20_000);
    (wireshark, frames)
}

#[test]
fn tshark_reads_stored_traffic_and_ends_with_it() {
    if !weir_lab::testbed::require_tool("tshark_reads_stored_traffic_and_ends_with_it", "tshark") {
        return;
    }
    let (wireshark, all) = stored();
    let (rec, out) = (wireshark.text("rec"), wireshark.text("out/stored.pcapng"));
    let run = |options: &[(&str, &str)], filter: &str| {
        let mut tshark = wireshark.command(&format!("tshark -i weir-stored -w {out}"));
        for (name, value) in options {
            tshark.args(["-o", &format!("extcap.weir_stored.{name}:{value}")]);
        }
        tshark.args((!filter.is_empty()).then_some(["-f", filter]).into_iter().flatten());
        tshark.output().expect("tshark")
    };
    let kept = || read(out.as_ref()).1;
    // Everything is returned byte for byte, and tshark ends by itself.
    let ended = run(&[("dirs", &rec), ("from", "all")], "");
    assert!(ended.status.success(), "{ended:?}");
    same(&kept(), &all);
    let epoch = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let (from, to) = (all[5000].ts_ns, all[6000].ts_ns);
    let ended =
        run(&[("dirs", &rec), ("from", &epoch(from)), ("to", &epoch(to))], "ether[35] & 1 = 0");
    assert!(ended.status.success(), "{ended:?}");
    let expected: Vec<_> = all
        .into_iter()
        .filter(|frame| (from..to).contains(&frame.ts_ns) && frame.data[35] & 1 == 0)
        .collect();
    assert!((1..1000).contains(&expected.len()), "{}", expected.len());
    same(&kept(), &expected);
    // tshark prints the reasons of failures, as Wireshark shows them.
    for (options, filter, why) in [
        (&[("dirs", "/no/such/directory")][..], "", "/no/such/directory"),
        (&[("dirs", rec.as_str()), ("from", "yesterday")], "", "write it like"),
        (&[("dirs", rec.as_str())], "udp prt 53", "syntax error at 'prt'"),
        (
            &[("dirs", rec.as_str()), ("from", "1000000"), ("to", "1000001")],
            "",
            "no frame was found",
        ),
        (&[], "", "WEIR_STORES"),
    ] {
        let ended = run(options, filter);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains(why), "{options:?}: {said}");
    }
}

#[test]
fn stored_traffic_answers_what_the_dialog_asks() {
    let wireshark = Wireshark::folders();
    let ask = |line: &[&str]| {
        let mut command = wireshark.command("weir extcap --extcap-interface weir-stored");
        let output = command.env("WEIR_STORES", "/a:/b").args(line).output().expect("weir");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let options = ask(&["--extcap-config"]);
    assert!(options.contains("{call=--dirs}") && options.contains("{default=/a:/b}"), "{options}");
    assert!(ask(&["--extcap-dlts"]).contains("EN10MB"));
    let wrong = ask(&["--extcap-capture-filter", "udp prt 53"]);
    assert!(wrong.contains("syntax error at 'prt'") && wrong.lines().count() == 1, "{wrong}");
    assert_eq!(ask(&["--extcap-capture-filter", "udp port 53"]), "");
    assert_eq!(ask(&["--extcap-capture-filter", ""]), "");
}
