//! `weir pages`: generates man pages and shell completions from the flags of this binary, so that they always agree
//! with it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::EXIT_RAN;
use crate::cli::{self, Example, PagesArgs};

/// The version, without the commit.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command.
pub fn run(args: &PagesArgs) -> Result<u8> {
    let made = fs::create_dir_all(&args.dir).and_then(|()| write_all(&args.dir));
    made.with_context(|| format!("{}: writing man pages and completions", args.dir.display()))?;
    let dir = args.dir.display();
    println!("{dir}: man pages (weir.1 and others), completions (weir.bash, _weir, weir.fish)");
    Ok(EXIT_RAN)
}

/// Writes the man pages (`weir.1`, `weir-capture.1` and so on) and the completions (`weir.bash`, `_weir` and
/// `weir.fish`).
fn write_all(dir: &Path) -> std::io::Result<()> {
    // Without the commit, so that the pages of a version are the same for all commits.
    let cli = cli::command_without_examples().version(VERSION);
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    write_pages(&cli, "", dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shown(), "weir", dir)?;
    }
    Ok(())
}

/// Writes the page of a command and those of its subcommands. `verb` has the words after `weir`.
fn write_pages(command: &Command, verb: &str, dir: &Path) -> std::io::Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        write_pages(part, format!("{verb} {}", part.get_name()).trim_start(), dir)?;
    }
    let man = Man::new(command.clone()).source(format!("weir {VERSION}")).manual("Weir");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    let mut more = Roff::new();
    for paragraph in
        command.get_after_help().map(ToString::to_string).iter().flat_map(|it| it.split("\n\n"))
    {
        more.control("PP", []).text([roman(paragraph)]);
    }
    more.to_writer(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|part| !part.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    last_sections(verb).to_writer(&mut page)?;
    see_also(command, verb).to_writer(&mut page)?;
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    fs::write(dir.join(man.get_filename()), page)
}

/// Returns the section SYNOPSIS: the usage of the help, which has the names of values.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    let lines = usage.trim_start_matches("Usage:").lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty()) {
        roff.control("PP", []).text([bold(line)]);
    }
    roff
}

/// Returns the sections EXAMPLES and EXIT STATUS.
fn last_sections(verb: &str) -> Roff {
    let mut roff = Roff::new();
    if !cli::examples(verb).is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for Example { line, does } in cli::examples(verb) {
        roff.control("TP", []).text([bold(*line)]).text([roman(*does)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in cli::exit_statuses(verb) {
        roff.control("TP", []).text([bold(status)]).text([roman(meaning)]);
    }
    roff
}

/// Returns the section SEE ALSO: the pages of subcommands, and of the command that this one belongs to.
fn see_also(command: &Command, verb: &str) -> Roff {
    let page = |verb: &str| {
        format!("weir{}{}(1)", if verb.is_empty() { "" } else { "-" }, verb.replace(' ', "-"))
    };
    let parts = command.get_subcommands().filter(|part| !part.is_hide_set());
    let parts = parts.map(|part| page(format!("{verb} {}", part.get_name()).trim_start()));
    let parent =
        (!verb.is_empty()).then(|| page(verb.rsplit_once(' ').map_or("", |(parent, _)| parent)));
    let related = cli::related_pages(verb).iter().map(|page| (*page).to_owned());
    let pages: Vec<String> = parent.into_iter().chain(parts).chain(related).collect();
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text([roman(pages.join(", "))]);
    roff
}

/// Returns the command line without hidden verbs and flags, which clap_complete would offer.
fn shown() -> Command {
    let whole = cli::command();
    let verbs =
        whole.get_subcommands().filter(|verb| !verb.is_hide_set()).map(without_hidden_flags);
    Command::new("weir").version(VERSION).subcommand_required(true).subcommands(verbs)
}

/// Builds a command again from its visible arguments: clap can neither hide an argument from completions nor remove it.
fn without_hidden_flags(verb: &Command) -> Command {
    let shown = verb.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let verbs = verb.get_subcommands().filter(|verb| !verb.is_hide_set()).map(without_hidden_flags);
    let about = verb.get_about().cloned().unwrap_or_default();
    // clap requires static names; the process ends when the pages are written.
    let name: &'static str = verb.get_name().to_owned().leak();
    Command::new(name).about(about).args(shown).subcommands(verbs)
}
