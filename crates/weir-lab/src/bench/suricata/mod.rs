//! Measures Suricata 7 on one thread, with four inputs: its own `AF_PACKET` socket, libpcap, and a daemon's feed
//! through libweirpcap or through an interface that `weir attach` feeds.
//!
//! Suricata is slower than the link, so the ledger matters most here: every frame must be decoded, or be counted as
//! lost at a named place.

mod counts;
pub(super) mod program;
mod trace;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use weir_client::status::ClientStatus;

use super::bar::{Bar, Side};
use super::child::{Child, cpu_ns, pinned};
use super::context::{Context, stopped};
use super::counted::weir_report;
use super::row::{Frames, MPPS, Row, conclude, find};
use super::serve::{READY, Served};
use crate::generator::replay::{self, ReplayOptions};
use crate::testbed::Testbed;
use crate::{Error, Result};
use counts::Counts;
use program::{COUNTED, GRACE, Input, Installed, Task};
use trace::Trace;

pub(super) const SECTION: &str = "suricata";
const OWN: &str = "Suricata by AF_PACKET";
const LIBPCAP: &str = "Suricata by libpcap";
const PRELOADED: &str = "Suricata on host:lan (libweirpcap)";
const ATTACHED: &str = "Suricata on weir0 (weir attach)";
/// The interface that `weir attach` feeds.
const NETDEV: &str = "weir0";
/// Frames of the trace per second of sending. This is more than the generator has sent on any machine tested so far.
const FRAMES_PER_SECOND: f64 = 800_000.0;
/// Most frames of the trace: 2 GB.
const FRAMES: f64 = 3e6;

/// Suricata's input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Own,
    Libpcap,
    Preloaded,
    Attached,
}

impl Way {
    const ALL: [Way; 4] = [Way::Own, Way::Libpcap, Way::Preloaded, Way::Attached];

    fn name(self) -> &'static str {
        match self {
            Way::Own => OWN,
            Way::Libpcap => LIBPCAP,
            Way::Preloaded => PRELOADED,
            Way::Attached => ATTACHED,
        }
    }
}

/// Measures all inputs.
///
/// # Errors
/// Only if no testbed can be made. Any other failure gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut rows = Way::ALL.map(|way| Row::new(SECTION, way.name(), MPPS));
    let ready =
        Installed::find(context).and_then(|installed| Ok((installed, make_trace(context)?)));
    let (installed, (folder, trace)) = match ready {
        Ok(ready) => ready,
        Err(Error::Measure { reason, .. }) => {
            rows.iter_mut().for_each(|row| row.absent = Some(reason.clone()));
            return Ok(rows.into());
        }
        Err(error) => return Err(error),
    };
    // GRO would merge several frames of a connection into one, and no count would match the
    // generator's.
    let bed = Testbed::builder().gro(false).build()?;
    let path = folder.path().join(TRACE);
    context.say(&format!(
        "{SECTION}: a trace of {} frames, {} B on average, {} connections",
        trace.frames,
        trace.mean_bytes(),
        trace.connections
    ));
    for round in 0..context.rounds {
        for (way, row) in Way::ALL.into_iter().zip(&mut rows) {
            if stopped(context.stop) || row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            match one(context, &bed, &installed, &path, way) {
                Ok((frames, note)) => {
                    let (name, mpps) = (way.name(), frames.kept_mpps());
                    context.say(&format!("{SECTION}, round {}: {name} {mpps:.2}", round + 1));
                    row.note = note;
                    row.add_frames(round, frames, neighbours.done());
                }
                Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                Err(error) => return Err(error),
            }
        }
    }
    conclude(&mut rows, OWN);
    Ok(rows.into())
}

/// File name of the trace.
const TRACE: &str = "trace.pcapng";

/// Writes the trace to memory.
fn make_trace(context: &Context) -> Result<(tempfile::TempDir, Trace)> {
    let failed = |error: std::io::Error| Error::Measure {
        what: "a trace".to_owned(),
        reason: format!("no room for the trace in /dev/shm: {error}"),
    };
    let frames = (context.seconds * FRAMES_PER_SECOND).min(FRAMES) as u64;
    let folder = tempfile::tempdir_in("/dev/shm").map_err(failed)?;
    let trace = trace::write(&folder.path().join(TRACE), frames).map_err(failed)?;
    Ok((folder, trace))
}

