//! The daemon and its clients: real processes on real links, and clients without rights.

mod common;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::testbed::volume;

use common::daemon::{Daemon, NOBODY};
use common::{LIMIT, Run, bed, closes, generate, number, ready, settle, sh, weir};

/// Two sources for the receiving end: the user nobody may open `lan`, but not `hidden`.
fn config(more: &str) -> String {
    format!(
        "[sources.lan]\nsource = \"wrx0\"\nusers = [{NOBODY}]\nring_mib = 64\n{more}\n\
         [sources.hidden]\nsource = \"wrx0\"\n"
    )
}

#[test]
fn root_users_without_rights_read_every_frame_of_what_they_are_allowed() {
    let test = "root_users_without_rights_read_every_frame_of_what_they_are_allowed";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    for engine in ["bpf", "af_packet"] {
        let mut daemon = Daemon::start(&bed, &config(&format!("engine = \"{engine}\"")), "");
        let before = daemon.descriptors();
        let whole = daemon.client(&bed, "host:lan");
        let same = daemon.client(&bed, "host:lan");
        let filtered = daemon.client(&bed, "host:lan --filter ip6 --snaplen 64");
        let halves = ["1/2", "2/2"].map(|part| daemon.client(&bed, &format!("host:lan@{part}")));
        let status = daemon.wait_for_clients(&bed, 5);
        let key = |at: usize| status["clients"][at]["key"].as_u64().expect("a key");
        assert_eq!(key(0), key(1), "they share rings: {status}");
        assert_ne!(key(0), key(2), "{status}");
        generate(&bed.tx, "--frames 20000 --rate 100kpps --flows 100");
        settle();
        let status = daemon.status(&bed);
        let lag = |at: usize| status["clients"][at]["lag"].as_u64();
        assert!((0..5).all(|at| lag(at).is_some_and(|lag| lag < 20_000)), "{status}");
        for run in [whole, same] {
            let json = run.stop().expect(0).json();
            closes(&json);
            assert_eq!(number(&json, "offered"), 20_000, "{engine}: {json}");
            assert_eq!(number(&json, "delivered"), 20_000, "{engine}: {json}");
        }
        let json = filtered.stop().expect(0).json();
        closes(&json);
        assert_eq!((number(&json, "filtered"), number(&json, "delivered")), (20_000, 0), "{json}");
        let halves = halves.map(|run| {
            let json = run.stop().expect(0).json();
            closes(&json);
            number(&json, "delivered")
        });
        assert_eq!(halves[0] + halves[1], 20_000, "{engine}: {halves:?}");
        assert!(halves.iter().all(|half| *half > 0), "{engine}: {halves:?}");
        // After the last client has gone, the daemon has closed all descriptors of the source.
        daemon.wait_for_clients(&bed, 0);
        assert_eq!(daemon.descriptors(), before, "{engine}");
        let hidden = Run::start(&bed.rx, daemon.as_user(NOBODY, "capture host:hidden")).end();
        let missing = Run::start(&bed.rx, daemon.as_user(NOBODY, "capture host:missing")).end();
        let last = |ended: &common::Ended, name| ended.stderr.replace(name, "?");
        assert_eq!(last(&hidden, "hidden"), last(&missing, "missing"));
        hidden.refused(&["there is no source", "`weir status` lists those that there are"]);
        for name in ["hidden", "missing"] {
            let line = format!("was refused '{name}': there is no source");
            daemon.run().wait_for("a line about it", |run| run.stderr().contains(&line));
        }
        daemon.run.take().expect("it runs").stop().expect(0);
        assert_eq!(common::bpf::attached(&bed.rx), [0; 3]);
    }
}

