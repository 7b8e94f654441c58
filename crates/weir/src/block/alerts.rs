//! `weir block --from`: blocks flows or addresses for which an IDS raises alerts.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use serde_json::json;
use weir_alert::{Rules, What};
use weir_filter::block::Entry;

use super::blocker::{Blocker, Counts, Signature};
use super::input::{Found, Input};
use super::target::{BATCH, Target, TargetError};
use crate::EXIT_RAN;
use crate::cli::{BlockArgs, WhatName};
use crate::error_words::words;
use crate::signals::{is_set, stop_flag};
use crate::units::{counted, whole_seconds};

/// Default time for which an entry is blocked.
const TIME: Duration = Duration::from_secs(600);
/// Minimum time between two requests. A daemon accepts 20 changes per second from all programs of a user.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval of the checks that the feeds are still the same. The block list of a reopened feed is empty.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Runs the command.
pub fn run(args: &BlockArgs, path: &Path, target: &mut Target) -> Result<u8> {
    let stop = stop_flag()?;
    let rules = Rules {
        severity_max: args.max_severity,
        signatures: args.signature.iter().map(|text| text.as_str().into()).collect(),
        categories: args.category.clone(),
    };
    let what = match args.what {
        WhatName::Flow => What::Flow,
        WhatName::Source => What::Source,
        WhatName::Destination => What::Destination,
    };
    let mut run = AlertRun {
        input: Input::open(path, args.follow)?,
        blocker: Blocker::new(rules, what, args.time.unwrap_or(TIME)),
        follows: args.follow,
        shows_json: args.json,
        name: path.display().to_string(),
        keys: None,
        trouble: None,
        has_reported_lines: false,
        next: Instant::now(),
        look: Instant::now(),
    };
    let result = run.run(target, &stop);
    run.blocker.end();
    run.tell_counts();
    result.map(|()| EXIT_RAN)
}

/// A run of the command.
struct AlertRun {
    input: Input,
    blocker: Blocker,
    follows: bool,
    shows_json: bool,
    /// The name of the input.
    name: String,
    /// The keys of the feeds at the last request; `None` before the first request, and after the target was lost.
    keys: Option<std::collections::BTreeSet<u64>>,
    /// The last reported problem, if it has not been solved since.
    trouble: Option<String>,
    has_reported_lines: bool,
    /// Earliest time of the next request, and time of the next check of the feeds.
    next: Instant,
    look: Instant,
}

impl AlertRun {
    fn run(&mut self, target: &mut Target, stop: &AtomicBool) -> Result<()> {
        // Fails at once if the feed does not exist, unless --follow waits for it.
        self.look(target)?;
        loop {
            let found = self.read()?;
            let ends = found == Found::End || is_set(stop);
            // Entries are collected and sent together, at a rate that the other side accepts.
            if ends || Instant::now() >= self.next || found == Found::Nothing {
                self.send(target)?;
            }
            if ends {
                return self.send_rest(target, stop);
            }
            if self.follows && Instant::now() >= self.look {
                self.look(target)?;
            }
        }
    }

    fn read(&mut self) -> Result<Found> {
        let (blocker, now, clock) = (&mut self.blocker, Instant::now(), SystemTime::now());
        let found = match self.input.read(|line, is_old| blocker.take(line, is_old, now, clock)) {
            Ok(found) => found,
            // The input was readable at the start, so the error may be temporary.
            Err(error) if self.follows => {
                self.trouble(format!("{}: {error}", self.name));
                std::thread::park_timeout(PAUSE);
                Found::Nothing
            }
            Err(error) => return Err(error.into()),
        };
        let counts = self.blocker.counts();
        if counts.not_understood + counts.too_long > 0 && !self.has_reported_lines {
            self.has_reported_lines = true;
            let name = &self.name;
            eprintln!(
                "weir: {name} has lines that are no events; they are passed over, and counted at the end"
            );
        }
        Ok(found)
    }

