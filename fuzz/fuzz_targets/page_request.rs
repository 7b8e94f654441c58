//! Any bytes are a request, and get a complete answer. A path is served only if each `Host` is an address or localhost,
//! and the answer repeats nothing of the request.
#![no_main]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use weir_monitor::page::http::{Answer, Site, respond};

const BODY: &[u8] = b"body";

/// A site with pages at `/` and below `/a`; it counts the requests that reach it.
#[derive(Default)]
struct Pages(usize);

impl Site for Pages {
    fn answer(&mut self, path: &str) -> Option<Answer> {
        assert!(path.starts_with('/') && !path.contains(['?', '#', '\r', '\n']), "{path:?}");
        self.0 += 1;
        let is_there = path == "/" || path.starts_with("/a");
        is_there.then(|| Answer { kind: "text/plain", body: Arc::from(BODY) })
    }
}

/// Whether a value of `Host` is an address or localhost. What follows it, such as a port, is not checked.
fn is_ours(host: &str) -> bool {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let name = host.split(':').next().unwrap_or_default();
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok()
}

fuzz_target!(|request: &[u8]| {
    let mut site = Pages::default();
    let answer = respond(request, &mut site);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).expect("a status");
    let header =
        |name: &str| lines.clone().filter_map(|line| line.strip_prefix(name)).collect::<Vec<_>>();
    // Each of these headers appears once, and the number of all headers is the usual one.
    let own =
        ["Content-Type: ", "Content-Length: ", "Cache-Control: no-store", "Connection: close"];
    assert!(own.iter().all(|name| header(name).len() == 1), "{head:?}");
    assert_eq!(lines.clone().count(), if status.starts_with("405") { 9 } else { 8 }, "{head:?}");
    let is_head = request.starts_with(b"HEAD ");
    let length = if is_head { 0 } else { header("Content-Length: ")[0].parse().expect("a number") };
    assert_eq!(body.len(), length, "{answer:?}");
    // Another request with the same status has the same answer, so nothing of the request is repeated.
    let other: &[u8] = match status {
        "200 OK" => b"GET / HTTP/1.0\r\n\r\n",
        "404 Not Found" => b"GET /b HTTP/1.0\r\n\r\n",
        "400 Bad Request" => b"\r\n\r\n",
        "403 Forbidden" => b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
        "405 Method Not Allowed" => b"POST / HTTP/1.0\r\n\r\n",
        _ => panic!("{status}"),
    };
    let expected = String::from_utf8(respond(other, &mut Pages::default())).expect("text");
    // The answer to HEAD ends after the head.
    let is_same = if is_head { expected.starts_with(&answer) } else { expected == answer };
    assert!(is_same, "{answer:?}");
    let is_served = matches!(status, "200 OK" | "404 Not Found");
    assert_eq!(site.0, usize::from(is_served), "{status}");
    if is_served {
        let request = std::str::from_utf8(request).expect("text");
        let (head, _) = request.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("GET /") || head.starts_with("HEAD /"), "{head:?}");
        let mut hosts = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let ours = |(name, value): (&str, &str)| {
            !name.eq_ignore_ascii_case("host") || is_ours(value.trim())
        };
        assert!(hosts.all(ours), "{head:?}");
    }
});
