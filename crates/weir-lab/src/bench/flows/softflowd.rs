//! Starts softflowd and reads its counts.
//!
//! softflowd prints no counts when it ends, so softflowctl requests them before.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::bench::child::{Child, pinned};
use crate::bench::context::Context;
use crate::bench::counted::Counted;
use crate::bench::tool::{BUFFER_MIB, SETTLE, on_path};
use crate::testbed::End;
use crate::{Error, Result};

pub(super) const NAME: &str = "softflowd";
const CONTROL: &str = "softflowctl";
/// Most flows that softflowd keeps at once, the same number as in `weir flows`.
const FLOWS_MAX: u32 = 1_000_000;
const READY: Duration = Duration::from_secs(15);
/// Time for libpcap's packet buffer timeout, after which a partly filled block is delivered, and for reading the rest.
pub(super) const GRACE: Duration = Duration::from_millis(1200);

/// A running softflowd.
pub(super) struct Softflowd {
    pub(super) child: Child,
    folder: TempDir,
}

fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: NAME.to_owned(), reason: reason.to_string() }
}

/// The counts of softflowd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    pub(super) counted: Counted,
    /// Flows in softflowd's table at present.
    pub(super) active: u64,
    /// Flows that have ended. `forced` of them were ended to make room for others.
    pub(super) expired: u64,
    pub(super) forced: u64,
    /// Datagrams that could not be sent.
    pub(super) failures: u64,
}

impl Softflowd {
    /// Starts softflowd at `end`, bound to the tool's CPU, and waits until it captures. It exports to `collector`.
    ///
    /// # Errors
    /// [`Error::Measure`] with softflowd's message.
    pub(super) fn start(context: &Context, end: &End, collector: &str) -> Result<Softflowd> {
        if !on_path(NAME) || !on_path(CONTROL) {
            return Err(failed("not installed"));
        }
        let folder = tempfile::tempdir().map_err(failed)?;
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (bytes, flows) = ((BUFFER_MIB << 20).to_string(), FLOWS_MAX.to_string());
        let (control, pid) = (file("control"), file("pid"));
        let words = [
            "-i", &end.iface, "-d", "-n", collector, "-B", &bytes, "-m", &flows, "-c", &control,
            "-p", &pid,
        ];
        let command = pinned(context.cpus.tool, NAME, &words.map(str::to_owned));
        let mut child = Child::start(NAME, end, command)?;
        child.wait_for_line(READY, |line| line.contains("Exporting flows from"))?;
        // softflowd is ready within milliseconds. At that time the kernel may still be detaching the XDP program of the
        // previous tool.
        sleep(SETTLE);
        Ok(Softflowd { child, folder })
    }

    /// Requests the counts of softflowd, and ends it.
    ///
    /// # Errors
    /// [`Error::Measure`] if softflowd does not answer, or does not end.
    pub(super) fn finish(self) -> Result<Statistics> {
        let control: PathBuf = self.folder.path().join("control");
        let mut command = Command::new(CONTROL);
        command.arg("-c").arg(&control).arg("statistics").stdin(Stdio::null());
        let output = command.output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let statistics = statistics(&text);
        self.child.interrupt()?;
        statistics.ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
            failed(format!("no counts in its answer: {}", said.trim()))
        })
    }
}

