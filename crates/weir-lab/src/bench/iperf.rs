//! Measures the cost of a capture for the captured TCP connection: TCP over the veth pair with offloads on, with and
//! without a capture.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::bar::{Bar, Side};
use super::child::{Child, pinned};
use super::context::{Context, Cpus, stopped};
use super::row::{Row, conclude, find, ratio_of, value_of};
use super::tool::{TCPDUMP, Tool, on_path};
use crate::testbed::{RX_IPV4, Testbed};
use crate::{Error, Result};

pub(super) const SECTION: &str = "iperf3";
pub(super) const PACED: &str = "iperf3 -b 10G";
pub(super) const BARE: &str = "bare";
pub(super) const PASSIVE: &str = "weir, passive tc";
pub(super) const HEADERS: &str = "weir, tc, snaplen 128";
const TCPDUMP_HEADERS: &str = "tcpdump, snaplen 128";
/// Section of the ratios: the rate with Weir divided by that with tcpdump at the same snaplen.
const PAIRS: &str = "iperf3, weir / tcpdump";
const PAIRED: [(&str, &str, &str); 2] =
    [("whole frames", PASSIVE, TCPDUMP), ("first 128 bytes", HEADERS, TCPDUMP_HEADERS)];
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Measures all tools in turn.
///
/// # Errors
/// Only if no testbed can be made. A tool that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut watchers: Vec<(&str, Option<Tool>)> = vec![(BARE, None)];
    let weir = &context.options.weir;
    let tools = [
        // The first two tools of Weir are compared with tcpdump, so each runs next to tcpdump.
        Tool::weir(weir, PASSIVE, "bpf", &[]),
        Tool::tcpdump(),
        Tool::weir(weir, HEADERS, "bpf", &["--snaplen", "128"]),
        Tool::tcpdump().with(&["-s", "128"]).named(TCPDUMP_HEADERS),
        Tool::weir(weir, "weir --hook xdp", "bpf", &["--hook", "xdp"]),
        Tool::weir(weir, "weir af_packet", "af_packet", &[]),
    ];
    watchers.extend(tools.map(|tool| (tool.name, Some(tool))));

    let mut top = rows_of(SECTION, &watchers);
    let mut paced = rows_of(PACED, &watchers);
    if !on_path("iperf3") {
        for row in top.iter_mut().chain(&mut paced) {
            row.absent = Some("iperf3 is not installed".to_owned());
        }
        top.extend(paced);
        return Ok(top);
    }
    let bed = Testbed::builder().addresses(true).build()?;
    for round in 0..context.rounds {
        for (rows, rate) in [(&mut top, None), (&mut paced, Some("10G"))] {
            run_round(context, &bed, round, rate, &watchers, rows)?;
        }
    }
    conclude(&mut top, BARE);
    conclude(&mut paced, BARE);
    let pairs = pairs(&top);
    top.extend(pairs);
    top.extend(paced);
    Ok(top)
}

/// Returns the rate with Weir divided by that with tcpdump at the same snaplen, for each round.
fn pairs(top: &[Row]) -> Vec<Row> {
    let pair = |(what, weir, tcpdump)| {
        let mut row = Row::new(PAIRS, what, "x");
        let both = find(top, SECTION, weir, None).zip(find(top, SECTION, tcpdump, None));
        let Some((weir, tcpdump)) = both else { return row };
        row.absent = weir.absent.clone().or_else(|| tcpdump.absent.clone());
        for ours in &weir.rounds {
            let theirs = tcpdump.rounds.iter().find(|theirs| theirs.round == ours.round);
            if let Some(theirs) = theirs.filter(|theirs| theirs.value > 0.0) {
                row.add(ours.round, ours.value / theirs.value, ours.disturbance);
            }
        }
        row.summarize();
        row
    };
    PAIRED.into_iter().map(pair).collect()
}

fn rows_of(section: &'static str, watchers: &[(&str, Option<Tool>)]) -> Vec<Row> {
    watchers.iter().map(|(name, _)| Row::new(section, *name, "Gbit/s")).collect()
}

