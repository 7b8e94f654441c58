//! Dependencies comply with deny.toml, as `cargo deny check licenses bans sources` would check. These tests need no
//! tool except cargo, so they are part of every test run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The licences, duplicate crates and registries that deny.toml allows.
struct Rules {
    licenses: BTreeSet<String>,
    skipped: BTreeSet<String>,
    registries: BTreeSet<String>,
}

struct Package {
    name: String,
    version: String,
    license: String,
    source: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rules() -> Rules {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let table: toml::Table = text.parse().expect("TOML");
    let list = |part: &str, key: &str| table[part][key].as_array().expect("a list").clone();
    let texts = |part, key| {
        list(part, key).iter().map(|it| it.as_str().expect("text").to_owned()).collect()
    };
    let skip = |it: &toml::Value| {
        assert!(it["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{it:?}");
        it["crate"].as_str().expect("a crate").to_owned()
    };
    Rules {
        licenses: texts("licenses", "allow"),
        skipped: list("bans", "skip").iter().map(skip).collect(),
        registries: texts("sources", "allow-registry"),
    }
}

/// The packages that builds and tests on this machine need. Crates for other systems may not have been fetched.
fn metadata() -> Vec<Value> {
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(root()).output().expect(program);
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {says}");
        String::from_utf8(output.stdout).expect("text")
    };
    let version = run("rustc", &["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let metadata = ["metadata", "--offline", "--locked", "--format-version", "1"];
    let args = [&metadata[..], &["--filter-platform", host]].concat();
    let metadata: Value = serde_json::from_str(&run(env!("CARGO"), &args)).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn packages() -> Vec<Package> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let package = |it: &Value| Package {
        name: text(&it["name"]).expect("a name"),
        version: text(&it["version"]).expect("a version"),
        license: text(&it["license"]).unwrap_or_default(),
        source: text(&it["source"]),
    };
    metadata().iter().map(package).collect()
}

/// Whether the allowed licences satisfy a licence expression. `AND` binds more tightly than `OR`; `/` is an old form
/// of `OR`.
/// Source: SPDX 2.3, annex D.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = &words[..];
    any(&mut words, allowed) && words.is_empty()
}

fn any(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = all(words, allowed);
    while let Some(rest) = words.strip_prefix(&["OR"]) {
        *words = rest;
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, allowed);
    while let Some(rest) = words.strip_prefix(&["AND"]) {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let Some((&first, rest)) = words.split_first() else { return false };
    *words = rest;
    if first == "(" {
        let met = any(words, allowed);
        let Some(rest) = words.strip_prefix(&[")"]) else { return false };
        *words = rest;
        return met;
    }
    // A licence with an exception has to be allowed as such, as in cargo-deny.
    if let [with @ "WITH", exception, rest @ ..] = words {
        let name = format!("{first} {with} {exception}");
        *words = rest;
        return allowed.contains(&name);
    }
    allowed.contains(first)
}

/// `NAME@VERSION` of crates that are used in several versions, except the newest version of each.
fn older_duplicates(packages: &[Package]) -> BTreeSet<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let number = |version: &str| -> Vec<u64> {
        version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
    };
    let older = |(name, mut versions): (&str, Vec<&str>)| {
        versions.sort_by_key(|version| number(version));
        versions.pop();
        versions.iter().map(|version| format!("{name}@{version}")).collect::<Vec<_>>()
    };
    versions.into_iter().flat_map(older).collect()
}

#[test]
fn licences_of_dependencies_are_allowed() {
    let (packages, rules) = (packages(), rules());
    assert!(packages.len() > 100, "cargo names only {} packages", packages.len());
    let refused = |allowed: &BTreeSet<String>| -> Vec<String> {
        let refused = packages.iter().filter(|it| !is_met(&it.license, allowed));
        refused.map(|it| format!("{} {}: '{}'", it.name, it.version, it.license)).collect()
    };
    let found = refused(&rules.licenses);
    assert!(found.is_empty(), "licences that deny.toml does not allow: {found:#?}");
    for license in &rules.licenses {
        let mut others = rules.licenses.clone();
        others.remove(license);
        assert!(!refused(&others).is_empty(), "no crate needs {license}: take it off deny.toml");
    }
}

#[test]
fn no_dependency_is_there_twice_without_a_reason() {
    let (found, skipped) = (older_duplicates(&packages()), rules().skipped);
    let new: Vec<_> = found.difference(&skipped).collect();
    assert!(new.is_empty(), "in several versions, and not in deny.toml: {new:?}");
    let gone: Vec<_> = skipped.difference(&found).collect();
    assert!(gone.is_empty(), "no duplicates any more, so take them off deny.toml: {gone:?}");
}

#[test]
fn dependencies_come_from_allowed_registries() {
    let registries = rules().registries;
    for package in packages() {
        // A package without a source is in this tree.
        let Some(source) = &package.source else {
            assert!(package.name.starts_with("weir"), "{} is in a folder", package.name);
            continue;
        };
        let registry = source.strip_prefix("registry+");
        let is_allowed = registry.is_some_and(|it| registries.contains(it));
        assert!(is_allowed, "{} {} is from {source}", package.name, package.version);
    }
}

/// Each package has to contain the text of its licences.
#[test]
fn crates_have_what_a_registry_shows_and_their_licences() {
    let metadata = metadata();
    let ours: Vec<_> = metadata.iter().filter(|it| it["source"].is_null()).collect();
    assert!(ours.len() > 20, "cargo names only {} crates of this tree", ours.len());
    for package in ours {
        let name = package["name"].as_str().expect("a name");
        for key in ["description", "license", "readme", "rust_version"] {
            assert!(package[key].as_str().is_some_and(|it| !it.is_empty()), "{name}: no {key}");
        }
        for key in ["keywords", "categories"] {
            assert!(package[key].as_array().is_some_and(|it| !it.is_empty()), "{name}: no {key}");
        }
        for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let text = std::fs::read(root().join("crates").join(name).join(license));
            let same = std::fs::read(root().join(license)).expect(license);
            assert!(
                text.is_ok_and(|text| text == same),
                "{name}: no {license}: it is a link to the root's"
            );
        }
    }
}

#[test]
fn licence_expressions_are_understood() {
    let allowed: BTreeSet<String> = ["MIT", "ISC"].map(str::to_owned).into();
    for (expression, met) in [
        ("MIT", true),
        ("Apache-2.0/MIT", true),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only AND MIT", false),
        ("MIT OR GPL-3.0-only AND GPL-2.0-only", true),
        ("(MIT OR GPL-3.0-only) AND GPL-2.0-only", false),
        ("(GPL-3.0-only OR MIT) AND ISC", true),
        ("MIT WITH LLVM-exception", false),
        ("MIT WITH LLVM-exception OR ISC", true),
        ("(MIT", false),
        ("MIT MIT", false),
        ("", false),
    ] {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}

#[test]
fn older_versions_are_found() {
    let package = |(name, version): (&str, &str)| Package {
        name: name.to_owned(),
        version: version.to_owned(),
        license: String::new(),
        source: None,
    };
    let packages = [("a", "0.10.0"), ("a", "0.9.1"), ("b", "1.0.0"), ("a", "0.2.3+x")].map(package);
    let found: Vec<_> = older_duplicates(&packages).into_iter().collect();
    assert_eq!(found, ["a@0.2.3+x", "a@0.9.1"]);
}
