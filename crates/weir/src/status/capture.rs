//! The status of a running capture, from its control socket, as text for people.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;
use weir_client::protocol::{self, Ledger};

use super::{captured_with, ledger, quoted};
use crate::run_result::Rates;
use crate::units::{bit_rate, counted, grouped, packet_rate};

/// Converts the response to `status` into text for people. Missing fields are left out.
pub fn text(status: &Value) -> String {
    let mut text = String::new();
    // Writing into memory cannot fail.
    let _ = write_text(&mut text, status);
    text
}

fn write_text(text: &mut String, status: &Value) -> std::fmt::Result {
    for source in list(status, "sources") {
        let (name, is_open) = (word(source, "source"), source["is_open"] == true);
        let how = match (is_open, source["ended"] == true) {
            (true, _) => captured_with(word(source, "engine"), source["hook"].as_str()),
            (false, true) => "ended".to_owned(),
            (false, false) => "not there: waited for".to_owned(),
        };
        writeln!(text, "{name}: {how}")?;
        if let Ok(owner) = protocol::Owner::deserialize(&source["owner"])
            && owner.kind != "netns"
        {
            writeln!(text, "  of {}", weir_capture::kernel::netns::Owner::from(owner))?;
        }
        for note in list(source, "notes") {
            writeln!(text, "  note: {}", note.as_str().unwrap_or_default())?;
        }
        if let Some(error) = source["error"].as_str() {
            writeln!(text, "  error: {error}")?;
        }
        for feed in list(status, "feeds").filter(|feed| word(feed, "source") == name) {
            write_feed(text, feed)?;
        }
    }
    write_whole(text, status)?;
    for consumer in list(status, "consumers") {
        write_consumer(text, status, consumer)?;
    }
    let recorder = &status["recorder"];
    if recorder.is_object() {
        writeln!(
            text,
            "recorder: {}{}, {}{}",
            if recorder["look_back"]["is_saving"] == true {
                "saving frames for a trigger; "
            } else {
                ""
            },
            counted(count(recorder, "files"), "file"),
            counted(count(recorder, "bytes"), "byte"),
            rest(recorder, &["torn_blocks"])
        )?;
        for volume in list(recorder, "volumes") {
            let why = volume["error"].as_str();
            let why = why.map_or_else(String::new, |why| format!("; left out: {why}"));
            writeln!(
                text,
                "  {}: {}{}{why}",
                word(volume, "directory"),
                counted(count(volume, "bytes"), "byte"),
                rest(volume, &["deleted_files", "deleted_bytes"])
            )?;
        }
    }
    Ok(())
}

fn write_feed(text: &mut String, feed: &Value) -> std::fmt::Result {
    let part = feed["part"].as_str().map_or_else(String::new, |part| format!(" @{part}"));
    let name = Some(word(feed, "feed")).filter(|name| !name.is_empty());
    let name = name.map_or_else(String::new, |name| format!(" {name}"));
    let counts = ledger_of(feed);
    let each: Vec<String> = places(&counts);
    let missed = counts.missed_before.map(grouped);
    let missed =
        missed.map_or_else(String::new, |missed| format!("; missed before the hook {missed}"));
    let each = if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) };
    let filter = quoted(word(feed, "filter"));
    let ledger = ledger(Some(&counts));
    // The only feed of a source, with all frames of the source, has nothing that would tell it from others.
    let line = match format!("{name}{part}{filter}").as_str() {
        "" => ledger.trim_start_matches("; ").to_owned(),
        which => format!("feed{which}{ledger}"),
    };
    writeln!(text, "  {line}{each}{missed}")
}

/// Returns each place where frames were lost, with the count.
fn places(ledger: &Ledger) -> Vec<String> {
    let lost = ledger.drops.iter().filter(|(_, count)| **count > 0);
    lost.map(|(place, count)| format!("{place} {}", grouped(*count))).collect()
}

/// Writes the time and the rates of the whole capture.
fn write_whole(text: &mut String, status: &Value) -> std::fmt::Result {
    let number = |name: &str| status[name].as_f64().unwrap_or_default();
    writeln!(
        text,
        "for {:.1} s, {}, {} reached the consumer",
        number("duration_s"),
        packet_rate(number("mpps") * 1e6),
        bit_rate(number("gbps") * 1e9)
    )?;
    if let Ok(rates) = Rates::deserialize(&status["rates"]) {
        writeln!(text, "{}", rates.text())?;
    }
    Ok(())
}

fn write_consumer(text: &mut String, status: &Value, consumer: &Value) -> std::fmt::Result {
    let behind = match consumer["ended"] == true {
        true => {
            consumer["error"].as_str().map_or("ended".to_owned(), |why| format!("ended ({why})"))
        }
        false => {
            let frames = counted(count(consumer, "waiting"), "frame");
            // With --on-trigger, frames wait for a trigger; the consumer is not slow.
            let look_back = &status["recorder"]["look_back"];
            let is_history = consumer["name"] == "record" && look_back["is_saving"] == false;
            format!("{frames} {}", if is_history { "in the ring, for a trigger" } else { "behind" })
        }
    };
    writeln!(
        text,
        "{}: {behind}; delivered {}, lapped {}{}{}",
        word(consumer, "name"),
        grouped(count(consumer, "delivered")),
        grouped(count(consumer, "lapped")),
        rest(consumer, &["untriggered", "after_limit", "late"]),
        rest(&consumer["drops"], &["netdev", "ring", "store"])
    )
}

