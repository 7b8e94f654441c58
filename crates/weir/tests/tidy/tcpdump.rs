//! docs/from-tcpdump.md has every flag of tcpdump that `weir capture` takes or answers.

use std::collections::BTreeSet;

use super::tree::{Tree, root};

/// The page.
pub fn page() -> String {
    std::fs::read_to_string(root().join("docs/from-tcpdump.md")).expect("it is there")
}

/// Letters of tcpdump's flags in the command line's declarations.
pub fn flags(tree: &Tree) -> BTreeSet<char> {
    let files = ["capture", "input", "print", "rotate", "tcpdump_flags"];
    let declared = files.map(|file| &tree.files[format!("crates/weir/src/cli/{file}.rs").as_str()]);
    let letters = declared.iter().flat_map(|file| file.split("short = '").skip(1));
    letters.filter_map(|rest| rest.chars().next()).collect()
}

/// Flags without a row in the page's first table of flags.
pub fn missing(page: &str, flags: &BTreeSet<char>) -> Vec<String> {
    let table = page.split("\n## tcpdump\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = table.expect("a table of tcpdump's flags").lines();
    let firsts: Vec<&str> = rows.filter_map(|row| row.split(" | ").next()).collect();
    let has = |flag: &String| firsts.iter().any(|cell| cell.contains(flag.as_str()));
    let named = flags.iter().map(|letter| format!("`-{letter}"));
    named.filter(|flag| !has(flag)).collect()
}
