//! Parses the counts in the output of the tools.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::child::Line;
use super::percentiles::Percentiles;

/// Counts that a tool reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Frames that reached the tool's consumer.
    pub(super) kept: u64,
    /// Lost frames by the place that the tool names.
    pub(super) drops: BTreeMap<String, u64>,
}

/// Final output of `weir capture --json`, with only the fields that are used here.
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

/// Returns the last JSON object in the output of `weir capture --json`.
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

/// Parses the text report of `weir flows`: the engine, counts as `name  1 234`, drops as `drop name 5`.
pub(super) fn weir_flows(lines: &[Line], engine: &str) -> Option<Counted> {
    let said: Vec<&str> = lines.iter().filter(|it| it.data).map(|it| it.text.as_str()).collect();
    let answered = said.iter().any(|line| {
        let (_, answer) = line.split_once(": ").unwrap_or_default();
        answer.split_whitespace().next() == Some(engine)
    });
    let counts = || said.iter().filter_map(|line| name_and_number(line.strip_prefix("  ")?));
    let count = |wanted| counts().find(|(name, _)| *name == wanted).map(|(_, number)| number);
    let drops = counts().filter_map(|(name, number)| Some((name.strip_prefix("drop ")?, number)));
    let mut drops: BTreeMap<String, u64> =
        drops.map(|(name, number)| (name.trim().to_owned(), number)).collect();
    drops.insert("lapped".to_owned(), count("lapped")?);
    let filtered = count("filtered").filter(|filtered| *filtered > 0);
    drops.extend(filtered.map(|filtered| ("filtered".to_owned(), filtered)));
    let kept = count("delivered")?;
    answered.then_some(Counted { kept, drops })
}

/// Parses `delivered      12 345 678`.
fn name_and_number(line: &str) -> Option<(&str, u64)> {
    let at = line.rfind(|letter: char| !letter.is_ascii_digit() && letter != ' ')? + 1;
    Some((line[..at].trim(), line[at..].replace(' ', "").parse().ok()?))
}

/// Parses `N packets captured`, `N packets dropped by kernel`, `N packets dropped by interface`.
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

/// Parses `Packets received/dropped on interface 'x': N/M (pcap:M/dumpcap:0/flushed:0/ps_ifdrop:0) (%)`.
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

/// Parses `N  packets incoming (M unread on exit)`, `N  packets passed filter`, `N  packets failed filter (out of
/// space)`.
pub(super) fn netsniff_ng(lines: &[Line]) -> Option<Counted> {
    let passed = number_before(lines, "packets passed filter")?;
    let failed = number_before(lines, "packets failed filter")?;
    // netsniff-ng's unread frames include those for which it had no space.
    let unread = lines.iter().rev().find_map(|line| {
        let (_, rest) = line.text.split_once("packets incoming (")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    })?;
    let unread = unread.saturating_sub(failed);
    let drops = [("out_of_space".to_owned(), failed), ("unread".to_owned(), unread)];
    Some(Counted { kept: passed.saturating_sub(unread), drops: drops.into() })
}

/// Parses `RX-packets: N  RX-dropped: M  RX-total: T` after `Forward statistics for port 0`.
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

/// Parses `N packets captured`, `N packets dropped by perf ring`.
pub(super) fn xdpdump(lines: &[Line]) -> Option<Counted> {
    let kept = number_before(lines, "packets captured")?;
    let dropped = number_before(lines, "packets dropped by perf ring").unwrap_or(0);
    Some(Counted { kept, drops: [("perf_ring".to_owned(), dropped)].into() })
}

