//! `weir status`: the open feeds of a daemon, or of a running capture.

mod capture;

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use weir_capture::kernel::netns::Owner;
use weir_client::protocol::Ledger;
use weir_client::socket_path;
use weir_client::status::{ClientStatus, Status};

use crate::change::ask;
use crate::cli::StatusArgs;
use crate::control::rpc::{Method, Status as StatusParams};
use crate::units::{counted, grouped};
use crate::{EXIT_RAN, daemon};

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<u8> {
    if let Some(control) = &args.control {
        let status = ask(control, &Method::Status(StatusParams {}))?;
        match args.json {
            true => println!("{status}"),
            false => print!("{}", capture::text(&status)),
        }
        return Ok(EXIT_RAN);
    }
    let status = ask_daemon(&socket_path(args.socket.as_deref()))?;
    match args.json {
        true => println!("{}", serde_json::to_string(&status)?),
        false => print!("{}", text(&status)),
    }
    Ok(EXIT_RAN)
}

fn ask_daemon(path: &Path) -> Result<Status> {
    Ok(daemon::connect(path)?.status()?)
}

/// Returns the status as text for people.
fn text(status: &Status) -> String {
    let mut text = String::new();
    // Writing into memory cannot fail.
    let _ = write_text(&mut text, status);
    text
}

fn write_text(text: &mut String, status: &Status) -> std::fmt::Result {
    if status.sources.is_empty() {
        return writeln!(text, "no source that you may open");
    }
    for source in &status.sources {
        let captures = match source.captures == source.source {
            true => String::new(),
            false => format!(" ({})", source.captures),
        };
        let how = match source.is_open {
            false => match &source.unavailable {
                Some(why) => format!("closed, and nobody can open it: {why}"),
                None => "closed: nobody reads it".to_owned(),
            },
            true => captured_with(&source.engine, source.hook.as_deref()),
        };
        writeln!(text, "{}{captures}: {how}", source.source)?;
        if let Some(owner) =
            source.owner.clone().map(Owner::from).filter(|owner| owner.kind != "netns")
        {
            writeln!(text, "  of {owner}")?;
        }
        source.notes.iter().try_for_each(|note| writeln!(text, "  note: {note}"))?;
        for feed in status.feeds.iter().filter(|feed| feed.source == source.source) {
            writeln!(
                text,
                "  feed {}{}: {}, {}{}",
                feed.key,
                quoted(&feed.filter),
                counted(feed.rings as u64, "ring"),
                counted(feed.readers as u64, "reader"),
                ledger(feed.ledger.as_ref())
            )?;
            for client in status.clients.iter().filter(|client| client.key == feed.key) {
                let lag = client.lag.map_or_else(
                    || "no consumer".to_owned(),
                    |lag| format!("{} behind{}", counted(lag, "frame"), lapped(client)),
                );
                writeln!(
                    text,
                    "    {}{}, {} s: {lag}{}",
                    who(client),
                    quoted(client.name.as_deref().unwrap_or_default()),
                    client.seconds,
                    ledger(client.ledger.as_ref())
                )?;
            }
        }
    }
    Ok(())
}

/// Returns a text with the engine and the hook of an open source.
fn captured_with(engine: &str, hook: Option<&str>) -> String {
    match hook {
        None => format!("captured with {engine}"),
        Some(hook) => format!("captured with {engine} at {hook}"),
    }
}

/// Returns a text with the client of a feed.
fn who(client: &ClientStatus) -> String {
    match &client.guest {
        Some(guest) => format!("guest {guest}"),
        None => format!("uid {} pid {}", client.uid, client.pid),
    }
}

/// Returns a text with the number of frames that were overwritten before the client's slowest consumer had reported
/// them as read; empty if there are none.
fn lapped(client: &ClientStatus) -> String {
    let lapped = client.lapped.filter(|lapped| *lapped > 0);
    lapped.map_or_else(String::new, |lapped| {
        format!(", up to {} of them overwritten", grouped(lapped))
    })
}

/// Returns the text in quotes after a blank; empty if the text is empty.
fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" '{text}'") }
}

fn ledger(ledger: Option<&Ledger>) -> String {
    let Some(ledger) = ledger else { return String::new() };
    let dropped: u64 = ledger.drops.values().sum();
    format!(
        "; offered {}, filtered {}, blocked {}, captured {}, dropped {}",
        grouped(ledger.offered),
        grouped(ledger.filtered),
        grouped(ledger.blocked),
        grouped(ledger.captured),
        grouped(dropped)
    )
}

#[cfg(test)]
mod tests {
    use weir_client::status::{FeedStatus, SourceStatus};

    use super::*;

    #[test]
    fn the_text_says_who_reads_what_and_how_far_behind() {
        let ledger = || Some(Ledger { offered: 1234, captured: 1234, ..Ledger::default() });
        let status = Status {
            sources: vec![
                SourceStatus {
                    source: "lan".into(),
                    captures: "eth0".into(),
                    is_open: true,
                    engine: "bpf".into(),
                    hook: Some("tc".into()),
                    ..SourceStatus::default()
                },
                SourceStatus { source: "wan".into(), captures: "wan".into(), ..Default::default() },
                SourceStatus {
                    source: "dmz".into(),
                    captures: "eth9".into(),
                    unavailable: Some("eth9: no such interface".into()),
                    ..Default::default()
                },
            ],
            feeds: vec![FeedStatus {
                key: 7,
                source: "lan".into(),
                filter: "udp".into(),
                rings: 2,
                readers: 1,
                ledger: ledger(),
            }],
            clients: vec![
                ClientStatus {
                    uid: 1000,
                    pid: 42,
                    key: 7,
                    name: Some("ids".into()),
                    source: "lan".into(),
                    lag: Some(10_000),
                    lapped: Some(4_762),
                    ledger: Some(Ledger { blocked: 7, ..ledger().unwrap_or_default() }),
                    ..ClientStatus::default()
                },
                ClientStatus {
                    guest: Some("one".into()),
                    key: 7,
                    seconds: 3,
                    ..ClientStatus::default()
                },
            ],
            ..Status::default()
        };
        let text = text(&status);
        for line in [
            "lan (eth0): captured with bpf at tc",
            "  feed 7 'udp': 2 rings, 1 reader; offered 1 234",
            "    uid 1000 pid 42 'ids', 0 s: 10 000 frames behind, up to 4 762 of them overwritten; offered 1 234, \
             filtered 0, blocked 7, ",
            "    guest one, 3 s: no consumer",
            "wan: closed: nobody reads it",
            "dmz (eth9): closed, and nobody can open it: eth9: no such interface",
        ] {
            assert!(text.contains(line), "'{line}' is not in:\n{text}");
        }
        assert!(super::text(&Status::default()).contains("no source"));
    }
}