#[test]
fn root_who_may_load_programs_reads_a_copy_in_sealed_memory() {
    let test = "root_who_may_load_programs_reads_a_copy_in_sealed_memory";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let daemon = Daemon::start(&bed, &config("engine = \"bpf\""), "");
    let plain = daemon.client(&bed, "host:lan --filter ip");
    let rights = "--clear-groups --inh-caps=-all,+bpf --ambient-caps=+bpf";
    let line = "capture host:lan --filter ip --json";
    let copied = || Run::capture_by(&bed.rx, daemon.with_rights(NOBODY, rights, line));
    let copied = [copied(), copied()];
    let status = daemon.wait_for_clients(&bed, 3);
    let key = |at: usize| status["clients"][at]["key"].as_u64().expect("a key");
    assert!(
        key(0) != key(1) && key(1) == key(2),
        "those with the right share sealed rings: {status}"
    );
    let maps =
        |run: &Run| fs::read_to_string(format!("/proc/{}/maps", run.pid())).expect("it runs");
    assert!(maps(&plain).contains("bpf-map"), "{}", maps(&plain));
    for run in &copied {
        let maps = maps(run);
        assert!(maps.contains("memfd:") && !maps.contains("bpf-map"), "{maps}");
    }
    generate(&bed.tx, "--frames 20000 --rate 100kpps --flows 100");
    settle();
    let json = plain.stop().expect(0).json();
    assert!(!json["sources"][0]["notes"].to_string().contains("CAP_BPF"), "{json}");
    for run in copied {
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(
            (number(&json, "offered"), number(&json, "delivered")),
            (20_000, 20_000),
            "{json}"
        );
        assert!(json["sources"][0]["notes"].to_string().contains("you hold CAP_BPF"), "{json}");
    }
}

#[test]
fn root_users_and_groups_are_known_by_name_and_all_groups_count() {
    let test = "root_users_and_groups_are_known_by_name_and_all_groups_count";
    let Some(_alone) = ready(test, &["setpriv", "id"]) else { return };
    let bed = bed();
    let text = "[sources.lan]\nsource = \"wrx0\"\nusers = [\"daemon\"]\ngroups = [\"games\"]\n";
    let daemon = Daemon::start(&bed, text, "");
    let open = |user: u32, groups: &str| {
        let rights = format!("{groups} --inh-caps=-all");
        let line = "capture host:lan --json --duration 10ms";
        Run::start(&bed.rx, daemon.with_rights(user, &rights, line)).end()
    };
    let id = |args: &str| -> u32 {
        let told = sh(&bed.rx, &format!("id {args}"));
        told.trim().parse().expect("an id")
    };
    open(id("-u daemon"), "--clear-groups").expect(0);
    let games = sh(&bed.rx, "getent group games | cut -d: -f3");
    open(NOBODY, &format!("--groups 7,{}", games.trim())).expect(0);
    // More groups than the daemon's first buffer holds.
    let many: Vec<String> = (1000..1100).map(|id| id.to_string()).collect();
    open(NOBODY, &format!("--groups {},{}", many.join(","), games.trim())).expect(0);
    open(NOBODY, "--groups 7").refused(&["there is no source 'lan'"]);
}

#[test]
fn root_one_who_joins_reads_from_there_and_its_ledger_begins_there() {
    let test = "root_one_who_joins_reads_from_there_and_its_ledger_begins_there";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let daemon = Daemon::start(&bed, &config(""), "");
    let first = daemon.client(&bed, "host:lan --write /dev/null --count");
    generate(&bed.tx, "--frames 5000 --rate 100kpps");
    settle();
    let second = daemon.client(&bed, "host:lan");
    generate(&bed.tx, "--frames 3000 --rate 100kpps");
    settle();
    for (run, frames) in [(second, 3000), (first, 8000)] {
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "offered"), frames, "{json}");
        assert_eq!(number(&json, "delivered"), frames, "{json}");
    }
}

/// How often a test kills a process: `count` times, or `WEIR_KILLS` times if that is set (`make soak`).
fn kills(count: u64) -> u64 {
    let asked = std::env::var("WEIR_KILLS").ok();
    asked.map_or_else(|| volume(count), |asked| asked.parse().expect("WEIR_KILLS is a number"))
}

/// Starts a generator that sends until it is stopped.
fn load(bed: &Testbed) -> Run {
    let line = format!("gen {} --rate 100kpps --duration 10000s --json", bed.tx.iface);
    Run::start(&bed.tx, weir(&line))
}

