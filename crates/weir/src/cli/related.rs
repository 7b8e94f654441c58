//! Pages to read after the page of a verb: for the section SEE ALSO of its man page.

/// Pages by the words after `weir`; the empty text stands for `weir` itself.
const RELATED: [(&str, &[&str]); 16] = [
    ("", &["tcpdump(8)", "pcap-filter(7)"]),
    (
        "capture",
        &[
            "weir-extract(1)",
            "weir-flows(1)",
            "weir-serve(1)",
            "weir-doctor(1)",
            "tcpdump(8)",
            "pcap-filter(7)",
        ],
    ),
    (
        "serve",
        &["weir-status(1)", "weir-capture(1)", "weir-attach(1)", "weir-run(1)", "weir-vm(1)"],
    ),
    ("guest", &["weir-vm(1)", "weir-status(1)", "weir-capture(1)"]),
    ("status", &["weir-serve(1)", "weir-guest(1)", "weir-capture(1)"]),
    ("vm", &["weir-guest(1)", "weir-serve(1)"]),
    ("run", &["weir-attach(1)", "weir-serve(1)"]),
    ("extract", &["weir-capture(1)", "weir-index(1)", "weir-flows(1)", "pcap-filter(7)"]),
    ("index", &["weir-extract(1)", "weir-capture(1)"]),
    ("flows", &["weir-capture(1)", "weir-extract(1)", "pcap-filter(7)"]),
    ("attach", &["weir-run(1)", "weir-serve(1)"]),
    ("filter", &["weir-capture(1)", "weir-block(1)", "pcap-filter(7)"]),
    ("trigger", &["weir-capture(1)", "weir-extract(1)"]),
    ("block", &["weir-capture(1)", "weir-filter(1)"]),
    ("gen", &["weir-capture(1)", "weir-lab(1)"]),
    ("doctor", &["weir-capture(1)"]),
];

/// Returns the pages related to a verb, other than those of its parts.
pub fn related_pages(verb: &str) -> &'static [&'static str] {
    RELATED.iter().find(|(of, _)| *of == verb).map_or(&[], |(_, pages)| pages)
}
