//! Rules for the source tree and its pages: limits for files and lines, no circular modules, complete tables, working
//! links. Exceptions are listed in tidy/exceptions.rs. An exception that is no longer needed fails as well, so the
//! lists can only shrink.

mod tidy {
    pub mod book;
    pub mod circles;
    pub mod errors;
    pub mod exceptions;
    pub mod links;
    pub mod plain_names;
    pub mod security;
    pub mod sizes;
    pub mod tables;
    pub mod tcpdump;
    pub mod tree;
}

use std::collections::BTreeSet;

use tidy::exceptions::{CIRCLES, LONG_FILES, WIDE_FILES};
use tidy::tree::{Tree, tree};
use tidy::{book, circles, errors, links, plain_names, security, sizes, tables, tcpdump};

/// Passes if the findings are exactly the listed exceptions.
fn only_exceptions(rule: &str, found: &BTreeSet<String>, exceptions: &[&str]) {
    let named: BTreeSet<String> = exceptions.iter().map(|&name| name.to_owned()).collect();
    let new: Vec<_> = found.difference(&named).collect();
    assert!(new.is_empty(), "{rule}: {new:#?}");
    let gone: Vec<_> = named.difference(found).collect();
    assert!(gone.is_empty(), "{rule} no more, so take them off tidy/exceptions.rs: {gone:#?}");
}

#[test]
fn files_are_easy_to_hold() {
    only_exceptions("longer than 400 lines before tests", &sizes::long(&tree()), LONG_FILES);
}

#[test]
fn lines_fit_a_screen() {
    only_exceptions("has lines wider than 120 characters", &sizes::wide(&tree()), WIDE_FILES);
}

#[test]
fn the_text_of_an_error_leaves_its_source_to_the_caller() {
    only_exceptions("errors that print their source", &errors::with_source_in_text(&tree()), &[]);
}

#[test]
fn names_and_doc_comments_say_what_they_are_for() {
    only_exceptions("names that a reader has to guess", &plain_names::guesses(&tree()), &[]);
    only_exceptions("doc comments without a noun", &plain_names::without_noun(&tree()), &[]);
    let text =
        "/// What it is.\npub(crate) enum Told<T> {}\nstruct Restart;\n    type News = u8;\n";
    let planted = Tree::of(&[("a.rs", text), ("b.rs", "/// Counters of one feed.\n")], "");
    let found: Vec<String> = plain_names::guesses(&planted).into_iter().collect();
    assert_eq!(found, ["a.rs: News", "a.rs: Told"]);
    assert_eq!(plain_names::without_noun(&planted), BTreeSet::from(["a.rs".to_owned()]));
}

#[test]
fn modules_are_in_no_circle() {
    only_exceptions("in a circle of modules", &circles::circles(&tree()), CIRCLES);
}

#[test]
fn every_limit_stands_in_the_architecture() {
    let missing = tables::limits_missing(&tree());
    assert!(missing.is_empty(), "not in ARCHITECTURE.md's table of limits: {missing:?}");
}

#[test]
fn limits_stand_in_one_file_of_a_crate() {
    only_exceptions("limits outside limits.rs", &tables::limits_elsewhere(&tree()), &[]);
}

#[test]
fn every_drop_counter_stands_in_the_architecture() {
    let missing = tables::drops_missing(&tree());
    assert!(missing.is_empty(), "not in ARCHITECTURE.md's table of losses: {missing:?}");
}

#[test]
fn every_test_of_the_threat_model_exists() {
    let (mut known, stages) = (security::tests(), security::stages());
    assert!(stages.contains("stage:lint") && !stages.contains("stage:*"), "{stages:?}");
    known.extend(stages);
    let missing = security::missing(&security::page(), &known);
    assert!(missing.is_empty(), "docs/security.md names tests that are nowhere: {missing:?}");
    let planted =
        "## Threats\n| threat | test |\n| a | `no_such_test`, `planted_is_here`, `stage:no` |\n";
    let known = security::tests_of("    #[test]\n    fn planted_is_here() {\n fn no_such_test() {");
    assert_eq!(security::missing(planted, &known), ["no_such_test", "stage:no"]);
}