#[test]
fn root_a_client_that_is_killed_or_stopped_costs_the_others_nothing() {
    let test = "root_a_client_that_is_killed_or_stopped_costs_the_others_nothing";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let mut daemon = Daemon::start(&bed, &config(""), "");
    let stays = daemon.client(&bed, "host:lan");
    daemon.wait_for_clients(&bed, 1);
    let before = daemon.descriptors();
    let mut stopped = daemon.client(&bed, "host:lan");
    stopped.signal(libc::SIGSTOP);
    let load = load(&bed);
    for _ in 0..kills(50) {
        let mut run = daemon.client(&bed, "host:lan --filter ip");
        run.signal(libc::SIGKILL);
        drop(run);
    }
    stopped.signal(libc::SIGKILL);
    drop(stopped);
    daemon.wait_for_clients(&bed, 1);
    assert_eq!(daemon.descriptors(), before);
    let sent = number(&load.stop().expect(0).json(), "sent");
    settle();
    let json = stays.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "offered"), sent, "{json}");
    assert_eq!(number(&json, "delivered"), sent, "{json}");
}

#[test]
fn root_a_daemon_that_is_killed_and_started_again_is_read_on_from() {
    let test = "root_a_daemon_that_is_killed_and_started_again_is_read_on_from";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let mut daemon = Daemon::start(&bed, &config(""), "");
    let mut run = daemon.client(&bed, "host:lan");
    for life in 1..=3 {
        generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        daemon.run().signal(libc::SIGKILL);
        daemon.run = None;
        let gone =
            |run: &Run| run.stderr().matches("host:lan: the daemon has ended;").count() == life;
        run.wait_for("word of its end", gone);
        // No daemon runs, so these frames are not captured.
        generate(&bed.tx, "--frames 100 --rate 100kpps");
        settle();
        daemon.restart(&bed);
        let back = |run: &Run| run.stderr().matches("captured from here on").count() == life;
        run.wait_for("word of its return", back);
    }
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    let json = run.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "delivered"), 4000, "{json}");
    assert_eq!(json["sources"][0]["lives"].as_u64(), Some(4), "{json}");
}

#[test]
fn root_a_daemon_that_is_killed_under_load_leaves_nothing() {
    let test = "root_a_daemon_that_is_killed_under_load_leaves_nothing";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let mut daemon = Daemon::start(&bed, &config("engine = \"bpf\""), "");
    let load = load(&bed);
    let mut run = daemon.client(&bed, "host:lan");
    let kills = kills(3);
    for life in 1..=kills {
        daemon.run().signal(libc::SIGKILL);
        daemon.run = None;
        daemon.restart(&bed);
        let back = |run: &Run| run.stderr().matches("captured from here on").count() as u64 == life;
        run.wait_for("word of its return", back);
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", run.pid())).expect("it runs").count();
    assert!(descriptors < 100, "the client has {descriptors} descriptors");
    let json = run.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json["sources"][0], "lives"), kills + 1, "{json}");
    assert!(number(&json, "delivered") > 0, "{json}");
    load.stop().expect(0);
    daemon.run().signal(libc::SIGKILL);
    daemon.run = None;
    let line = format!("doctor {} --json", bed.rx.iface);
    let told = Run::start(&bed.rx, weir(&line)).end().expect(0).json();
    assert_eq!(told["interfaces"][0]["facts"]["hooked"], Value::Array(Vec::new()), "{told}");
    let link = sh(&bed.rx, &format!("ip -d link show {}", bed.rx.iface));
    assert!(link.contains("promiscuity 0"), "{link}");
}

#[test]
fn root_a_file_that_is_read_again_closes_what_it_denies_and_loses_nothing_of_the_rest() {
    let test = "root_a_file_that_is_read_again_closes_what_it_denies_and_loses_nothing_of_the_rest";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let more = format!("[sources.more]\nsource = \"wrx0\"\nusers = [{NOBODY}]\n");
    let mut daemon = Daemon::start(&bed, &(config("") + &more), "");
    let stays = daemon.client(&bed, "host:lan");
    let goes = daemon.client(&bed, "host:more");
    daemon.wait_for_clients(&bed, 2);
    let load = load(&bed);
    daemon.configure("[sources.lan]\nusers = [\"no body\"]\n");
    daemon.run().signal(libc::SIGHUP);
    let refused = |run: &Run| run.stderr().contains("stays in force");
    daemon.run().wait_for("that a bad file is refused", refused);
    daemon.configure(&(config("") + "[sources.new]\nsource = \"wrx0\"\neverybody = true\n"));
    daemon.run().signal(libc::SIGHUP);
    goes.end().refused(&[
        "host:more",
        "has closed the feed: the daemon's file has changed; with --follow",
    ]);
    daemon.client(&bed, "host:new").stop().expect(0);
    let sent = number(&load.stop().expect(0).json(), "sent");
    settle();
    let json = stays.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "offered"), sent, "{json}");
    assert_eq!(number(&json, "lapped"), 0, "{json}");
}

