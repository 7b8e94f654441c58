//! docs/from-tcpdump.md contains every flag that `weir capture` has in common with tcpdump, and for each tool with a
//! table every flag in the help of that tool.

use std::collections::BTreeSet;
use std::process::Command;

use super::tree::{Tree, root};

/// The programs that have a table, and the version whose flags the table contains.
pub const TOOLS: [(&str, &str); 3] =
    [("tcpdump", "4.99."), ("dumpcap", "4.0."), ("netsniff-ng", "0.6.8")];

/// The text of the page.
pub fn page() -> String {
    std::fs::read_to_string(root().join("docs/from-tcpdump.md")).expect("it is there")
}

/// Short flags that the declarations of the command line contain.
pub fn flags(tree: &Tree) -> BTreeSet<String> {
    let files = ["capture", "input", "print", "rotate", "tcpdump_flags"];
    let declared = files.map(|file| &tree.files[format!("crates/weir/src/cli/{file}.rs").as_str()]);
    let letters = declared.iter().flat_map(|file| file.split("short = '").skip(1));
    letters.filter_map(|rest| rest.chars().next()).map(|letter| format!("-{letter}")).collect()
}

/// The output of a tool with `-h`; `None` if it cannot be run.
pub fn help(tool: &str) -> Option<String> {
    let output = Command::new(tool).arg("-h").output().ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(text(&output.stdout) + &text(&output.stderr))
}

/// Flags in a text, such as `-x` and `--long`. In `[-xyz]` each letter is a flag.
pub fn flags_in(text: &str) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for word in text.split(|c: char| c.is_whitespace() || "`,|<>()=".contains(c)) {
        let bare = word.trim_matches(['[', ']']);
        let letters = bare.strip_prefix('-').unwrap_or_default();
        if letters.strip_prefix('-').is_some_and(|name| name.starts_with(char::is_alphabetic)) {
            flags.insert(bare.to_owned());
        } else if letters.chars().count() == 1 && letters != "-" || word.starts_with("[-") {
            flags.extend(letters.chars().map(|letter| format!("-{letter}")));
        }
    }
    flags
}

/// Flags without a row in the tool's table.
pub fn missing(page: &str, tool: &str, flags: &BTreeSet<String>) -> Vec<String> {
    let table = page.split(&format!("\n## {tool}\n")).nth(1);
    let table = table.and_then(|rest| rest.split("\n## ").next());
    let rows = table.unwrap_or_else(|| panic!("no table of {tool}'s flags")).lines();
    let named: BTreeSet<String> =
        rows.filter_map(|row| row.split(" | ").next()).flat_map(flags_in).collect();
    flags.difference(&named).cloned().collect()
}
