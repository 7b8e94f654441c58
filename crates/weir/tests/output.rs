//! Output that cannot be written or that nobody reads, and printed lines. No test needs rights: frames are generated.

use std::io::{self, PipeReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_frame::read::FrameReader;
use weir_lab::testbed::require_tool;

/// Runs a line of shell. In it `weir` is the program, and `in_folder` changes to a folder that is removed at the end.
fn shell(line: &str) -> Output {
    let weir = format!(
        "weir() {{ {} \"$@\"; }}
         in_folder() {{ d=$(mktemp -d) && trap 'rm -r $d' EXIT && cd $d; }}
         {line}",
        env!("CARGO_BIN_EXE_weir")
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &weir]).env("LC_ALL", "C").output().expect("bash")
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    for args in [
        "capture gen: --frames 100",
        "capture gen: --frames 100 --json",
        "capture gen: --frames 100 --write /dev/null --json",
        "capture --help",
        "--version",
    ] {
        let ended = shell(&format!("weir {args} >/dev/full"));
        let says = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args}: {says}");
        for word in ["weir: standard output", "No space left", "free space"] {
            assert!(says.contains(word), "{args}: not '{word}': {says}");
        }
    }
}

#[test]
fn a_limit_of_file_sizes_is_an_error_of_the_output_and_the_file_stays_readable() {
    let line = "in_folder; ulimit -f 20000
        weir capture gen:size=1518,frames=30000,rate=100kpps --ring-size 8MiB --write short.pcapng; status=$?
        weir capture file:short.pcapng --count >&2 || exit 1
        weir capture gen:frames=1 --ring-size 64MiB; exit $status";
    let ended = shell(line);
    let says = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{says}");
    for word in ["short.pcapng: no room", "File too large", "delivered", "ulimit -f"] {
        assert!(says.contains(word), "not '{word}': {says}");
    }
}

#[test]
fn a_report_whose_reader_has_left_is_not() {
    for args in ["", "--json"] {
        let line = format!(
            "weir capture gen: --frames 100 {args} | {{ exec <&-; sleep 1; }}; exit ${{PIPESTATUS[0]}}"
        );
        let ended = shell(&line);
        let says = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{says}");
        assert!(!says.contains("standard output"), "{says}");
    }
}

/// Starts `weir` with a pipe as its standard output; returns the pipe's reader. With `stderr_too`, standard error is
/// the same pipe.
fn piped(args: &str, stderr_too: bool) -> (Child, PipeReader) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args.split(' ')).env("LC_ALL", "C").stdin(Stdio::null());
    let stderr = if stderr_too { Stdio::from(writer.try_clone().unwrap()) } else { Stdio::piped() };
    (command.stdout(writer).stderr(stderr).spawn().expect("weir"), reader)
}

/// Waits for the first line on standard error, which says what is captured, and returns it.
fn begun(child: &mut Child) -> String {
    let (mut says, mut byte) = (Vec::new(), [0]);
    // Byte by byte, because the caller reads what follows the line.
    let stderr = child.stderr.as_mut().expect("a pipe");
    while !says.ends_with(b"\n") && stderr.read(&mut byte).expect("a pipe") > 0 {
        says.push(byte[0]);
    }
    String::from_utf8_lossy(&says).into_owned()
}

fn interrupt(child: &Child) {
    // SAFETY: kill takes two numbers; the child was not waited for yet, so no other process has its id.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
}

/// The exit status, and the time until the end. Kills the child after the limit.
fn end(child: &mut Child, limit: Duration) -> (Option<i32>, Duration) {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return (status.code(), begin.elapsed());
        }
        if begin.elapsed() > limit {
            child.kill().expect("a child");
            panic!("still running after {limit:?}");
        }
        sleep(Duration::from_millis(2));
    }
}

fn stderr(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
    text
}

/// Passes if there is a ledger that accounts for every frame, some of them captured after the limit; returns how many
/// were delivered.
#[track_caller]
fn is_accounted(says: &str) -> u64 {
    assert!(!says.contains("unexplained,"), "{says}");
    if let Some(json) = says.lines().find(|line| line.starts_with('{')) {
        let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(json["unexplained"], 0, "{json}");
        assert!(json["after_limit"].as_u64() > Some(0), "{json}");
        assert_eq!(json["drops"]["store"], 0, "{json}");
        return json["delivered"].as_u64().expect("a number");
    }
    for word in ["offered = filtered + captured + drops", "after limit "] {
        assert!(says.contains(word), "no '{word}': {says}");
    }
    let delivered = says.lines().find_map(|line| line.trim().strip_prefix("delivered "));
    delivered.expect("a ledger").replace(' ', "").parse().expect("a number")
}

