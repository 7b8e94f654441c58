//! Verbs and examples of the help, which has them from the same source as the man pages.

use super::weir;

/// Help of the verb with these words behind `weir`.
pub fn help(verb: &[&str]) -> String {
    let shown = weir("").args(verb).arg("--help").output().expect("weir");
    assert!(shown.status.success(), "{verb:?}");
    String::from_utf8(shown.stdout).expect("text")
}

/// The first words of the lines under `Commands:`, without clap's own `help` and the rest of lines that are wrapped.
pub fn verbs(help: &str) -> Vec<&str> {
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands
        .take_while(|line| !line.is_empty())
        .filter(|line| line.find(|c| c != ' ') == Some(2))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// Every verb: `capture`, `vm`, `vm list`.
pub fn all_verbs() -> Vec<String> {
    let mut all = Vec::new();
    for verb in verbs(&help(&[])) {
        all.push(verb.to_owned());
        all.extend(verbs(&help(&[verb])).iter().map(|part| format!("{verb} {part}")));
    }
    all
}

/// Command lines of the examples of a help.
pub fn examples(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let lines = lines.filter_map(|line| line.strip_prefix("  weir ").map(|_| line.trim()));
    lines.map(|line| line.split("  # ").next().unwrap_or(line).trim_end()).collect()
}
