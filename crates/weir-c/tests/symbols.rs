//! The library exports exactly the symbols of `symbols.txt`, which are those that the header declares.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir as _;

/// Path of the library that was built for this test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libweir.so")
}

fn output(command: &mut Command) -> String {
    let output = command.env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn own(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn symbols_are_those_of_the_list_and_of_the_header() {
    let listed: BTreeSet<String> = own("symbols.txt").lines().map(str::to_owned).collect();
    let told = output(
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library()),
    );
    let exported = told.lines().filter_map(|line| line.split_once(" T "));
    let exported: BTreeSet<String> = exported.map(|(_, name)| name.to_owned()).collect();
    let versioned = listed.iter().map(|name| format!("{name}@@libweir.so.1")).collect();
    assert_eq!(exported, versioned);
    // Apart from the version itself, all symbols are functions.
    assert_eq!(told.lines().count(), listed.len() + 1, "{told}");

    // A function's name, followed by parameters: without them it is a mention in a comment, such as `weir_open()`.
    let header = own("include/weir.h");
    let code = header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code));
    let code: String = code.collect();
    let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('));
    let called = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    let mut declared: BTreeSet<String> =
        called.filter(|name| name.starts_with("weir_")).map(str::to_owned).collect();
    assert!(declared.remove("weir_default_options"), "it is inline");
    assert_eq!(declared, listed);
}

#[test]
fn programs_ask_for_it_by_its_soname() {
    let told = output(Command::new("readelf").arg("--dynamic").arg(library()));
    assert!(told.contains("Library soname: [libweir.so.1]"), "{told}");
}
