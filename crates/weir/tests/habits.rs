//! Flags and signals as users of tcpdump know them, and reports of a running capture. Only `root_` tests need rights.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_lab::Testbed;
use weir_lab::testbed::{require_root, require_tool, skip};

fn weir(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(line.split(' ')).env("LC_ALL", "C");
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("weir");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?}: {said}");
    output
}

fn json(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// A trace of 1,000 UDP frames of 10 flows.
fn trace(folder: &Path) -> String {
    let path = folder.join("trace.pcapng").to_string_lossy().into_owned();
    run(weir(&format!("capture gen:size=100,flows=10 -c 1000 -w {path}")).stdin(Stdio::null()));
    path
}

#[test]
fn tcpdumps_line_means_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let delivered = |line: &str| number(&json(&run(&mut weir(line)))[0], "delivered");
    let port = delivered(&format!("capture file:{trace} --json --filter udp"));
    assert_eq!(port, 1000);
    for line in [
        format!("capture -nr {trace} --json udp"),
        format!("capture file:{trace} --json udp and not tcp"),
        format!("capture --interface file:{trace} -nn --json -q udp"),
    ] {
        assert_eq!(number(&json(&run(&mut weir(&line)))[0], "captured"), 1000, "{line}");
    }
    let flows = run(&mut weir(&format!("flows -r {trace} --plain udp")));
    assert!(String::from_utf8_lossy(&flows.stdout).contains("1 000"), "{flows:?}");
    assert_eq!(delivered(&format!("capture -r {trace} --json tcp")), 0);
}

#[test]
fn as_many_lines_are_printed_as_frames_were_asked_for_beside_a_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let file = folder.path().join("two.pcapng").to_string_lossy().into_owned();
    let output = run(&mut weir(&format!("capture -r {trace} -c 2 --print -w {file}")));
    let [lines, says] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(lines.lines().filter(|line| line.contains(" > ")).count(), 2, "{lines}");
    assert!(!says.contains("the others go on"), "{says}");
    let written = run(&mut weir(&format!("capture -r {file} --json")));
    assert_eq!(number(&json(&written)[0], "captured"), 2);
}

#[test]
fn damage_behind_the_frames_that_were_asked_for_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let bytes = fs::read(&trace).unwrap();
    let cut = folder.path().join("cut.pcapng").to_string_lossy().into_owned();
    // In the middle of a frame.
    fs::write(&cut, &bytes[..bytes.len() / 2 + 6]).unwrap();
    let enough = run(&mut weir(&format!("capture -r {cut} -c 10 --json")));
    assert_eq!(number(&json(&enough)[0], "delivered"), 10);
    let all = weir(&format!("capture -r {cut} -c 1000 --json")).output().expect("weir");
    assert_eq!(all.status.code(), Some(2), "{all:?}");
    let delivered = number(&json(&all)[0], "delivered");
    assert!((400..600).contains(&delivered), "{delivered}");
    // The error follows the last frame that was asked for.
    run(&mut weir(&format!("capture -r {cut} -c {delivered} --json")));
}

#[test]
fn traces_come_from_standard_input_and_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let shell = |line: &str| {
        let output = Command::new("bash").args(["-c", line]).output().expect("bash");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}: {said}");
        number(&json(&output)[0], "delivered")
    };
    let weir = env!("CARGO_BIN_EXE_weir");
    for source in ["file:-", "-r -"] {
        assert_eq!(shell(&format!("{weir} capture {source} --json udp < {trace}")), 1000);
        assert_eq!(shell(&format!("gzip -c {trace} | {weir} capture {source} --json udp")), 1000);
    }
    for (pack, name) in [("gzip -c", "a.gz"), ("zstd -qc", "b"), ("lz4 -qc", "c.pcap")] {
        let packed = folder.path().join(name).display().to_string();
        let tool = pack.split(' ').next().unwrap();
        if !require_tool("traces_come_from_standard_input_and_compressed", tool) {
            continue;
        }
        assert_eq!(
            shell(&format!("{pack} {trace} > {packed} && {weir} capture -r {packed} --json udp")),
            1000
        );
        // If the compressed file is cut off, the run fails with a message that names the file.
        let bytes = fs::read(&packed).unwrap();
        fs::write(&packed, &bytes[..bytes.len() - 20]).unwrap();
        let output = self::weir(&format!("capture -r {packed} --json")).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(name) && said.contains("the compressed file is cut off"), "{said}");
    }
}

