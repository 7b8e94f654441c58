//! Source names as they are typed.

use std::path::PathBuf;
use std::str::FromStr;

use weir_capture::engines::declaration::{Declaration, Takes};
use weir_capture::engines::of_device;
use weir_capture::interface::LinkPattern;
use weir_capture::kernel::netns::NetnsName;
use weir_container::{docker, pod, vm};
use weir_frame::shard::{NoSuchShard, SHARDS_MAX, Shard};

use crate::limits::PATTERN_BYTES_MAX;
use crate::usage_hints;

/// Part of an interface's frames, written after `@`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All frames.
    #[default]
    Whole,
    /// Frames of an RX queue: `@q2`.
    Queue(u32),
    /// Frames of a shard of the flows: `@2/4`, the second of four.
    Shard(Shard),
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        if let Some(queue) = text.strip_prefix('q') {
            // A queue number has 16 bits: the 32-bit value of all ones means any queue.
            let number = queue
                .parse::<u16>()
                .map_err(|_| format!("'@{text}' is no RX queue: write @q0 for the first"))?;
            return Ok(Part::Queue(number.into()));
        }
        text.parse().map(Part::Shard).map_err(|error: NoSuchShard| {
            let numbers = text.split_once('/').map(|(a, b)| (a.parse::<u32>(), b.parse::<u32>()));
            match numbers {
                Some((Ok(_), Ok(of))) if (1..=SHARDS_MAX).contains(&of) => {
                    format!("'@{text}': the shards of {of} are @1/{of} to @{of}/{of}")
                }
                Some(_) => format!("'@{text}': {error}"),
                // `ip link` shows the peer of a veth or VLAN after the name.
                None if text.starts_with("if") => {
                    format!("'@{text}' is not of the name: leave out what `ip link` shows behind it")
                }
                None => format!(
                    "'@{text}' is no part of an interface: write @2/4 for the second of four shards of its flows, \
                     or @q2 for an RX queue"
                ),
            }
        })
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Whole => Ok(()),
            Part::Queue(queue) => write!(f, "@q{queue}"),
            Part::Shard(shard) => write!(f, "@{shard}"),
        }
    }
}

/// A source as it is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// An interface, in another network namespace or in this one.
    Interface {
        /// The network namespace; `None`: this one.
        netns: Option<NetnsName>,
        /// Interface name.
        iface: String,
        /// The part of the interface's frames.
        part: Part,
    },
    /// All interfaces whose names match a pattern, as one source.
    Pattern {
        /// The network namespace; `None`: this one.
        netns: Option<NetnsName>,
        /// The pattern of the interface names.
        pattern: LinkPattern,
        /// The part of the frames of each interface.
        part: Part,
    },
    /// A capture file.
    File(PathBuf),
    /// Frames generated in memory: the text after `gen:`.
    Gen(String),
    /// A device of an engine with its own devices, written as the engine's prefix and the device with its arguments.
    Device {
        /// The engine.
        engine: &'static Declaration,
        /// The device.
        device: String,
    },
}

impl SourceName {
    /// Returns whether the source consists of interfaces of another network namespace.
    pub fn is_in_other_netns(&self) -> bool {
        self.netns().is_some()
    }

    /// Returns the whole source, and the part of it that is named.
    pub fn taken_apart(&self) -> (SourceName, Part) {
        match self {
            SourceName::Interface { netns, iface, part } => {
                let (netns, iface) = (netns.clone(), iface.clone());
                (SourceName::Interface { netns, iface, part: Part::Whole }, *part)
            }
            SourceName::Pattern { netns, pattern, part } => {
                let (netns, pattern) = (netns.clone(), pattern.clone());
                (SourceName::Pattern { netns, pattern, part: Part::Whole }, *part)
            }
            other => (other.clone(), Part::Whole),
        }
    }

    /// Returns the network namespace of the source; `None` if it is that of this process.
    pub fn netns(&self) -> Option<&NetnsName> {
        match self {
            SourceName::Interface { netns, .. } | SourceName::Pattern { netns, .. } => {
                netns.as_ref()
            }
            _ => None,
        }
    }

    /// Returns the name of the virtual machine, if the source consists of its taps.
    pub fn vm(&self) -> Option<String> {
        let SourceName::Pattern { pattern, .. } = self else { return None };
        let name = pattern.goes_by_owner().then(|| pattern.to_string())?;
        name.strip_prefix(vm::PREFIX).map(str::to_owned)
    }

    /// Returns the name of a part of the source in the rings. For a pattern, a ring has the name of each interface in
    /// place of the pattern.
    pub fn in_rings(&self, part: Part) -> String {
        match self {
            SourceName::Pattern { netns: Some(netns), pattern, .. } => {
                format!("{netns}/{pattern}{part}")
            }
            other => format!("{other}{part}"),
        }
    }

