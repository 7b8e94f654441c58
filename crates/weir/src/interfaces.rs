//! `weir capture -D`: lists the interfaces of this network namespace. It needs no capabilities.

use anyhow::Result;
use serde_json::json;
use weir_capture::interface::{Link, LinkWatch};

use crate::EXIT_RAN;
use crate::out::plain;
use crate::source_name::{Part, SourceName};

/// Prints the interfaces in the order of libpcap.
///
/// # Errors
/// The interfaces cannot be read from the kernel.
pub fn run(is_json: bool) -> Result<u8> {
    let links = list()?;
    if is_json {
        let interfaces: Vec<_> =
            (1..).zip(&links).map(|(number, link)| object(number, link)).collect();
        println!("{}", json!({ "interfaces": interfaces }));
        return Ok(EXIT_RAN);
    }
    for (number, link) in (1..).zip(&links) {
        println!("{}", plain(&line(number, link)));
    }
    println!("{}.any (all of them, also new ones) [Up, Running]", links.len() + 1);
    Ok(EXIT_RAN)
}

fn list() -> Result<Vec<Link>> {
    let watch = LinkWatch::open()?;
    let mut links: Vec<Link> = watch.links().cloned().collect();
    links.sort_by_key(rank);
    Ok(links)
}

/// Returns the name of the interface with this number in the list; `None` if an interface has the number as its name.
pub fn of_number(source: &SourceName) -> Option<String> {
    let SourceName::Interface { netns: None, iface, part: Part::Whole } = source else {
        return None;
    };
    // The digits are checked first, because this function is called for every -i, and listing takes time.
    if !iface.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    numbered(&list().ok()?, iface)
}

fn numbered(links: &[Link], text: &str) -> Option<String> {
    if links.iter().any(|link| link.name == text) {
        return None;
    }
    let at = text.parse::<usize>().ok()?.checked_sub(1)?;
    match links.get(at) {
        Some(link) => Some(link.name.clone()),
        None => (at == links.len()).then(|| "any".to_owned()),
    }
}

/// Returns the sort key for the order of libpcap: interfaces that are down and the loopback device come last.
fn rank(link: &Link) -> (bool, bool, bool, u32) {
    (!link.is_up(), !is_running(link), is_loopback(link), link.index)
}

fn is_running(link: &Link) -> bool {
    link.flags & libc::IFF_RUNNING as u32 != 0
}

fn is_loopback(link: &Link) -> bool {
    link.flags & libc::IFF_LOOPBACK as u32 != 0
}

/// Returns a line of the list: `1.eth0 [Up, Running]`.
fn line(number: usize, link: &Link) -> String {
    let words =
        [(link.is_up(), "Up"), (is_running(link), "Running"), (is_loopback(link), "Loopback")];
    let words = words.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word);
    let words = words.collect::<Vec<_>>().join(", ");
    let words = if words.is_empty() { "none".to_owned() } else { words };
    format!("{number}.{} [{words}]", link.name)
}

fn object(number: usize, link: &Link) -> serde_json::Value {
    json!({
        "number": number,
        "name": link.name,
        "index": link.index,
        "is_up": link.is_up(),
        "is_running": is_running(link),
        "is_loopback": is_loopback(link),
        "mtu": link.mtu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, flags: i32) -> Link {
        Link { index, name: name.into(), flags: flags as u32, arphrd: 1, mtu: 1500 }
    }

    #[test]
    fn what_runs_comes_first_and_each_says_how_it_is() {
        let (up, runs) = (libc::IFF_UP, libc::IFF_UP | libc::IFF_RUNNING);
        let mut links = [
            link(1, "lo", runs | libc::IFF_LOOPBACK),
            link(2, "down", 0),
            link(3, "bare", up),
            link(4, "eth0", runs),
        ];
        links.sort_by_key(rank);
        let lines: Vec<_> = (1..).zip(&links).map(|(number, link)| line(number, link)).collect();
        let expected = [
            "1.eth0 [Up, Running]",
            "2.lo [Up, Running, Loopback]",
            "3.bare [Up]",
            "4.down [none]",
        ];
        assert_eq!(lines, expected);
        let named = ["1", "4", "5", "0", "6", "x", ""].map(|text| numbered(&links, text));
        let [first, last, any, ..] = ["eth0", "down", "any"].map(|name| Some(name.to_owned()));
        assert_eq!(named, [first, last, any, None, None, None, None]);
        links[1].name = "1".to_owned();
        assert_eq!(numbered(&links, "1"), None, "an interface is called so");
    }
}
