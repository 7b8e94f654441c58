//! `weir demo`: a capture of generated traffic that stays on this machine.

mod container;

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::generator::{self, Flows, GenOptions, Rate, mix};
use weir_lab::testbed::End;

use crate::capture::{self, Rights};
use crate::cli::{CaptureArgs, Cli, Command, DemoArgs};
use crate::plan::{CapturePlan, is_directory};
use crate::run_result::RunResult;
use crate::units::grouped;
use crate::{EXIT_FAILED, EXIT_RAN, signals};

/// A short trace of a small network, made by `weir_lab::generator::mix`.
const TRACE: &[u8] = include_bytes!("../demo/trace.pcapng");
/// Frames per second of the mix: a rate like that of a person's traffic.
const MIX_PPS: f64 = 1000.0;
/// Frames per second of the numbered stream: fast, but its file stays small.
const STREAM_PPS: f64 = 100_000.0;
/// Flows of the numbered stream. With so few flows, no source port is that of a protocol that tshark would dissect. It
/// would show the numbers of the frames as malformed packets.
const STREAM_FLOWS: u32 = 1000;
/// Time for the last frames, which may still be in the kernel when all are sent.
const LAST_FRAMES: Duration = Duration::from_millis(250);

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<u8> {
    check_output(&args.write)?;
    // SAFETY: geteuid takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if args.replay {
        return replay(args, None);
    }
    if !root {
        return replay(args, Some("Not root".to_owned()));
    }
    println!("Two network namespaces and a veth pair between them; nothing leaves this machine.");
    // In a container, root may lack capabilities, or `ip` may be missing.
    match Testbed::builder().gro(true).build() {
        Ok(bed) => live(args, &bed),
        Err(error) => replay(args, Some(format!("These cannot be made here ({error})"))),
    }
}

/// Refuses outputs that are not one file: at its end, the demo says how to open it.
fn check_output(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        bail!(
            "--write -: the demo explains itself on standard output, where frames would be between its lines; name a \
             file: --write demo.pcapng"
        );
    }
    if is_directory(path) {
        bail!(
            "--write {}: is a directory, and the demo makes one file; name a file: --write demo.pcapng",
            path.display()
        );
    }
    Ok(())
}

/// Numbers of sent frames, as the generators report them.
#[derive(Default)]
struct Sent {
    mix: u64,
    stream: u64,
}

fn live(args: &DemoArgs, bed: &Testbed) -> Result<u8> {
    let source = format!("netns:{}/{}", bed.rx.netns, bed.rx.iface);
    let capture = capture_args(&source, &[], &args.write)?;
    println!("$ weir capture {source} --write {}", args.write.display());
    let stop = signals::stop_flag()?;
    let (begin, begins) = channel();
    let traffic = {
        let (tx, stop, duration) = (bed.tx.clone(), Arc::clone(&stop), args.duration);
        let capturing = std::thread::current();
        std::thread::spawn(move || {
            // Without a capture nothing is sent.
            let sent = begins.recv().map_or(Ok(Sent::default()), |()| send(&tx, duration, &stop));
            stop.store(true, Ordering::Release);
            capturing.unpark();
            sent
        })
    };
    let of_capture = Arc::clone(&stop);
    let result = CapturePlan::new(&capture).and_then(move |plan| {
        let begun = || _ = begin.send(());
        capture::execute_telling(&plan, &of_capture, Rights::Keep, &begun)
    });
    // This also stops the traffic if the capture could not begin.
    stop.store(true, Ordering::Release);
    let sent = traffic.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let code = conclude(args, result?, Some(&sent))?;
    let is_whole = container::run(bed)?;
    Ok(if is_whole { code } else { EXIT_FAILED })
}

/// Sends the mix for a third of the time, then the numbered stream.
fn send(tx: &End, duration: Duration, stop: &AtomicBool) -> Result<Sent> {
    let mix_options =
        mix::MixOptions { rate_pps: MIX_PPS, frames: None, duration: Some(duration / 3) };
    let stream_options = GenOptions {
        flows: Flows::N(STREAM_FLOWS),
        rate: Rate::Pps(STREAM_PPS),
        duration: Some(duration * 2 / 3),
        ..GenOptions::default()
    };
    let sent = tx.run(|| -> weir_lab::Result<Sent> {
        let mix = mix::run(&tx.iface, &mix_options, stop)?;
        let stream = generator::run(&tx.iface, &stream_options, stop)?;
        Ok(Sent { mix: mix.sent, stream: stream.sent })
    })??;
    std::thread::sleep(LAST_FRAMES);
    Ok(sent)
}