    /// Returns whether a daemon captures the source.
    pub fn is_of_daemon(&self) -> bool {
        matches!(self, SourceName::Device { engine, .. } if engine.is_of_daemon)
    }

    /// Returns whether the source is an interface of the kernel, or several by pattern.
    pub fn is_of_interfaces(&self) -> bool {
        matches!(self, SourceName::Interface { .. } | SourceName::Pattern { .. })
    }
}

/// Splits a name into network namespace and interface. Without an interface, the name means all interfaces of a
/// container but its loopback.
fn place_of(text: &str) -> Result<(Option<NetnsName>, Option<&str>), String> {
    let of_process = text.starts_with("/proc/") && text.contains("/ns/net/");
    if let Some(rest) = text.strip_prefix("netns:").or(of_process.then_some(text)) {
        // A path contains slashes, so the interface follows the last slash.
        let parts = match rest.starts_with('/') {
            true => rest.rsplit_once('/'),
            false => rest.split_once('/'),
        };
        return match parts {
            Some((netns, iface)) if !netns.is_empty() => {
                Ok((Some(NetnsName::named(netns)), Some(iface)))
            }
            _ => Err(format!(
                "'{text}': write netns:NAME/IFACE, netns:PID/IFACE or netns:/proc/PID/ns/net/IFACE"
            )),
        };
    }
    // The name of a container has no slash. The name of a pod has a slash if an interface follows.
    let inside = |rest, slashes, netns: fn(&str) -> Result<NetnsName, String>| {
        let (name, iface) = split_at_slash(rest, slashes);
        Ok((Some(netns(name)?), iface))
    };
    if let Some(rest) = text.strip_prefix(docker::PREFIX) {
        return inside(rest, 1, docker::netns);
    }
    if let Some(rest) = text.strip_prefix(pod::PREFIX) {
        return inside(rest, 2, pod::netns);
    }
    Ok((None, Some(text)))
}

/// Parses a network namespace without an interface.
///
/// # Errors
/// The text is not a network namespace; the message shows the forms.
pub fn netns_name(text: &str) -> Result<NetnsName, String> {
    if text.starts_with("/proc/") && text.ends_with("/ns/net") {
        return Ok(NetnsName::named(text));
    }
    let (kind, name) = text.split_once(':').unwrap_or_default();
    let slashes = name.matches('/').count();
    match (kind, slashes) {
        _ if name.is_empty() => {}
        ("netns", _) if name.starts_with('/') => return Ok(NetnsName::named(name)),
        ("netns", 0) => return Ok(NetnsName::named(name)),
        ("docker", 0) => return docker::netns(name),
        ("pod", 0 | 1) => return pod::netns(name),
        _ => {}
    }
    Err(format!(
        "'{text}' is no network namespace: write netns:NAME, netns:PID, netns:/proc/PID/ns/net, docker:NAME, pod:NAME \
         or pod:NAMESPACE/NAME"
    ))
}

