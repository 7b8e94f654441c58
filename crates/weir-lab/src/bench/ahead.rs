//! Cases in which a peer was faster than the engine of Weir that uses the same kernel interface.

use serde::Serialize;

use super::row::{Row, find};
use super::stats::Spread;
use super::tool::{DPDK_AF_XDP, NOT_BUILT, TCPDUMP};
use super::{iperf, wire, zero_loss};

/// A peer and the rows of Weir that it is compared with: those that use the same kernel interface.
const KINDS: [(&str, &[&str]); 7] = [
    (TCPDUMP, &["weir af_packet", "weir pcap"]),
    ("dumpcap", &["weir af_packet", "weir pcap"]),
    ("netsniff-ng", &["weir af_packet", "weir pcap"]),
    ("xdpdump", &["weir --hook xdp"]),
    (DPDK_AF_XDP, &["weir af_xdp", "weir dpdk:net_af_xdp"]),
    ("DPDK af_packet, rx only", &["weir af_packet"]),
    ("DPDK pcap, rx only", &["weir pcap"]),
];
/// The same for the parts that measure a captured TCP connection.
const WATCHERS: [(&str, &[&str]); 1] = [(TCPDUMP, &[iperf::PASSIVE, "weir af_packet"])];

/// A peer that was faster than an engine of Weir.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ahead {
    /// The part of the bench.
    pub section: &'static str,
    /// Bytes of a frame on the wire, if all frames had one size.
    pub size_on_wire: Option<u32>,
    /// The peer.
    pub peer: String,
    /// The engine of Weir.
    pub weir: String,
    /// The peer's value divided by Weir's, round by round; its median is above 1. Infinite (null in
    /// JSON) where Weir kept nothing or failed.
    pub ratio: Spread,
}

impl Ahead {
    /// Returns the cells of a table row: part, frame size, peer, engine of Weir, ratio, range of the ratio.
    pub(super) fn cells(&self) -> [String; 6] {
        let size = self.size_on_wire.map_or_else(String::new, |size| format!("{size} B"));
        let Spread { median, min, max, .. } = self.ratio;
        let [ratio, min, max] = [median, min, max].map(|ratio| match ratio.is_finite() {
            true => format!("{ratio:.3}"),
            false => "-".to_owned(),
        });
        let range = if min == "-" { min } else { format!("{min}..{max}") };
        [self.section.to_owned(), size, self.peer.clone(), self.weir.clone(), ratio, range]
    }
}

/// Returns every case in which a peer was faster, however small the difference.
pub(super) fn ahead(rows: &[Row]) -> Vec<Ahead> {
    let mut all = Vec::new();
    for row in rows {
        let kinds: &[(&str, &[&str])] = match row.section {
            wire::SECTION | zero_loss::SECTION => &KINDS,
            iperf::SECTION | iperf::PACED => &WATCHERS,
            _ => continue,
        };
        let ours = kinds.iter().find(|(peer, _)| *peer == row.what).map_or(&[][..], |kind| kind.1);
        let ours = ours.iter().filter_map(|weir| find(rows, row.section, weir, row.size_on_wire));
        all.extend(ours.filter_map(|weir| compared(row, weir)));
    }
    all
}

fn compared(peer: &Row, weir: &Row) -> Option<Ahead> {
    let ratio = Spread::of(ratios(peer, weir)).filter(|ratio| ratio.median > 1.0)?;
    let (section, size_on_wire) = (peer.section, peer.size_on_wire);
    Some(Ahead { section, size_on_wire, peer: peer.what.clone(), weir: weir.what.clone(), ratio })
}

/// Returns the peer's value divided by Weir's for each round of the peer. The ratio is infinite if the peer kept frames
/// and Weir kept none or failed. Rounds that Weir lacks for another reason (the bench was interrupted, or the engine is
/// not built in) are left out.
fn ratios(peer: &Row, weir: &Row) -> impl Iterator<Item = f64> {
    let ours = weir.values();
    let failed = weir.absent.as_ref().is_some_and(|reason| !reason.contains(NOT_BUILT));
    peer.values().into_iter().filter_map(move |(round, theirs)| {
        let ours = ours.iter().find(|(other, _)| *other == round).map(|(_, value)| *value);
        let ours = ours.or(failed.then_some(0.0))?;
        // If neither kept a frame, there is no ratio.
        (theirs > 0.0 || ours > 0.0).then(|| theirs / ours)
    })
}

#[cfg(test)]
mod tests {
    use super::super::machine::Disturbance;
    use super::super::row::MPPS;
    use super::*;

    fn rows(peer: f64, ours: f64) -> Vec<Row> {
        let row = |what: &str, value| {
            let mut row = Row::new(wire::SECTION, what, MPPS).sized(64);
            row.add(0, value, Disturbance::default());
            row
        };
        vec![row("DPDK af_xdp, rx only", peer), row("weir af_xdp", ours)]
    }

    #[test]
    fn only_a_peer_that_is_faster_is_ahead_and_that_is_said() {
        let found = ahead(&rows(1.2, 1.0));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].cells()[..4], ["wire", "64 B", "DPDK af_xdp, rx only", "weir af_xdp"]);
        assert!((found[0].ratio.median - 1.2).abs() < 1e-9);
        assert_eq!(ahead(&rows(1.0, 1.0)), []);
        assert_eq!(ahead(&rows(0.9, 1.0)), []);
    }

    #[test]
    fn a_peer_that_kept_something_is_ahead_of_an_engine_that_kept_nothing_or_failed() {
        let mut failed = rows(1.2, 1.0);
        failed[1].rounds.clear();
        // No rounds and no failure: the run ended before its turn.
        assert_eq!(ahead(&failed), []);
        failed[1].absent = Some("it ended early".to_owned());
        for rows in [rows(1.2, 0.0), failed] {
            let found = ahead(&rows);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].cells()[4..], ["-", "-"]);
        }
        assert_eq!(ahead(&rows(0.0, 0.0)), []);
    }

    #[test]
    fn a_round_without_frames_of_ours_counts_and_does_not_decide_alone() {
        let mut three = rows(0.9, 1.0);
        for (row, values) in three.iter_mut().zip([[0.9, 0.9], [1.0, 0.0]]) {
            row.add(1, values[0], Disturbance::default());
            row.add(2, values[1], Disturbance::default());
        }
        assert_eq!(ahead(&three), []);
        three[1].rounds[1].value = 0.5;
        assert_eq!(ahead(&three)[0].cells()[4..], ["1.800", "0.900..-"]);
    }

    #[test]
    fn every_peer_and_every_engine_named_here_exists() {
        use super::super::tool::Tool;
        let all = Tool::all("weir".as_ref());
        let (weirs, peers): (Vec<_>, Vec<_>) = all.iter().partition(|tool| tool.is_weir());
        let names = |tools: Vec<&Tool>| tools.iter().map(|tool| tool.name).collect::<Vec<_>>();
        let (weirs, peers) = (names(weirs), names(peers));
        assert_eq!(peers, KINDS.map(|(peer, _)| peer));
        assert!(KINDS.iter().flat_map(|kind| kind.1).all(|weir| weirs.contains(weir)));
    }
}
