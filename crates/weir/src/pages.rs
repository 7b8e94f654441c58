//! `weir pages`: man pages and shell completions out of the very flags that this binary takes, so that
//! they cannot drift from it, and whoever installs it needs nothing else.

use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::EXIT_RAN;
use crate::cli::{Cli, PagesArgs};

/// Runs the command.
pub fn run(args: &PagesArgs) -> Result<u8> {
    write_all(&args.dir).with_context(|| {
        format!("{}: writing man pages and completions; is it a directory?", args.dir.display())
    })?;
    Ok(EXIT_RAN)
}

/// `weir.1`, `weir-capture.1` and so on; `weir.bash`, `_weir`, `weir.fish`.
fn write_all(dir: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Cli::command(), dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shown(), "weir", dir)?;
    }
    Ok(())
}

/// The command line without the verbs that its help leaves out; clap_complete would offer them.
fn shown() -> Command {
    let whole = Cli::command();
    let verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    Command::new("weir")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommands(verbs)
}