/// Splits a text at the slash with this number, counted from 1.
fn split_at_slash(text: &str, number: usize) -> (&str, Option<&str>) {
    match text.match_indices('/').nth(number - 1) {
        Some((at, _)) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

impl FromStr for SourceName {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceName, String> {
        if let Some(path) = text.strip_prefix("file:") {
            if path.is_empty() {
                return Err(
                    "'file:': write the capture file's path behind it, as in file:TRACE.pcapng"
                        .to_owned(),
                );
            }
            return Ok(SourceName::File(path.into()));
        }
        if let Some(spec) = text.strip_prefix("gen:") {
            return Ok(SourceName::Gen(spec.to_owned()));
        }
        if let Some((engine, device)) = of_device(text) {
            if let (Takes::Devices { example, .. }, "") = (engine.takes, device) {
                return Err(format!(
                    "'{text}' has no name: write the name behind it, as in {example}"
                ));
            }
            return Ok(SourceName::Device { engine, device: device.to_owned() });
        }
        let (place, part) = match text.rsplit_once('@') {
            Some((place, part)) => (place, part.parse()?),
            None => (text, Part::Whole),
        };
        if let Some(name) = place.strip_prefix(vm::PREFIX) {
            if let Part::Queue(_) = part {
                return Err(format!("'{text}': RX queues are of one interface; leave {part} out"));
            }
            return Ok(SourceName::Pattern { netns: None, pattern: vm::taps(name)?, part });
        }
        let (netns, iface) = place_of(place)?;
        let (iface, pattern) = match iface {
            Some(iface) => (iface, LinkPattern::parse(iface)),
            None => ("*", Some(LinkPattern::all_but_loopback())),
        };
        // IFNAMSIZ is 16 with the terminating zero; the kernel forbids slashes, colons and white space
        // (dev_valid_name in net/core/dev.c).
        let longest = if pattern.is_some() { PATTERN_BYTES_MAX } else { 15 };
        let valid = (1..=longest).contains(&iface.len())
            && !iface.contains(|c: char| matches!(c, '/' | ':') || c.is_whitespace());
        if !valid && netns.is_none() {
            if let Some(hint) = usage_hints::file_hint(text) {
                return Err(hint);
            }
            if let Some(hint) = usage_hints::address_hint(text) {
                return Err(hint);
            }
            if text.trim().contains(char::is_whitespace) {
                return Err(usage_hints::filter_hint(text.trim()));
            }
        }
        // Brackets are allowed in an interface name, but in a pattern they would look like the brackets of shell
        // patterns.
        if (pattern.is_some() || !valid) && iface.contains(['[', ']', '{', '}']) {
            return Err(format!(
                "'{iface}': a pattern has * (any characters) and ? (one character) only; give several sources instead, \
                 or ? for a bracket"
            ));
        }
        if !valid {
            return Err(format!(
                "'{iface}' cannot be an interface name (1 to 15 characters, no '/' and no ':'); \
                 a capture file is file:PATH"
            ));
        }
        let Some(pattern) = pattern else {
            return Ok(SourceName::Interface { netns, iface: iface.to_owned(), part });
        };
        if let Part::Queue(_) = part {
            return Err(format!(
                "'{text}': RX queues are of one interface; name it, or leave {part} out"
            ));
        }
        Ok(SourceName::Pattern { netns, pattern, part })
    }
}

impl std::fmt::Display for SourceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let SourceName::Interface { netns: Some(netns), .. }
        | SourceName::Pattern { netns: Some(netns), .. } = self
        {
            write!(f, "{netns}")?;
        }
        let slash = if self.is_in_other_netns() { "/" } else { "" };
        match self {
            SourceName::Interface { iface, part, .. } => write!(f, "{slash}{iface}{part}"),
            SourceName::Pattern { pattern, part, .. } if pattern.is_all_but_loopback() => {
                write!(f, "{part}")
            }
            SourceName::Pattern { pattern, part, .. } => write!(f, "{slash}{pattern}{part}"),
            SourceName::File(path) => write!(f, "file:{}", path.display()),
            SourceName::Gen(spec) => write!(f, "gen:{spec}"),
            SourceName::Device { engine, device } => match engine.takes {
                Takes::Devices { prefix, .. } => write!(f, "{prefix}{device}"),
                _ => f.write_str(device),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_namespace_has_a_name_of_its_own() {
        for good in ["netns:blue", "netns:4711", "docker:web", "pod:web", "pod:default/web"] {
            assert_eq!(netns_name(good).expect(good).to_string(), good);
        }
        for path in ["/proc/4711/ns/net", "netns:/proc/4711/ns/net", "netns:/run/docker/netns/3f2a"]
        {
            let shown = netns_name(path).expect(path).to_string();
            assert_eq!(shown.trim_start_matches("netns:"), path.trim_start_matches("netns:"));
        }
        for bad in ["blue", "netns:", "netns:blue/eth0", "docker:web/eth0", "pod:a/b/c", "vm:x"] {
            assert!(netns_name(bad).unwrap_err().contains("netns:NAME"), "{bad}");
        }
    }

    #[test]
    fn names_say_what_they_are() {
        let iface = |netns: Option<&str>, iface: &str| SourceName::Interface {
            netns: netns.map(NetnsName::named),
            iface: iface.to_owned(),
            part: Part::Whole,
        };
        assert_eq!("eth0".parse(), Ok(iface(None, "eth0")));
        assert_eq!("netns:blue/eth0".parse(), Ok(iface(Some("blue"), "eth0")));
        assert_eq!("file:a/b.pcap".parse(), Ok(SourceName::File("a/b.pcap".into())));
        assert_eq!("gen:size=64".parse(), Ok(SourceName::Gen("size=64".into())));
        let text = "dpdk:net_af_packet0,iface=eth0";
        match text.parse() {
            Ok(SourceName::Device { engine, ref device }) => {
                assert_eq!((engine.name, device.as_str()), ("dpdk", "net_af_packet0,iface=eth0"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(text.parse::<SourceName>().unwrap().to_string(), text);
        let part = |text: &str| match text.parse() {
            Ok(SourceName::Interface { part, .. }) => part,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(part("eth0@q2"), Part::Queue(2));
        assert_eq!(part("netns:blue/eth0@2/4"), Part::Shard(Shard::new(2, 4).unwrap()));
        for text in ["eth0@q2", "netns:blue/eth0@2/4"] {
            assert_eq!(text.parse::<SourceName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn patterns_are_one_source() {
        for (text, in_netns, shown) in [
            ("any", false, "any"),
            ("vnet*", false, "vnet*"),
            ("eth?@2/4", false, "eth?"),
            ("netns:blue/any", true, "any"),
            ("veth0123456789a*", false, "veth0123456789a*"),
        ] {
            match text.parse() {
                Ok(SourceName::Pattern { ref netns, ref pattern, .. }) => {
                    assert_eq!((netns.is_some(), pattern.to_string()), (in_netns, shown.into()));
                }
                other => panic!("{text}: {other:?}"),
            }
            assert_eq!(text.parse::<SourceName>().unwrap().to_string(), text);
        }
        assert!("any@q0".parse::<SourceName>().unwrap_err().contains("one interface"));
        assert!("traces/*".parse::<SourceName>().is_err());
    }

    #[test]
    fn a_virtual_machine_is_its_taps() {
        for text in ["vm:web1", "vm:web1@2/4", "vm:my machine"] {
            let name: SourceName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
            let vm = text.trim_start_matches("vm:").trim_end_matches("@2/4");
            assert_eq!(name.vm().as_deref(), Some(vm));
            assert!(name.is_of_interfaces() && !name.is_in_other_netns());
        }
        assert_eq!("docker:web".parse::<SourceName>().unwrap().vm(), None);
        assert!("vm:".parse::<SourceName>().unwrap_err().contains("virsh list"));
        assert!("vm:web1@q0".parse::<SourceName>().unwrap_err().contains("one interface"));
    }

    #[test]
    fn containers_and_pods_are_named_with_and_without_an_interface() {
        for (text, netns, iface) in [
            ("docker:web", "docker:web", None),
            ("docker:web@2/4", "docker:web", None),
            ("docker:web/eth0", "docker:web", Some("eth0")),
            ("docker:3f2a91c0d7e4/eth0@q0", "docker:3f2a91c0d7e4", Some("eth0")),
            ("docker:web/any", "docker:web", Some("any")),
            ("pod:web", "pod:web", None),
            ("pod:default/web", "pod:default/web", None),
            ("pod:default/web/eth0@1/2", "pod:default/web", Some("eth0")),
            ("netns:4711/eth0", "netns:4711", Some("eth0")),
            ("netns:/proc/4711/ns/net/eth0@q1", "netns:/proc/4711/ns/net", Some("eth0")),
            ("netns:/run/docker/netns/3f2a/any", "netns:/run/docker/netns/3f2a", Some("any")),
        ] {
            let name: SourceName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
            assert_eq!(name.netns().unwrap().to_string(), netns, "{text}");
            match name {
                SourceName::Interface { iface: own, .. } => assert_eq!(Some(own.as_str()), iface),
                SourceName::Pattern { pattern, .. } => {
                    assert_eq!(pattern.is_all_but_loopback(), iface.is_none(), "{text}");
                }
                other => panic!("{other:?}"),
            }
        }
        let plain: SourceName = "/proc/4711/ns/net/eth0".parse().unwrap();
        assert_eq!(plain.to_string(), "netns:/proc/4711/ns/net/eth0");
        let all: SourceName = "docker:web@2/4".parse().unwrap();
        let (whole, part) = all.taken_apart();
        assert_eq!(whole.in_rings(part), "docker:web/*@2/4");
        for (bad, way) in [
            ("docker:", "`docker ps`"),
            ("docker:/eth0", "`docker ps`"),
            ("docker:web/", "cannot be an interface name"),
            ("docker:web/a/b", "cannot be an interface name"),
            ("docker:web@q0", "one interface"),
            ("pod:Web", "kubectl get pods"),
            ("pod:a/b/c/d", "cannot be an interface name"),
        ] {
            let error = bad.parse::<SourceName>().unwrap_err();
            assert!(error.contains(way), "{bad}: {error}");
        }
    }

    #[test]
    fn wrong_names_say_the_way_out() {
        for bad in [
            "",
            "a/b.pcap",
            "netns:eth0",
            "netns:/eth0",
            "host:",
            "eth0@",
            "eth0@2",
            "eth0@5/4",
            "eth0@q",
            "eth0@q-1",
        ] {
            assert!(bad.parse::<SourceName>().is_err(), "{bad}");
        }
        for (bad, way) in [
            ("eth0@3/2", "@1/2 to @2/2"),
            ("eth0@x", "@q2 for an RX queue"),
            ("eth0@1/x", "up to 1024"),
            ("eth0@if12", "leave out"),
            ("eth0@q-1", "@q0"),
            ("netns:blue/vnet[0-9]*", "? (one character)"),
            ("{eth0,eth1,eth2}", "several sources"),
            ("ether[0] & 1 = 0", "--filter"),
        ] {
            let error = bad.parse::<SourceName>().unwrap_err();
            assert!(error.contains(way), "{bad}: {error}");
        }
        assert!("trace/a.pcap".parse::<SourceName>().unwrap_err().contains("file:"));
    }
}
