//! The help text about keys.

/// Keys and their actions.
pub const LINES: &[(&str, &str)] = &[
    ("1-4, Tab", "flows, talkers, protocols, losses"),
    ("arrows, PgUp, PgDn, End", "select a row: it stays selected wherever its flow moves"),
    ("Home", "the top row, whichever it is"),
    ("Enter", "the flow in full; the flows of a talker or a protocol"),
    ("/", "search in addresses, ports, protocols, interfaces, owners"),
    ("", "tcp 443: both; !udp: not; =80: a whole port, not 8080"),
    ("Esc", "clear the search, close what is open"),
    ("s, S, left, right", "sort by another column"),
    ("r", "reverse the order"),
    ("p, space", "pause: nothing moves; frames are counted nevertheless"),
    ("Ctrl-L", "draw the screen anew"),
    ("q, Ctrl-C", "end the run"),
];