#[test]
fn root_a_source_whose_interface_is_missing_is_told_at_the_start_and_again() {
    let test = "root_a_source_whose_interface_is_missing_is_told_at_the_start_and_again";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let more = "[sources.later]\nsource = \"later0\"\neverybody = true\n";
    let mut daemon = Daemon::start(&bed, &(config("") + more), "");
    let told = |run: &Run| {
        let words = "weir: sources.later: later0: no such interface";
        run.stderr().lines().filter(|line| line.starts_with(words)).count()
    };
    let reloaded = |run: &Run| run.stderr().matches("is in force again").count();
    assert_eq!(told(daemon.run()), 1, "{}", daemon.run().stderr());
    daemon.run().signal(libc::SIGHUP);
    daemon.run().wait_for("that it has read its file", |run| reloaded(run) == 1);
    assert_eq!(told(daemon.run()), 2, "{}", daemon.run().stderr());
    sh(&bed.rx, "ip link add later0 type veth peer name later1 && ip link set later0 up");
    daemon.run().signal(libc::SIGHUP);
    daemon.run().wait_for("that it has read its file", |run| reloaded(run) == 2);
    let stderr = daemon.run().stderr();
    assert_eq!(told(daemon.run()), 2, "{stderr}");
    assert!(!stderr.contains("sources.lan: "), "{stderr}");
}

#[test]
fn root_a_right_that_is_withdrawn_costs_others_of_the_same_rings_no_frame() {
    let test = "root_a_right_that_is_withdrawn_costs_others_of_the_same_rings_no_frame";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    for engine in ["bpf", "af_packet"] {
        let text = |users: &str| {
            format!("[sources.lan]\nsource = \"wrx0\"\nengine = \"{engine}\"\nusers = [{users}]\n")
        };
        let mut daemon = Daemon::start(&bed, &text("1, 65534"), "");
        let mut stays = vec![daemon.client(&bed, "host:lan")];
        // This client also reads rings that the withdrawn client does not have.
        let mut line = daemon.as_user(NOBODY, "capture host:lan --json");
        line.args(["--feed", "all:", "--feed", "most: ip or ip6"]);
        stays.push(Run::capture_by(&bed.rx, line));
        let line = "capture host:lan --json";
        let goes = Run::capture_by(&bed.rx, daemon.as_user(1, line));
        let status = daemon.wait_for_clients(&bed, 4);
        assert_eq!(status["feeds"].as_array().map(Vec::len), Some(2), "they share rings: {status}");
        let load = load(&bed);
        settle();
        daemon.configure(&text("65534"));
        daemon.run().signal(libc::SIGHUP);
        goes.end().refused(&["host:lan", "file has changed"]);
        // The remaining clients share new rings.
        daemon.wait_for(&bed, |status| {
            let feeds = status["feeds"].as_array().expect("feeds");
            let readers = feeds.iter().map(|feed| number(feed, "readers")).sum::<u64>();
            (feeds.len(), readers) == (2, 3)
        });
        let goes_on = |run: &Run| run.stderr().contains("goes on without a gap");
        stays.iter_mut().for_each(|run| run.wait_for("that it goes on", goes_on));
        let sent = number(&load.stop().expect(0).json(), "sent");
        settle();
        for run in stays {
            let ended = run.stop().expect(0);
            let says = &ended.stderr;
            assert!(says.contains("where it goes on without a gap"), "{says}");
            assert!(!says.contains("captured from here on"), "{says}");
            let json = ended.json();
            closes(&json);
            assert_eq!(number(&json["sources"][0], "lives"), 2, "{json}");
            for feed in json["feeds"].as_array().expect("feeds") {
                assert_eq!(number(feed, "offered"), sent, "{engine}: {json}");
                assert_eq!(number(feed, "captured"), sent, "{engine}: {json}");
            }
            assert_eq!(number(&json, "lapped"), 0, "{engine}: {json}");
        }
        let status = daemon.wait_for_clients(&bed, 0);
        assert_eq!(status["sources"][0]["is_open"], false, "{status}");
    }
}

