//! Verbs and examples from the help. Help and man pages are generated from the same source.

use super::weir;

/// The help of `weir` with these verbs.
pub fn help(verb: &[&str]) -> String {
    let shown = weir("").args(verb).arg("--help").output().expect("weir");
    assert!(shown.status.success(), "{verb:?}");
    String::from_utf8(shown.stdout).expect("text")
}

/// The first word of each entry under `Commands:`, except clap's own `help`. Continuation lines are skipped.
pub fn verbs(help: &str) -> Vec<&str> {
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands
        .take_while(|line| !line.is_empty())
        .filter(|line| line.find(|c| c != ' ') == Some(2))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// Every verb and subcommand, such as `capture`, `vm` and `vm list`.
pub fn all_verbs() -> Vec<String> {
    let mut all = Vec::new();
    for verb in verbs(&help(&[])) {
        all.push(verb.to_owned());
        all.extend(verbs(&help(&[verb])).iter().map(|part| format!("{verb} {part}")));
    }
    all
}

/// The command lines of the examples in a help text.
pub fn examples(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let lines = lines.filter(|line| line.starts_with("  weir ")).map(str::trim);
    lines.map(|line| line.split("  # ").next().unwrap_or(line).trim_end()).collect()
}
