//! Limits for the length of files and lines.

use std::collections::BTreeSet;

use super::tree::{Tree, before_tests};

const LINES_MAX: usize = 400;
const CHARS_MAX: usize = 120;

/// Files with too many lines before their tests.
pub fn long(tree: &Tree) -> BTreeSet<String> {
    let is_long = |path: &str, text: &str| before_tests(path, text).lines().count() > LINES_MAX;
    let long = tree.files.iter().filter(|(path, text)| is_long(path, text));
    long.map(|(path, _)| path.clone()).collect()
}

/// Files with lines that are too long.
pub fn wide(tree: &Tree) -> BTreeSet<String> {
    let is_wide = |text: &str| text.lines().any(|line| line.chars().count() > CHARS_MAX);
    let wide = tree.files.iter().filter(|(_, text)| is_wide(text));
    wide.map(|(path, _)| path.clone()).collect()
}
