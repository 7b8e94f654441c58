//! Names of types whose meaning a reader has to guess, and doc comments that begin with "What" instead of a noun.

use std::collections::BTreeSet;

use super::tree::{Tree, before_tests};

/// Names that do not say what the type is.
const GUESSES: [&str; 14] = [
    "Asker", "Fan", "Holder", "Home", "Mail", "News", "Outlet", "Outlets", "Ran", "Rest", "Room",
    "Rope", "Told", "Wish",
];
const KINDS: [&str; 5] = ["struct ", "enum ", "trait ", "type ", "union "];

/// `PATH: NAME` of each type with one of these names.
pub fn guesses(tree: &Tree) -> BTreeSet<String> {
    let of_file = |(path, text): (&String, &String)| {
        let names = text.lines().filter_map(type_name).filter(|name| GUESSES.contains(name));
        names.map(|name| format!("{path}: {name}")).collect::<Vec<_>>()
    };
    tree.files.iter().flat_map(of_file).collect()
}

/// The name of the type whose definition begins on a line.
fn type_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1,
        None => line,
    };
    let name = KINDS.iter().find_map(|kind| line.strip_prefix(kind))?;
    name.split(|letter: char| !letter.is_alphanumeric()).next()
}

/// Files with a doc comment that begins with "What". The command line's files are exempt: theirs is the help text.
pub fn without_noun(tree: &Tree) -> BTreeSet<String> {
    let begins = |line: &str| {
        let line = line.trim_start();
        ["/// What ", "//! What "].iter().any(|start| line.starts_with(start))
    };
    let files = tree.files.iter().filter(|(path, _)| !path.starts_with("crates/weir/src/cli/"));
    let found = files.filter(|(path, text)| before_tests(path, text).lines().any(begins));
    found.map(|(path, _)| path.clone()).collect()
}
