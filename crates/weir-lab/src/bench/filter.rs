//! Measures the cost of filters: in the kernel, in a capture from a veth pair, and as machine code in user space
//! (`user`).
//!
//! The kernel half of a capture runs in the generator's softirq, on the generator's CPU. So the time that a filter
//! takes is lost to the generator, and the value of a row is the rate that could be sent. The rate that was kept would
//! not do: a filter that rejects everything keeps no frame.

mod block;
mod drop;
mod user;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;

use super::bar::{Bar, Side};
use super::child::cpu_ns;
use super::context::{Context, stopped};
use super::counted::WeirReport;
use super::row::{Frames, MPPS, Row, conclude, find};
use super::tool::Tool;
use super::wire::{Traffic, send_flows};
use crate::generator::{Flows, GenReport, Rate, SIZE_MIN};
use crate::testbed::Testbed;
use crate::{Error, Result};
use block::{Control, List, Met};
use drop::XdpDrop;

pub(super) const SECTION: &str = "filter";
const BARE: &str = "bare XDP drop";
const REJECTS: &str = "weir --consume, rejects all";
const ONE: &str = "weir --consume, one feed";
const SIXTEEN: &str = "weir --consume, 16 feeds";
const EMPTY: &str = "the same feed, block list empty";
const STRANGE: &str = "the same feed, 10,000 entries, none met";
const MET: &str = "the same feed, 10,000 entries, some met";

/// A filter that matches no frame: the generated frames are UDP.
const NOTHING: &str = "tcp port 80";
const EVERYTHING: &str = "f0: udp";
const EVERYTHING_NAME: &str = "f0";
const FEEDS: u16 = 16;
/// Ring size of each of the 16 feeds, which share the same frames.
const FEED_RING: &str = "8MiB";
/// The lowest source port of the generator; the highest is 65535 (`template::flow_of`).
const PORT_MIN: u16 = 0x8000;

/// The program that receives the frames of a row.
enum Taker {
    /// An XDP program of two instructions that drops every frame.
    Drop,
    /// `weir capture`, with this number of feeds.
    Weir(Tool, u16),
    /// `weir capture` with one feed, and the block list that is added while it runs.
    Blocking(Tool, List),
}

/// Measures filters in the kernel, then in user space.
///
/// # Errors
/// No testbed can be made, or machine code and the forms that it is compared with disagree on a frame.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let mut cases: Vec<_> = takers(&context.options.weir)
        .into_iter()
        .map(|(name, taker)| (taker, Row::new(SECTION, name, MPPS).sized(SIZE_MIN)))
        .collect();
    for round in 0..context.rounds {
        for (taker, row) in &mut cases {
            if stopped(context.stop) || row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            let frames = match taker {
                Taker::Drop => dropped(context, &bed),
                Taker::Weir(tool, feeds) => captured(context, &bed, tool, *feeds, None),
                Taker::Blocking(tool, list) => Control::new(*list)
                    .and_then(|control| captured(context, &bed, tool, 1, Some(&control))),
            };
            match frames {
                Ok(frames) => {
                    let mpps = frames.offered_pps() / 1e6;
                    let round_of = format!("{SECTION}, round {}", round + 1);
                    context.say(&format!("{round_of}: {} {mpps:.2} sent", row.what));
                    row.add_offered(round, frames, neighbours.done());
                }
                Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                Err(error) => return Err(error),
            }
        }
    }
    let mut rows: Vec<Row> = cases.into_iter().map(|(_, row)| row).collect();
    conclude(&mut rows, BARE);
    rows.extend(user::measure(context)?);
    Ok(rows)
}