#[test]
fn a_filter_may_come_from_a_file_and_sources_from_several_flags() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let file = |text: &str| {
        let path = folder.path().join("filter");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let counts = |line: &str| {
        let report = json(&run(&mut weir(line))).remove(0);
        (number(&report, "captured"), number(&report, "filtered"))
    };
    let udp = file("# all of it\nudp # and\n  and not tcp\n");
    assert_eq!(counts(&format!("capture -r {trace} --json -F {udp}")), (1000, 0));
    let tcp = file("tcp");
    assert_eq!(counts(&format!("capture -r {trace} --json --filter-file {tcp}")), (0, 1000));
    let twice =
        format!("capture -i file:{trace} -i gen:size=64,rate=10kpps -B 4096 -c 1500 --json");
    let report = json(&run(&mut weir(&twice))).remove(0);
    assert_eq!(report["sources"].as_array().expect("sources").len(), 2, "{report}");
    for line in [
        "-F missing",
        "-F filter --filter udp",
        "-F filter udp",
        "-B 0",
        "-B 8 --ring-size 8MiB",
        "-Q up",
    ] {
        let mut command = weir(&format!("capture -r {trace} {line}"));
        let output = command.current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
}

#[test]
fn the_interfaces_here_are_listed_without_rights() {
    let here = || fs::read_to_string("/proc/net/dev").unwrap();
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().skip(2);
        lines.filter_map(|line| line.trim().split(':').next().map(str::to_owned)).collect()
    };
    // Other tests add and remove interfaces: repeat this until the list stayed the same meanwhile.
    let (names, text, report) = loop {
        let before = names(&here());
        let text = String::from_utf8(run(&mut weir("capture -D")).stdout).unwrap();
        let report = json(&run(&mut weir("capture --list-interfaces --json"))).remove(0);
        if names(&here()) == before {
            break (before, text, report);
        }
    };
    let listed = report["interfaces"].as_array().expect("interfaces");
    assert!(names.iter().any(|name| name == "lo"), "{names:?}");
    for name in &names {
        let found = listed.iter().find(|one| one["name"] == name.as_str()).expect(name);
        assert_eq!(found["is_loopback"], name == "lo");
        assert!(text.contains(&format!("{}.{name} [", found["number"])), "{name}: {text}");
    }
    assert_eq!(text.lines().count(), listed.len(), "{text}");
    // Interfaces that both list are in the same order. tcpdump lists other devices, too.
    let Ok(theirs) = Command::new("tcpdump").arg("-D").output() else { return };
    let theirs = String::from_utf8_lossy(&theirs.stdout).into_owned();
    let order = |text: &str| {
        let names = text.lines().filter_map(|line| line.split_once('.')?.1.split(' ').next());
        names.map(str::to_owned).collect::<Vec<String>>()
    };
    let (mut ours, mut theirs) = (order(&text), order(&theirs));
    let both: Vec<String> = ours.iter().filter(|name| theirs.contains(name)).cloned().collect();
    ours.retain(|name| both.contains(name));
    theirs.retain(|name| both.contains(name));
    assert_eq!(ours, theirs);
}

#[test]
fn the_direction_by_tcpdumps_letter_is_that_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    // Generated frames have no direction.
    for (way, captured) in [("-Q in", 0), ("--direction in", 0), ("-Q inout", 1000), ("", 1000)] {
        let line = format!("capture -r {trace} --json {way}");
        let report = json(&run(&mut weir(line.trim_end()))).remove(0);
        assert_eq!(number(&report, "captured"), captured, "{way}");
    }
}

fn wait_until(child: &mut Child, limit: Duration, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < limit, "it takes too long");
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_signal_asks_a_running_capture_and_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let read = || fs::read_to_string(&said).unwrap_or_default();
    let mut command = weir("capture gen:size=64,rate=10kpps --duration 60s --json");
    command.stdout(Stdio::piped()).stderr(fs::File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    // The signal handler is installed before the first line is printed.
    wait_until(&mut child, Duration::from_secs(30), || read().contains("gen:"));
    let kill = |signal: &str, pid: u32| {
        let sent = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
        assert!(sent.success());
    };
    for _ in 0..2 {
        let before = read().matches("and it goes on").count();
        kill("-USR1", child.id());
        wait_until(&mut child, Duration::from_secs(30), || {
            read().matches("and it goes on").count() > before
        });
    }
    wait_until(&mut child, Duration::from_secs(30), || read().matches("delivered").count() == 2);
    assert!(!read().contains("DOES NOT CLOSE"), "{}", read());
    // tcpdump flushes its file at SIGUSR2. Here the signal must not end the run.
    kill("-USR2", child.id());
    sleep(Duration::from_millis(200));
    kill("-INT", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", read());
    assert_eq!(number(&json(&output)[0], "unexplained"), 0);
}

/// Whether a process handles a signal.
fn handles(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[test]
fn a_signal_before_the_source_is_open_is_answered_once_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(trace(folder.path())).unwrap();
    let said = folder.path().join("said");
    let mut command = weir("capture file:- --json");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    let pid = child.id();
    // At this time not even the header of the trace has been written.
    wait_until(&mut child, Duration::from_secs(30), || handles(pid, libc::SIGUSR1));
    let sent = Command::new("kill").args(["-USR1", &pid.to_string()]).status().unwrap();
    assert!(sent.success());
    let read = || fs::read_to_string(&said).unwrap_or_default();
    let mut input = child.stdin.take().unwrap();
    // The end of the trace is written only after the signal was answered.
    let (begin, end) = bytes.split_at(bytes.len() - 20);
    input.write_all(begin).unwrap();
    wait_until(&mut child, Duration::from_secs(30), || read().contains("and it goes on"));
    input.write_all(end).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", read());
    assert_eq!(number(&json(&output)[0], "delivered"), 1000);
}

#[test]
fn a_time_that_is_too_short_is_refused() {
    let output = weir("capture gen: --json-every 0s").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--json-every"));
}

#[test]
fn json_every_so_often_closes_each_time() {
    let mut command = weir("capture gen:size=64,rate=10kpps --duration 2s --json-every 300ms -q");
    let output = run(&mut command);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "-q says nothing");
    let lines = json(&output);
    assert!(lines.len() >= 4, "{} lines", lines.len());
    let (last, before) = lines.split_last().unwrap();
    assert!(last.get("waiting").is_none());
    assert_eq!(last["unexplained"], 0);
    for line in before {
        let sum = ["delivered", "lapped", "waiting", "after_limit"].map(|name| number(line, name));
        assert_eq!(sum.iter().sum::<u64>(), number(line, "captured"), "{line}");
        assert!(line["unexplained"].is_null(), "{line}");
    }
    let counts: Vec<u64> = lines.iter().map(|line| number(line, "captured")).collect();
    assert!(counts.is_sorted() && counts[0] < counts[counts.len() - 1], "{counts:?}");
    assert!(before.iter().any(|line| number(line, "delivered") > 0));
}

