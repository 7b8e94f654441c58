//! The small programs of `examples/` do what they say. `cargo test` builds them before any test runs; a test that is
//! built alone (`--test examples`) finds those of the last whole build.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use weir_lab::Testbed;
use weir_lab::testbed::{RX_IPV4, require_root};

/// An example's program: beside the folder of the programs of tests.
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
    // It asserts by itself that the ledger closes.
    let said = text(example("add_a_feed").output().unwrap());
    let has = |start: &str| said.lines().filter(|line| line.contains(start)).count();
    assert_eq!((has("so far: offered"), has("at its end: offered")), (2, 2), "{said}");
}

#[test]
fn another_process_reads_what_was_captured() {
    let said = text(example("read_from_another_process").output().unwrap());
    assert!(said.contains("the writer: captured 1000000\n"), "{said}");
    assert!(said.trim_end().ends_with("= 1000000"), "{said}");
}

#[test]
fn another_process_notices_that_the_writer_was_killed() {
    let mut command = example("read_from_another_process");
    let mut writer = command.arg("endless").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(writer.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "the writer: begins\n");
    writer.kill().unwrap();
    writer.wait().unwrap();
    // The reader has the same standard output, and ends by itself.
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("the reader: delivered "), "{rest}");
    assert!(rest.contains("has ended without closing it"), "{rest}");
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
    let frames = said.lines().filter(|line| line.contains(" udp, ")).count();
    assert!(frames > 0, "{said}");
    let ledger = said.lines().last().unwrap();
    assert!(ledger.starts_with("offered ") && !ledger.starts_with("offered 0,"), "{said}");
}
