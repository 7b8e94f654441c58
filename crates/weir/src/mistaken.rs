//! Sources that were meant otherwise: filters, files without `file:`, tcpdump's `any`.

use std::path::Path;

use anyhow::{Result, bail};
use weir_capture::CaptureError;
use weir_capture::iface::Asker;

use crate::source_name::SourceName;

/// Words that filters begin with. Source: pcap-filter(7).
const FILTER_WORDS: [&str; 27] = [
    "and",
    "arp",
    "broadcast",
    "dst",
    "ether",
    "greater",
    "host",
    "icmp",
    "icmp6",
    "inbound",
    "ip",
    "ip6",
    "less",
    "mpls",
    "multicast",
    "net",
    "not",
    "or",
    "outbound",
    "port",
    "portrange",
    "proto",
    "rarp",
    "sctp",
    "src",
    "tcp",
    "udp",
];

/// What to say of text with blanks, which no interface's name has.
pub fn filter_hint(filter: &str) -> String {
    format!(
        "filters are not in this release; let tcpdump filter: \
         weir capture IFACE --write - | tcpdump -r - '{filter}'"
    )
}

/// What to say of a file that is named like an interface.
pub fn file_hint(name: &str) -> Option<String> {
    Path::new(name).is_file().then(|| format!("there is a file of that name: say file:{name}"))
}

/// Refuses what is no interface and looks like something else.
pub fn check(sources: &[SourceName]) -> Result<()> {
    for (at, source) in sources.iter().enumerate() {
        let SourceName::Interface { netns: None, iface } = source else { continue };
        if !matches!(Asker::new()?.find(iface), Err(CaptureError::NoInterface { .. })) {
            continue;
        }
        if iface == "any" {
            bail!("there is no 'any'; list several sources: weir capture eth0 eth1 lo");
        }
        if let Some(hint) = file_hint(iface) {
            bail!("{iface}: no such interface here, but {hint}");
        }
        if at > 0 && is_filter_word(iface) {
            let rest = sources[at..].iter().map(SourceName::to_string).collect::<Vec<_>>();
            bail!("{iface}: no such interface here; {}", filter_hint(&rest.join(" ")));
        }
    }
    Ok(())
}

fn is_filter_word(name: &str) -> bool {
    FILTER_WORDS.contains(&name)
}