#[test]
fn root_a_filter_that_misses_tagged_frames_says_so() {
    let test = "root_a_filter_that_misses_tagged_frames_says_so";
    if !require_root(test) {
        return;
    }
    let bed = Testbed::builder().build().expect("a testbed");
    let ip = |args: &str| {
        let mut ip = Command::new("ip");
        ip.args(["-n", &bed.rx.netns]).args(args.split(' ')).output().expect("ip").status.success()
    };
    let name = &bed.rx.iface;
    let source = format!("netns:{}/{name}", bed.rx.netns);
    let told = |source: &str, filter: &str| {
        let output = run(&mut weir(&format!("capture {source} --duration 100ms {filter}")));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // An interface without an address may carry tagged frames of several VLANs.
    for (filter, is_said) in
        [("icmp", true), ("tcp port 80", true), ("not arp", false), ("vlan", false)]
    {
        let said = told(&source, filter);
        let note = format!("'({filter}) or (vlan and ({filter}))'");
        assert_eq!(said.contains(&note), is_said, "{filter}: {said}");
        assert_eq!(said.contains("VLAN tag"), is_said, "{filter}: {said}");
    }
    // An interface with an address is taken to carry this machine's untagged traffic, unless it has a VLAN interface.
    assert!(ip(&format!("addr add 192.0.2.7/24 dev {name}")));
    assert!(!told(&source, "icmp").contains("VLAN tag"));
    assert!(told(&source, "icmp --print -v").contains("VLAN tag"));
    assert!(ip("link set lo up"));
    assert!(!told(&format!("netns:{}/lo", bed.rx.netns), "icmp").contains("VLAN tag"));
    if !ip(&format!("link add link {name} name v100 type vlan id 100")) {
        return skip(test, "of VLAN interfaces: needs the kernel's 8021q module");
    }
    assert!(told(&source, "icmp").contains("VLAN tag"));
    let pattern = format!("netns:{}/any", bed.rx.netns);
    assert!(told(&pattern, "icmp").contains("VLAN tag"));
}

/// A classic pcap file with one Linux cooked frame, as tcpdump writes it for `any`.
fn cooked_trace() -> Vec<u8> {
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 113];
    let mut frame = vec![0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    let bytes = frame.len() as u32;
    let words = header.into_iter().chain([1, 0, bytes, bytes]);
    words.flat_map(u32::to_le_bytes).chain(frame).collect()
}

#[test]
fn lines_of_a_cooked_trace_name_the_feed() {
    let dir = tempfile::tempdir().expect("a folder");
    let trace = dir.path().join("cooked.pcap");
    fs::write(&trace, cooked_trace()).expect("a trace");
    let mut command = weir("capture --print -t --feed");
    command.args(["web: udp", "--feed", "dns: port 9", &format!("file:{}", trace.display())]);
    let output = run(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    for feed in ["[web]", "[dns]"] {
        assert_eq!(text.lines().filter(|line| line.contains(feed)).count(), 1, "{feed}: {text}");
    }
}

#[test]
fn a_filter_that_no_frame_passes_says_at_the_end_that_tags_may_be_why() {
    let told = |filter: &str| {
        let output = run(&mut weir(&format!("capture gen:frames=10 {filter}")));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(told("icmp").contains("'(icmp) or (vlan and (icmp))'"));
    assert!(!told("udp").contains("VLAN tag"));
}

#[test]
fn errors_in_json_have_no_numbers_of_the_system() {
    let output = weir("capture gen:frames=10 --json --write /dev/full").output().expect("weir");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("No space left on device") && !text.contains("os error"), "{text}");
}
