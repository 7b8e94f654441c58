//! `weir pages`: man pages and shell completions out of the very flags that this binary takes, so that
//! they cannot drift from it, and whoever installs it needs nothing else.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

use crate::EXIT_RAN;
use crate::cli::{self, PagesArgs};

/// Runs the command.
pub fn run(args: &PagesArgs) -> Result<u8> {
    write_all(&args.dir).with_context(|| {
        format!("{}: writing man pages and completions; is it a directory?", args.dir.display())
    })?;
    Ok(EXIT_RAN)
}

/// `weir.1`, `weir-capture.1` and so on; `weir.bash`, `_weir`, `weir.fish`.
fn write_all(dir: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(cli::command(), dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shown(), "weir", dir)?;
    }
    Ok(())
}

/// The command line without the verbs and flags that its help leaves out; clap_complete would offer them.
fn shown() -> Command {
    let whole = cli::command();
    let verbs =
        whole.get_subcommands().filter(|verb| !verb.is_hide_set()).map(without_hidden_flags);
    Command::new("weir")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommands(verbs)
}

/// clap can hide an argument from its help and not from completions, nor can it take one out: so the command
/// is made again of what is shown.
fn without_hidden_flags(verb: &Command) -> Command {
    let shown = verb.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let verbs = verb.get_subcommands().filter(|verb| !verb.is_hide_set()).map(without_hidden_flags);
    let about = verb.get_about().cloned().unwrap_or_default();
    // clap takes names for ever, and this process ends when the pages are written.
    let name: &'static str = verb.get_name().to_owned().leak();
    Command::new(name).about(about).args(shown).subcommands(verbs)
}
