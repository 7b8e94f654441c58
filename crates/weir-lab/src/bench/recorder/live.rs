//! Measures recording from a link to the disk: the recorder beside tcpdump, dumpcap and netsniff-ng, just below the
//! rate of the disk. Then the recorder alone for a minute, below that rate and above it.

use std::path::Path;
use std::time::Duration;

use super::fio;
use super::place::{Place, failed};
use super::run::Said;
use crate::bench::bar::{Bar, Side};
use crate::bench::child::cpu_ns;
use crate::bench::context::{Context, stopped};
use crate::bench::row::{Frames, MPPS, Row, conclude, find, ratio_of};
use crate::bench::tool::Tool;
use crate::bench::wire::{self, Traffic};
use crate::generator::{FCS_BYTES, Rate};
use crate::testbed::Testbed;
use crate::{Error, Result};

pub(in super::super) const SECTION: &str = "to-disk";
/// The frame size of the long runs and of the bars.
const SIZE: u32 = 1518;
/// All frame sizes of the tools.
const SIZES: [u32; 2] = [64, SIZE];
const WEIR: &str = "weir --consume --write DIR/";
const TCPDUMP: &str = "tcpdump -w FILE";
const BELOW: &str = "weir, a minute at 0.9 x fio";
const ABOVE: &str = "weir, a minute at 1.5 x fio";
const OTHER: &str = "its other consumer, which counts";
/// Offered rates, relative to the rate of `fio`.
const SHARE_BELOW: f64 = 0.9;
const SHARE_ABOVE: f64 = 1.5;
/// Length of the two long runs; shorter with `--quick`.
const SECONDS: f64 = 60.0;
const SECONDS_QUICK: f64 = 3.0;
const QUOTA: &str = "20GiB";
const QUOTA_BYTES: u64 = 20 << 30;
/// How long `fio` writes and deletes before the long runs.
const FIO_SECONDS: f64 = 20.0;
/// Most bytes that a tool writes in one round.
const BYTES_MAX: u64 = 16_000_000_000;

/// Returns the tools, each of which writes into `folder`.
fn tools(weir: &Path, folder: &Path) -> [Tool; 4] {
    let to = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let own = Tool::weir(weir, WEIR, "bpf", &["--consume", "--write", &to("")]);
    let [tcpdump, dumpcap, netsniff, ..] = &Tool::peers()[..] else { unreachable!("more than 3") };
    [
        own,
        // Without `-Z root`, tcpdump gives up the privileges that it needs to write to the folder.
        tcpdump.writing_to(&to("tcpdump")).with(&["-Z", "root"]).named(TCPDUMP),
        dumpcap.writing_to(&to("dumpcap")).named("dumpcap -w FILE"),
        netsniff.writing_to(&to("netsniff.pcap")).named("netsniff-ng --out FILE"),
    ]
}

/// Measures all tools, then the long runs.
///
/// # Errors
/// Only if no testbed can be made. Any other failure gives a row with the reason.
pub(in super::super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let named = |what: &'static str| Row::new(SECTION, what, MPPS).sized(SIZE);
    let place = match Place::new(context) {
        Ok(place) => place,
        Err(error) => {
            let mut row = named(WEIR);
            row.absent = Some(error.to_string());
            return Ok(vec![row]);
        }
    };
    let bed = Testbed::builder().gro(true).build()?;
    let tools = tools(&context.options.weir, place.path());
    let of_size = |size| tools.each_ref().map(|tool| named(tool.name).sized(size));
    let mut rows = SIZES.map(of_size).concat();
    // For a short time, a shared disk can be faster than over a minute.
    let mut slowest = f64::INFINITY;
    for round in 0..context.rounds {
        for (at, row) in rows.iter_mut().enumerate() {
            if stopped(context.stop) || row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            let (number, size) = (at % tools.len(), SIZES[at / tools.len()]);
            match one(context, &bed, &place, number, size) {
                Ok((frames, limit)) => {
                    slowest = slowest.min(limit);
                    context.say(&format!(
                        "{SECTION}, {}, {size} B: {:.2} Mpps",
                        row.what,
                        frames.kept_mpps()
                    ));
                    row.add_frames(round, frames, neighbours.done());
                }
                Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                Err(error) => return Err(error),
            }
        }
    }
    rows[0].note.clone_from(&place.on);
    conclude(&mut rows, TCPDUMP);
    // The recorder's quota deletes files, which can make a file system slower.
    let seconds = if context.options.quick { SECONDS_QUICK } else { FIO_SECONDS };
    let with_deletions = fio::write_and_delete(place.path(), seconds);
    place.settle();
    if let Ok(written) = with_deletions {
        let limit = frames_of(written.bytes_per_second, SIZE);
        context.say(&format!("{SECTION}, fio with deletions: {:.2} Mpps", limit / 1e6));
        slowest = slowest.min(written.bytes_per_second);
    }
    for (what, share) in [(BELOW, SHARE_BELOW), (ABOVE, SHARE_ABOVE)] {
        if stopped(context.stop) {
            break;
        }
        let mut long = [named(what), named(OTHER)];
        match minute(context, &bed, &place, frames_of(slowest * share, SIZE), &mut long) {
            Ok(()) => {}
            Err(Error::Measure { reason, .. }) => long[0].absent = Some(reason),
            Err(error) => return Err(error),
        }
        long.iter_mut().for_each(Row::summarize);
        rows.extend(long);
    }
    Ok(rows)
}

