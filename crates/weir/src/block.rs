//! `weir block`: changes or shows the block lists of a daemon's feeds, or of a running capture.

mod alerts;
mod blocker;
mod input;
mod target;

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, bail};
use weir_filter::block::{ENTRIES_MAX, Entry, EntryError};

use crate::EXIT_RAN;
use crate::change::prefix;
use crate::cli::{BlockArgs, WhatName};
use crate::units::{grouped, whole_seconds};
use target::{Changed, List, Target};

/// Runs the command.
pub fn run(args: &BlockArgs) -> Result<u8> {
    if args.feed.is_none() && args.control.is_none() {
        bail!(
            "say whose list: --control PATH, the socket of a running capture, or --feed NAME, your feeds of that name \
             at the daemon"
        );
    }
    check_alert_flags(args)?;
    let mut target = Target::new(args);
    if let Some(path) = &args.from {
        return alerts::run(args, path, &mut target);
    }
    let entries = given(args)?;
    if entries.is_empty() && !args.clear {
        if args.time.is_some() {
            bail!("--for: say which entries; without them `weir block` shows the list");
        }
        return show(args, &target.list()?);
    }
    let changed =
        if args.clear { clear(&mut target)? } else { change(args, &mut target, &entries)? };
    if args.json {
        println!("{}", changed.json);
        return Ok(EXIT_RAN);
    }
    let feed = args.feed.as_deref().unwrap_or_default();
    let remark = idle(&changed, entries.len(), args.remove);
    println!("{}{} now{remark}", prefix(feed), count_of(changed.entries));
    warn_of_strays(feed, changed.strays);
    Ok(EXIT_RAN)
}

/// Refuses flags about alerts without alerts. `requires` of clap does not, because --from conflicts with entries.
fn check_alert_flags(args: &BlockArgs) -> Result<()> {
    let given = [
        ("--follow", args.follow),
        ("--what", args.what != WhatName::default()),
        ("--max-severity", args.max_severity.is_some()),
        ("--signature", !args.signature.is_empty()),
        ("--category", !args.category.is_empty()),
    ];
    match given.iter().find(|(_, is_given)| *is_given && args.from.is_none()) {
        Some((flag, _)) => bail!("{flag} is for alerts, which --from names; leave it out"),
        None => Ok(()),
    }
}

fn change(args: &BlockArgs, target: &mut Target, entries: &BTreeSet<Entry>) -> Result<Changed> {
    let texts: Vec<String> = entries.iter().map(Entry::to_string).collect();
    let (add, remove) = if args.remove { (&[][..], &texts[..]) } else { (&texts[..], &[][..]) };
    Ok(target.change_all(add, remove, args.time)?)
}

/// Removes all entries. A daemon leaves entries out of a response that would be too long; the list is then requested
/// again.
fn clear(target: &mut Target) -> Result<Changed> {
    loop {
        let list = target.list()?;
        let all: Vec<String> = list.lines().map(|line| line.entry.to_owned()).collect();
        let changed = target.change_all(&[], &all, None)?;
        if list.omitted == 0 || all.is_empty() {
            return Ok(changed);
        }
    }
}

/// Returns the entries of the command line and of --file, parsed and without duplicates.
fn given(args: &BlockArgs) -> Result<BTreeSet<Entry>> {
    let parsed = args.entries.iter().map(|entry| of_word(entry));
    let mut entries: BTreeSet<Entry> = parsed.collect::<Result<_>>()?;
    if let Some(path) = &args.file {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("--file {name}: cannot be read"))?;
        for (number, line) in (1..).zip(text.lines()) {
            // Text after a `#` is a comment.
            let entry = line.split('#').next().unwrap_or_default().trim();
            if entry.is_empty() {
                continue;
            }
            let entry = entry.parse();
            entries.insert(entry.with_context(|| format!("{name}:{number}: not understood"))?);
        }
        if entries.is_empty() {
            bail!("--file {name}: it has no entries; without --file, `weir block` shows the list");
        }
    }
    if args.remove && entries.is_empty() {
        bail!("--remove: say which entries; --clear takes out all");
    }
    if entries.len() > ENTRIES_MAX {
        bail!(
            "these are {} different entries, and a block list has room for {}; prefixes such as 10.0.0.0/24 take one",
            grouped(entries.len() as u64),
            grouped(ENTRIES_MAX as u64)
        );
    }
    Ok(entries)
}

