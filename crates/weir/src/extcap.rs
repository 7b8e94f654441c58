//! `weir extcap`: Wireshark's extcap interface. Wireshark runs this program to list the sources of a daemon and their
//! options, to check a filter, and to capture into a FIFO. Recorded files are a further source, which needs no daemon.
//!
//! Wireshark parses standard output. It shows standard error to the user if the exit status is not 0.
//!
//! Source: Wireshark Developer's Guide, "Adding Capture Interfaces And Log Sources Using Extcap"; extcap(4).

mod answers;
mod stored;

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use weir_capture::Sampling;
use weir_client::Connection;
use weir_client::protocol::Source;
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::capture::{Rights, execute};
use crate::cli::{CaptureArgs, Cli, Command, DirectionName, ExtcapArgs};
use crate::error_words::words;
use crate::interruptible_writer::{InterruptibleWriter, Stop};
use crate::limits::WIRESHARK_CAPLEN_MAX;
use crate::plan::CapturePlan;
use crate::run_result::RunResult;
use crate::source_name::Part;
use crate::units::grouped;
use crate::{EXIT_FAILED, EXIT_RAN, feeds, signals};

/// Prefix of the name of an interface. The daemon's name of the source follows.
const PREFIX: &str = "host:";
/// The name of the interface for recorded files.
const STORED: &str = "weir-stored";
/// How long to wait for dumpcap, the reader, which Wireshark starts right after this program.
const READER_COMES_WITHIN: Duration = Duration::from_secs(5);

/// Runs the command.
pub fn run(args: &ExtcapArgs) -> Result<u8> {
    if args.interface.as_deref() == Some(STORED) {
        return stored::run(args);
    }
    if args.capture {
        return capture(args);
    }
    if args.list || (args.wireshark_version.is_some() && args.interface.is_none()) {
        print!("{}", answers::version());
    }
    if args.list {
        print!("{}{}", answers::interfaces(&sources(args)), answers::stored_interface());
    }
    if args.dlts {
        print!("{}", answers::link_types(link_type(args)?));
    }
    if args.config {
        print!("{}", answers::options(snaplen_max(args)?, &args.socket()));
    }
    let asks_more = args.list || args.dlts || args.config || args.reload_option.is_some();
    if let Some(filter) = args.filter.as_deref().filter(|_| !asks_more) {
        // Wireshark accepts a filter if nothing is printed, and ignores the output of a program that fails.
        if let Err(error) = feeds::compile(filter, link_type(args)?) {
            println!("{}", one_line(&error));
        }
    }
    Ok(EXIT_RAN)
}

/// Requests the sources of the daemon. An error gives an empty list without a message, because Wireshark and tshark ask
/// at each start.
fn sources(args: &ExtcapArgs) -> Vec<Source> {
    let told = Connection::open(&args.socket()).and_then(|connection| connection.sources());
    told.unwrap_or_default()
}

/// Returns the daemon's name of the requested source.
fn name(args: &ExtcapArgs) -> Result<&str> {
    let interface = args.interface.as_deref().context("--extcap-interface is missing")?;
    let name =
        interface.strip_prefix(PREFIX).filter(|name| !name.is_empty() && !name.contains('@'));
    name.with_context(|| {
        format!("'{interface}' is no source of a daemon: --extcap-interfaces lists them, such as host:eth0")
    })
}

fn source(args: &ExtcapArgs) -> Result<Option<Source>> {
    let name = name(args)?;
    Ok(sources(args).into_iter().find(|source| source.source == name))
}

/// Returns the link type of the source; Ethernet if the daemon does not know the source.
fn link_type(args: &ExtcapArgs) -> Result<u16> {
    Ok(source(args)?.map_or(LINKTYPE_ETHERNET, |source| source.link_type))
}

fn snaplen_max(args: &ExtcapArgs) -> Result<u32> {
    let of_daemon = source(args)?.map_or(WIRESHARK_CAPLEN_MAX, |source| source.snaplen);
    Ok(of_daemon.min(WIRESHARK_CAPLEN_MAX))
}

/// Runs `weir capture host:SOURCE --write FIFO`, and prints only losses and errors.
fn capture(args: &ExtcapArgs) -> Result<u8> {
    let stop = signals::stop_flag()?;
    signals::report_flag()?;
    let result = plan(args).and_then(|plan| execute(&plan, &stop, Rights::GiveUp));
    if let (Err(_), Some(fifo)) = (&result, &args.fifo) {
        release_reader(fifo, stop);
    }
    let result = result?;
    if let Some(lost) = lost(&result) {
        eprintln!("weir: {lost}");
    }
    let errors = result.errors();
    errors.iter().for_each(|error| eprintln!("weir: {error}"));
    Ok(if errors.is_empty() { EXIT_RAN } else { EXIT_FAILED })
}

/// Returns a text with the number of lost frames and the places of loss. Wireshark closes the FIFO before the
/// statistics are written, so the file in Wireshark does not have them.
fn lost(result: &RunResult) -> Option<String> {
    let total = result.report().total();
    let dropped = total.drops.iter().map(|(name, count)| (*name, *count));
    let behind = result.consumers.iter().flat_map(|one| {
        [("lapped", one.delivered.lapped), ("ring", one.ring_drops), ("store", one.store_drops)]
    });
    let places: Vec<_> = dropped.chain(behind).filter(|(_, count)| *count > 0).collect();
    let all: u64 = places.iter().map(|(_, count)| count).sum();
    let places = places.iter().map(|(name, count)| format!("{name} {}", grouped(*count)));
    let places = places.collect::<Vec<_>>().join(", ");
    let offered = grouped(total.offered);
    (all > 0).then(|| format!("{} of {offered} frames were lost: {places}", grouped(all)))
}

