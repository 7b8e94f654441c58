//! The small programs of `examples/` work as described. `cargo test` builds them before any test runs; a test that
//! is built alone (`--test examples`) finds those of the last whole build.

use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use weir_capture::generator::{GenSpec, MemGen};
use weir_capture::{Feed, Pumped, Setup, Source};
use weir_lab::Testbed;
use weir_lab::testbed::{RX_IPV4, require_root};
use weir_ring::pass;

/// The environment variable that makes a process of this program the writer.
const ENDLESS_WRITER: &str = "WEIR_TEST_ENDLESS_WRITER";

/// The program of an example. Its folder is next to that of the test programs.
fn example(name: &str) -> Command {
    let own = std::env::current_exe().expect("a path");
    let folder = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("examples");
    let path: PathBuf = folder.join(name);
    assert!(path.exists(), "{} is not built: cargo build --examples", path.display());
    Command::new(path)
}

fn text(output: Output) -> String {
    let said = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}{errors}", output.status);
    said
}

#[test]
fn an_own_engine_gives_every_frame() {
    let said = text(example("write_an_engine").output().unwrap());
    assert_eq!(said, "offered 1000 = captured 1000 = delivered 1000\n");
}

#[test]
fn a_feed_joins_and_leaves_with_a_ledger_that_closes() {
    // The example itself asserts that the ledger closes.
    let said = text(example("add_a_feed").output().unwrap());
    let has = |start: &str| said.lines().filter(|line| line.contains(start)).count();
    assert_eq!((has("so far: offered"), has("at its end: offered")), (2, 2), "{said}");
}

#[test]
fn another_process_reads_what_was_captured() {
    let said = text(example("read_from_another_process").output().unwrap());
    // The two processes may print in either order.
    assert!(said.contains("the writer: captured 1000000\n"), "{said}");
    assert!(said.contains("= 1000000\n"), "{said}");
}

/// Not a test by itself: a writer for the example's reader. Its standard input is the listening socket to which the
/// reader connects. It prints a line on standard error when it has captured many frames, and continues until it is
/// killed.
#[test]
fn endless_writer() {
    if std::env::var_os(ENDLESS_WRITER).is_none() {
        return;
    }
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let (stream, _) = listener.accept().unwrap();
    let feeds = vec![Feed::default()];
    let setup = Setup { feeds, ring_bytes: 16 << 20, promiscuous: false, ..Setup::default() };
    let mut source = MemGen::open(GenSpec::default(), setup, false).unwrap();
    let control = source.control();
    let feed = control.feeds().remove(0);
    let waker = pass::send_feed(&stream, &feed.rings).unwrap();
    control.attach(feed.slot, waker, 0).unwrap();
    (&stream).read_exact(&mut [0]).unwrap();
    source.start().unwrap();
    let mut is_told = false;
    while source.pump(Duration::from_millis(20)).unwrap() == Pumped::More {
        if source.ledger().unwrap().captured > 100_000 && !std::mem::replace(&mut is_told, true) {
            eprintln!("written");
        }
    }
}

#[test]
fn another_process_notices_that_the_writer_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["endless_writer", "--exact", "--nocapture"]).env(ENDLESS_WRITER, "");
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut writer = command.spawn().unwrap();
    let reader = example("read_from_another_process").arg(&socket).stdout(Stdio::piped()).spawn();
    let mut told = [0; 8];
    writer.stderr.take().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(&told, b"written\n");
    writer.kill().unwrap();
    writer.wait().unwrap();
    // The reader ends by itself.
    let said = text(reader.unwrap().wait_with_output().unwrap());
    assert!(said.starts_with("the reader: delivered "), "{said}");
    assert!(said.contains("has ended without closing it"), "{said}");
}

#[test]
fn root_a_watched_link_is_a_line_a_frame() {
    if !require_root("root_a_watched_link_is_a_line_a_frame") {
        return;
    }
    let bed = Testbed::builder().addresses(true).build().expect("a testbed");
    let mut command = example("watch_link");
    command.args([&bed.rx.iface, "2"]).stdout(Stdio::piped());
    let mut watching = bed.rx.spawn(command).expect("it starts");
    let send_until_it_ends = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        while !watching.wait_for(Duration::from_millis(10)) {
            socket.send_to(b"weir", (RX_IPV4, 9)).unwrap();
        }
    };
    bed.tx.run(send_until_it_ends).expect("the namespace is there");
    let mut said = String::new();
    watching.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let frames = said.lines().filter(|line| line.contains(" UDP, ")).count();
    assert!(frames > 0, "{said}");
    let ledger = said.lines().last().unwrap();
    assert!(ledger.starts_with("offered ") && !ledger.starts_with("offered 0,"), "{said}");
}