/// Returns the number at the start of the last line that continues with `text`. The singular `packet` does not match,
/// because no measurement has a count of 1.
fn number_before(lines: &[Line], text: &str) -> Option<u64> {
    lines.iter().rev().find_map(|line| {
        let (number, rest) = line.text.trim_start().split_once(char::is_whitespace)?;
        rest.trim_start().starts_with(text).then(|| number.parse().ok())?
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    /// Output of a program, as lines.
    pub(in super::super) fn lines(text: &str) -> Vec<Line> {
        let line =
            |text: &str| Line { at: UNIX_EPOCH, text: text.trim_end().to_owned(), data: true };
        text.lines().map(line).collect()
    }

    /// Drops by their names.
    pub(in super::super) fn drops(drops: &[(&str, u64)]) -> BTreeMap<String, u64> {
        drops.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn weir_flows_is_read() {
        let text = "wrx0: bpf at tc (the fastest here: frames are copied once, in the kernel)\n\
            1.825 s, 547.9 pps, 263.0 kbit/s reached the consumer\n\n\
            \x20 offered          1 001 009\n  filtered                 0\n  captured         1 001 000\n\
            \x20 drop reentry             9\n  drop unreadable          0\n  (missed before the hook: 0)\n\
            \x20 offered = filtered + captured + drops\n\n\
            \x20 delivered        1 000 998\n  lapped                   2\n  10 flows, 10 records\n\n\
            start (UTC)              seconds  on    proto  source  destination  packets  bytes\n\
            2026-11-26 04:01:42.723    0.001  wrx0  udp    198.18.185.214:52488  192.0.2.1:9  100  4 600\n";
        let counted = weir_flows(&lines(text), "bpf").unwrap();
        let lost = drops(&[("lapped", 2), ("reentry", 9), ("unreadable", 0)]);
        assert_eq!(counted, Counted { kept: 1_000_998, drops: lost });
        assert_eq!(weir_flows(&lines(text), "af_packet"), None);
    }

    #[test]
    fn tcpdump_is_read() {
        // tcpdump 4.99.3.
        let text = "tcpdump: listening on wrx0, link-type EN10MB (Ethernet), snapshot length 262144 bytes\n\
            1441856 packets captured\n1441860 packets received by filter\n4 packets dropped by kernel\n";
        let counted = tcpdump(&lines(text)).unwrap();
        assert_eq!(counted, Counted { kept: 1_441_856, drops: drops(&[("kernel", 4)]) });
    }

    #[test]
    fn dumpcap_is_read() {
        // dumpcap 4.0.17.
        let text = "Capturing on 'wrx0'\nFile: /dev/null\nPackets: 3716 Packets captured: 704731\n\
            Packets received/dropped on interface 'wrx0': 704731/16 \
            (pcap:15/dumpcap:0/flushed:1/ps_ifdrop:0) (100.0%)\n";
        let counted = dumpcap(&lines(text)).unwrap();
        let lost = drops(&[("pcap", 15), ("dumpcap", 0), ("flushed", 1), ("ps_ifdrop", 0)]);
        assert_eq!(counted, Counted { kept: 704_731, drops: lost });
    }

    #[test]
    fn netsniff_ng_is_read() {
        // netsniff-ng 0.6.8.
        let text = "Running! Hang up with ^C!\n\n     1327168  packets incoming (68 unread on exit)\n\
            \x20    1327168  packets passed filter\n           3  packets failed filter (out of space)\n\
            \x20     0.0000% packet droprate\n";
        let counted = netsniff_ng(&lines(text)).unwrap();
        let lost = drops(&[("out_of_space", 3), ("unread", 65)]);
        assert_eq!(counted, Counted { kept: 1_327_103, drops: lost });
    }

    #[test]
    fn testpmd_is_read() {
        // dpdk-testpmd 22.11.
        let text = "  ######################## NIC statistics for port 0  ########################\n\
            \x20 RX-packets: 12         RX-missed: 0          RX-bytes:  720\nPort statistics ====\n\
            \x20 ---------------------- Forward statistics for port 0  ----------------------\n\
            \x20 RX-packets: 9200006        RX-dropped: 24256         RX-total: 9224262\n\
            \x20 TX-packets: 0              TX-dropped: 0             TX-total: 0\n";
        let counted = testpmd(&lines(text)).unwrap();
        assert_eq!(counted, Counted { kept: 9_200_006, drops: drops(&[("rx", 24_256)]) });
    }

    #[test]
    fn xdpdump_is_read() {
        // xdpdump 1.3.1.
        let text = "listening on wrx0, ingress XDP program ID 5 func xdp_pass, capture mode entry, \
            capture size 262144 bytes\n\n17 packets captured\n3 packets dropped by perf ring\n";
        let counted = xdpdump(&lines(text)).unwrap();
        assert_eq!(counted, Counted { kept: 17, drops: drops(&[("perf_ring", 3)]) });
    }
}
