//! Man pages and completions agree with the binary. They need no rights.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn weir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output().expect("weir")
}

fn help(verb: &[&str]) -> String {
    let shown = weir(&[verb, &["--help"]].concat());
    assert!(shown.status.success(), "{verb:?}");
    String::from_utf8(shown.stdout).expect("text")
}

/// The first words of the lines under `Commands:`, without clap's own `help` and the rest of lines that are wrapped.
fn verbs(help: &str) -> Vec<&str> {
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands
        .take_while(|line| !line.is_empty())
        .filter(|line| line.find(|c| c != ' ') == Some(2))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// Every `--flag` in a text.
fn flags(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.starts_with("--") && word.len() > 2).collect()
}

/// Command lines of the examples of a help.
fn examples(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let lines = lines.filter_map(|line| line.strip_prefix("  weir ").map(|_| line.trim()));
    lines.map(|line| line.split("  # ").next().unwrap_or(line).trim_end()).collect()
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
    let top = help(&[]);
    let mut commands = vec![vec![]];
    for verb in verbs(&top) {
        commands.push(vec![verb.to_owned()]);
        let own = help(&[verb]);
        commands.extend(verbs(&own).iter().map(|sub| vec![verb.to_owned(), sub.to_string()]));
    }
    let soak = vec!["lab".to_owned(), "soak".to_owned()];
    assert!(commands.contains(&soak), "{commands:?}");
    for command in &commands {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let name = [&["weir"], &words[..]].concat().join("-") + ".1";
        // In roff a hyphen that is typed stands behind a backslash, and \fB makes bold.
        let page = read(dir.path(), &name).replace("\\-", "-").replace("\\fB", "");
        let help = help(&words);
        let missing: Vec<_> = flags(&help).difference(&flags(&page)).copied().collect();
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
        let sections: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert!(sections.contains(&"\"EXIT STATUS\""), "{name}: {sections:?}");
        let examples = examples(&help);
        assert_eq!(sections.contains(&"EXAMPLES"), !examples.is_empty(), "{name}: {sections:?}");
        for example in examples {
            assert!(page.contains(&example.replace('\'', "\\*(Aq")), "{name} lacks {example}");
        }
    }
    let count = fs::read_dir(dir.path()).expect("a directory").count();
    assert_eq!(count, commands.len() + 3, "a page for each of {commands:?}, and three completions");
}

/// Others need an interface, a daemon or a guest; all of them are checked against the flags beside their
/// table.
#[test]
fn examples_that_need_no_rights_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let demo = ["demo", "--replay", "--write", "out.pcapng"];
    let made = Command::new(env!("CARGO_BIN_EXE_weir")).args(demo).current_dir(dir.path()).output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let record = ["capture", "file:out.pcapng", "--write", "dumps/"];
    let made =
        Command::new(env!("CARGO_BIN_EXE_weir")).args(record).current_dir(dir.path()).output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let wanted = [
        (&["capture"][..], "weir capture file:out.pcapng --print"),
        (&["flows"], "weir flows file:out.pcapng --plain"),
        (&["extract"], "weir extract dumps/ --from -5m -w out.pcapng"),
        (&["extract"], "weir extract dumps/ --flow 1:mAXT6aO4kEhrDCQ0EqLqe3xIVLc= --stats"),
        (&["index"], "weir index dumps/"),
        (&["index"], "weir index dumps/ --check"),
        (&["lab", "simulate"], "weir lab simulate --seed 17 --shrink"),
        (&["demo"], "weir demo --replay"),
        (&["vm", "prepare"], "weir vm prepare web1"),
        (&["vm", "prepare"], "weir vm prepare web1 --vsock"),
    ];
    let is_silent = |line: &str| line.starts_with("weir index") || line.contains("-w out");
    let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("a folder");
    let path = format!("{}:{}", weir.display(), std::env::var("PATH").unwrap_or_default());
    for (verb, line) in wanted {
        let help = help(verb);
        assert!(examples(&help).contains(&line), "{line} is no example of {verb:?}: {help}");
        let mut shell = Command::new("bash");
        let ran = shell.args(["-c", line]).env("PATH", &path).current_dir(dir.path()).output();
        let ran = ran.expect("bash");
        assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
        // Where nothing is to be mended, nothing is said.
        assert!(!ran.stdout.is_empty() || is_silent(line), "{line}");
    }
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
        // As each shell's script offers `capture`.
        let offers = |verb: &str| {
            let forms = ["weir,_)", "'_:", "-a \"_\""].map(|form| form.replace('_', verb));
            forms.iter().any(|form| script.contains(form))
        };
        assert!(offers("capture") && !offers("pages"), "{name} offers the hidden verb");
        assert!(!script.contains("tc-attach"), "{name} offers a hidden flag");
        // Translations of tcpdump's flags are told to users who type one, and offered to nobody.
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
fn a_directory_that_is_not_there_is_an_error_that_names_it() {
    let ended = weir(&["pages", "/nowhere/at-all"]);
    let says = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{says}");
    assert!(says.contains("/nowhere/at-all") && says.contains("is it a directory?"), "{says}");
}
