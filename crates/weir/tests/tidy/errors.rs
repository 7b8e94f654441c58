//! Rule for the text of errors.

use std::collections::BTreeSet;

use super::tree::Tree;

/// Files with an error whose text contains that of its source: a program that prints the error and its sources would
/// print the source twice.
pub fn with_source_in_text(tree: &Tree) -> BTreeSet<String> {
    let found = tree.files.iter().filter(|(_, text)| has_source_in_text(text));
    found.map(|(path, _)| path.clone()).collect()
}

fn has_source_in_text(text: &str) -> bool {
    let variants = text.split("#[error(").skip(1);
    variants.filter_map(|variant| variant.split_once(")]\n")).any(|(shown, of)| {
        let first = of.lines().find(|line| !line.trim_start().starts_with("#[")).unwrap_or("");
        let is_source = first.contains("#[from]") || first.contains("#[source]");
        shown.contains("{source") || shown.contains("{0") && is_source
    })
}
