//! docs/security.md: the tests that it names exist.

use std::collections::BTreeSet;

use super::tree::{root, rust_files};

/// The text of the page.
pub fn page() -> String {
    std::fs::read_to_string(root().join("docs/security.md")).expect("it is there")
}

/// Names of all tests in the tree, in `src` and in `tests`.
pub fn tests() -> BTreeSet<String> {
    rust_files(&["src", "tests"]).values().flat_map(|text| tests_of(text)).collect()
}

/// Names of a file's tests: the functions after `#[test]`, also inside `proptest!`. Other attributes and comments may
/// stand between.
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

/// Stages of tests/all.sh as the page names them: `stage:NAME`.
pub fn stages() -> BTreeSet<String> {
    let script = std::fs::read_to_string(root().join("tests/all.sh")).expect("it is there");
    let stage = |line: &str| {
        let (name, command) = line.trim().split_once(") stage ")?;
        // A stage that does not run by default is no evidence.
        let all = script.lines().find(|line| line.starts_with("stages=("))?;
        let is_run = all.trim_start_matches("stages=(").trim_end_matches(')').split(' ');
        (command.starts_with(name) && is_run.into_iter().any(|run| run == name))
            .then(|| format!("stage:{name}"))
    };
    script.lines().filter_map(stage).collect()
}

/// Tests that the table of threats names, but that do not exist.
pub fn missing(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let table = page.split("## Threats").nth(1).expect("a table of threats");
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let cells: Vec<&str> =
        rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next()).collect();
    assert!(cells.len() > 1, "the table of threats is empty");
    let names = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.filter(|name| !tests.contains(*name)).map(str::to_owned).collect()
}
