//! `weir --version` prints the version and the commit. The build script looks for the commit in several places.

use std::fs;
use std::path::Path;
use std::process::Command;

#[allow(dead_code, reason = "its main is cargo's")]
#[path = "../build.rs"]
mod build;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/weir")
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect(program);
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn of_this_checkout(args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root()).args(args).output().ok()?;
    (root().join(".git").exists() && output.status.success())
        .then(|| String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn the_version_names_the_commit() {
    let said = run(env!("CARGO_BIN_EXE_weir"), &["--version"]);
    assert_eq!(said, concat!("weir ", env!("WEIR_VERSION")));
    let rest = said.strip_prefix(concat!("weir ", env!("CARGO_PKG_VERSION"))).expect("the version");
    if option_env!("WEIR_COMMIT").is_none()
        && let Some(head) = of_this_checkout(&["rev-parse", "HEAD"])
    {
        assert_eq!(rest, format!(" ({})", &head[..12]));
    }
}

#[test]
fn the_commit_is_found_without_a_checkout() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("crates/weir");
    fs::create_dir_all(&manifest).unwrap();
    fs::create_dir(folder.path().join("packaging")).unwrap();
    assert_eq!(build::commit_of(&manifest), None);

    let checked_out = fs::read(root().join("packaging/commit")).expect("packaging/commit");
    fs::write(folder.path().join("packaging/commit"), checked_out).unwrap();
    if root().join(".git").exists() {
        assert_eq!(build::commit_of(&manifest), None, "no archive has filled it in");
    }
    // A `.git` that git cannot read does not count as a checkout.
    fs::write(folder.path().join(".git"), "gitdir: nowhere\n").unwrap();
    fs::write(folder.path().join("packaging/commit"), format!("{COMMIT}\n")).unwrap();
    assert_eq!(build::commit_of(&manifest).as_deref(), Some(&COMMIT[..12]));

    fs::remove_file(folder.path().join("packaging/commit")).unwrap();
    let package = format!("{{\n  \"git\": {{\n    \"sha1\": \"{COMMIT}\"\n  }}\n}}");
    fs::write(manifest.join(".cargo_vcs_info.json"), package).unwrap();
    assert_eq!(build::commit_of(&manifest).as_deref(), Some(&COMMIT[..12]));
}

#[test]
fn an_archive_has_the_commit_in_it() {
    let Some(head) = of_this_checkout(&["rev-parse", "HEAD"]) else { return };
    let archived = of_this_checkout(&["archive", "--format=tar", "HEAD", "packaging/commit"]);
    let archived = archived.expect("packaging/commit is committed");
    assert!(archived.contains(&head), "packaging/commit is not filled in: see .gitattributes");
}
