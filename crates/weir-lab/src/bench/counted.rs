//! What the programs say they got, read from their last words.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::child::Line;
use super::percentiles::Percentiles;

/// What a tool says it got.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Frames that reached the tool's consumer.
    pub(super) kept: u64,
    /// Every place where it says it lost some.
    pub(super) drops: BTreeMap<String, u64>,
}

/// What `weir capture --json` ends with, as far as it is needed here.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct WeirReport {
    pub(super) engine: String,
    pub(super) hook: Option<String>,
    #[serde(default)]
    pub(super) duration_s: f64,
    pub(super) offered: u64,
    pub(super) filtered: u64,
    #[serde(default)]
    pub(super) blocked: u64,
    pub(super) captured: u64,
    pub(super) drops: BTreeMap<String, u64>,
    pub(super) lapped: u64,
    pub(super) delivered: u64,
    pub(super) latency: Option<Percentiles>,
}

/// The object that `weir capture --json` ends with.
pub(super) fn weir_report(lines: &[Line]) -> Option<WeirReport> {
    let data = lines.iter().rev().filter(|line| line.data);
    data.filter(|line| line.text.starts_with('{'))
        .find_map(|line| serde_json::from_str(&line.text).ok())
}

impl WeirReport {
    pub(super) fn counted(&self) -> Counted {
        let mut drops = self.drops.clone();
        drops.insert("lapped".to_owned(), self.lapped);
        if self.filtered > 0 {
            drops.insert("filtered".to_owned(), self.filtered);
        }
        Counted { kept: self.delivered, drops }
    }
}

/// `N packets captured`, `N packets dropped by kernel`, `N packets dropped by interface`.
pub(super) fn tcpdump(lines: &[Line]) -> Option<Counted> {
    let kept = number_before(lines, "packets captured")?;
    let mut drops = BTreeMap::new();
    for (name, text) in
        [("kernel", "packets dropped by kernel"), ("interface", "packets dropped by interface")]
    {
        if let Some(count) = number_before(lines, text) {
            drops.insert(name.to_owned(), count);
        }
    }
    Some(Counted { kept, drops })
}

/// `Packets received/dropped on interface 'x': N/M (pcap:M/dumpcap:0/flushed:0/ps_ifdrop:0) (%)`.
pub(super) fn dumpcap(lines: &[Line]) -> Option<Counted> {
    let line = lines.iter().rev().find(|line| line.text.contains("received/dropped on"))?;
    let (_, counts) = line.text.split_once("': ")?;
    let kept = counts.split_once('/')?.0.parse().ok()?;
    let (_, inner) = counts.split_once('(')?;
    let (inner, _) = inner.split_once(')')?;
    let part = |part: &str| {
        let (name, count) = part.split_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    Some(Counted { kept, drops: inner.split('/').map(part).collect::<Option<_>>()? })
}

/// `N  packets incoming (M unread on exit)`, `N  packets passed filter`, `N  packets failed filter (out
/// of space)`.
pub(super) fn netsniff_ng(lines: &[Line]) -> Option<Counted> {
    let passed = number_before(lines, "packets passed filter")?;
    let failed = number_before(lines, "packets failed filter")?;
    // What it calls unread are those for which it had no space, and those it had not come to.
    let unread = lines.iter().rev().find_map(|line| {
        let (_, rest) = line.text.split_once("packets incoming (")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    })?;
    let unread = unread.saturating_sub(failed);
    let drops = [("out_of_space".to_owned(), failed), ("unread".to_owned(), unread)];
    Some(Counted { kept: passed.saturating_sub(unread), drops: drops.into() })
}

/// After `Forward statistics for port 0`: `RX-packets: N  RX-dropped: M  RX-total: T`.
pub(super) fn testpmd(lines: &[Line]) -> Option<Counted> {
    let at = lines.iter().rposition(|line| line.text.contains("Forward statistics for port"))?;
    let line = lines[at..].iter().find(|line| line.text.contains("RX-packets:"))?;
    let number = |name: &str| {
        let (_, rest) = line.text.split_once(name)?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    let drops = [("rx".to_owned(), number("RX-dropped:")?)];
    Some(Counted { kept: number("RX-packets:")?, drops: drops.into() })
}

/// `N packets captured`, `N packets dropped by perf ring`.
pub(super) fn xdpdump(lines: &[Line]) -> Option<Counted> {
    let kept = number_before(lines, "packets captured")?;
    let dropped = number_before(lines, "packets dropped by perf ring").unwrap_or(0);
    Some(Counted { kept, drops: [("perf_ring".to_owned(), dropped)].into() })
}

/// The number at the start of the last line that goes on with `text`. Where a tool counts one packet,
/// it may say `packet`: nobody measures one.
fn number_before(lines: &[Line], text: &str) -> Option<u64> {
    lines.iter().rev().find_map(|line| {
        let (number, rest) = line.text.trim_start().split_once(char::is_whitespace)?;
        rest.trim_start().starts_with(text).then(|| number.parse().ok())?
    })
}