/// Parses the output of `softflowctl statistics`.
fn statistics(text: &str) -> Option<Statistics> {
    let rest =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let number = |name: &str| rest(name)?.split(' ').next()?.parse::<u64>().ok();
    // Parses `FIRST (N forced)` or `... (N failures)`.
    let inside = |name: &str, what: &str| {
        let (before, _) = rest(name)?.split_once(what)?;
        before.rsplit(['(', ' ']).find(|word| !word.is_empty())?.parse::<u64>().ok()
    };
    let (processed, received) =
        (number("Packets processed")?, number("Packets received by libpcap")?);
    let by_libpcap = number("Packets dropped by libpcap")?;
    let by_interface = number("Packets dropped by interface")?;
    let ignored = number("Ignored packets")?;
    // Frames that libpcap has received, without its drops, but that softflowd has not read.
    let unread = received.saturating_sub(by_libpcap + processed + ignored);
    let drops = [
        ("libpcap", by_libpcap),
        ("interface", by_interface),
        ("ignored", ignored),
        ("unread", unread),
    ];
    let drops = drops.map(|(name, count)| (name.to_owned(), count)).into();
    Some(Statistics {
        counted: Counted { kept: processed, drops },
        active: number("Number of active flows")?,
        expired: number("Flows expired")?,
        forced: inside("Flows expired", " forced")?,
        failures: inside("Flows exported", " failures")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    use crate::bench::context::Options;
    use crate::bench::counted::tests::drops;
    use crate::bench::row::Frames;
    use crate::generator::{self, Flows, GenOptions};
    use crate::testbed::{Testbed, require_root, require_tool};

    // Output of softflowd 1.1.0 after 500,000 frames, each of its own flow; shortened.
    const FORCED: &str = "softflowd[23135]: Accumulated statistics since 2026-11-26T04:02:29 UTC:\n\
        Number of active flows: 8192\n\
        Packets processed: 499960\n\
        Fragments: 0\n\
        Ignored packets: 0 (0 non-IP, 0 too short)\n\
        Flows expired: 491768 (491768 forced)\n\
        Flows exported: 491768 (491768 records) in 17063 packets (12 failures)\n\
        Packets received by libpcap: 500000\n\
        Packets dropped by libpcap: 0\n\
        Packets dropped by interface: 0\n\n\
        Expired flow statistics:  minimum       average       maximum\n\
        \x20 Flow bytes:                  46            46            46\n";

    #[test]
    fn counts_are_read() {
        let found = statistics(FORCED).unwrap();
        let lost = drops(&[("ignored", 0), ("interface", 0), ("libpcap", 0), ("unread", 40)]);
        assert_eq!(found.counted, Counted { kept: 499_960, drops: lost });
        assert_eq!(
            (found.active, found.expired, found.forced, found.failures),
            (8192, 491_768, 491_768, 12)
        );
    }

    #[test]
    fn drops_of_libpcap_are_among_what_it_received() {
        let text = FORCED.replace("dropped by libpcap: 0", "dropped by libpcap: 30");
        let lost = statistics(&text).unwrap().counted.drops;
        assert_eq!((lost["libpcap"], lost["unread"]), (30, 10));
    }

    #[test]
    fn root_softflowd_is_started_and_read() {
        let test = "root_softflowd_is_started_and_read";
        if !require_root(test) || !require_tool(test, NAME) {
            return;
        }
        let (options, stop) = (Options::default(), AtomicBool::new(false));
        let talk = |_: &str| ();
        let context = Context::new(&options, &stop, &talk);
        let bed = Testbed::builder().gro(true).build().unwrap();
        bed.rx.set_loopback_up().unwrap();
        let running = Softflowd::start(&context, &bed.rx, "127.0.0.1:9995").unwrap();
        let options =
            GenOptions { frames: Some(1000), flows: Flows::N(10), ..GenOptions::default() };
        let sent = bed.tx.run(|| generator::run(&bed.tx.iface, &options, &stop)).unwrap().unwrap();
        std::thread::sleep(GRACE);
        let Statistics { counted, active, .. } = running.finish().unwrap();
        let frames = Frames::new(sent.sent, counted.kept, counted.drops, 1.0);
        assert_eq!((frames.offered, frames.unaccounted), (1000, 0), "{frames:?}");
        assert!(frames.kept == 0 || (1..=10).contains(&active), "{frames:?} {active}");
    }

    #[test]
    fn an_answer_without_counts_gives_none() {
        for text in ["", "Unknown control command \"nosuch\"\n", "Packets processed: 3\n"] {
            assert_eq!(statistics(text), None, "{text}");
        }
    }
}