/// Runs every tool once, at TCP's maximum or at `rate`. The order alternates from round to round,
/// so that neither of two compared tools is always second.
fn run_round(
    context: &Context,
    bed: &Testbed,
    round: u32,
    rate: Option<&str>,
    watchers: &[(&str, Option<Tool>)],
    rows: &mut [Row],
) -> Result<()> {
    let mut turns: Vec<_> = watchers.iter().zip(rows).collect();
    if round % 2 == 1 {
        turns.reverse();
    }
    for ((name, tool), row) in turns {
        if stopped(context.stop) {
            break;
        }
        if row.absent.is_some() {
            continue;
        }
        let neighbours = context.calm();
        match one(context, bed, rate, tool.as_ref()) {
            Ok(watched) => {
                context.say(&format!(
                    "{}, round {}: {name} {:.1} Gbit/s",
                    row.section,
                    round + 1,
                    watched.gbps
                ));
                row.add(round, watched.gbps, neighbours.done());
                if watched.lost > 0 {
                    row.note = format!("lost {} of what it watched", watched.lost);
                }
            }
            Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Watched {
    gbps: f64,
    lost: u64,
}

/// Starts an iperf3 server that ends after one client.
fn start_server(context: &Context, bed: &Testbed) -> Result<Child> {
    let args = ["-s", "-1", "--forceflush"].map(str::to_owned);
    let command = pinned(context.cpus.tool, "iperf3", &args);
    let mut server = Child::start("iperf3 -s", &bed.rx, command)?;
    server.wait_for_line(READY_LIMIT, |line| line.contains("Server listening"))?;
    Ok(server)
}

fn one(
    context: &Context,
    bed: &Testbed,
    rate: Option<&str>,
    tool: Option<&Tool>,
) -> Result<Watched> {
    let capturing = tool.map(|tool| tool.start(&bed.rx, context.cpus.tool)).transpose()?;
    let server = start_server(context, bed)?;
    let gbps = client(context, bed, rate)?;
    server.wait(READY_LIMIT)?;
    let Some(capturing) = capturing else { return Ok(Watched { gbps, lost: 0 }) };
    sleep(Duration::from_millis(200));
    let counted = capturing.finish()?;
    Ok(Watched { gbps, lost: counted.drops.values().sum() })
}

fn client(context: &Context, bed: &Testbed, rate: Option<&str>) -> Result<f64> {
    let seconds = context.seconds.ceil().max(1.0);
    let length = format!("{seconds}");
    let mut args = vec!["-c", RX_IPV4, "-J", "-t", &length];
    args.extend(rate.into_iter().flat_map(|rate| ["-b", rate]));
    let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
    let command: Command = pinned(context.cpus.generator, "iperf3", &args);
    let child = Child::start("iperf3 -c", &bed.tx, command)?;
    let lines = child.wait(Duration::from_secs_f64(seconds) + READY_LIMIT)?;
    let text: String = lines.iter().filter(|line| line.data).map(|line| &*line.text).collect();
    received_gbps(&text).map_err(|reason| Error::Measure { what: "iperf3 -c".to_owned(), reason })
}

/// Parses the rate that the server received, from the client's JSON.
fn received_gbps(json: &str) -> std::result::Result<f64, String> {
    let json: serde_json::Value =
        serde_json::from_str(json).map_err(|error| format!("its JSON: {error}"))?;
    if let Some(error) = json["error"].as_str() {
        return Err(error.to_owned());
    }
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 1e9).ok_or_else(|| "no end.sum_received in its JSON".to_owned())
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    let Cpus { generator, tool, .. } = context.cpus;
    format!(
        "iperf3: client (and softirqs) on CPU {generator}, server and watcher on CPU {tool}; the \
         receiving end is watched, at all that TCP gives and at 10 Gbit/s; every other round in reverse order"
    )
}

/// Returns the targets of this part. A complete copy of every super-frame costs a sender without spare CPU time about
/// 20 % of its rate (docs/decisions/0006). The target applies nevertheless.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let cases = [(SECTION, PASSIVE), (SECTION, HEADERS), (PACED, PASSIVE)];
    let bare = cases.into_iter().map(|(section, watcher)| {
        let found = ratio_of(rows, section, watcher, None);
        Bar::new(format!("{section} watched: {watcher} / bare"), found, Side::AtLeast, 0.95)
    });
    let pairs = PAIRED.into_iter().map(|(what, ..)| {
        let found = value_of(rows, PAIRS, what, None);
        let what = format!("{SECTION} watched, {what}: weir, tc / tcpdump");
        Bar::new(what, found, Side::AtLeast, 1.0)
    });
    bare.chain(pairs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weir_is_held_against_tcpdump_at_the_same_snaplen_within_each_round() {
        let row = |what: &str, values: [f64; 3]| {
            let mut row = Row::new(SECTION, what, "Gbit/s");
            (0..).zip(values).for_each(|(n, value)| row.add(n, value, Default::default()));
            row
        };
        let mut rows = vec![
            row(PASSIVE, [12.0, 6.0, 9.0]),
            row(TCPDUMP, [10.0, 6.0, 10.0]),
            row(HEADERS, [15.0, 15.0, 15.0]),
        ];
        rows.extend(pairs(&rows));
        let whole = find(&rows, PAIRS, "whole frames", None).and_then(|row| row.value).unwrap();
        assert_eq!((whole.median, whole.min, whole.max), (1.0, 0.9, 1.2));
        let met: Vec<_> = bars(&rows).iter().skip(3).map(|bar| bar.met).collect();
        assert_eq!(met, [Some(true), None]);
    }

    #[test]
    fn the_receivers_rate_is_read_and_an_error_is_said() {
        let good = r#"{"start":{},"end":{"sum_sent":{"bits_per_second":2e9},
            "sum_received":{"bits_per_second":1.5e10}}}"#;
        assert_eq!(received_gbps(good), Ok(15.0));
        let bad = r#"{"start":{},"end":{},"error":"unable to connect to server"}"#;
        assert_eq!(received_gbps(bad), Err("unable to connect to server".to_owned()));
        assert!(received_gbps("{}").is_err() && received_gbps("").is_err());
    }
}
