//! docs/security.md: the tests that stand for threats are there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The page.
pub fn page() -> String {
    std::fs::read_to_string(root().join("docs/security.md")).expect("it is there")
}

/// Names of the tests of the tree: beside the code, and in `tests`.
pub fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let crates = std::fs::read_dir(root().join("crates")).expect("crates");
    let mut folders: Vec<_> = crates
        .flatten()
        .flat_map(|entry| [entry.path().join("src"), entry.path().join("tests")])
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                names.extend(tests_of(&std::fs::read_to_string(&path).expect("text")));
            }
        }
    }
    names
}

/// Names of the tests of a file: functions behind `#[test]`, with other attributes and comments between, also inside of
/// `proptest!`.
pub fn tests_of(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(name) = line.strip_prefix("fn ")
            && is_test
        {
            names.extend(name.split('(').next().map(str::to_owned));
            is_test = false;
        }
    }
    names
}

/// Tests that the table of threats names, of those that are nowhere.
pub fn missing(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let table = page.split("## Threats").nth(1).expect("a table of threats");
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let cells: Vec<&str> =
        rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next()).collect();
    assert!(cells.len() > 1, "the table of threats is empty");
    let names = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.filter(|name| !tests.contains(*name)).map(str::to_owned).collect()
}