/// Returns the counts with these names that are not 0.
fn rest(of: &Value, names: &[&str]) -> String {
    let counts = names.iter().map(|name| (name, count(of, name))).filter(|(_, count)| *count > 0);
    counts.map(|(name, count)| format!(", {} {}", name.replace('_', " "), grouped(count))).collect()
}

fn list<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn word<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_default()
}

/// Returns the counts of a feed, in the form of the daemon's status.
fn ledger_of(feed: &Value) -> Ledger {
    let drops = feed["drops"].as_object().into_iter().flatten();
    Ledger {
        offered: count(feed, "offered"),
        filtered: count(feed, "filtered"),
        blocked: count(feed, "blocked"),
        captured: count(feed, "captured"),
        drops: drops.filter_map(|(place, count)| Some((place.clone(), count.as_u64()?))).collect(),
        missed_before: feed["missed_before"].as_u64(),
        ..Ledger::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_says_how_a_capture_goes() {
        let feed = |source: &str, name: &str| {
            json!({ "source": source, "feed": name, "filter": "udp", "offered": 1234, "filtered": 4,
                "captured": 1200, "blocked": 0, "drops": { "kernel": 30, "relay": 0 }, "missed_before": 7 })
        };
        let status = json!({
            "sources": [
                { "source": "eth0", "engine": "bpf", "hook": "tc", "is_open": true, "ended": false,
                    "notes": ["of interest"], "error": null },
                { "source": "eth1", "engine": "", "hook": null, "is_open": false, "ended": false },
                { "source": "file:a", "engine": "replay", "is_open": false, "ended": true, "error": "broken" },
            ],
            "feeds": [feed("eth0", "web"), feed("eth1", "")],
            "duration_s": 12.34, "mpps": 0.001, "gbps": 0.05,
            "rates": Rates { over_s: 1.0, captured_pps: 5000.0, captured_bps: 4e6, ..Rates::default() },
            "consumers": [
                { "name": "record", "delivered": 1000, "lapped": 1, "waiting": 199, "ended": false, "late": 0,
                    "drops": { "store": 0, "ring": 0 } },
                { "name": "print", "delivered": 10, "lapped": 0, "waiting": 0, "ended": true, "after_limit": 5,
                    "drops": { "store": 3, "ring": 0 } },
                { "name": "write", "delivered": 7, "lapped": 0, "ended": true, "error": "a.pcapng: it is full",
                    "drops": { "store": 9, "ring": 0 } },
            ],
            "recorder": { "files": 3, "bytes": 4096, "torn_blocks": 0,
                "volumes": [{ "directory": "dumps", "bytes": 4096, "deleted_files": 2, "deleted_bytes": 9,
                    "error": null }] },
        });
        let text = text(&status);
        for line in [
            "eth0: captured with bpf at tc\n  note: of interest\n",
            "  feed web 'udp'; offered 1 234, filtered 4, blocked 0, captured 1 200, dropped 30 (kernel 30); \
             missed before the hook 7\n",
            "eth1: not there: waited for\n  feed 'udp'; offered",
            "file:a: ended\n  error: broken\n",
            "for 12.3 s, 1.0 kpps, 50.0 Mbit/s reached the consumer\n",
            "last 1.0 s: 5.0 kpps, 4.0 Mbit/s captured, 0.0 pps dropped, 0.0 pps lapped\n",
            "record: 199 frames behind; delivered 1 000, lapped 1\n",
            "print: ended; delivered 10, lapped 0, after limit 5, store 3\n",
            "write: ended (a.pcapng: it is full); delivered 7, lapped 0, store 9\n",
            "recorder: 3 files, 4 096 bytes\n  dumps: 4 096 bytes, deleted files 2, deleted bytes 9\n",
        ] {
            assert!(text.contains(line), "'{line}' is not in:\n{text}");
        }
        let feed = json!({ "source": "a", "feed": "", "filter": null, "offered": 3 });
        let history = json!({
            "sources": [{ "source": "a" }], "feeds": [feed],
            "consumers": [{ "name": "record", "waiting": 9 }, { "name": "print", "waiting": 1 }],
            "recorder": { "look_back": { "is_saving": false } },
        });
        let text = super::text(&history);
        for line in [
            "\n  offered 3,",
            "record: 9 frames in the ring, for a trigger;",
            "print: 1 frame behind;",
        ] {
            assert!(text.contains(line), "'{line}' is not in:\n{text}");
        }
        let mut saving = history.clone();
        saving["recorder"]["look_back"]["is_saving"] = true.into();
        let text = super::text(&saving);
        for line in ["record: 9 frames behind;", "recorder: saving frames for a trigger; 0 files"] {
            assert!(text.contains(line), "'{line}' is not in:\n{text}");
        }
        // One that tells less.
        assert!(super::text(&json!({})).contains("for 0.0 s"));
    }
}
