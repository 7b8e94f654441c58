//! Man pages and completions agree with the binary. These tests need no rights. examples.rs runs the examples.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::manual::{all_verbs, examples, help, verbs};

fn weir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output().expect("weir")
}

/// Every `--flag` in a text.
fn flags(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.starts_with("--") && word.len() > 2).collect()
}

fn pages() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let written = weir(&["pages", dir.path().to_str().expect("text")]);
    assert!(written.status.success(), "{written:?}");
    dir
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_verb_has_a_page_with_every_flag_of_its_help() {
    let dir = pages();
    let mut commands = all_verbs();
    assert!(commands.iter().any(|verb| verb == "lab soak"), "{commands:?}");
    commands.push(String::new());
    for command in &commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        let name = [&["weir"], &words[..]].concat().join("-") + ".1";
        // In roff a literal hyphen is preceded by a backslash, and \fB begins bold text.
        let page = read(dir.path(), &name).replace("\\-", "-").replace("\\fB", "");
        let help = help(&words);
        let missing: Vec<_> = flags(&help).difference(&flags(&page)).copied().collect();
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
        let sections: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert!(sections.contains(&"\"EXIT STATUS\""), "{name}: {sections:?}");
        let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap_or_default();
        assert!(title.contains(concat!("weir ", env!("CARGO_PKG_VERSION"))), "{name}: {title}");
        let (_, related) = page.split_once(".SH \"SEE ALSO\"\n").unwrap_or_default();
        let related = related.lines().next().unwrap_or_default();
        let own =
            related.split(", ").filter_map(|page| page.strip_suffix("(1)")).collect::<Vec<_>>();
        assert!(!own.is_empty(), "{name} names no other page: {related}");
        let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or_default();
        assert!(page.contains(usage), "{name} lacks {usage}");
        for page in own {
            assert!(dir.path().join(format!("{page}.1")).exists(), "{name} names {page}");
        }
        let examples = examples(&help);
        assert_eq!(sections.contains(&"EXAMPLES"), !examples.is_empty(), "{name}: {sections:?}");
        for example in examples {
            assert!(page.contains(&example.replace('\'', "\\*(Aq")), "{name} lacks {example}");
        }
    }
    let count = fs::read_dir(dir.path()).expect("a directory").count();
    assert_eq!(count, commands.len() + 3, "a page for each of {commands:?}, and three completions");
}

#[test]
fn completions_offer_the_verbs_and_flags_of_the_help_and_no_hidden_ones() {
    let dir = pages();
    for name in ["weir.bash", "_weir", "weir.fish"] {
        let script = read(dir.path(), name);
        let words: BTreeSet<_> =
            script.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c))).collect();
        for verb in verbs(&help(&[])) {
            assert!(words.contains(verb), "{name}: {verb}");
        }
        for flag in flags(&help(&["capture"])) {
            // Fish names a long flag without its dashes.
            assert!(words.contains(flag) || words.contains(&flag[2..]), "{name}: {flag}");
        }
        // The forms in which the scripts of the three shells offer a verb.
        let offers = |verb: &str| {
            let forms = ["weir,_)", "'_:", "-a \"_\""].map(|form| form.replace('_', verb));
            forms.iter().any(|form| script.contains(form))
        };
        assert!(offers("capture") && !offers("extcap"), "{name} offers the hidden verb");
        assert!(!script.contains("tc-attach"), "{name} offers a hidden flag");
        // Flags of tcpdump that Weir ignores, or answers with a hint only, are not offered.
        assert!(!script.contains("immediate-mode"), "{name} offers a hidden flag");
    }
}

#[test]
fn bash_completes_with_the_script() {
    let dir = pages();
    let line = ". ./weir.bash; COMP_WORDS=(weir capture --merge-s); COMP_CWORD=2; _weir weir --merge-s capture; \
        echo \"${COMPREPLY[@]}\"";
    let ended =
        Command::new("bash").args(["-c", line]).current_dir(dir.path()).output().expect("bash");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said.trim(), "--merge-slack", "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_that_names_it() {
    let ended = weir(&["pages", "/proc/version/pages"]);
    let says = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{says}");
    assert!(says.contains("/proc/version/pages: ") && says.contains("Not a directory"), "{says}");
}