/// Parses an entry of the command line. The shell makes several words of a flow without quotes.
fn of_word(entry: &str) -> Result<Entry> {
    entry.parse().map_err(|error| match error {
        EntryError::Form { .. } => anyhow!("{error}; a flow stands in quotes here"),
        other => other.into(),
    })
}

/// Returns the note about entries that changed nothing; empty if there are none.
fn idle(changed: &Changed, asked: usize, removes: bool) -> String {
    let (idle, asked) = (asked.saturating_sub(changed.changed) as u64, asked as u64);
    if idle == 0 {
        return String::new();
    }
    let verb = if idle == 1 { "was" } else { "were" };
    let what = if removes { "not in the list" } else { "in the list already" };
    format!(" ({} of {} {verb} {what})", grouped(idle), grouped(asked))
}

fn count_of(entries: usize) -> String {
    match entries {
        0 => "nothing is blocked".to_owned(),
        1 => "1 entry is blocked".to_owned(),
        many => format!("{} entries are blocked", grouped(many as u64)),
    }
}

/// Prints the list. As lines of a file for --file: the text after a # is not part of the entry.
fn show(args: &BlockArgs, list: &List) -> Result<u8> {
    if args.json {
        println!("{}", list.json);
        return Ok(EXIT_RAN);
    }
    let feed = args.feed.as_deref().unwrap_or_default();
    let (mut is_empty, mut strays) = (true, 0);
    for line in list.lines() {
        let left = line.left.map(|left| format!("for {}", whole_seconds(left)));
        let remarks: Vec<String> = left.into_iter().chain(line.stray).collect();
        match &remarks[..] {
            [] => println!("{}", line.entry),
            some => println!("{} # {}", line.entry, some.join(", ")),
        }
        is_empty = false;
        strays += usize::from(line.is_of_failure);
    }
    if is_empty {
        eprintln!("weir: {}{}", prefix(feed), count_of(0));
    }
    if list.omitted > 0 {
        let more = grouped(list.omitted as u64);
        eprintln!("weir: {}{more} more are blocked by some of the feeds", prefix(feed));
    }
    warn_of_strays(feed, strays);
    Ok(EXIT_RAN)
}

fn warn_of_strays(feed: &str, strays: usize) {
    if strays > 0 {
        eprintln!(
            "weir: {}a change that failed could not be taken back: {} more at some sources only (`weir block` shows \
             them with a #); add or remove them again",
            prefix(feed),
            grouped(strays as u64)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn block(words: &[&str]) -> BlockArgs {
        let words = ["weir", "block", "--control", "/s"].iter().chain(words);
        match Cli::of(words.copied()).unwrap().command {
            Command::Block(args) => args,
            _ => unreachable!("the words say block"),
        }
    }

    #[test]
    fn flags_about_alerts_are_refused_without_alerts() {
        for words in [
            ["--what", "source"],
            ["--max-severity", "1"],
            ["--signature", "7"],
            ["--category", "scan"],
            ["--follow", "10.0.0.2"],
        ] {
            let args = block(&[&["10.0.0.1"][..], &words].concat());
            let refused = run(&args).unwrap_err().to_string();
            assert!(refused.starts_with(words[0]) && refused.contains("--from"), "{refused}");
        }
        assert!(check_alert_flags(&block(&["10.0.0.1", "--what", "flow"])).is_ok());
    }

    #[test]
    fn a_flow_is_in_quotes_on_the_command_line_and_not_in_a_file() {
        let told = |args: &BlockArgs| format!("{:#}", given(args).unwrap_err());
        assert!(told(&block(&["tcp"])).contains("in quotes"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "tcp\n").unwrap();
        let told = told(&block(&["--file", file.path().to_str().unwrap()]));
        assert!(told.contains("or a flow (tcp ") && !told.contains("quotes"), "{told}");
    }
}
