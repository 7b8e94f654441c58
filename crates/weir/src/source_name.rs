//! Source names as they are typed.

use std::path::PathBuf;
use std::str::FromStr;

use crate::mistaken;

/// A source as it is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// An interface, in a network namespace by name or in this one.
    Interface {
        /// `ip netns` name.
        netns: Option<String>,
        /// Interface name.
        iface: String,
    },
    /// A capture file.
    File(PathBuf),
    /// Frames made in memory: the text behind `gen:`.
    Gen(String),
    /// A port of DPDK's: the device with its arguments, which is the text behind `dpdk:`.
    Dpdk(String),
}

impl FromStr for SourceName {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceName, String> {
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(SourceName::File(path.into()));
        }
        if let Some(spec) = text.strip_prefix("gen:") {
            return Ok(SourceName::Gen(spec.to_owned()));
        }
        if let Some(device) = text.strip_prefix("dpdk:") {
            return Ok(SourceName::Dpdk(device.to_owned()));
        }
        for later in ["vm:", "docker:", "host:"] {
            if text.starts_with(later) {
                return Err(format!("{later} sources are not in this release; name the interface"));
            }
        }
        let (netns, iface) = match text.strip_prefix("netns:") {
            None => (None, text),
            Some(rest) => match rest.split_once('/') {
                Some((netns, iface)) if !netns.is_empty() => (Some(netns.to_owned()), iface),
                _ => return Err(format!("'{text}': write netns:NAME/IFACE")),
            },
        };
        if iface.contains('@') {
            return Err("queues and shards (@q2, @2/4) are not in this release".into());
        }
        // IFNAMSIZ is 16 with the terminating zero; the kernel forbids slashes and white space.
        let valid = (1..16).contains(&iface.len())
            && !iface.contains(|c: char| c == '/' || c.is_whitespace());
        if !valid && netns.is_none() {
            if let Some(hint) = mistaken::file_hint(text) {
                return Err(hint);
            }
            if let Some(hint) = mistaken::address_hint(text) {
                return Err(hint);
            }
            if text.trim().contains(char::is_whitespace) {
                return Err(mistaken::filter_hint(text.trim()));
            }
        }
        if !valid {
            return Err(format!(
                "'{iface}' cannot be an interface name (1 to 15 characters, no '/'); \
                 a capture file is file:PATH"
            ));
        }
        Ok(SourceName::Interface { netns, iface: iface.to_owned() })
    }
}

impl std::fmt::Display for SourceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SourceName::Interface { netns: None, iface } => f.write_str(iface),
            SourceName::Interface { netns: Some(netns), iface } => {
                write!(f, "netns:{netns}/{iface}")
            }
            SourceName::File(path) => write!(f, "file:{}", path.display()),
            SourceName::Gen(spec) => write!(f, "gen:{spec}"),
            SourceName::Dpdk(device) => write!(f, "dpdk:{device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are() {
        let iface = |netns: Option<&str>, iface: &str| SourceName::Interface {
            netns: netns.map(str::to_owned),
            iface: iface.to_owned(),
        };
        assert_eq!("eth0".parse(), Ok(iface(None, "eth0")));
        assert_eq!("netns:blue/eth0".parse(), Ok(iface(Some("blue"), "eth0")));
        assert_eq!("file:a/b.pcap".parse(), Ok(SourceName::File("a/b.pcap".into())));
        assert_eq!("gen:size=64".parse(), Ok(SourceName::Gen("size=64".into())));
        let device = "net_af_packet0,iface=eth0";
        assert_eq!(format!("dpdk:{device}").parse(), Ok(SourceName::Dpdk(device.into())));
    }

    #[test]
    fn wrong_names_say_the_way_out() {
        for bad in ["", "a/b.pcap", "netns:eth0", "netns:/eth0", "host:eth0", "eth0@q2"] {
            assert!(bad.parse::<SourceName>().is_err(), "{bad}");
        }
        assert!("trace/a.pcap".parse::<SourceName>().unwrap_err().contains("file:"));
    }
}
