//! The contents of the book, docs/SUMMARY.md. Dead links in it are found by the check of all pages (links.rs).

use std::collections::BTreeMap;

use super::links;

pub const CONTENTS: &str = "docs/SUMMARY.md";

/// Pages that the contents do not name exactly once.
pub fn not_once(pages: &BTreeMap<String, String>) -> Vec<String> {
    let contents = links::links(&pages[CONTENTS]);
    let named = |page: &str| {
        let is_it = |link: &&&str| links::resolved(CONTENTS, link).is_some_and(|it| it == page);
        contents.iter().filter(is_it).count()
    };
    let pages = pages.keys().filter(|&page| page != CONTENTS && links::is_installed(page));
    pages.filter(|&page| named(page) != 1).cloned().collect()
}