/// The number of whole frames in a file that may be cut off.
fn frames(mut file: &[u8]) -> u64 {
    let mut reader = FrameReader::open(&mut file).expect("a capture file");
    let mut frames = 0;
    while let Ok(Some(_)) = reader.next() {
        frames += 1;
    }
    frames
}

#[test]
fn the_first_signal_ends_a_capture_whose_reader_takes_nothing() {
    for output in ["--write -", "--write - --json", "--print", "--print --json"] {
        let (mut child, mut reader) = piped(&format!("capture gen:size=1518 {output}"), false);
        begun(&mut child);
        sleep(Duration::from_millis(500));
        interrupt(&child);
        let (code, took) = end(&mut child, Duration::from_secs(10));
        let says = stderr(&mut child);
        assert_eq!(code, Some(0), "{output}: {says}");
        // The capture waits for its reader for 1 s; the rest is for a busy machine.
        assert!(took < Duration::from_secs(3), "{output}: {took:?}");
        assert!(says.contains("standard output"), "{output}: {says}");
        assert!(says.contains("takes nothing any more"), "{output}: {says}");
        let delivered = is_accounted(&says);
        // Delivered are the frames that the pipe took before it was full, and no others.
        let mut taken = Vec::new();
        reader.read_to_end(&mut taken).unwrap();
        let in_it = if output.contains("print") {
            // Generated frames are not of today, so a line with the date is printed.
            taken.iter().filter(|&&byte| byte == b'\n').count() as u64 - 1
        } else {
            frames(&taken)
        };
        assert!(delivered == in_it && in_it > 10, "{output}: {delivered}, not {in_it}");
    }
}

#[test]
fn a_time_limit_ends_it_as_well() {
    let (mut child, _reader) = piped("capture gen: --write - --duration 300ms", false);
    let (code, took) = end(&mut child, Duration::from_secs(10));
    let says = stderr(&mut child);
    assert_eq!(code, Some(0), "{took:?}: {says}");
    is_accounted(&says);
}

#[test]
fn a_pipe_for_talk_that_nobody_reads_holds_nothing_up() {
    // Frames and messages share a pipe, which the frames fill.
    let (mut child, _reader) = piped("capture gen: --write -", true);
    sleep(Duration::from_millis(1500));
    interrupt(&child);
    let (code, took) = end(&mut child, Duration::from_secs(10));
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn what_a_slow_reader_takes_after_the_signal_is_delivered() {
    let (mut child, mut reader) = piped("capture gen:rate=400kpps --write - --json", false);
    let mut says = begun(&mut child);
    // Some 20 MB come in this time, far more than the pipe holds.
    sleep(Duration::from_millis(500));
    interrupt(&child);
    let begin = Instant::now();
    sleep(Duration::from_millis(100));
    let (mut file, mut piece) = (Vec::new(), vec![0; 1 << 18]);
    while let Ok(bytes @ 1..) = reader.read(&mut piece) {
        file.extend_from_slice(&piece[..bytes]);
        sleep(Duration::from_millis(5));
    }
    let took = begin.elapsed().as_secs_f64();
    let (code, _) = end(&mut child, Duration::from_secs(10));
    says += &stderr(&mut child);
    assert_eq!(code, Some(0), "{says}");
    let json = says.lines().find(|line| line.starts_with('{')).expect("JSON");
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!((&json["after_limit"], &json["unexplained"]), (&0.into(), &0.into()), "{json}");
    let frames = frames(&file);
    assert!(json["delivered"] == frames && frames > 10_000, "{frames}: {json}");
    // The 0.5 s before the signal are more than the time at start and end that the duration does not include.
    let duration = json["duration_s"].as_f64().expect("a duration");
    assert!(duration > took, "{duration} s, though it took {took} s from the signal on: {json}");
}

#[test]
fn a_reader_that_leaves_is_noticed_though_no_frame_comes() {
    for output in ["--write -", "--print"] {
        // The next frame is 1000 s away.
        let (mut child, reader) = piped(&format!("capture gen:rate=0.001pps {output}"), false);
        begun(&mut child);
        sleep(Duration::from_millis(500));
        drop(reader);
        let (code, took) = end(&mut child, Duration::from_secs(10));
        let says = stderr(&mut child);
        assert_eq!(code, Some(0), "{output}: {says}");
        assert!(took < Duration::from_secs(2), "{output}: {took:?}");
        assert!(says.contains("reader") && says.contains("gone"), "{output}: {says}");
    }
}

#[test]
fn a_named_pipe_is_waited_for_and_the_wait_can_be_ended() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("pipe").to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(&name).status().unwrap().success());
    let start = || piped(&format!("capture gen: --frames 100 --write {name} --json"), false);
    let (mut child, mut report) = start();
    // Interrupt only once the run waits for a reader, which takes a while on a busy machine.
    let mut says = begun(&mut child);
    interrupt(&child);
    assert_eq!(end(&mut child, Duration::from_secs(5)).0, Some(2));
    says += &stderr(&mut child);
    assert!(says.contains("waiting for a reader") && says.contains("stopped before"), "{says}");
    drop(report);

    (child, report) = start();
    let file = std::fs::read(&name).unwrap();
    assert_eq!(end(&mut child, Duration::from_secs(5)).0, Some(0), "{}", stderr(&mut child));
    let mut text = String::new();
    report.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"delivered\":100") && file.len() > 100 * 60, "{text}");
}

