//! The sources of this repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Source files by their path from the root, and the text of ARCHITECTURE.md.
pub struct Tree {
    pub files: BTreeMap<String, String>,
    pub architecture: String,
}

impl Tree {
    /// A tree with made-up files.
    pub fn of(files: &[(&str, &str)], architecture: &str) -> Tree {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Tree { files: files.collect(), architecture: architecture.to_owned() }
    }
}

/// The root of this tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Rust files in these folders of each crate, by their paths from the root.
pub fn rust_files(parts: &[&str]) -> BTreeMap<String, String> {
    let (root, mut files) = (root(), BTreeMap::new());
    let crates = std::fs::read_dir(root.join("crates")).expect("crates");
    let of_crate = |entry: std::fs::DirEntry| parts.iter().map(move |part| entry.path().join(part));
    let mut folders: Vec<_> = crates.flatten().flat_map(of_crate).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).expect("inside").display().to_string();
                files.insert(name, std::fs::read_to_string(&path).expect("text"));
            }
        }
    }
    files
}

/// The sources of this repository, `crates/*/src`.
pub fn tree() -> Tree {
    let (root, files) = (root(), rust_files(&["src"]));
    assert!(files.len() > 100, "the tree is not where it was");
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("it is there");
    Tree { files, architecture }
}

/// The text of a file before its tests, which are at its end; empty for a file of tests.
pub fn before_tests<'a>(path: &str, text: &'a str) -> &'a str {
    if path.ends_with("/tests.rs") || path.ends_with("_tests.rs") {
        return "";
    }
    let modules = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test, not(loom)))]\nmod "];
    let end = modules.iter().filter_map(|start| text.find(start)).min();
    let end = end.or(text.starts_with("#[cfg(test)]").then_some(0));
    &text[..end.unwrap_or(text.len())]
}
