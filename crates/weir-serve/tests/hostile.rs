//! Clients that break the protocol, and the examples in `docs/protocol.md`.

#[path = "common/mod.rs"]
mod common;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use weir_client::protocol::Open;
use weir_client::{ClientError, Connection};
use weir_plug::{Client, PlugError};
use weir_ring::wake::Sleeper;

use common::{Setup, open_fds, setup, within_limit};

const LIMIT: Duration = Duration::from_secs(60);
const MADE: &str = "[sources.made]\nsource = 'gen:rate=100kpps'\neverybody = true\n\
                    ring_mib = 4\nsnaplen = 128\n[sources.hidden]\nsource = 'gen:'\n";

fn raw(setup: &Setup) -> Client {
    Client::connect(&setup.path(), "hostile", |_| ()).unwrap()
}

/// Asserts that the request is refused with these words, and that the connection stays open.
#[track_caller]
fn refused(client: &Client, method: &str, params: Value, fds: &[OwnedFd], words: &str) {
    match client.call(method, params, fds, LIMIT) {
        Err(PlugError::Refused(error)) => {
            assert!(error.message.contains(words), "'{words}' is not in: {error}");
        }
        Err(error) => panic!("{error}"),
        Ok(answer) => panic!("{answer:?}"),
    }
}

fn file() -> OwnedFd {
    tempfile::tempfile().unwrap().into()
}

#[test]
fn descriptors_that_are_no_sleepers_are_refused_and_closed() {
    let setup = setup(MADE);
    let client = raw(&setup);
    let open = json!({ "feed": 1, "source": "made" });
    client.call("capture.open", open, &[], LIMIT).unwrap();
    let before = open_fds();
    let attach = |first_line: u64| json!({ "feed": 1, "sleeper": 7, "first_line": first_line });
    let sleeper = Sleeper::new(4).unwrap();
    let [page, socket] = sleeper.channel().unwrap();
    let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
    for (fds, first_line, words) in [
        (vec![], 0, "0 descriptors"),
        (vec![copy(&page)], 0, "1 descriptors"),
        (vec![file(), file()], 0, "wake page"),
        (vec![copy(&page), file()], 0, "no waker"),
        (vec![copy(&socket), copy(&page)], 0, "wake page"),
        (vec![copy(&page), copy(&socket)], 4096, "lines"),
        (vec![copy(&page), copy(&socket)], u64::MAX, "lines"),
        (vec![copy(&page), copy(&socket)], 1000, ""),
    ] {
        refused(&client, "capture.attach", attach(first_line), &fds, words);
    }
    refused(
        &client,
        "capture.attach",
        json!({ "feed": 9, "sleeper": 1, "first_line": 0 }),
        &[],
        "no feed 9",
    );
    let fds = [page, socket];
    client.call("capture.attach", attach(3), &fds, LIMIT).unwrap();
    refused(&client, "capture.attach", attach(3), &fds, "already");
    drop((fds, sleeper));
    client.call("capture.detach", json!({ "feed": 1, "sleeper": 7 }), &[], LIMIT).unwrap();
    within_limit("descriptors are closed", || open_fds() <= before);
}

#[test]
fn params_that_make_no_sense_are_refused() {
    let setup = setup(MADE);
    let client = raw(&setup);
    let open = |more: Value| {
        let mut open = json!({ "feed": 1, "source": "made" });
        open.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        open
    };
    for (params, words) in [
        (json!({}), "missing field"),
        (open(json!({ "source": "../../etc/passwd" })), "there is no source"),
        (open(json!({ "source": "hidden" })), "'hidden'"),
        (open(json!({ "source": 7 })), "invalid type"),
        (open(json!({ "feed": -1 })), "invalid"),
        (open(json!({ "part": "5/4" })), "no part"),
        (open(json!({ "part": "q0" })), "queue"),
        (open(json!({ "snaplen": 0 })), "snaplen"),
        (open(json!({ "filter": "1\n5 0 0 7" })), "the filter"),
        (open(json!({ "more": true })), "unknown field"),
    ] {
        refused(&client, "capture.open", params, &[], words);
    }
    client.call("capture.open", open(json!({})), &[], LIMIT).unwrap();
    refused(&client, "capture.open", open(json!({})), &[], "open already");
    refused(&client, "capture.block", json!({ "feed": 1, "add": ["no entry"] }), &[], "");
    refused(&client, "capture.close", json!({ "feed": 2 }), &[], "no feed 2");
    refused(&client, "capture.none", json!({}), &[], "there is no method");
    // Closing twice gives the same answer. Releasing a feed that does not exist has no effect.
    let close = || client.call("capture.close", json!({ "feed": 1 }), &[], LIMIT).unwrap().result;
    assert_eq!(close(), close());
    for feed in [1, 1, 9] {
        client.call("capture.let_go", json!({ "feed": feed }), &[], LIMIT).unwrap();
    }
}