/// Makes one run, with its own daemon if the input needs one. Also returns a note.
fn one(
    context: &Context,
    bed: &Testbed,
    installed: &Installed,
    trace: &Path,
    way: Way,
) -> Result<(Frames, String)> {
    let served = match way {
        Way::Own | Way::Libpcap => None,
        Way::Preloaded | Way::Attached => Some(Served::start(context, bed)?),
    };
    let iface = bed.rx.iface.clone();
    let (input, attached) = match (way, &served) {
        (Way::Preloaded, Some(served)) => {
            let (source, socket) = ("host:lan".to_owned(), served.socket());
            (Input::Preloaded { source, socket }, None)
        }
        (Way::Attached, Some(served)) => {
            (Input::AfPacket(NETDEV.to_owned()), Some(attach(context, bed, served)?))
        }
        (Way::Libpcap, _) => (Input::Libpcap(iface), None),
        _ => (Input::AfPacket(iface), None),
    };
    let running = installed.start(context, &bed.rx, &input, Task::Alerts)?;
    if let Some(served) = &served {
        served.wait_for_client()?;
    }
    let helpers = [served.as_ref().map(|served| &served.daemon), attached.as_ref()];
    let helpers = helpers.into_iter().flatten().map(Child::id);
    let ids: Vec<u32> = helpers.chain([running.child.id()]).collect();
    let cpu = || ids.iter().filter_map(|id| cpu_ns(*id)).sum::<u64>();
    let before = cpu();
    let sent = send(context, bed, trace)?;
    let used = cpu().saturating_sub(before);
    let at_the_host = match (way, &served) {
        (Way::Preloaded, Some(served)) => Some(served.client()?),
        _ => None,
    };
    let counts = running.finish()?;
    let hook = at_the_host.as_ref().and_then(|client| Some(client.ledger.as_ref()?.offered));
    let drops = match (at_the_host, attached) {
        (Some(client), _) => of_feed(&counts, &client),
        (None, Some(attached)) => of_netdev(&counts, attached)?,
        (None, None) => counts.drops(),
    };
    let frames = Frames::new(sent.frames, counts.decoded, drops, sent.seconds);
    let unaccounted = frames.unaccounted;
    let mut note = format!("{} alerts in the last round", counts.alerts);
    if unaccounted != 0 {
        note += &format!(", {unaccounted} frames unaccounted");
        if let Some(offered) = hook {
            note += &format!(" ({offered} of {} came to the daemon's hook)", sent.frames);
        }
    }
    Ok((Frames { cpu_seconds: Some(used as f64 / 1e9), ..frames }, note))
}

/// Sent frames.
struct Sent {
    frames: u64,
    /// Time from the first frame to the last, without the additional frame at the end.
    seconds: f64,
}

/// Sends the trace, waits while Suricata reads its buffer, and sends one more frame. Suricata needs it to update its
/// count of libpcap's drops: it does so when it receives a frame, at most once a second.
fn send(context: &Context, bed: &Testbed, trace: &Path) -> Result<Sent> {
    let tx = &bed.tx;
    let all = ReplayOptions {
        duration: Some(Duration::from_secs_f64(context.seconds)),
        cpu: Some(context.cpus.generator),
        ..ReplayOptions::new(trace)
    };
    let one = ReplayOptions { frames: Some(1), duration: None, ..all.clone() };
    let most = tx.run(|| replay::run(&tx.iface, &all, context.stop))??;
    sleep(GRACE);
    let late = tx.run(|| replay::run(&tx.iface, &one, context.stop))??;
    sleep(COUNTED);
    Ok(Sent { frames: most.sent + late.sent, seconds: most.duration.as_secs_f64() })
}

