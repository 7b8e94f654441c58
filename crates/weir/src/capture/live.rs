//! What is said while a capture runs: a line a second, and news of its sources.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use weir_capture::error::error_text;
use weir_capture::{CaptureError, Info, SourceEvent};
use weir_consumer::Delivered;
use weir_ring::Ledger;

use crate::journal::News;
use crate::out;
use crate::units::{BIT_RATE, HeldUnit, PACKET_RATE, grouped};

/// One line a second on standard error.
pub struct Live {
    /// When the next is due.
    pub next: Instant,
    last: (Instant, Delivered),
    packets: HeldUnit,
    bits: HeldUnit,
    talks: bool,
    tty: bool,
}

impl Live {
    pub fn new(begin: Instant, talks: bool) -> Live {
        let next = begin + Duration::from_secs(1);
        Live {
            next,
            last: (begin, Delivered::default()),
            packets: HeldUnit::new(&PACKET_RATE),
            bits: HeldUnit::new(&BIT_RATE),
            talks,
            tty: io::stderr().is_terminal(),
        }
    }

    /// Says how it goes, if that is due. `total` gives the ledger so far of all feeds.
    pub fn tick(&mut self, delivered: Delivered, total: impl FnOnce() -> Ledger) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_secs(1);
        let (then, before) = std::mem::replace(&mut self.last, (now, delivered));
        let seconds = now.duration_since(then).as_secs_f64();
        let total = total();
        if !self.talks {
            return;
        }
        let frames = (delivered.frames - before.frames) as f64;
        let bits = (delivered.wire_bytes - before.wire_bytes) as f64 * 8.0;
        let line = format!(
            "weir: {} {} | captured {} dropped {} lapped {}",
            self.packets.show(frames / seconds),
            self.bits.show(bits / seconds),
            grouped(total.captured),
            grouped(total.dropped()),
            grouped(delivered.lapped),
        );
        if self.tty { out::talk_and_erase(&line) } else { eprintln!("{line}") }
    }
}

/// Says which engine was taken, and why.
pub fn introduce(info: &Info) {
    let hook = info.hook.map_or_else(String::new, |hook| format!(" at {hook}"));
    eprintln!("weir: {}: {}{hook}: {}", info.source, info.engine, info.why);
    for note in &info.notes {
        eprintln!("weir: {}: {note}", info.source);
    }
}

/// What is said of a source.
pub fn text(news: &News) -> String {
    match news {
        News::Missing(CaptureError::InterfaceDown { .. }) | News::Down => {
            "down; waiting for it to come up".to_owned()
        }
        News::Missing(CaptureError::NoInterface { .. }) => {
            "not there; waiting for it to appear".to_owned()
        }
        News::Missing(why) => {
            format!(
                "went away while it was opened; waiting for it to come back ({})",
                error_text(why)
            )
        }
        News::CameBack => "there; captured from here on".to_owned(),
        News::Vanished => "vanished; waiting for it to come back".to_owned(),
        News::Up => "up again".to_owned(),
        News::Interface(SourceEvent::Joined { iface }) => format!("{iface} joined"),
        News::Interface(SourceEvent::Left { iface }) => format!("{iface} left"),
        News::Interface(SourceEvent::Down { iface }) => format!("{iface} went down"),
        News::Interface(SourceEvent::Up { iface }) => format!("{iface} came up"),
        News::Interface(SourceEvent::LeftOut { iface, why }) => {
            format!("{iface} is left out: {why}")
        }
        News::NotRead(why) => format!("there again, but a consumer cannot read it: {why}"),
        News::LetGo(consumer, frames) => format!(
            "{} unread frames of a past life were let go, and count as lapped: the consumer {consumer} is too slow",
            grouped(*frames)
        ),
        News::NotWatched(why) => format!(
            "nobody notices whether it goes down or comes back until this, which is tried again, succeeds: {}",
            error_text(why)
        ),
        News::Failed(why) => format!("this source has ended, the others go on: {why}"),
    }
}
