//! Messages of a running capture: its progress, and events of its sources.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use weir_capture::{CaptureError, Info, SourceEvent};
use weir_client::EndReason;
use weir_consumer::Delivered;
use weir_ring::Ledger;

use super::Working;
use crate::error_words::{error_text, without_number};
use crate::journal::Notice;
use crate::out;
use crate::units::{BIT_RATE, HeldUnit, PACKET_RATE, grouped};

/// The progress on standard error: a status line on a terminal, updated each second; elsewhere one line per minute.
pub struct Live {
    /// When the next tick is due.
    pub next: Instant,
    last: (Instant, Delivered),
    packets: HeldUnit,
    bits: HeldUnit,
    /// When the next line is due.
    line_at: Instant,
    talks: bool,
    is_terminal: bool,
}

/// Interval of lines if standard error is not a terminal.
const LINES_APART: Duration = Duration::from_secs(60);

impl Live {
    /// Creates the display of the progress. `prints_there`: frames are printed on the terminal, so the progress
    /// is not shown.
    pub fn new(begin: Instant, talks: bool, prints_there: bool) -> Live {
        let next = begin + Duration::from_secs(1);
        Live {
            next,
            last: (begin, Delivered::default()),
            packets: HeldUnit::new(&PACKET_RATE),
            bits: HeldUnit::new(&BIT_RATE),
            line_at: begin,
            talks: talks && !prints_there,
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Shows the progress if it is due. `total` returns the current ledger of all feeds.
    pub fn tick(&mut self, delivered: Delivered, total: impl FnOnce() -> Ledger) {
        if let Some(line) = self.line_due(Instant::now(), delivered, total) {
            if self.is_terminal { out::show_status(&line) } else { eprintln!("{line}") }
        }
    }

    /// Returns the next line if it is due.
    fn line_due(
        &mut self,
        now: Instant,
        delivered: Delivered,
        total: impl FnOnce() -> Ledger,
    ) -> Option<String> {
        if now < self.next {
            return None;
        }
        self.next = now + Duration::from_secs(1);
        let total = total();
        if !self.talks || now < self.line_at {
            return None;
        }
        self.line_at = now + if self.is_terminal { Duration::ZERO } else { LINES_APART };
        let (then, before) = std::mem::replace(&mut self.last, (now, delivered));
        let seconds = now.duration_since(then).as_secs_f64();
        let frames = delivered.frames.saturating_sub(before.frames) as f64;
        let bits = delivered.wire_bytes.saturating_sub(before.wire_bytes) as f64 * 8.0;
        Some(format!(
            "weir: {} {} | in all: captured {} dropped {} lapped {}",
            self.packets.show(frames / seconds),
            self.bits.show(bits / seconds),
            grouped(total.captured),
            grouped(total.dropped()),
            grouped(delivered.lapped),
        ))
    }

    /// Clears the status line before the report.
    pub fn end(&self) {
        out::clear_status();
    }
}

/// Prints which engine was chosen and why, and the notes of the engine.
pub fn introduce(info: &Info) {
    let hook = info.hook.map_or_else(String::new, |hook| format!(" at {hook}"));
    eprintln!("weir: {}: {}{hook}: {}", info.source, info.engine, info.why);
    for note in &info.notes {
        eprintln!("weir: {}: {note}", info.source);
    }
}

/// Returns the message about a consumer that has ended before the others; `None` if it has all requested frames.
pub fn ended(consumer: &Working) -> Option<String> {
    let observer = consumer.running.observer();
    let end = observer.end();
    let why = end.and_then(|end| end.failure.as_deref());
    let why = why.map_or_else(String::new, |why| format!("{}; ", error_text(why)));
    let text = format!("{}: {why}this consumer has ended, the others go on", consumer.name);
    Some(text).filter(|_| !end.is_some_and(|end| end.limited))
}

/// Returns the message about an event of a source.
pub fn text(notice: &Notice) -> String {
    match notice {
        Notice::Vanished(CaptureError::FeedEnded { why, .. }) => feed_ended(why),
        Notice::Missing(CaptureError::InterfaceDown { .. }) | Notice::Down => {
            "down; waiting for it to come up".to_owned()
        }
        Notice::Missing(CaptureError::NoInterface { .. }) => {
            "not there; waiting for it to appear".to_owned()
        }
        Notice::Missing(CaptureError::DaemonRefuses { reason, .. }) => refused(reason),
        Notice::Missing(CaptureError::DaemonBusy { reason, .. }) => {
            format!("not opened yet: {reason}; trying again")
        }
        Notice::Missing(CaptureError::NoDaemon { path, cause }) => format!(
            "no daemon answers at {} yet ({}); waiting for one",
            path.display(),
            without_number(&weir_client::reason_text(cause))
        ),
        Notice::Missing(why) => {
            format!(
                "went away while it was opened; waiting for it to come back ({})",
                error_text(why)
            )
        }
        Notice::CameBack => "there; captured from here on".to_owned(),
        Notice::Vanished(_) => "vanished; waiting for it to come back".to_owned(),
        Notice::Up => "up again".to_owned(),
        Notice::Interface(SourceEvent::Joined { iface }) => format!("{iface} joined"),
        Notice::Interface(SourceEvent::Left { iface }) => format!("{iface} left"),
        Notice::Interface(SourceEvent::Down { iface }) => format!("{iface} went down"),
        Notice::Interface(SourceEvent::Up { iface }) => format!("{iface} came up"),
        Notice::Interface(SourceEvent::LeftOut { iface, why }) => {
            format!("{iface} is left out: {why}")
        }
        Notice::NotRead(why) => format!("there again, but a consumer cannot read it: {why}"),
        Notice::LetGo(consumer, frames) => format!(
            "{} unread frames of a past life were let go, and count as lapped: the consumer {consumer} is too slow",
            grouped(*frames)
        ),
        Notice::NotWatched(why) => format!(
            "nobody notices whether it goes down or comes back until this, which is tried again, succeeds: {}",
            error_text(why)
        ),
        Notice::Failed(why) => format!("this source has ended, the others go on: {why}"),
    }
}

/// Returns the message about a feed of a daemon that has ended, and is waited for.
fn feed_ended(why: &EndReason) -> String {
    match why {
        EndReason::Moved => {
            "the daemon moves the feed to other rings, where it goes on without a gap".to_owned()
        }
        EndReason::Failed(reason) => {
            format!(
                "the daemon has closed the feed: {reason}; waiting until it can be opened again"
            )
        }
        EndReason::SourceEnded | EndReason::DaemonEnded => {
            format!("{why}; waiting for it to come back")
        }
    }
}

/// Returns the message about a refusal by a daemon.
pub fn refused(reason: &str) -> String {
    format!("refused: {reason}; trying again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_has_a_line_a_minute_and_a_terminal_one_a_second() {
        let (begin, tenth) = (Instant::now(), Duration::from_millis(100));
        // Tenths of a second at which a line was due.
        let due = |is_terminal, talks, prints_there| {
            let mut live = Live::new(begin, talks, prints_there);
            live.is_terminal = is_terminal;
            let mut is_due = |at: u32| {
                live.line_due(begin + tenth * at, Delivered::default(), Ledger::default).is_some()
            };
            (0..1300).filter(|&at| is_due(at)).collect::<Vec<_>>()
        };
        assert_eq!(due(false, true, false), [10, 610, 1210]);
        assert_eq!(due(true, true, false), (10..1300).step_by(10).collect::<Vec<_>>());
        assert!(due(true, false, false).is_empty());
        assert!(due(true, true, true).is_empty());
    }
}