/// Returns all rows of the kernel's part, in the order of the report.
fn takers(weir: &Path) -> Vec<(&'static str, Taker)> {
    let with = |name, args: &[&str]| Tool::weir(weir, name, "bpf", args);
    let mut sixteen = with(SIXTEEN, &["--consume"]).with_ring(FEED_RING);
    for feed in feeds() {
        sixteen = sixteen.with(&["--feed", &feed]);
    }
    let one = |name| with(name, &["--consume", "--feed", EVERYTHING]);
    let plain = |name, args: &[&str]| (name, Taker::Weir(with(name, args), 1));
    let blocking = |name, list| (name, Taker::Blocking(one(name), list));
    vec![
        (BARE, Taker::Drop),
        plain(REJECTS, &["--consume", "--filter", NOTHING]),
        (ONE, Taker::Weir(one(ONE), 1)),
        blocking(EMPTY, List::Empty),
        blocking(STRANGE, List::Full(Met::None)),
        blocking(MET, List::Full(Met::Some)),
        (SIXTEEN, Taker::Weir(sixteen, FEEDS)),
        plain("weir, passive tc", &[]),
        plain("weir, passive tc, rejects all", &["--filter", NOTHING]),
    ]
}

/// Returns feeds that divide the generator's source ports evenly, so that each frame is in exactly one feed.
fn feeds() -> Vec<String> {
    let each = (u16::MAX - PORT_MIN) / FEEDS + 1;
    let feed = |n: u16| {
        let first = PORT_MIN + n * each;
        format!("f{n}: udp src portrange {first}-{}", first + (each - 1))
    };
    (0..FEEDS).map(feed).collect()
}

/// Sends at the maximum rate, each frame in its own flow.
fn flood(context: &Context, bed: &Testbed) -> Result<GenReport> {
    let (size, rate, stamp) = (SIZE_MIN, Rate::Max, false);
    let traffic = Traffic { size, rate, seconds: context.seconds, stamp };
    send_flows(context, &bed.tx, traffic, Flows::Multi)
}

fn dropped(context: &Context, bed: &Testbed) -> Result<Frames> {
    let program = XdpDrop::attach(&bed.rx)?;
    let sent = flood(context, bed)?;
    let dropped = program.finish()?;
    Ok(Frames::new(sent.sent, 0, [("xdp".to_owned(), dropped)].into(), sent.duration.as_secs_f64()))
}

fn captured(
    context: &Context,
    bed: &Testbed,
    tool: &Tool,
    feeds: u16,
    control: Option<&Control>,
) -> Result<Frames> {
    let tool = control.map_or_else(|| tool.clone(), |control| control.heard_by(tool));
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    if let Some(control) = control {
        control.send(&context.options.weir, EVERYTHING_NAME)?;
    }
    let id = capturing.child.id();
    let before = cpu_ns(id);
    let sent = flood(context, bed)?;
    sleep(tool.flush_time());
    let used = cpu_ns(id).zip(before).map(|(after, before)| after.saturating_sub(before));
    let report = capturing.finish_weir()?;
    let drops = drops(&report, feeds);
    let frames = Frames::new(sent.sent, report.delivered, drops, sent.duration.as_secs_f64());
    Ok(Frames { cpu_seconds: used.map(|ns| ns as f64 / 1e9), ..frames })
}

