//! `WEIR_VERSION` for `weir --version`: the version and, where it can be told, the commit: `0.1.0 (39090c6a1b2c)`.
//!
//! A change that is not committed is not in it: cargo would have to run this script, and link `weir`, at every build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a commit: a fixed number, since what git calls short depends on how many objects it has.
const DIGITS: usize = 12;

fn main() {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let version = std::env::var("CARGO_PKG_VERSION").expect("set by cargo");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    let named = std::env::var("WEIR_COMMIT").ok().filter(|named| !named.is_empty());
    let version = match named.or_else(|| commit_of(&manifest)) {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo::rustc-env=WEIR_VERSION={version}");
}

/// The commit of the tree that has the crate in `manifest`: of a git checkout, of what `git archive` wrote, or of a
/// package that cargo made.
pub fn commit_of(manifest: &Path) -> Option<String> {
    // Not git's own search, which would find the checkout of whoever vendors this crate.
    if let Some(root) = manifest.ancestors().nth(2) {
        if root.join(".git").exists()
            && let Some(commit) = of_checkout(root)
        {
            return Some(commit);
        }
        if let Some(commit) = first_digits(&watched(&root.join("packaging/commit"))) {
            return Some(commit);
        }
    }
    let package = watched(&manifest.join(".cargo_vcs_info.json"));
    first_digits(package.split_once("\"sha1\": \"")?.1)
}

fn of_checkout(root: &Path) -> Option<String> {
    // The log of HEAD grows with each commit, even where the branch's own file is packed.
    let mut names = vec!["HEAD".to_owned(), "logs/HEAD".to_owned()];
    names.extend(git(root, &["symbolic-ref", "--quiet", "HEAD"]));
    for name in names {
        if let Some(path) = git(root, &["rev-parse", "--git-path", &name]) {
            watch(&root.join(path));
        }
    }
    first_digits(&git(root, &["rev-parse", "HEAD"])?)
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}

/// Has a change of the file run this script again. Not if it is not there: cargo would run it every time.
fn watch(path: &Path) -> bool {
    let exists = path.exists();
    if exists {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    exists
}

/// Text of a file that is watched; nothing if it is not there.
fn watched(path: &Path) -> String {
    if watch(path) { fs::read_to_string(path).unwrap_or_default() } else { String::new() }
}

/// None if `text` does not begin with a commit: `packaging/commit` of a checkout does not.
fn first_digits(text: &str) -> Option<String> {
    let digits = text.get(..DIGITS)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| digits.to_owned())
}
