//! Finds the other end of a veth, for a remedy in an error message. Uses `ip`, which knows the names of namespaces.

use std::process::{Command, Stdio};

/// Returns the command after which the other end accepts frames sent by XDP. `PEER` stands for a name that was not
/// found.
pub(super) fn gro_command(iface: &str) -> String {
    let PeerName { netns, name } = find(iface).unwrap_or_default();
    let enter = netns.map_or(String::new(), |netns| format!("ip netns exec {netns} "));
    format!("{enter}ethtool -K {} gro on", name.as_deref().unwrap_or("PEER"))
}

/// The other end of the veth, as far as it is known.
#[derive(Debug, Default, PartialEq, Eq)]
struct PeerName {
    /// Name of its namespace, if it is another one.
    netns: Option<String>,
    name: Option<String>,
}

fn find(iface: &str) -> Option<PeerName> {
    match parse(&ip(&["-o", "link", "show", "dev", iface])?)? {
        Link::Here(name) => Some(PeerName { netns: None, name: Some(name) }),
        Link::There(netns, index) => {
            let links = ip(&["-n", &netns, "-o", "link"])?;
            let name = links.lines().find_map(|line| named(line, index)).map(str::to_owned);
            Some(PeerName { netns: Some(netns), name })
        }
    }
}

/// Location of the other end, parsed from `ip -o link show dev IFACE`.
#[derive(Debug, PartialEq, Eq)]
enum Link {
    Here(String),
    There(String, u32),
}

/// Parses `5: tx0@rx0: <...` of a pair in one namespace, or `5: tx0@if2: <... link-netns NAME`. For a namespace without
/// a name, `ip` prints a number, `link-netnsid 0`, by which the namespace cannot be entered; the result is then `None`.
fn parse(line: &str) -> Option<Link> {
    let mut words = line.split_whitespace();
    let (_, peer) = words.nth(1)?.trim_end_matches(':').split_once('@')?;
    if let Some(netns) = words.clone().skip_while(|word| *word != "link-netns").nth(1) {
        return Some(Link::There(netns.to_owned(), peer.strip_prefix("if")?.parse().ok()?));
    }
    let elsewhere = words.any(|word| word == "link-netnsid");
    (!elsewhere).then(|| Link::Here(peer.to_owned()))
}

/// Returns the name in a line of `ip -o link`, if the line is for this index.
fn named(line: &str, index: u32) -> Option<&str> {
    let name = line.strip_prefix(&format!("{index}: "))?;
    name.split(['@', ':']).next()
}

/// Returns the output of `ip`; `None` if it is missing or fails, because the output only improves a message.
fn ip(args: &[&str]) -> Option<String> {
    let output = Command::new("ip").args(args).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_here_or_in_a_named_namespace_or_nowhere_to_be_named() {
        let rest = "<BROADCAST,UP> mtu 1500 qdisc noqueue\\    link/ether 66:0c:86:42:bc:76";
        let line = |name: &str, end: &str| format!("5: {name}: {rest} {end}");
        assert_eq!(parse(&line("tx0@rx0", "")), Some(Link::Here("rx0".into())));
        assert_eq!(parse(&line("tx0@if2", "link-netns blue")), Some(Link::There("blue".into(), 2)));
        assert_eq!(parse(&line("tx0@if2", "link-netnsid 0")), None);
        assert_eq!(parse(&line("eth0", "")), None);
        assert_eq!(parse(""), None);
        assert_eq!(named(&line("rx0@if7", ""), 5), Some("rx0"));
        assert_eq!((named(&line("rx0", ""), 5), named(&line("rx0", ""), 55)), (Some("rx0"), None));
        assert_eq!(gro_command("no-such0"), "ethtool -K PEER gro on");
    }
}