/// Returns the frames of this size a second that give this rate of bytes in a file.
fn frames_of(bytes_per_second: f64, size: u32) -> f64 {
    bytes_per_second / f64::from(size - FCS_BYTES + RECORD_BYTES)
}

/// Bytes of a file in addition to each frame: 16 in pcap, and twice as many in pcapng.
const RECORD_BYTES: u32 = 32;

/// Runs a tool once, into a new directory. Also returns the rate of `fio` just before, in bytes a second.
fn one(
    context: &Context,
    bed: &Testbed,
    place: &Place,
    number: usize,
    size: u32,
) -> Result<(Frames, f64)> {
    let limit = fio::write(place.path(), fio::BLOCK_BYTES, context.seconds, BYTES_MAX)?;
    let limit = limit.bytes_per_second;
    place.settle();
    place.needs((limit * SHARE_BELOW * context.seconds) as u64)?;
    let folder = place.folder()?;
    let tool = &tools(&context.options.weir, folder.path())[number];
    let rate = Rate::Pps(frames_of(limit * SHARE_BELOW, size));
    let traffic = Traffic { size, rate, seconds: context.seconds, stamp: false };
    let frames = wire::one(context, bed, tool, traffic);
    drop(folder);
    place.settle();
    Ok((frames?, limit))
}

/// Makes a long run with a quota, and with a second consumer beside the recorder.
fn minute(
    context: &Context,
    bed: &Testbed,
    place: &Place,
    pps: f64,
    [row, other]: &mut [Row; 2],
) -> Result<()> {
    let seconds = if context.options.quick { SECONDS_QUICK } else { SECONDS };
    place.needs(QUOTA_BYTES)?;
    let folder = place.folder()?;
    let [tool, ..] = tools(&context.options.weir, folder.path());
    let tool = tool.with(&["--quota", QUOTA, "--count"]).with_ring("256MiB");
    let traffic = Traffic { size: SIZE, rate: Rate::Pps(pps), seconds, stamp: false };
    let neighbours = context.calm();
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let (id, before) = (capturing.child.id(), cpu_ns(capturing.child.id()));
    let sent = wire::send(context, &bed.tx, traffic)?;
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_ns(id).zip(before).map(|(after, before)| after.saturating_sub(before));
    let (_, lines) = capturing.finish_with_lines()?;
    let disturbance = neighbours.done();
    let said = Said::of(&lines)?;
    let took = sent.duration.as_secs_f64();
    let frames = said.frames("record", Some(sent.sent), took);
    context.say(&format!("{SECTION}, {}: {:.2} Mpps", row.what, frames.kept_mpps()));
    row.note = format!(
        "{:.1} GB written, {:.1} GB deleted by the quota, {} blocks copied, {} torn",
        said.recorder.bytes as f64 / 1e9,
        said.recorder.volumes.iter().map(|volume| volume.deleted_bytes).sum::<u64>() as f64 / 1e9,
        said.recorder.copied_blocks,
        said.recorder.torn_blocks,
    );
    let cpu_seconds = used.map(|ns| ns as f64 / 1e9);
    row.add_frames(0, Frames { cpu_seconds, ..frames }, disturbance);
    other.add_frames(0, said.frames("count", Some(sent.sent), took), disturbance);
    drop(folder);
    place.settle();
    if said.recorder.bytes == 0 {
        return Err(failed("nothing was recorded".to_owned()));
    }
    Ok(())
}

