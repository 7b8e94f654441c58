//! Hints for mistyped command lines: filters, addresses and files in place of sources, and output files whose names
//! suggest another format.

use std::error::Error;
use std::net::IpAddr;
use std::path::Path;

use anyhow::anyhow;
use weir_capture::CaptureError;
use weir_probe::ProbeError;

use crate::error_words::words;
use crate::units::counted;

/// Words with which filters begin, without those for ATM, SS7 and pflog. Source: pcap-filter(7).
const FILTER_WORDS: [&str; 71] = [
    "aarp",
    "ah",
    "and",
    "arp",
    "atalk",
    "broadcast",
    "byte",
    "carp",
    "clnp",
    "csnp",
    "decnet",
    "dst",
    "esis",
    "esp",
    "ether",
    "fddi",
    "gateway",
    "geneve",
    "greater",
    "host",
    "icmp",
    "icmp6",
    "igmp",
    "igrp",
    "iih",
    "inbound",
    "ip",
    "ip6",
    "ipx",
    "isis",
    "iso",
    "l1",
    "l2",
    "lat",
    "len",
    "less",
    "link",
    "llc",
    "lsp",
    "mopdl",
    "moprc",
    "mpls",
    "multicast",
    "net",
    "netbeui",
    "not",
    "oam",
    "or",
    "outbound",
    "pim",
    "port",
    "portrange",
    "ppp",
    "pppoed",
    "pppoes",
    "proto",
    "protochain",
    "psnp",
    "radio",
    "rarp",
    "sca",
    "sctp",
    "snp",
    "src",
    "stp",
    "tcp",
    "tr",
    "udp",
    "vlan",
    "vrrp",
    "wlan",
];

/// Returns the hint for a filter in place of a source.
pub fn filter_hint(filter: &str) -> String {
    filter_hint_for("IFACE", filter)
}

/// Returns the same hint, with the names of the sources.
pub fn filter_hint_for(sources: &str, filter: &str) -> String {
    format!("a filter goes behind --filter: weir capture {sources} --filter '{filter}'")
}

/// Returns the hint for an address or a network in place of a source; `None` if the text is neither.
pub fn address_hint(text: &str) -> Option<String> {
    let filter = address_filter(text)?;
    Some(format!("an address is no source; {}", filter_hint(&filter)))
}

/// Returns the filter for an address or a network; `None` if the text is neither.
pub fn address_filter(text: &str) -> Option<String> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, n)| (a, Some(n)));
    address.parse::<IpAddr>().ok()?;
    let word = if length.is_some() { "net" } else { "host" };
    Some(format!("{word} {text}"))
}

/// Returns a note on an output file whose extension suggests classic pcap.
pub fn format_note(path: &Path) -> Option<String> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let classic = matches!(extension.as_str(), "pcap" | "cap" | "dmp");
    let name = path.display();
    classic.then(|| {
        format!(
            "{name}: is written as pcapng, which tcpdump and Wireshark read whatever its name; classic pcap is \
             made by: tcpdump -r {name} -w OTHER"
        )
    })
}

/// Returns a note on an output file whose extension suggests compression, which `--write FILE` does not have.
pub fn compression_note(path: &Path) -> Option<String> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let is_compressed = matches!(extension.as_str(), "gz" | "zst" | "lz4" | "xz" | "bz2");
    is_compressed.then(|| {
        format!(
            "{}: is written as pcapng without compression; compress it later, or record into a folder: --write DIR/ \
             --compress zstd",
            path.display()
        )
    })
}

/// Returns the hint for a file name without `file:`.
pub fn file_hint(name: &str) -> Option<String> {
    Path::new(name).is_file().then(|| format!("there is a file of that name: say file:{name}"))
}

/// Adds the sources that every user can capture to an error about missing capabilities. Returns other errors unchanged.
pub fn with_sources_of_all(error: anyhow::Error) -> anyhow::Error {
    if !error
        .chain()
        .any(|cause| matches!(capture_error(cause), Some(CaptureError::NoRights { .. })))
    {
        return error;
    }
    let text = words(&error);
    anyhow!(
        "{text}\nweir: every user can capture from file:TRACE.pcapng and gen:, and from host:NAME what a daemon \
         (`weir serve`, run by root) lets them read: `weir status` lists that"
    )
}