#[test]
fn frames_do_not_go_to_a_terminal() {
    // `script` gives its command a terminal; Debian has it on every system.
    let weir = env!("CARGO_BIN_EXE_weir");
    let ended = shell(&format!(
        "script -qec '{weir} capture gen: --frames 1 --write -' /dev/null </dev/null"
    ));
    let says = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(2), "{says}");
    assert!(says.contains("| tcpdump -r -"), "{says}");
}

#[test]
fn sources_that_were_meant_otherwise_are_told_so() {
    for (line, words) in [
        ("weir capture 'udp port 53'", "capture IFACE --filter 'udp port 53'"),
        ("weir capture udp port 53", "weir capture IFACE --filter 'udp port 53'"),
        ("weir capture net 10.0.0.0/8", "--filter 'net 10.0.0.0/8'"),
        ("weir capture lo --filter host 10.0.0.1", "weir capture lo --filter 'host 10.0.0.1'"),
        ("weir capture", "name a source: weir capture eth0"),
        ("weir flows", "name a source: weir flows eth0"),
        ("weir capture lo -v", "--print"),
        ("in_folder; touch td.pcap; weir capture td.pcap", "say file:td.pcap"),
        ("in_folder; touch a_long_name.pcap; weir capture a_long_name.pcap", "say file:a_long"),
    ] {
        let ended = shell(line);
        let says = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{line}: {says}");
        assert!(says.contains(words), "{line}: {says}");
    }
}

#[test]
fn printed_lines_name_their_source_and_their_feeds() {
    let ended = shell(
        "in_folder; for n in 3 4; do weir capture gen:size=64 -c $n -w $n 2>/dev/null >&2; done
         weir capture file:3 file:4 --print --feed 'web: udp' --feed 'some: less 100' --feed 'also: udp'
         echo; weir capture file:3 --print --nano",
    );
    let text = String::from_utf8_lossy(&ended.stdout);
    let (feeds, plain) = text.split_once("\n\n").expect("two runs");
    let count = |part: &str, name: &str| {
        part.lines().filter(|line| line.split(' ').nth(1) == Some(name)).count()
    };
    let names = ["file:3[web,also]", "file:3[some]", "file:4[web,also]", "file:4[some]"];
    assert_eq!(names.map(|name| count(feeds, name)), [3, 3, 4, 4], "{text}");
    // With one interface, lines do not name it, as in tcpdump.
    let lines: Vec<_> = plain.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines.iter().all(|line| line.split(' ').nth(1) == Some("IP")), "{text}");
    assert!(lines.iter().all(|line| line.find(' ') == Some("12:34:56.123456789".len())), "{text}");
}

#[test]
fn lines_are_those_of_tcpdump_with_the_same_flags() {
    if !require_tool("lines_are_those_of_tcpdump_with_the_same_flags", "tcpdump") {
        return;
    }
    for (ours, theirs) in [
        ("--time utc", ""),
        ("--time utc -e", "-e"),
        ("--time epoch --nano", "-tt --nano"),
        ("--time delta --nano", "-ttt --nano"),
        ("--time utc -X", "-X"),
        ("--time utc -XX", "-XX"),
        ("-t", "-t"),
        ("-tt", "-tt"),
        ("-ttt --nano", "-ttt --nano"),
        ("-tttt", "-tttt"),
        ("--time date --nano", "-tttt --nano"),
        ("-ttttt", "-ttttt"),
        ("-tx", "-tx"),
        ("-txx", "-txx"),
        ("-tA", "-tA"),
        ("-tAA", "-tAA"),
        ("-tX -xx -A", "-tX -xx -A"),
        ("-txx -A", "-txx -A"),
    ] {
        let ended = shell(&format!(
            "in_folder; weir capture gen: --frames 20 --write x 2>/dev/null >&2
             export TZ=UTC
             weir capture file:x --print {ours} 2>/dev/null; echo ----; tcpdump -nn {theirs} -r x 2>/dev/null"
        ));
        let text = String::from_utf8_lossy(&ended.stdout);
        let (found, wanted) = text.split_once("----\n").expect("two runs");
        let found: Vec<_> = found.lines().filter(|line| !line.starts_with('#')).collect();
        // Weir prints `-` as the direction of generated frames.
        let found: Vec<_> = found.iter().map(|line| line.replace(" - 0", " 0")).collect();
        assert!(wanted.lines().count() >= 20, "{text}");
        assert_eq!(found, wanted.lines().collect::<Vec<_>>(), "{ours}");
    }
}