/// Describes how this part is measured.
pub(in super::super) fn condition(context: &Context) -> String {
    let seconds = if context.options.quick { SECONDS_QUICK } else { SECONDS };
    format!(
        "to-disk: one veth pair, generator and all softirq work on CPU {}, the tool on CPU {}, frames at \
         {SHARE_BELOW} of what fio wrote just before (of 64 B as many as the generator can send, if that is less), \
         64 MiB of buffer each, new files on the same file system; the long ones are {SIZE} B and of the least that \
         fio wrote in these rounds, and with files of 1 GiB that it deletes, last {seconds} s, with \
         --quota {QUOTA}, rings of 256 MiB and a second consumer on the same CPU",
        context.cpus.generator, context.cpus.tool
    )
}

/// Returns the targets of this part.
pub(in super::super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let frames = |what| find(rows, SECTION, what, Some(SIZE)).and_then(Row::frames);
    let lost = |frames: Frames| frames.offered.abs_diff(frames.kept) as f64;
    let elsewhere = |frames: Frames| {
        let others = frames.drops.iter().filter(|(name, _)| *name != "lapped");
        (others.map(|(_, count)| *count).sum::<u64>() + frames.unaccounted.unsigned_abs()) as f64
    };
    let others = rows.iter().filter(|row| row.section == SECTION && row.what == OTHER);
    let others = others.filter_map(Row::frames).map(lost).reduce(|all, more| all + more);
    let most = Side::AtMost;
    vec![
        Bar::new(
            format!("{WEIR} / {TCPDUMP}, frames in the file"),
            ratio_of(rows, SECTION, WEIR, Some(SIZE)),
            Side::AtLeast,
            1.0,
        ),
        Bar::new(
            "a minute below the disk's limit: frames lost",
            frames(BELOW).map(lost),
            most,
            0.0,
        ),
        Bar::new(
            "a minute above it: lost in the store, or nowhere",
            frames(ABOVE).map(elsewhere),
            most,
            0.0,
        ),
        Bar::new("both: frames that the other consumer lost", others, most, 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_below_the_limit_is_none_and_above_it_has_a_name() {
        let row = |what, frames: Frames| {
            let mut row = Row::new(SECTION, what, MPPS).sized(SIZE);
            row.add_frames(0, frames, Default::default());
            row.summarize();
            row
        };
        let drops = |name: &str, count| [(name.to_owned(), count)].into();
        let rows = |above: Frames| {
            [
                row(BELOW, Frames::new(100, 100, [].into(), 1.0)),
                row(OTHER, Frames::new(100, 100, [].into(), 1.0)),
                row(ABOVE, above),
                row(OTHER, Frames::new(150, 149, drops("lapped", 1), 1.0)),
            ]
        };
        let met = |rows: &[Row]| bars(rows).iter().map(|bar| bar.met).collect::<Vec<_>>();
        let named = rows(Frames::new(150, 110, drops("lapped", 40), 1.0));
        assert_eq!(met(&named), [None, Some(true), Some(true), Some(false)]);
        let in_store = rows(Frames::new(150, 110, drops("store", 40), 1.0));
        assert_eq!(met(&in_store)[2], Some(false));
        let unnamed = rows(Frames::new(150, 110, [].into(), 1.0));
        assert_eq!(met(&unnamed)[2], Some(false));
    }

    #[test]
    fn every_tool_writes_into_the_directory() {
        for tool in tools(Path::new("/weir"), Path::new("/data")) {
            let line = tool.command_line("eth0", 0).join(" ");
            assert!(line.contains("/data/") && !line.contains("/dev/null"), "{line}");
        }
    }
}
