//! What watching costs the watched: TCP over the veth pair with offloads on, bare and watched.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::child::{Child, pinned};
use super::report::{Row, conclude};
use super::tool::{TCPDUMP, Tool, on_path};
use super::{Context, stopped};
use crate::testbed::{RX_IPV4, Testbed};
use crate::{Error, Result};

pub(super) const SECTION: &str = "iperf3";
pub(super) const BARE: &str = "bare";
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Measures all watchers in turn.
///
/// # Errors
/// Only if there can be no testbed: a tool that fails is a row that says so.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut watchers: Vec<(&str, Option<Tool>)> = vec![(BARE, None)];
    let weir = &context.options.weir;
    let tools = [
        Tool::weir(weir, "weir, passive tc", &["--engine", "bpf"]),
        Tool::weir(weir, "weir, tc, snaplen 128", &["--engine", "bpf", "--snaplen", "128"]),
        Tool::weir(weir, "weir --hook xdp", &["--engine", "bpf", "--hook", "xdp"]),
        Tool::weir(weir, "weir af_packet", &["--engine", "af_packet"]),
    ];
    let peers = Tool::peers().into_iter().filter(|tool| tool.name == TCPDUMP);
    watchers.extend(tools.into_iter().chain(peers).map(|tool| (tool.name, Some(tool))));

    let mut rows: Vec<Row> =
        watchers.iter().map(|(name, _)| Row::new(SECTION, *name, "Gbit/s")).collect();
    if !on_path("iperf3") {
        for row in &mut rows {
            row.absent = Some("iperf3 is not installed".to_owned());
        }
        return Ok(rows);
    }
    let bed = Testbed::builder().addresses(true).build()?;
    for round in 0..context.rounds {
        for ((name, tool), row) in watchers.iter().zip(&mut rows) {
            if stopped(context.stop) {
                break;
            }
            if row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            match one(context, &bed, tool.as_ref()) {
                Ok(watched) => {
                    context.say(&format!(
                        "iperf3, round {}: {name} {:.1} Gbit/s",
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
    }
    conclude(&mut rows, BARE);
    Ok(rows)
}

struct Watched {
    gbps: f64,
    lost: u64,
}

/// A server that ends after one client.
fn start_server(context: &Context, bed: &Testbed) -> Result<Child> {
    let args = ["-s", "-1", "--forceflush"].map(str::to_owned);
    let command = pinned(context.cpus.tool, "iperf3", &args);
    let mut server = Child::start("iperf3 -s", &bed.rx, command)?;
    server.wait_for_line(READY_LIMIT, |line| line.contains("Server listening"))?;
    Ok(server)
}

fn one(context: &Context, bed: &Testbed, tool: Option<&Tool>) -> Result<Watched> {
    let capturing = tool.map(|tool| tool.start(&bed.rx, context.cpus.tool)).transpose()?;
    let server = start_server(context, bed)?;
    let gbps = client(context, bed)?;
    server.wait(READY_LIMIT)?;
    let Some(capturing) = capturing else { return Ok(Watched { gbps, lost: 0 }) };
    sleep(Duration::from_millis(200));
    let counted = capturing.finish()?;
    Ok(Watched { gbps, lost: counted.drops.values().sum() })
}

fn client(context: &Context, bed: &Testbed) -> Result<f64> {
    let seconds = context.seconds.ceil().max(1.0);
    let args = ["-c", RX_IPV4, "-J", "-t", &format!("{seconds}")].map(str::to_owned);
    let command: Command = pinned(context.cpus.generator, "iperf3", &args);
    let child = Child::start("iperf3 -c", &bed.tx, command)?;
    let lines = child.wait(Duration::from_secs_f64(seconds) + READY_LIMIT)?;
    let text: String = lines.iter().filter(|line| line.data).map(|line| &*line.text).collect();
    received_gbps(&text).map_err(|reason| Error::Measure { what: "iperf3 -c".to_owned(), reason })
}

/// What the server received, of the client's JSON.
fn received_gbps(json: &str) -> std::result::Result<f64, String> {
    let json: serde_json::Value =
        serde_json::from_str(json).map_err(|error| format!("its JSON: {error}"))?;
    if let Some(error) = json["error"].as_str() {
        return Err(error.to_owned());
    }
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 1e9).ok_or_else(|| "no end.sum_received in its JSON".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