    /// Sends the entries to block. If the target is busy or unreachable, they stay pending.
    fn send(&mut self, target: &mut Target) -> Result<()> {
        if Instant::now() < self.next {
            return Ok(());
        }
        let now = Instant::now();
        let Some((time, entries)) = self.blocker.batch(now, BATCH) else { return Ok(()) };
        let texts: Vec<String> = entries.iter().map(Entry::to_string).collect();
        match target.change(&texts, &[], Some(time)) {
            Ok(changed) => {
                let is_known = self.keys.replace(changed.keys.clone());
                if is_known.is_some_and(|known| !changed.keys.is_subset(&known)) {
                    self.blocker.lost(now);
                }
                self.trouble = None;
                for (entry, alert) in self.blocker.blocked(&entries, time, now) {
                    self.tell(&entry, time, &alert);
                }
            }
            Err(TargetError::Refused(error)) => {
                self.blocker.refused(&entries);
                if !self.follows {
                    return Err(error);
                }
                self.trouble(format!(
                    "{}; such entries are passed over, and counted at the end",
                    words(&error)
                ));
            }
            Err(error) => self.wait(error)?,
        }
        self.next = Instant::now() + PAUSE;
        Ok(())
    }

    /// Sends the remaining entries at the end. After a signal, it gives up at the first failure.
    fn send_rest(&mut self, target: &mut Target, stop: &AtomicBool) -> Result<()> {
        while self.blocker.has_pending() {
            let was_stopped = is_set(stop);
            std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
            self.send(target)?;
            if was_stopped && self.trouble.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Checks that the feeds are still the same. If not, marks all entries to be blocked again.
    fn look(&mut self, target: &mut Target) -> Result<()> {
        match target.change(&[], &[], None) {
            Ok(changed) => {
                let is_known = self.keys.as_ref().is_none_or(|known| changed.keys.is_subset(known));
                if !is_known || self.trouble.take().is_some() {
                    self.blocker.lost(Instant::now());
                }
                self.keys = Some(changed.keys);
            }
            Err(TargetError::Refused(error)) => return Err(error),
            Err(error) => self.wait(error)?,
        }
        self.look = Instant::now() + LOOK_PAUSE;
        Ok(())
    }

    /// Handles an unreachable or busy target. An unreachable target is an error, unless --follow waits for it.
    fn wait(&mut self, error: TargetError) -> Result<()> {
        match error {
            TargetError::Busy(_) => {}
            error if !self.follows => return Err(error.into()),
            error => {
                // When the target is back, its lists are empty.
                self.blocker.lost(Instant::now());
                self.keys = None;
                self.trouble(format!("{error}; waiting for it"));
            }
        }
        Ok(())
    }

    /// Reports a problem, unless the same problem was reported last.
    fn trouble(&mut self, what: String) {
        if self.trouble.as_ref() != Some(&what) {
            eprintln!("weir: {what}");
            self.trouble = Some(what);
        }
    }

    fn tell(&self, entry: &Entry, time: Duration, alert: &Signature) {
        if self.shows_json {
            let for_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let (entry, id, text) = (entry.to_string(), alert.id, &alert.text);
            let line =
                json!({ "entry": entry, "for_ms": for_ms, "signature_id": id, "signature": text });
            println!("{line}");
            return;
        }
        let id = alert.id.map(|id| format!(" {id}")).unwrap_or_default();
        println!("{entry} # for {},{id} {}", whole_seconds(time), alert.text);
    }

    fn tell_counts(&self) {
        let counts = self.blocker.counts();
        if self.shows_json {
            println!("{}", json!(counts));
        } else {
            eprintln!("weir: {}: {}", self.name, text(counts));
        }
    }
}

/// Returns the counts as text for people: lines, alerts and blocked entries always, others if they are not 0.
fn text(counts: &Counts) -> String {
    let mut text = format!(
        "{}, {}, {} blocked",
        counted(counts.lines, "line"),
        counted(counts.alerts, "alert"),
        counted(counts.blocked, "entry")
    );
    for (count, what) in [
        (counts.blocked_again, "entry blocked again in feeds that began anew"),
        (counts.repeated, "alert of what was blocked"),
        (counts.left_out, "alert left out by the rules"),
        (
            counts.without_ports,
            "alert of protocols without ports (--what source blocks the address)",
        ),
        (counts.too_old, "alert older than --for"),
        (counts.refused, "entry refused"),
        (counts.not_sent, "entry not sent"),
        (counts.not_understood, "line not understood"),
        (counts.too_long, "line too long"),
    ] {
        if count > 0 {
            text.push_str("; ");
            text += &counted(count, what);
        }
    }
    text
}