/// Returns the frames that were not kept, by reason. `filtered` counts the frames that no feed took. In the report,
/// each feed counts the frames that it rejects: `feeds - 1` feeds count a frame of another feed, and all `feeds` count
/// a frame of no feed. Blocked frames have passed a filter.
fn drops(report: &WeirReport, feeds: u16) -> BTreeMap<String, u64> {
    let feeds = u64::from(feeds);
    let taken = report.captured + report.blocked + report.drops.values().sum::<u64>();
    let filtered = report.filtered.saturating_sub((feeds - 1) * taken) / feeds;
    let mut drops = report.drops.clone();
    drops.insert("lapped".to_owned(), report.lapped);
    drops.insert("filtered".to_owned(), filtered);
    if report.blocked > 0 {
        drops.insert("blocked".to_owned(), report.blocked);
    }
    drops
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "filter: as wire, 64 B, every frame a flow; Mpps = frames SENT / the generator's time, because a filter's \
         work is on the generator's CPU; \"rejects all\" is 'tcp port 80' where all is UDP; 16 feeds have 8 MiB each \
         and share the source ports evenly; block lists are mixed, put in by weir block, and meet none or a seventh of \
         the frames; user space: CPU time of a verdict on CPU {}",
        context.cpus.tool
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let row = |what| find(rows, SECTION, what, Some(SIZE_MIN));
    let rejects = row(REJECTS).and_then(|row| row.ratio).map(|ratio| ratio.median);
    let over = |above, below| {
        let (above, below) = row(above).zip(row(below))?;
        above.over(below)
    };
    let mut bars = vec![
        Bar::new(format!("64 B, sent: {REJECTS} / {BARE}"), rejects, Side::AtLeast, 0.85),
        Bar::new(
            "64 B, sent: weir --consume, 16 feeds / one",
            over(SIXTEEN, ONE),
            Side::AtLeast,
            0.5,
        ),
    ];
    for (list, what) in [(STRANGE, "none met"), (MET, "some met")] {
        for (base, without) in [(ONE, "no block list"), (EMPTY, "an empty one")] {
            let what = format!("64 B, sent: one feed, 10,000 entries, {what} / {without}");
            bars.push(Bar::new(what, over(list, base), Side::AtLeast, 0.9));
        }
    }
    bars.extend(user::bars(rows));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::template::flow_of;

    #[test]
    fn the_feeds_share_the_generators_ports_evenly() {
        let ranges: Vec<(u16, u16)> = feeds()
            .iter()
            .map(|feed| {
                let (_, range) = feed.split_once("portrange ").unwrap();
                let (first, last) = range.split_once('-').unwrap();
                (first.parse().unwrap(), last.parse().unwrap())
            })
            .collect();
        assert_eq!((ranges.len(), ranges[0].0, ranges[15].1), (16, PORT_MIN, u16::MAX));
        assert!(ranges.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{ranges:?}");
        let mut counts = [0u32; 16];
        for number in 0..16_000 {
            let (_, port) = flow_of(number, 0);
            let at = ranges.iter().position(|&(first, last)| (first..=last).contains(&port));
            counts[at.expect("every frame is in a feed")] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_frame_is_filtered_if_no_feed_took_it() {
        // 100 frames: 90 captured by one of 16 feeds, 2 lost by one feed, 8 that no feed took.
        let report = WeirReport {
            captured: 90,
            filtered: 92 * 15 + 8 * 16,
            drops: [("reentry".to_owned(), 2)].into(),
            lapped: 5,
            delivered: 85,
            ..WeirReport::default()
        };
        let frames = Frames::new(100, report.delivered, drops(&report, 16), 1.0);
        assert_eq!((frames.drops["filtered"], frames.unaccounted), (8, 0));
        let blocks =
            WeirReport { captured: 86, blocked: 14, delivered: 86, ..WeirReport::default() };
        let frames = Frames::new(100, blocks.delivered, drops(&blocks, 1), 1.0);
        assert_eq!(
            (frames.drops["blocked"], frames.drops["filtered"], frames.unaccounted),
            (14, 0, 0)
        );
        let rejects = WeirReport { filtered: 100, ..WeirReport::default() };
        assert_eq!(drops(&rejects, 1)["filtered"], 100);
    }

    #[test]
    fn bars_are_of_what_could_be_sent_not_of_what_was_kept() {
        let row = |what: &str, sent: [u64; 2]| {
            let mut row = Row::new(SECTION, what, MPPS).sized(SIZE_MIN);
            for (round, sent) in (0..).zip(sent) {
                let frames = Frames::new(sent, 0, [("filtered".to_owned(), sent)].into(), 1.0);
                row.add_offered(round, frames, Default::default());
            }
            row
        };
        let mut rows = vec![
            row(BARE, [4_000_000, 2_000_000]),
            row(REJECTS, [3_600_000, 1_800_000]),
            row(ONE, [3_000_000, 1_500_000]),
            row(SIXTEEN, [1_200_000, 600_000]),
            row(EMPTY, [2_900_000, 1_450_000]),
            row(STRANGE, [2_640_000, 1_320_000]),
        ];
        conclude(&mut rows, BARE);
        let bars = bars(&rows);
        let value = |bar: &Bar| bar.value.unwrap();
        assert!((value(&bars[0]) - 0.9).abs() < 1e-9 && (value(&bars[1]) - 0.4).abs() < 1e-9);
        assert!((value(&bars[2]) - 0.88).abs() < 1e-9 && value(&bars[3]) > 0.9);
        let met: Vec<_> = bars.iter().take(5).map(|bar| bar.met).collect();
        assert_eq!(met, [Some(true), Some(false), Some(false), Some(true), None]);
    }
}