fn capture_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a CaptureError> {
    match cause.downcast_ref() {
        Some(ProbeError::Capture(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

/// Rewrites an error about the size of rings for -B and its unit, KiB, if -B was given.
pub fn with_size_as_given(error: anyhow::Error, kib: Option<u64>) -> anyhow::Error {
    let Some(kib) = kib else { return error };
    let (what, rings, bound) = match error.chain().find_map(capture_error) {
        Some(CaptureError::RingTooSmall { rings, least_mib, .. }) => {
            ("small: each ring needs 4 blocks of 1 MiB; use at least", rings, least_mib << 10)
        }
        Some(CaptureError::RingTooLarge { rings, most_mib, .. }) => {
            ("large: no ring can have more than 8 GiB; use at most", rings, most_mib << 10)
        }
        _ => {
            let text = words(&error);
            return match text.strip_prefix("--ring-size: ") {
                Some(rest) => anyhow!("-B {kib}: {rest}"),
                None => error,
            };
        }
    };
    anyhow!(
        "-B {kib}: {kib} KiB over {} (one per CPU) is too {what} -B {bound}, or leave -B out",
        counted(*rings, "ring")
    )
}

/// Returns the error text for two filters, one by a flag and one in the words after `behind`.
pub fn two_filters(by_flag: &str, flag: &str, words: &str, behind: &str) -> String {
    format!(
        "there are two filters, '{by_flag}' by {flag} and '{words}' behind {behind}; {}",
        joined(by_flag, words)
    )
}

/// Returns the error text for two filters, one by `--filter` and one by `--filter-file`.
pub fn two_filters_by_flags(filter: &str, of_file: &str) -> String {
    format!(
        "there are two filters, '{filter}' by --filter and '{of_file}' by --filter-file; {}",
        joined(filter, of_file)
    )
}

/// Returns the hint to join two filters.
fn joined(one: &str, other: &str) -> String {
    let joined = format!("({one}) and ({other})").replace('\n', " ");
    format!("frames that both take: --filter '{joined}'")
}

/// Returns whether the text is exactly one of the first words of filters.
pub fn is_filter_word(text: &str) -> bool {
    FILTER_WORDS.contains(&text)
}

/// Returns whether the text looks like the beginning of a filter. This includes a bare address: it is not a filter, but
/// its user means one.
pub fn begins_filter(text: &str) -> bool {
    let first = text.split(|c: char| c.is_whitespace() || c == '[').next().unwrap_or_default();
    let has_operators = text.starts_with(['(', '!']);
    is_filter_word(first)
        || has_operators
        || text.contains(char::is_whitespace)
        || address_filter(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_lacks_rights_is_told_what_needs_none() {
        let no_rights = || CaptureError::NoRights { what: "it".into(), needs: "CAP_NET_RAW" };
        for error in [no_rights().into(), ProbeError::Capture(no_rights()).into()] {
            let told = format!("{:#}", with_sources_of_all(error));
            for word in ["it needs CAP_NET_RAW", "file:", "gen:", "host:NAME", "weir status"] {
                assert!(told.contains(word), "not '{word}': {told}");
            }
        }
        let other = with_sources_of_all(ProbeError::Ended.into());
        assert_eq!(other.to_string(), "the source has ended");
    }

    #[test]
    fn addresses_are_filters_and_other_names_are_not() {
        for (text, filter) in [
            ("10.0.0.0/8", "'net 10.0.0.0/8'"),
            ("192.0.2.1", "'host 192.0.2.1'"),
            ("2001:db8::/32", "'net 2001:db8::/32'"),
        ] {
            let hint = address_hint(text).expect(text);
            assert!(hint.contains(filter) && hint.contains("weir capture IFACE"), "{hint}");
        }
        assert_eq!(address_hint("eth0/8"), None);
        assert_eq!(address_hint("trace/a.pcap"), None);
    }

    #[test]
    fn a_name_of_the_older_format_is_noted() {
        for name in ["a.pcap", "dir/A.PCAP", "a.cap"] {
            assert!(format_note(Path::new(name)).expect(name).contains(name));
        }
        for name in ["a.pcapng", "pcap", "-", "a"] {
            assert_eq!(format_note(Path::new(name)), None, "{name}");
        }
    }

    #[test]
    fn a_name_of_a_compressed_file_is_noted() {
        for name in ["a.pcapng.gz", "a.zst", "a.pcap.LZ4", "a.xz", "a.bz2"] {
            let note = compression_note(Path::new(name)).expect(name);
            assert!(note.contains(name) && note.contains("without compression"), "{note}");
        }
        for name in ["a.pcapng", "gz", "-", "a.pcap"] {
            assert_eq!(compression_note(Path::new(name)), None, "{name}");
        }
    }
}
