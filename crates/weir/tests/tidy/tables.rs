//! Rules for the tables of limits and losses in ARCHITECTURE.md.

use std::collections::BTreeSet;

use super::tree::{Tree, before_tests};

/// Limits in files named `limits.rs` that are missing from the table.
pub fn limits_missing(tree: &Tree) -> BTreeSet<String> {
    let table = tree.architecture.split("## Limits").nth(1).unwrap_or_default();
    let table = table.split("\n## ").next().unwrap_or_default();
    let limits = tree.files.iter().filter(|(path, _)| path.ends_with("/limits.rs"));
    let names = limits.flat_map(|(_, text)| {
        text.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next())
    });
    let bounds = names.filter(|name| name.ends_with("_MAX") || name.ends_with("_MIN"));
    bounds.filter(|name| !table.contains(&format!("`{name}`"))).map(str::to_owned).collect()
}

/// Public limits that are not in a `limits.rs`. Private limits are part of an algorithm and stay in its file.
pub fn limits_elsewhere(tree: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| !path.ends_with("/limits.rs")) {
        let public = before_tests(path, text)
            .lines()
            .filter_map(|line| line.strip_prefix("pub const ")?.split(':').next());
        let limits = public.filter(|name| name.ends_with("_MAX") || name.ends_with("_MIN"));
        found.extend(limits.map(|name| format!("{path}: {name}")));
    }
    found
}

/// Drop counters that ARCHITECTURE.md does not name.
pub fn drops_missing(tree: &Tree) -> BTreeSet<String> {
    let mut missing = BTreeSet::new();
    for (path, text) in &tree.files {
        // The lab takes drop counters from reports of other tools.
        if path.starts_with("crates/weir-lab/") {
            continue;
        }
        for (at, start) in before_tests(path, text).match_indices("drops.insert(") {
            let argument = text[at + start.len()..].trim_start();
            let name = argument.strip_prefix('"').and_then(|name| name.split('"').next());
            let name = name.unwrap_or("a counter whose name is no literal");
            if !tree.architecture.contains(&format!("`drops.{name}`")) {
                missing.insert(name.to_owned());
            }
        }
    }
    missing
}