#[test]
fn lines_are_coloured_on_a_terminal_and_not_with_no_color() {
    let weir = env!("CARGO_BIN_EXE_weir");
    for (set, has_colors) in [("", true), ("NO_COLOR=1", false), ("TERM=dumb", false)] {
        let ended = shell(&format!(
            "unset NO_COLOR; export TERM=xterm {set}
             script -qec '{weir} capture gen: --frames 1 --print' /dev/null </dev/null"
        ));
        let says = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(says.contains("\x1b[1mIP"), has_colors, "{set}: {says}");
    }
}

#[test]
fn the_status_line_of_a_narrow_terminal_does_not_wrap() {
    let weir = env!("CARGO_BIN_EXE_weir");
    for (columns, is_cut) in [(30, true), (200, false)] {
        let ended = shell(&format!(
            "script -qec 'stty cols {columns}; {weir} capture gen:rate=1kpps --duration 2500ms' /dev/null </dev/null"
        ));
        let says = String::from_utf8_lossy(&ended.stdout);
        // The status line is between a carriage return and the sequence that clears the rest of the line.
        let shown =
            says.split('\r').filter_map(|part| part.split_once("\x1b[K")).map(|(line, _)| line);
        let shown: Vec<_> = shown.filter(|line| line.starts_with("weir: ")).collect();
        assert!(!shown.is_empty(), "{says}");
        assert!(shown.iter().all(|line| line.chars().count() < columns), "{columns}: {says}");
        assert_eq!(shown.iter().all(|line| !line.contains("lapped")), is_cut, "{columns}: {says}");
    }
}

#[test]
fn the_way_to_read_a_compressed_file_works() {
    let ended = shell(
        "in_folder; weir capture gen: --frames 10 --write x.pcapng 2>/dev/null >&2; xz x.pcapng
         weir capture file:x.pcapng.xz; xz -dc x.pcapng.xz > trace.pcap; weir capture -r trace.pcap --json",
    );
    let says = String::from_utf8_lossy(&ended.stderr);
    assert!(says.contains("xz -dc FILE > trace.pcap"), "{says}");
    let json = String::from_utf8_lossy(&ended.stdout);
    assert!(json.contains("\"delivered\":10,"), "{json} {says}");
}

#[test]
fn sources_and_outputs_that_are_not_there_are_told_with_a_way_out() {
    for (line, words) in [
        ("weir capture -i 99999", &["99999: no such interface", "is no number of that list"][..]),
        ("weir capture gen: -w no/x.pcapng", &["no is missing: make it (`mkdir -p no`)"]),
        ("weir capture gen: -w $PWD/a/b/", &["cannot be made (No such file or dir", "/a` makes"]),
        ("echo mine > t; weir capture gen: -w t/", &["t/: t is a file", "leave the slash out"]),
        ("weir capture gen: --control no/c", &["--control no/c: there is no folder no; make it"]),
        ("weir flows gen:frames=1 --export json:no/f", &["(No such file or dir", "make that dir"]),
        ("weir capture gen: --metrics 9100", &["write 127.0.0.1:9100"]),
        ("weir flows gen:frames=1 --http 8080", &["write 127.0.0.1:8080"]),
        (
            "printf BZh91AY > o; weir capture -r o",
            &["unpack it first: bzip2 -dc FILE > trace.pcap"],
        ),
        ("weir capture gen: -w o -c 1 --ring-size 64", &["--ring-size 64 bytes", "mean 64MiB?"]),
    ] {
        let ended = shell(&format!("in_folder; {line}"));
        let says = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{line}: {says}");
        words.iter().for_each(|word| assert!(says.contains(word), "{line}: {says}"));
    }
}

#[test]
fn several_sources_have_a_row_each() {
    let ended = shell(
        "in_folder; for n in 3 1200; do weir capture gen: --frames $n --write $n 2>/dev/null >&2; done
         weir capture file:3 file:1200; weir capture file:3",
    );
    let text = String::from_utf8_lossy(&ended.stdout);
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines: Vec<_> = lines.collect();
    let at = lines.iter().position(|line| line == "offered left out captured drops missed before");
    let at = at.unwrap_or_else(|| panic!("no rows: {text}"));
    assert_eq!(
        lines[at + 1..at + 3],
        ["file:3 3 0 3 0 -", "file:1200 1 200 0 1 200 0 -"],
        "{text}"
    );
    assert!(lines[at..].iter().any(|line| line == "offered 1 203"), "{text}");
    assert_eq!(text.matches("missed before").count(), 1, "one source needs no rows: {text}");
}