/// A process that has mapped rings can see their frames even after it has closed its feed, so the others must get new
/// rings.
#[test]
fn root_rings_of_one_who_has_left_are_left_by_others_when_his_right_is_withdrawn() {
    let test = "root_rings_of_one_who_has_left_are_left_by_others_when_his_right_is_withdrawn";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let text = |users: &str| format!("[sources.lan]\nsource = \"wrx0\"\nusers = [{users}]\n");
    let mut daemon = Daemon::start(&bed, &text("1, 65534"), "");
    let stays = daemon.client(&bed, "host:lan");
    Run::capture_by(&bed.rx, daemon.as_user(1, "capture host:lan")).stop().expect(0);
    let key = |status: &Value| status["feeds"][0]["key"].as_u64();
    let before = key(&daemon.wait_for_clients(&bed, 1));
    daemon.configure(&text("65534"));
    daemon.run().signal(libc::SIGHUP);
    // The remaining client reads other rings.
    daemon.wait_for(&bed, |status| key(status).is_some_and(|now| Some(now) != before));
    closes(&stays.stop().expect(0).json());
}

#[test]
fn root_the_first_client_of_a_source_does_not_choose_for_the_next() {
    let test = "root_the_first_client_of_a_source_does_not_choose_for_the_next";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    for engine in ["bpf", "af_packet"] {
        let daemon = Daemon::start(&bed, &config(&format!("engine = \"{engine}\"")), "");
        let sent = daemon.client(&bed, "host:lan --direction out --snaplen 64 --filter ip");
        let whole = daemon.client(&bed, "host:lan --filter ip");
        generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        assert_eq!(number(&whole.stop().expect(0).json(), "delivered"), 1000, "{engine}");
        assert_eq!(number(&sent.stop().expect(0).json(), "delivered"), 0, "{engine}");
    }
}

#[test]
fn root_who_is_root_of_a_container_sees_no_more_than_its_own() {
    let test = "root_who_is_root_of_a_container_sees_no_more_than_its_own";
    let Some(_alone) = ready(test, &["setpriv", "unshare"]) else { return };
    let bed = bed();
    let daemon = Daemon::start(&bed, &config(""), "");
    let run = daemon.client(&bed, "host:lan");
    let all = daemon.wait_for_clients(&bed, 1);
    assert_eq!(all["sources"].as_array().map(Vec::len), Some(2), "{all}");
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork"]).arg(daemon.dir.path().join("weir"));
    inside.args(["status", "--json", "--socket"]).arg(daemon.dir.path().join("s"));
    let own = Run::start(&bed.rx, inside).end().expect(0).json();
    for of in ["sources", "clients", "feeds"] {
        assert_eq!(own[of], Value::Array(Vec::new()), "{own}");
    }
    run.stop().expect(0);
}

/// A client's filter cannot widen the source's filter: neither by operator precedence nor as BPF bytecode in text.
#[test]
fn root_a_clients_filter_takes_nothing_that_the_files_does_not() {
    let test = "root_a_clients_filter_takes_nothing_that_the_files_does_not";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let daemon = Daemon::start(&bed, &config("filter = \"not udp\""), "");
    let asked = |filter: &str| {
        let mut line = daemon.as_user(NOBODY, "capture host:lan --json");
        line.args(["--filter", filter]);
        line
    };
    for filter in ["udp", "not tcp or udp", "1,6 0 0 262144"] {
        let run = Run::capture_by(&bed.rx, asked(filter));
        generate(&bed.tx, "--frames 100 --rate 100kpps");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!((number(&json, "offered"), number(&json, "delivered")), (100, 0), "{filter}");
    }
}