#[test]
fn every_link_leads_somewhere() {
    let root = tidy::tree::root();
    let pages = links::pages();
    assert!(pages.len() > 60, "the pages are not where they were");
    only_exceptions("dead links", &links::dead(&pages, |path| root.join(path).is_file()), &[]);

    let planted = [
        (
            "README.md",
            "[a](docs/a.md#a-b-c-d) [b](docs/b.md) [c](#x) [`d`](docs/a.md#no) [e](Makefile)\n```\n[f](f)\n```\n",
        ),
        (
            "docs/a.md",
            "# A b: `c` (d)\n## A\n## A\n[g](#a-1) `[h](h)` [i](../README.md) [j](https://x) [k](p.png) [l](../../l)\n",
        ),
    ];
    let planted = planted.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    let found = links::dead(&planted, |path| ["docs/p.png", "Makefile"].contains(&path));
    let dead =
        ["README.md: #x", "README.md: Makefile", "README.md: docs/a.md#no", "README.md: docs/b.md"];
    let dead: BTreeSet<String> =
        dead.into_iter().chain(["docs/a.md: ../../l"]).map(str::to_owned).collect();
    assert_eq!(found, dead, "Makefile is there, and in no package");

    let planted = [
        ("README.md", "[a](CONTRIBUTING.md)\n"),
        ("CONTRIBUTING.md", "[b](SECURITY.md#c) [d](README.md) [e](SECURITY.md#f)\n"),
        ("SECURITY.md", "# C\n"),
    ];
    let planted = planted.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    let dead = ["CONTRIBUTING.md: SECURITY.md#f", "README.md: CONTRIBUTING.md"];
    let dead: BTreeSet<String> = dead.map(str::to_owned).into();
    assert_eq!(links::dead(&planted, |_| false), dead, "packages do not have CONTRIBUTING.md");
}

#[test]
fn every_page_is_in_the_book() {
    let missing = book::not_once(&links::pages());
    assert!(missing.is_empty(), "not once in docs/SUMMARY.md: {missing:?}");
    let contents = "# Summary\n[w](../README.md)\n- [a](a.md)\n- [`a`](./a.md)\n- [0001: b](decisions/0001-b.md)\n";
    let planted = [("docs/SUMMARY.md", contents), ("README.md", ""), ("docs/a.md", "")];
    let more = [("docs/decisions/0001-b.md", ""), ("docs/c.md", ""), ("SECURITY.md", "")];
    let planted = planted.into_iter().chain(more);
    let planted = planted.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    assert_eq!(book::not_once(&planted), ["docs/a.md", "docs/c.md"]);
}

#[test]
fn every_flag_of_tcpdump_stands_beside_ours() {
    let flags = tcpdump::flags(&tree());
    assert!(flags.len() > 20, "the declarations are not where they were: {flags:?}");
    let missing = tcpdump::missing(&tcpdump::page(), "tcpdump", &flags);
    assert!(missing.is_empty(), "not in docs/from-tcpdump.md: {missing:?}");
    let planted = "\n## tcpdump\n| `-i IFACE` | x |\n\n## dumpcap\n| `-r`, `--read` | `-i` |\n";
    let flags: BTreeSet<String> = ["-i", "-r"].map(str::to_owned).into();
    assert_eq!(tcpdump::missing(planted, "tcpdump", &flags), ["-r"]);
    assert_eq!(tcpdump::missing(planted, "dumpcap", &flags), ["-i"]);
}

#[test]
fn every_flag_in_the_help_of_other_tools_is_in_their_table() {
    let planted = "Usage: x [-Ab#] [ -B size ] [--count] -i|--in <pcap|->, --ring=N (a->b) -- -k1000 like-this";
    let found = tcpdump::flags_in(planted);
    let flags = ["-#", "-A", "-B", "-b", "-i", "--count", "--in", "--ring"];
    assert_eq!(found, flags.map(str::to_owned).into());
    for (tool, version) in tcpdump::TOOLS {
        let test = "every_flag_in_the_help_of_other_tools_is_in_their_table";
        let Some(help) = tcpdump::help(tool) else {
            weir_lab::testbed::skip(test, &format!("needs the program {tool}"));
            continue;
        };
        if !help.contains(&format!(" {version}")) {
            weir_lab::testbed::skip(test, &format!("needs {tool} {version}"));
            continue;
        }
        let flags = tcpdump::flags_in(&help);
        assert!(flags.len() > 30, "no help of {tool}: {help}");
        let missing = tcpdump::missing(&tcpdump::page(), tool, &flags);
        assert!(missing.is_empty(), "docs/from-tcpdump.md lacks flags of {tool}: {missing:?}");
    }
}

