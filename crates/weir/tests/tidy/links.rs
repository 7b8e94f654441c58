//! Links in the pages at the root and in docs: the files and headings that they name must exist, both in this tree and
//! where packages install the pages. Links to the web are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::tree::root;

/// Pages at the root. `packaging/stage.sh` installs them, and all of docs, with the same paths.
const AT_THE_ROOT: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

/// Pages at the root that are neither in packages under these names nor in the book.
const NOT_INSTALLED: [&str; 3] = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Whether the page is in packages and in the book.
pub fn is_installed(page: &str) -> bool {
    !NOT_INSTALLED.contains(&page)
}

/// Markdown pages by their paths from the root.
pub fn pages() -> BTreeMap<String, String> {
    let root = root();
    let mut names: Vec<String> =
        AT_THE_ROOT.iter().chain(&NOT_INSTALLED).map(|&name| name.to_owned()).collect();
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder)).expect("a folder").flatten() {
            let name = format!("{folder}/{}", entry.file_name().display());
            if entry.path().is_dir() {
                folders.push(name);
            } else if name.ends_with(".md") {
                names.push(name);
            }
        }
    }
    let read = |name: String| {
        let text = std::fs::read_to_string(root.join(&name)).expect("text");
        (name, text)
    };
    names.into_iter().map(read).collect()
}

/// Dead links, as `page: link`. `is_file`: whether a file with this path from the root exists.
pub fn dead(pages: &BTreeMap<String, String>, is_file: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut dead = BTreeSet::new();
    for (page, text) in pages {
        for link in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
            let target = if file.is_empty() { Some(page.clone()) } else { resolved(page, file) };
            let is_alive = target.is_some_and(|target| {
                let is_page =
                    pages.contains_key(&target) && (is_installed(&target) || !is_installed(page));
                let is_there = is_page || target.starts_with("docs/") && is_file(&target);
                let has =
                    |anchor| pages.get(&target).is_some_and(|text| anchors(text).contains(anchor));
                is_there && anchor.is_none_or(has)
            });
            if !is_alive {
                dead.insert(format!("{page}: {link}"));
            }
        }
    }
    dead
}

/// The path from the root that a link refers to; `None` if it leaves the tree.
pub fn resolved(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in Path::new(link).iter() {
        match part.to_str()? {
            "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Lines outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Targets of links `[text](target)`, except in code.
pub fn links(text: &str) -> Vec<&str> {
    let of_line = |line| {
        // The text between two backticks is code.
        let plain = str::split(line, '`').step_by(2);
        // A link's text may be code; then a plain part begins with `](`.
        plain
            .flat_map(|part: &str| part.split("](").skip(1))
            .filter_map(|rest| rest.split(')').next())
    };
    prose(text).flat_map(of_line).collect()
}

/// Anchors of a page's headings, as GitHub forms them: lower case, hyphens for spaces, no punctuation, and a number
/// after repeated ones.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    for heading in headings {
        let kept = |c: char| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        };
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let name: String = title.chars().filter_map(kept).collect();
        let mut numbered = name.clone();
        let mut number = 0;
        while !names.insert(numbered.clone()) {
            number += 1;
            numbered = format!("{name}-{number}");
        }
    }
    names
}