#[test]
fn root_a_filter_and_a_block_list_of_a_running_client_are_changed() {
    let test = "root_a_filter_and_a_block_list_of_a_running_client_are_changed";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let daemon = Daemon::start(&bed, &config("filter = \"udp\""), "");
    let dir = TempDir::new().expect("a folder");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("permissions");
    let control = dir.path().join("control").display().to_string();
    let run = daemon.client(&bed, &format!("host:lan --control {control}"));
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    let change = |line: &str| {
        Run::start(&bed.rx, weir(&format!("{line} --control {control}"))).end().expect(0)
    };
    change("filter ip6");
    generate(&bed.tx, "--frames 500 --rate 100kpps");
    settle();
    change("filter ip");
    change("block 192.0.2.0/24");
    generate(&bed.tx, "--frames 300 --rate 100kpps");
    settle();
    let told = change("status").text();
    assert!(told.contains("; offered 1 800, filtered 500"), "{told}");
    let json = run.stop().expect(0).json();
    closes(&json);
    let of = |name| number(&json, name);
    assert_eq!((of("delivered"), of("filtered"), of("blocked")), (1000, 500, 300), "{json}");
}

#[test]
fn root_a_source_that_is_consumed_keeps_its_frames_from_the_stack_while_it_is_read() {
    let test = "root_a_source_that_is_consumed_keeps_its_frames_from_the_stack_while_it_is_read";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let daemon = Daemon::start(&bed, &config("consume = true"), "");
    // A packet socket receives all frames that reach the network stack.
    let on_the_stack = |frames: &str, reads: bool| {
        let beside = Run::capture(&bed.rx, "--engine af_packet --json");
        let client = reads.then(|| daemon.client(&bed, "host:lan"));
        daemon.wait_for_clients(&bed, reads.into());
        generate(&bed.tx, frames);
        settle();
        if let Some(client) = client {
            let json = client.stop().expect(0).json();
            closes(&json);
            assert_eq!((number(&json, "offered"), number(&json, "delivered")), (5000, 5000));
        }
        number(&beside.stop().expect(0).json(), "offered")
    };
    let frames = "--frames 5000 --rate 100kpps";
    assert_eq!(on_the_stack(frames, true), 0, "they end at the hook");
    assert_eq!(on_the_stack(frames, false), 5000, "nobody reads them: they go on");
    // With an address, the interface carries this machine's own traffic.
    sh(&bed.rx, &format!("ip address add 192.0.2.1/24 dev {}", bed.rx.iface));
    let client = Run::start(&bed.rx, daemon.as_user(NOBODY, "capture host:lan")).end();
    client.refused(&["has address 192.0.2.1", "consume takes its frames away", "leave it out"]);
}

#[test]
fn root_status_and_metrics_tell_what_is_open() {
    let test = "root_status_and_metrics_tell_what_is_open";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    sh(&bed.rx, "ip link set lo up");
    let daemon = Daemon::start(&bed, &config(""), "--metrics 127.0.0.1:9100");
    let run = daemon.client(&bed, "host:lan");
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    let text = common::within(&bed.rx, || {
        let mut stream = TcpStream::connect("127.0.0.1:9100").expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    });
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain"), "{head}");
    let value = |name: &str| {
        let line = body.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect(name)
    };
    assert_eq!(value("weir_connections "), 1, "{body}");
    assert_eq!(value("weir_source_open{source=\"lan\"}"), 1, "{body}");
    assert_eq!(value("weir_source_open{source=\"hidden\"}"), 0, "{body}");
    assert_eq!(value("weir_source_info{source=\"lan\",captures=\"wrx0\",engine="), 1, "{body}");
    assert_eq!(value("weir_feed_captured_frames_total"), 1000, "{body}");
    assert_eq!(value("weir_client_offered_frames_total"), 1000, "{body}");
    check_with_promtool(body);
    // A user sees neither other users' clients nor sources that he may not open.
    let own = Run::start(&bed.rx, daemon.as_user(1, "status")).end().expect(0).text();
    assert!(own.contains("no source"), "{own}");
    let all = Run::start(&bed.rx, daemon.as_user(0, "status")).end().expect(0).text();
    assert!(all.contains("hidden (wrx0): closed") && all.contains("uid 65534"), "{all}");
    closes(&run.stop().expect(0).json());
}