/// Starts `weir attach`, which feeds the interface.
fn attach(context: &Context, bed: &Testbed, served: &Served) -> Result<Child> {
    let socket = served.socket().display().to_string();
    let words = ["attach", "host:lan", "--netdev", NETDEV, "--socket", &socket, "--json"];
    let weir = context.options.weir.to_string_lossy();
    let command = pinned(context.cpus.tool, &weir, &words.map(str::to_owned));
    let mut attached = Child::start("weir attach", &bed.rx, command)?;
    attached.wait_for_line(READY, |line| line.contains(NETDEV))?;
    Ok(attached)
}

/// Returns the drops of a feed. libpcap's single count contains the frames that the daemon lost, which are listed by
/// their own names, and those that were overwritten before Suricata read them (`lapped`). `unread` are the frames that
/// Suricata had not read at the end.
fn of_feed(counts: &Counts, client: &ClientStatus) -> BTreeMap<String, u64> {
    let mut drops = client.ledger.clone().unwrap_or_default().drops;
    let at_the_host: u64 = drops.values().sum();
    drops.insert("lapped".to_owned(), counts.kernel_drops.saturating_sub(at_the_host));
    drops.insert("interface".to_owned(), counts.interface_drops);
    drops.insert("unread".to_owned(), client.lag.unwrap_or(0));
    drops
}

/// Returns the losses of `weir attach`, and those of Suricata's socket on the interface that it feeds.
fn of_netdev(counts: &Counts, attached: Child) -> Result<BTreeMap<String, u64>> {
    let lines = attached.interrupt()?;
    let report = weir_report(&lines).ok_or_else(|| {
        let last = lines.iter().rev().find(|line| !line.text.trim().is_empty());
        let said = last.map_or("it said nothing", |line| line.text.trim());
        let reason = format!("weir attach ended without a report: {said}");
        Error::Measure { what: ATTACHED.to_owned(), reason }
    })?;
    let mut drops = report.counted().drops;
    drops.extend(counts.drops());
    Ok(drops)
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "suricata: one veth pair without GRO, generator and all softirq work on CPU {}, Suricata and what feeds it on \
         CPU {}; Suricata 7 with one thread and ten rules, 64 MiB of ring or buffer. A trace of HTTP, sent once and as \
         fast as a packet socket goes: 64 connections at a time, answers of 1 to {} full frames, acknowledgements for \
         every second; one request in {} raises an alert. Mpps = frames decoded / the generator's time; CPU time is \
         that of all processes",
        context.cpus.generator,
        context.cpus.tool,
        trace::SEGMENTS,
        trace::EVIL_EVERY
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let row = |what: &str| find(rows, SECTION, what, None);
    let over = row(PRELOADED).zip(row(OWN)).and_then(|(ours, own)| ours.over(own));
    vec![Bar::new(format!("{PRELOADED} / {OWN}"), over, Side::AtLeast, 1.0)]
}

#[cfg(test)]
mod tests {
    use weir_client::protocol::Ledger;

    use super::*;

    #[test]
    fn drops_of_a_feed_are_told_apart_by_the_daemons_ledger() {
        let counts = Counts { decoded: 60, kernel_drops: 40, ..Counts::default() };
        let ledger = Ledger {
            offered: 107,
            captured: 102,
            drops: [("reentry".to_owned(), 5)].into(),
            ..Ledger::default()
        };
        let client = ClientStatus { ledger: Some(ledger), lag: Some(7), ..ClientStatus::default() };
        let drops = of_feed(&counts, &client);
        assert_eq!((drops["reentry"], drops["lapped"], drops["unread"]), (5, 35, 7));
        assert_eq!(Frames::new(107, counts.decoded, drops, 1.0).unaccounted, 0);
    }

    #[test]
    fn suricata_by_libweirpcap_is_held_against_its_own_socket() {
        let mut rows = [(OWN, 500_000), (PRELOADED, 450_000)].map(|(what, kept)| {
            let mut row = Row::new(SECTION, what, MPPS);
            row.add_frames(0, Frames::new(kept, kept, [].into(), 1.0), Default::default());
            row
        });
        conclude(&mut rows, OWN);
        assert_eq!(bars(&rows)[0].met, Some(false));
        assert_eq!(bars(&rows[..1])[0].met, None);
    }
}
