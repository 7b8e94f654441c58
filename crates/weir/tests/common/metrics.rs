//! Metrics over HTTP, parsed as strictly as Prometheus does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Run;

/// The address at which a run with `--metrics 127.0.0.1:0` serves its metrics.
pub fn address_of(run: &mut Run) -> String {
    const BEFORE: &str = "weir: metrics at http://";
    let address = |says: &str| {
        let line = says.lines().find_map(|line| line.strip_prefix(BEFORE));
        line.and_then(|line| line.strip_suffix("/metrics")).map(str::to_owned)
    };
    run.wait_for("the address of its metrics", |run| address(&run.stderr()).is_some());
    address(&run.stderr()).expect("it was there")
}

/// The HTTP response of an endpoint, with its headers.
pub fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    text
}

/// Every value of a response, by its metric's name and labels. Fails where Prometheus' parser would: a metric must be
/// described once, its values must follow the description directly, and no set of labels may occur twice.
#[track_caller]
pub fn read(answer: &str) -> BTreeMap<String, u64> {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let (mut described, mut values) = (Vec::new(), BTreeMap::new());
    let (mut name, mut kind) = ("", "");
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            name = help.split(' ').next().expect("a name");
            kind = "";
            assert!(!described.contains(&name), "{name} is described twice: {body}");
            described.push(name);
        } else if let Some(text) = line.strip_prefix("# TYPE ") {
            let of = text.split_once(' ').expect("a name and a type");
            assert_eq!(of.0, name, "{line}: {body}");
            kind = of.1;
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else {
            let (labelled, value) = line.rsplit_once(' ').expect("a name and a value");
            let rest = labelled.strip_prefix(name).expect(line);
            assert!(rest.is_empty() || (rest.starts_with('{') && rest.ends_with('}')), "{line}");
            assert!(["counter", "gauge"].contains(&kind), "{line} has no type: {body}");
            let value = value.parse().unwrap_or_else(|_| panic!("{line} is no count"));
            let before = values.insert(labelled.to_owned(), value);
            assert!(before.is_none(), "{labelled} comes twice: {body}");
        }
    }
    values
}