/// Checks the metrics with promtool, if it is installed.
fn check_with_promtool(body: &str) {
    if !weir_lab::testbed::require_tool("root_status_and_metrics_tell_what_is_open", "promtool") {
        return;
    }
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    child.stdin.take().expect("a pipe").write_all(body.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_service_manager_hears_how_the_daemon_fares() {
    let dir = TempDir::new().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let manager = UnixDatagram::bind(at("manager")).expect("a socket");
    manager.set_read_timeout(Some(LIMIT)).expect("a limit");
    fs::write(at("weir.toml"), "[sources.made]\nsource = \"gen:rate=1kpps\"\n").expect("a file");
    let (config, socket) = (at("weir.toml"), at("s"));
    let line = format!("serve --config {} --socket {}", config.display(), socket.display());
    let mut command = weir(&line);
    command.env("NOTIFY_SOCKET", at("manager")).env("WATCHDOG_USEC", "200000");
    let mut child = command.stderr(Stdio::null()).spawn().expect("weir");
    // All lines up to the wanted one.
    let until = |wanted: &str| {
        let mut said = Vec::new();
        while !said.iter().any(|line| line == wanted) {
            let mut bytes = [0; 4096];
            let count =
                manager.recv(&mut bytes).unwrap_or_else(|error| panic!("{wanted}: {error}"));
            said.extend(String::from_utf8_lossy(&bytes[..count]).lines().map(str::to_owned));
        }
        said
    };
    assert!(until("READY=1").iter().any(|line| line.starts_with("STATUS=serving made")));
    until("WATCHDOG=1");
    until("WATCHDOG=1");
    let signal = |signal| {
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    };
    signal(rustix::process::Signal::HUP);
    until("RELOADING=1");
    until("READY=1");
    signal(rustix::process::Signal::TERM);
    until("STOPPING=1");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn what_cannot_be_served_is_refused_with_the_way_out() {
    let dir = TempDir::new().expect("a folder");
    let (config, socket) = (dir.path().join("weir.toml"), dir.path().join("s"));
    let refused = |text: &str, words: &[&str]| {
        fs::write(&config, text).expect("a file");
        let line = format!("serve --config {} --socket {}", config.display(), socket.display());
        let output = weir(&line).output().expect("weir");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(!socket.exists(), "it left its socket");
    };
    refused("[sources.a]\nuser = 1", &["weir.toml", "unknown field"]);
    refused("[sources.a]\nsource = \"a/b.pcap\"", &["sources.a", "file:"]);
    refused("[sources.a]\nsource = \"eth0@2/4\"", &["host:a@2/4"]);
    refused("[sources.a]\nengine = \"none\"", &["no engine 'none'"]);
    refused("[sources.a]\ncpus = \"3-1\"", &["sources.a"]);
    refused("[sources.a]\ncpus = \"1000\"", &["sources.a: cpus = 1000: there is no CPU 1000"]);
    refused("[sources.a]\nsource = \"host:b\"", &["'host:b' is a feed of a daemon"]);
    fs::write(&config, "").expect("a file");
    fs::set_permissions(&config, Permissions::from_mode(0o666)).expect("permissions");
    refused("", &["weir.toml", "others could change it", "chmod go-w"]);
    fs::set_permissions(&config, Permissions::from_mode(0o644)).expect("permissions");
    let missing = |line: &str, words: &[&str]| {
        let output = weir(line).output().expect("weir");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    };
    let none = dir.path().join("none");
    missing(&format!("serve --config {}", none.display()), &["none", "there is no such file"]);
    let deep = dir.path().join("not/there/s");
    fs::write(&config, "").expect("a file");
    let line = format!("serve --config {} --socket {}", config.display(), deep.display());
    missing(&line, &["not/there", "there is no folder", "install -d"]);
    missing(&format!("capture host:a --socket {}", none.display()), &["weir serve", "--socket"]);
    missing(&format!("status --socket {}", none.display()), &["weir serve", "--socket"]);
    missing("capture host:a --ring-size 16MiB", &["--ring-size", "the daemon's"]);
    missing("capture host:a --engine bpf", &["--engine"]);
    missing("capture host:", &["host:eth0"]);
    missing("capture gen: --socket x", &["--socket"]);
}
