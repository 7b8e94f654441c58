//! `weir filter` and `weir block`: changes to a capture that runs, asked for at its socket.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_filter::block::{ENTRIES_MAX, Entry};

use crate::cli::{BlockArgs, FilterArgs};
use crate::control::PATIENCE;
use crate::control::rpc::{self, Block, Method, SetFilter};
use crate::units::grouped;

/// `weir filter`: changes the filter of a capture that runs.
pub fn set_filter(args: &FilterArgs) -> Result<u8> {
    let feed = args.feed.clone().unwrap_or_default();
    let filter = args.filter.join(" ");
    let method = Method::SetFilter(SetFilter { feed: feed.clone(), filter: filter.clone() });
    let result = ask(&args.control, &method)?;
    if args.json {
        println!("{result}");
        return Ok(crate::EXIT_RAN);
    }
    let what = match filter.trim() {
        "" => "every frame is taken".to_owned(),
        text => format!("'{text}' is in force"),
    };
    let sources = match result["feeds"].as_u64() {
        Some(count @ 2..) => format!(" at {count} sources"),
        _ => String::new(),
    };
    println!("{}{what}{sources}", prefix(&feed));
    Ok(crate::EXIT_RAN)
}

/// `weir block`: changes a block list of a capture that runs, or shows it.
pub fn block(args: &BlockArgs) -> Result<u8> {
    let feed = args.feed.clone().unwrap_or_default();
    let mut entries = given(args)?;
    if args.clear {
        let list = Method::Block(Block { feed: feed.clone(), ..Block::default() });
        let list = ask(&args.control, &list)?;
        for text in texts(&list["blocked"]).into_iter().chain(strays(&list).into_keys()) {
            entries.insert(text.parse()?);
        }
    }
    let (removes, asked) = (args.remove || args.clear, entries.len());
    let entries = entries.iter().map(Entry::to_string).collect();
    // One message, however long: all of it, or nothing.
    let (add, remove) = if removes { (Vec::new(), entries) } else { (entries, Vec::new()) };
    let result = ask(
        &args.control,
        &Method::Block(Block { feed: feed.clone(), add, remove, expires_ms: None }),
    )?;
    if args.json {
        println!("{result}");
        return Ok(crate::EXIT_RAN);
    }
    tell(&feed, &result, asked == 0 && !args.clear, &idle(&result, asked, removes));
    Ok(crate::EXIT_RAN)
}

/// The entries that were given, each understood and once.
fn given(args: &BlockArgs) -> Result<BTreeSet<Entry>> {
    let parsed = args.entries.iter().map(|entry| Ok(entry.parse()?));
    let mut entries: BTreeSet<Entry> = parsed.collect::<Result<_>>()?;
    if let Some(path) = &args.file {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("--file {name}: cannot be read"))?;
        for (number, line) in (1..).zip(text.lines()) {
            // What is behind a `#` is said to people.
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

/// What is to be said of entries that made no difference.
fn idle(result: &Value, asked: usize, removes: bool) -> String {
    let changed = result["changed"].as_u64().unwrap_or(asked as u64);
    let (idle, asked) = ((asked as u64).saturating_sub(changed), asked as u64);
    if idle == 0 {
        return String::new();
    }
    let verb = if idle == 1 { "was" } else { "were" };
    let what = if removes { "not in the list" } else { "in the list already" };
    format!(" ({} of {} {verb} {what})", grouped(idle), grouped(asked))
}

/// Says what is blocked: how much, and if `shows` all of it; with a remark on what was asked.
fn tell(feed: &str, result: &Value, shows: bool, remark: &str) {
    let (common, stray) = (texts(&result["blocked"]), strays(result));
    let count = match common.len() {
        0 => "nothing is blocked".to_owned(),
        1 => "1 entry is blocked".to_owned(),
        many => format!("{} entries are blocked", grouped(many as u64)),
    };
    if !shows {
        println!("{}{count} now{remark}", prefix(feed));
    } else if common.is_empty() && stray.is_empty() {
        eprintln!("weir: {}{count}", prefix(feed));
    }
    if !stray.is_empty() {
        eprintln!(
            "weir: {}a change that failed could not be taken back: {} more at some sources only (`weir block` shows \
             them with a #); add or remove them again",
            prefix(feed),
            grouped(stray.len() as u64)
        );
    }
    if shows {
        common.iter().for_each(|entry| println!("{entry}"));
        // What is behind a # is no part of the list for --file, either.
        stray.iter().for_each(|(entry, at)| println!("{entry} # at {} only", at.join(", ")));
    }
}

/// What some of the sources block, and not all; with those that do.
fn strays(result: &Value) -> BTreeMap<&str, Vec<&str>> {
    let common: BTreeSet<&str> = texts(&result["blocked"]).into_iter().collect();
    let mut strays: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for own in result["sources"].as_array().into_iter().flatten() {
        let source = own["source"].as_str().unwrap_or_default();
        let entries = texts(&own["blocked"]).into_iter().filter(|entry| !common.contains(entry));
        entries.for_each(|entry| strays.entry(entry).or_default().push(source));
    }
    strays
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn prefix(feed: &str) -> String {
    if feed.is_empty() { String::new() } else { format!("{feed}: ") }
}

/// Asks the capture at `path`.
pub fn ask(path: &Path, method: &Method) -> Result<Value> {
    let name = path.display();
    let mut stream = UnixStream::connect(path).map_err(|error| {
        let text = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("{name}: the capture there is another user's; ask as that user, or as root")
            }
            io::ErrorKind::NotFound => {
                format!("{name}: no capture listens there; start one with --control {name}")
            }
            _ => format!(
                "{name}: no capture listens there: it is no socket, or was left by a capture that has ended; give what \
                 a capture that runs was given as --control"
            ),
        };
        anyhow::Error::new(error).context(text)
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = rpc::request(method)?;
    let talked = rpc::send(&mut stream, &request).and_then(|()| rpc::receive(&mut stream));
    let answer = talked.with_context(|| format!("{name}: the capture does not answer"))?;
    let Some(answer) = answer else { bail!("{name}: the capture has ended") };
    let answer: Value = serde_json::from_slice(&answer)?;
    match answer.get("error") {
        Some(error) => bail!("{}", error["message"].as_str().unwrap_or("it failed")),
        None => Ok(answer["result"].clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_only_some_sources_block_is_told_with_their_names() {
        let alike = json!({ "feeds": 2, "blocked": ["10.0.0.1"] });
        assert!(strays(&alike).is_empty());
        let sources = json!([
            { "source": "eth0", "blocked": ["10.0.0.1", "10.0.0.2"] },
            { "source": "eth1", "blocked": ["10.0.0.1", "10.0.0.2", "10.0.0.3"] },
            { "source": "eth2", "blocked": ["10.0.0.1"] },
        ]);
        let apart = json!({ "feeds": 3, "blocked": ["10.0.0.1"], "sources": sources });
        let told = BTreeMap::from([("10.0.0.2", vec!["eth0", "eth1"]), ("10.0.0.3", vec!["eth1"])]);
        assert_eq!(strays(&apart), told);
    }
}
