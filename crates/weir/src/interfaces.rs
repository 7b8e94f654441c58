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
            (1..).zip(with_any(&links)).map(|(number, link)| object(number, link)).collect();
        println!("{}", json!({ "interfaces": interfaces }));
        return Ok(EXIT_RAN);
    }
    for (number, item) in (1..).zip(with_any(&links)) {
        println!("{}", plain(&line(number, item)));
    }
    Ok(EXIT_RAN)
}

/// Returns the list with `any` (`None`) at its place: after the interfaces that probably have traffic, and before the
/// loopback device.
fn with_any(links: &[Link]) -> impl Iterator<Item = Option<&Link>> {
    let before = links.partition_point(|link| rank(link) < ANY_RANK);
    let (first, rest) = links.split_at(before);
    first.iter().map(Some).chain([None]).chain(rest.iter().map(Some))
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

/// Returns the hint for a number that no interface has in the list; `None` if the name is not a number.
pub fn number_hint(name: &str) -> Option<String> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count = with_any(&list().ok()?).count();
    Some(format!("`weir capture -D` lists {count}, and {name} is no number of that list"))
}

fn numbered(links: &[Link], text: &str) -> Option<String> {
    if links.iter().any(|link| link.name == text) {
        return None;
    }
    let at = text.parse::<usize>().ok()?.checked_sub(1)?;
    let item = with_any(links).nth(at)?;
    Some(item.map_or_else(|| "any".to_owned(), |link| link.name.clone()))
}

/// The sort key of an interface.
type Rank = (bool, bool, bool, bool, bool, u32);

/// The sort key of `any`.
const ANY_RANK: Rank = (false, false, false, false, true, 0);

/// Returns the sort key for the order of libpcap: interfaces that do not run, that are down, that have no carrier, and
/// the loopback device come last; then the order of the kernel decides. Source: `get_figure_of_merit` in libpcap's
/// pcap.c.
fn rank(link: &Link) -> Rank {
    let is_disconnected = is_connected(link) == Some(false);
    (!is_running(link), !link.is_up(), is_disconnected, is_loopback(link), false, link.index)
}

/// Returns whether an interface has a carrier; `None` for the loopback device, and for interfaces that are down.
fn is_connected(link: &Link) -> Option<bool> {
    let has_carrier = link.flags & libc::IFF_LOWER_UP as u32 != 0;
    (link.is_up() && !is_loopback(link)).then_some(has_carrier)
}

fn is_running(link: &Link) -> bool {
    link.flags & libc::IFF_RUNNING as u32 != 0
}

fn is_loopback(link: &Link) -> bool {
    link.flags & libc::IFF_LOOPBACK as u32 != 0
}

/// Returns a line of the list: `1.eth0 [Up, Running, Connected]`. `None` stands for `any`.
fn line(number: usize, link: Option<&Link>) -> String {
    let Some(link) = link else {
        return format!("{number}.any (all of them, also new ones) [Up, Running]");
    };
    let words = [
        (link.is_up(), "Up"),
        (is_running(link), "Running"),
        (is_loopback(link), "Loopback"),
        (is_connected(link) == Some(true), "Connected"),
        (is_connected(link) == Some(false), "Disconnected"),
    ];
    let words = words.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word);
    let words = words.collect::<Vec<_>>().join(", ");
    let words = if words.is_empty() { "none".to_owned() } else { words };
    format!("{number}.{} [{words}]", link.name)
}

fn object(number: usize, link: Option<&Link>) -> serde_json::Value {
    let Some(link) = link else {
        return json!({
            "number": number,
            "name": "any",
            "index": null,
            "is_up": true,
            "is_running": true,
            "is_loopback": false,
            "is_connected": null,
            "mtu": null,
        });
    };
    json!({
        "number": number,
        "name": link.name,
        "index": link.index,
        "is_up": link.is_up(),
        "is_running": is_running(link),
        "is_loopback": is_loopback(link),
        "is_connected": is_connected(link),
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
        let up = libc::IFF_UP | libc::IFF_LOWER_UP;
        let runs = up | libc::IFF_RUNNING;
        let mut links = [
            link(1, "lo", runs | libc::IFF_LOOPBACK),
            link(2, "down", 0),
            link(3, "bare", up),
            link(4, "eth10", runs),
            link(5, "eth2", runs),
            link(6, "unplugged", libc::IFF_UP),
        ];
        links.sort_by_key(rank);
        let lines: Vec<_> =
            (1..).zip(with_any(&links)).map(|(number, link)| line(number, link)).collect();
        let expected = [
            "1.eth10 [Up, Running, Connected]",
            "2.eth2 [Up, Running, Connected]",
            "3.any (all of them, also new ones) [Up, Running]",
            "4.lo [Up, Running, Loopback]",
            "5.bare [Up, Connected]",
            "6.unplugged [Up, Disconnected]",
            "7.down [none]",
        ];
        assert_eq!(lines, expected);
        let named = ["1", "3", "7", "0", "8", "x", ""].map(|text| numbered(&links, text));
        let [first, any, last] = ["eth10", "any", "down"].map(|name| Some(name.to_owned()));
        assert_eq!(named, [first, any, last, None, None, None, None]);
        links[1].name = "1".to_owned();
        assert_eq!(numbered(&links, "1"), None, "an interface is called so");
    }
}