#[test]
fn a_flood_of_opens_is_refused_and_leaves_nothing() {
    let setup = setup(&format!("{MADE}\n[limits]\nfeeds = 3\nopens_per_second = 10"));
    let before = open_fds();
    let connection = Connection::open(&setup.path()).unwrap();
    let open = Open { source: "made".into(), own: true, ..Open::default() };
    let all: Vec<_> = (0..100).map(|_| connection.open_feed(&open)).collect();
    let opened = all.iter().filter(|one| one.is_ok()).count();
    assert!((1..=3).contains(&opened), "{opened}");
    for one in &all {
        if let Err(ClientError::Plug(error)) = one {
            let said = error.to_string();
            assert!(said.contains("may be opened") || said.contains("feeds"), "{said}");
        }
    }
    // The limit applies to the user, not to the connection.
    let other = Connection::open(&setup.path()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(opened < 3 || other.open_feed(&open).is_err());
    drop((all, connection, other));
    within_limit("descriptors are closed", || open_fds() <= before);
    within_limit("the account is free again", || {
        let connection = Connection::open(&setup.path()).unwrap();
        connection.open_feed(&open).is_ok()
    });
}

#[test]
fn rings_cannot_be_written_however_a_client_opens_them() {
    let setup = setup(MADE);
    let connection = Connection::open(&setup.path()).unwrap();
    let open = Open { source: "made".into(), ..Open::default() };
    let feed = connection.open_feed(&open).unwrap();
    let fd = feed.rings()[0].memory().as_fd();
    let own = File::from(fd.try_clone_to_owned().unwrap());
    own.write_at(&[0xff], 0).unwrap_err();
    own.set_len(0).unwrap_err();
    // The client has the owner's user id, so it may open the file again. The seals apply to everybody.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if let Ok(anew) = File::options().read(true).write(true).open(path) {
        anew.write_at(&[0xff], 0).unwrap_err();
        anew.set_len(0).unwrap_err();
    }
}

/// A client that dies at any point of its calls.
#[test]
fn connections_that_end_at_any_point_leave_nothing() {
    let setup = setup(MADE);
    let before = open_fds();
    for round in 0..50 {
        let client = raw(&setup);
        let open = json!({ "feed": 1, "source": "made", "own": round % 2 == 0 });
        if round % 5 > 0 {
            let _ = client.call("capture.open", open, &[], Duration::from_micros(round * 40));
        }
        if round % 5 > 2 {
            let sleeper = Sleeper::new(4).unwrap();
            let fds = sleeper.channel().unwrap();
            let attach = json!({ "feed": 1, "sleeper": 1, "first_line": 0 });
            let _ = client.call("capture.attach", attach, &fds, Duration::from_micros(round * 40));
        }
        drop(client);
    }
    within_limit("connections end", || setup.serving.connections() == 0);
    within_limit("descriptors are closed", || open_fds() <= before);
}

#[test]
fn what_the_protocols_page_shows_is_what_the_daemon_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split("<!-- checked: capture -->").nth(1).expect("its examples");
    let block = section.split("```").nth(1).expect("a block").trim_start_matches("json");
    let setup = setup(MADE);
    let client = raw(&setup);
    let lines: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.len() >= 10 && lines.len().is_multiple_of(2), "{lines:?}");
    for pair in lines.chunks(2) {
        let asked: Value = serde_json::from_str(pair[0]).expect(pair[0]);
        let mut expected: Value = serde_json::from_str(pair[1]).expect(pair[1]);
        let method = asked["method"].as_str().unwrap();
        // The client has sent this when it connected.
        if method == "plug.hello" {
            continue;
        }
        let params = asked.get("params").cloned().unwrap_or_else(|| json!({}));
        let answer = client.call(method, params, &[], LIMIT);
        let told = match answer {
            Ok(answer) => {
                let count = expected.get("descriptors").and_then(Value::as_u64).unwrap_or(0);
                assert_eq!(answer.descriptors.len() as u64, count, "{}", pair[0]);
                let mut result = answer.result;
                // The daemon chooses the key, so the page's key is used.
                if let Some(key) = result.get_mut("key") {
                    *key = expected["result"]["key"].take();
                    expected["result"]["key"] = key.clone();
                }
                if let Some(keys) = result.get_mut("keys") {
                    assert_eq!(keys.as_array().map(Vec::len), Some(1), "{}", pair[0]);
                    *keys = expected["result"]["keys"].clone();
                }
                json!({ "result": result })
            }
            Err(PlugError::Refused(error)) => {
                json!({ "error": { "code": error.code, "message": error.message } })
            }
            Err(error) => panic!("{}: {error}", pair[0]),
        };
        let field = if expected.get("result").is_some() { "result" } else { "error" };
        assert_eq!(told.get(field), expected.get(field), "{}", pair[0]);
    }
}
