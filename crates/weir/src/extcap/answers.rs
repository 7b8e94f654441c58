//! Output in extcap's syntax: one sentence per line, with values in braces.

use std::fmt::Write;
use std::path::Path;

use weir_client::protocol::Source;

use super::{PREFIX, STORED};

const HELP: &str = "https://www.wireshark.org/docs/wsdg_html_chunked/ChCaptureExtcap.html";

pub(super) fn version() -> String {
    format!("extcap {{version={}}}{{help={HELP}}}\n", env!("CARGO_PKG_VERSION"))
}

pub(super) fn interfaces(sources: &[Source]) -> String {
    // A brace would end the value.
    let shown = sources.iter().filter(|source| !source.source.contains(['{', '}']));
    let sentence = |Source { source, .. }: &Source| {
        format!("interface {{value={PREFIX}{source}}}{{display=Weir: {source} of this host}}\n")
    };
    shown.map(sentence).collect()
}

pub(super) fn stored_interface() -> String {
    format!("interface {{value={}}}{{display=Weir: stored traffic}}\n", STORED)
}

/// Returns the sentence for the link type. extcap requires the DLT value, which differs from the LINKTYPE value of
/// files for raw IP.
pub(super) fn link_types(link_type: u16) -> String {
    let (number, name, display) = match link_type {
        1 => (1, "EN10MB".to_owned(), "Ethernet".to_owned()),
        101 => (12, "RAW".to_owned(), "Raw IP".to_owned()),
        other => (other, format!("LINKTYPE_{other}"), format!("link type {other}")),
    };
    format!("dlt {{number={number}}}{{name={name}}}{{display={display}}}\n")
}

/// Returns the options of a source for Wireshark's dialog; `snaplen_max` is the daemon's limit.
pub(super) fn options(snaplen_max: u32, socket: &Path) -> String {
    let mut text = String::new();
    let mut argument = |number: u32, call: &str, display: &str, tooltip: &str, rest: &str| {
        // Writing into memory cannot fail.
        let _ = writeln!(
            text,
            "arg {{number={number}}}{{call=--{call}}}{{display={display}}}{{tooltip={tooltip}}}{rest}"
        );
    };
    let range = format!("{{type=unsigned}}{{range=1,{snaplen_max}}}{{default={snaplen_max}}}");
    argument(0, "snaplen", "Bytes of a frame", "Most bytes kept of a frame", &range);
    argument(1, "direction", "Direction", "As seen from the host", "{type=selector}{default=both}");
    argument(
        2,
        "part",
        "Part of the source",
        "2/4: the second of four shards by flow; q2: an RX queue; empty: all",
        r"{type=string}{validation=^(q[0-9]+|[0-9]+/[0-9]+)?$}",
    );
    let count = "{type=unsigned}{range=1,4294967295}{default=1}";
    argument(3, "sample-frames", "One frame in", "Keep one frame in N; 1 keeps all", count);
    let of_flow = "Keep all frames of one flow in N; 1 keeps all flows";
    argument(4, "sample-flows", "One flow in", of_flow, count);
    let kind = format!("{{type=string}}{}", default_of(&socket.display().to_string()));
    argument(5, "socket", "Socket", "Where the daemon listens", &kind);
    for (value, display, is_default) in
        [("both", "received and sent", true), ("in", "received", false), ("out", "sent", false)]
    {
        let _ = writeln!(
            text,
            "value {{arg=1}}{{value={value}}}{{display={display}}}{{default={is_default}}}"
        );
    }
    text
}

/// Returns the options for recorded files. `stores` is the default of the directories, `from` is the default of the
/// start time.
pub(super) fn stored_options(stores: &str, from: &str) -> String {
    let dirs = "Directories of recordings, separated by colons";
    let from_when =
        "2026-11-26 09:27, 09:27:19, -5m (five minutes ago); all: from the first frame on";
    let to_when = "Frames before this time; empty: to the last frame";
    let flow = "A Community ID (1:...), or @FILE with a line of weir flows --json; empty: all";
    [
        ("dirs", "Directories", dirs, stores),
        ("from", "From", from_when, from),
        ("to", "To", to_when, ""),
        ("flow", "Flow", flow, ""),
    ]
    .iter()
    .enumerate()
    .map(|(number, (call, display, tooltip, default))| {
        let default = default_of(default);
        let call = format!("{{number={number}}}{{call=--{call}}}");
        format!("arg {call}{{display={display}}}{{tooltip={tooltip}}}{{type=string}}{default}\n")
    })
    .collect()
}

/// Returns this value as a default; nothing for an empty one, and for one with a brace, which would end the value.
fn default_of(value: &str) -> String {
    match value.is_empty() || value.contains(['{', '}']) {
        true => String::new(),
        false => format!("{{default={value}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_break_a_sentence_are_left_out() {
        let source = |name: &str| Source { source: name.into(), snaplen: 64, link_type: 1 };
        let text = interfaces(&[source("a}{value=b"), source("lan")]);
        assert_eq!(text, "interface {value=host:lan}{display=Weir: lan of this host}\n");
    }

    #[test]
    fn stored_traffic_has_four_fields_and_no_default_that_breaks_a_sentence() {
        let text = stored_options("/a:/b", "-5m");
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("{type=string}{default=/a:/b}\n"), "{text}");
        assert!(text.contains("{default=-5m}\n"), "{text}");
        assert!(!stored_options("/a}{b", "-5m").contains("/a"));
    }

    #[test]
    fn raw_ip_has_the_number_that_wireshark_knows() {
        assert_eq!(link_types(101), "dlt {number=12}{name=RAW}{display=Raw IP}\n");
        assert!(link_types(276).contains("{number=276}"));
    }
}