/// The rules find planted faults, and nothing else.
#[test]
fn planted_violations_are_found() {
    let planted = |path: &str, text: &str| {
        Tree::of(
            &[(path, text)],
            "| frames | `drops.kernel` |\n## Limits\n| feeds | 32 | `FEEDS_MAX` |\n## Decisions",
        )
    };
    let long = "//\n".repeat(401);
    assert_eq!(sizes::long(&planted("crates/a/src/b.rs", &long)).len(), 1);
    let tests = format!("#[cfg(test)]\nmod tests {{}}\n{long}");
    assert!(sizes::long(&planted("crates/a/src/b.rs", &tests)).is_empty());
    let wide = format!("// {}\n", "x".repeat(118));
    assert_eq!(sizes::wide(&planted("crates/a/src/b.rs", &wide)).len(), 1);
    assert!(sizes::wide(&planted("crates/a/src/b.rs", &wide[1..])).is_empty());

    let circle = Tree::of(
        &[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\n"),
            ("crates/a/src/b.rs", "use crate::c::C;\n"),
            ("crates/a/src/c.rs", "fn c() { crate::d::e::f() }\n"),
            ("crates/a/src/d/mod.rs", "use crate::b::{B, X};\n"),
            ("crates/a/src/d/e.rs", "// crate::b\nuse crate::{b};\n"),
            ("crates/a/src/f.rs", "use crate::b::B;\n#[cfg(test)]\nuse crate::f;\n"),
            ("crates/a/src/g.rs", "use self::h::H;\n"),
            ("crates/a/src/g/h.rs", "use super::{G, i};\n"),
            ("crates/a/src/g/i.rs", "use super::super::g::h::H;\nuse super::G;\n"),
            ("crates/a/src/k.rs", "mod l;\npub use l::{L, N};\npub use other::O;\n"),
            ("crates/a/src/k/l.rs", "use crate::m::M;\n"),
            ("crates/a/src/m.rs", "use crate::k::{K, N};\n"),
            ("crates/a/src/n.rs", "use crate::k::{K, O};\nuse crate::m::M;\n"),
        ],
        "",
    );
    assert_eq!(
        circles::circles(&circle),
        ["a: b c d/e", "a: g/h g/i", "a: k/l m"].map(str::to_owned).into(),
        "through the nearest file of a path, or where that has the item from, and not between a file and its folder"
    );

    let limits = planted(
        "crates/a/src/limits.rs",
        "pub const FEEDS_MAX: u8 = 1;\npub const X_MIN: u8 = 1;\n",
    );
    assert_eq!(tables::limits_missing(&limits), ["X_MIN".to_owned()].into());
    let text = "pub const A_MAX: u8 = 1;\nconst B_MIN: u8 = 1;\n";
    assert_eq!(tables::limits_elsewhere(&planted("crates/a/src/b.rs", text)).len(), 1);
    assert!(tables::limits_elsewhere(&planted("crates/a/src/limits.rs", text)).is_empty());
    let drops = planted(
        "crates/a/src/b.rs",
        "drops.insert(\"kernel\", 1);\nledger.drops.insert(\n\"lost\", 1);\n",
    );
    assert_eq!(tables::drops_missing(&drops), ["lost".to_owned()].into());

    for (text, is_found) in [
        ("#[error(\"{doing}: {source}\")]\nOs { doing: String, source: io::Error },", true),
        ("#[error(\"writing: {0}\")]\nWrite(#[from] io::Error),", true),
        ("#[error(\"{doing}\")]\nOs { doing: String, source: io::Error },", false),
        ("#[error(\"{0}\")]\nOptions(String),\n#[error(transparent)]\nOs(#[from] E),", false),
    ] {
        let found = errors::with_source_in_text(&planted("crates/a/src/b.rs", text));
        assert_eq!(!found.is_empty(), is_found, "{text}");
    }
}