/// Replays the bundled trace. `why` is the reason, unless the user requested the replay.
fn replay(args: &DemoArgs, why: Option<String>) -> Result<u8> {
    if let Some(why) = why {
        println!("{why}, so no live traffic: replaying a bundled trace instead.");
    }
    let (_folder, trace) = bundled_trace()?;
    let source = format!("file:{}", trace.display());
    let capture = capture_args(&source, &["--speed", "real"], &args.write);
    println!("$ weir capture {source} --speed real --write {}", args.write.display());
    let result = capture
        .and_then(|capture| CapturePlan::new(&capture))
        .and_then(|plan| capture::execute(&plan, &signals::stop_flag()?, Rights::GiveUp));
    conclude(args, result?, None)
}

/// Writes the bundled trace into a temporary directory, which is removed when it is dropped.
///
/// The directory has an unpredictable name and is accessible to this user only, so that no other user can place a
/// symbolic link at the path of the trace.
fn bundled_trace() -> Result<(TempDir, PathBuf)> {
    let only_ours = Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix("weir-demo-").permissions(only_ours).tempdir();
    let folder = folder.context("making a folder among the temporary files")?;
    let trace = folder.path().join("trace.pcapng");
    std::fs::write(&trace, TRACE).with_context(|| trace.display().to_string())?;
    Ok((folder, trace))
}

fn capture_args(source: &str, flags: &[&str], write: &Path) -> Result<CaptureArgs> {
    let words = ["weir", "capture", source, "--write"].map(OsStr::new).into_iter();
    let words = words.chain([write.as_os_str()]).chain(flags.iter().map(OsStr::new));
    match Cli::of(words)?.command {
        Command::Capture(args) => Ok(*args),
        _ => unreachable!("the words say capture"),
    }
}

fn conclude(args: &DemoArgs, result: RunResult, sent: Option<&Sent>) -> Result<u8> {
    let report = result.report();
    println!();
    print!("{}", report.text());
    let total = report.total();
    let mut right = total.closes();
    if let Some(Sent { mix, stream }) = sent {
        println!();
        println!("  the generators sent  {:>12}", grouped(mix + stream));
        println!("    mixed traffic      {:>12}", grouped(*mix));
        println!("    numbered stream    {:>12}", grouped(*stream));
        let offered = total.offered;
        right &= mix + stream == offered;
        let verdict =
            if mix + stream == offered { "the same, to the frame" } else { "NOT THE SAME" };
        println!("  the capture was offered {:>9}: {verdict}", grouped(offered));
    }
    println!();
    println!("Open it:  wireshark {0}   or   tshark -r {0} | head", args.write.display());
    let errors = result.errors();
    errors.iter().for_each(|error| eprintln!("weir: {error}"));
    right &= errors.is_empty();
    Ok(if right { EXIT_RAN } else { EXIT_FAILED })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use weir_lab::generator::template::flow_of;

    /// UDP ports from 32768 on that tshark 4.0 has a dissector for: `tshark -G decodes`, table `udp.port`.
    const KNOWN: [u16; 31] = [
        34962, 34980, 37008, 41170, 44818, 45564, 47000, 47808, 49999, 54328, 56000, 56001, 56500,
        56501, 57000, 57001, 57032, 57033, 57500, 57501, 57532, 57533, 59000, 59001, 59032, 59033,
        59500, 59501, 59532, 59533, 60001,
    ];

    #[test]
    fn the_folder_of_the_trace_is_private_and_goes_away() {
        let ((folder, trace), (other, _)) = (bundled_trace().unwrap(), bundled_trace().unwrap());
        assert_ne!(folder.path(), other.path());
        let meta = folder.path().symlink_metadata().unwrap();
        assert!(meta.is_dir(), "{meta:?}");
        assert_eq!(meta.mode() & 0o7777, 0o700);
        assert_eq!(std::fs::read(&trace).unwrap(), TRACE);
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn no_flow_of_the_stream_has_a_port_of_a_protocol() {
        for number in 0..u64::from(STREAM_FLOWS) {
            let (_, port) = flow_of(number, STREAM_FLOWS.into());
            assert!(!KNOWN.contains(&port), "{number}: {port}");
        }
    }
}