/// Opens and closes the FIFO, so that a waiting reader sees its end. Otherwise dumpcap would wait until Wireshark is
/// closed, and Wireshark would show the error only then.
fn release_reader(fifo: &Path, stop: Arc<AtomicBool>) {
    let is_fifo = fifo.metadata().is_ok_and(|meta| meta.file_type().is_fifo());
    let stop = Stop::new(stop, Instant::now().checked_add(READER_COMES_WITHIN));
    if is_fifo {
        // An error means that no reader waits.
        let _ = InterruptibleWriter::named_pipe(fifo, stop, || ());
    }
}

fn plan(args: &ExtcapArgs) -> Result<CapturePlan> {
    let mut plan = CapturePlan::new(&capture_args(args)?)?;
    plan.feeds.defaults.sampling = sampling(args)?;
    plan.talks = false;
    Ok(plan)
}

/// Returns the corresponding arguments of `weir capture`.
fn capture_args(args: &ExtcapArgs) -> Result<CaptureArgs> {
    let part = match args.part {
        Part::Whole => String::new(),
        part => part.to_string(),
    };
    let (source, snaplen) = (format!("{PREFIX}{}{part}", name(args)?), args.snaplen.to_string());
    let fifo = args.fifo.as_deref().context("--fifo is missing")?;
    let direction = match args.direction {
        DirectionName::In => "in",
        DirectionName::Out => "out",
        DirectionName::Both => "both",
    };
    let words = ["weir", "capture", &source, "--snaplen", &snaplen, "--direction", direction];
    let mut words: Vec<&OsStr> = words.map(OsStr::new).into();
    let socket = args.socket();
    words.extend([OsStr::new("--socket"), socket.as_os_str()]);
    words.extend([OsStr::new("--write"), fifo.as_os_str()]);
    if let Some(filter) = &args.filter {
        words.extend([OsStr::new("--filter"), OsStr::new(filter)]);
    }
    match Cli::of(words)?.command {
        Command::Capture(args) => Ok(*args),
        _ => unreachable!("the words say capture"),
    }
}

fn sampling(args: &ExtcapArgs) -> Result<Sampling> {
    Ok(match (args.sample_frames.get(), args.sample_flows.get()) {
        (1, 1) => Sampling::All,
        (frames, 1) => Sampling::OneIn(frames),
        (1, _) => Sampling::FlowsOneIn(args.sample_flows),
        _ => bail!(
            "--sample-frames and --sample-flows: a feed takes one of them; leave the other at 1"
        ),
    })
}

/// Returns the error in one line, because Wireshark shows only the first line.
fn one_line(error: &anyhow::Error) -> String {
    words(error).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_capture::engines::declaration::Target;

    fn parsed(line: &str) -> Result<ExtcapArgs, String> {
        let words = ["weir", "extcap"].into_iter().chain(line.split(' '));
        match Cli::of(words).map_err(|error| error.to_string())?.command {
            Command::Extcap(args) => Ok(args),
            _ => unreachable!("the words say extcap"),
        }
    }

    fn planned(line: &str) -> Result<CapturePlan, String> {
        let line = format!("--capture --fifo /f --extcap-interface host:lan {line}");
        plan(&parsed(&line)?).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn options_of_the_dialog_are_those_of_a_capture() {
        let plan = planned("--snaplen 96 --direction in --part q2 --sample-flows 4").unwrap();
        assert_eq!(plan.sources[0].target, Target::Text("lan@q2".into()));
        assert_eq!(plan.feeds.defaults.snaplen, 96);
        assert_eq!(plan.feeds.defaults.direction, weir_capture::Direction::In);
        let four = std::num::NonZero::new(4).unwrap();
        assert_eq!(plan.feeds.defaults.sampling, Sampling::FlowsOneIn(four));
        assert_eq!(plan.outputs.write.as_deref(), Some("/f".as_ref()));
        assert!(!plan.talks);
        // As Wireshark gives an empty field; and the wrapper's defaults do not count then.
        let plan =
            planned("--part 2/4 --snaplen 96 --part= --snaplen 64 --sample-frames 3").unwrap();
        assert_eq!(plan.sources[0].target, Target::Text("lan".into()));
        assert_eq!(plan.feeds.defaults.snaplen, 64);
        assert_eq!(plan.feeds.defaults.sampling, Sampling::OneIn(3));
    }

    #[test]
    fn each_option_is_checked() {
        for (line, word) in [
            ("--snaplen 0", "1..=262144"),
            ("--snaplen 262145", "1..=262144"),
            ("--direction up", "possible values"),
            ("--part 5/4", "@1/4 to @4/4"),
            ("--part half", "second of four"),
            ("--sample-frames 0", "sample-frames"),
            ("--sample-frames 2 --sample-flows 2", "leave the other at 1"),
            ("--extcap-interface eth0", "no source of a daemon"),
            ("--extcap-interface host:", "no source of a daemon"),
        ] {
            let error = planned(line).expect_err(line);
            assert!(error.contains(word), "{line}: {error}");
        }
        assert!(parsed("--capture --extcap-interface host:lan").unwrap_err().contains("--fifo"));
    }
}
