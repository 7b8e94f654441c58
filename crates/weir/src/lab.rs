//! `weir lab`: checks and measurements.

mod churn;
mod disk;
mod simulate;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use weir_capture::af_xdp::synthetic::{self, SyntheticCopier, SyntheticSpec};
use weir_capture::bpf::{self, Loaded};
use weir_lab::Testbed;
use weir_lab::bench::{self, Options, Report, SoakOptions, Verdict};

use crate::cli::{BenchArgs, ChurnArgs, CopiersArgs, LabArgs, LabCommand, RereadArgs, SoakArgs};
use crate::error_words::error_text;
use crate::units::counted;
use crate::{EXIT_FAILED, EXIT_RAN, signals};

/// Length of the FCS, which only a frame on the wire has.
const FCS_BYTES: u32 = 4;
/// Number of slots of the synthetic RX ring (as many as a NIC may have), and size of each copier's ring.
const RX_SLOTS: u32 = 4096;
const COPIER_RING_MIB: u64 = 32;

/// Runs the command.
pub fn run(args: &LabArgs) -> Result<u8> {
    match &args.command {
        LabCommand::LoadBpf => Ok(load_bpf()),
        LabCommand::Bench(args) => measure(args),
        LabCommand::Disk(args) => disk::run(args),
        LabCommand::Copiers(args) => copiers(args),
        LabCommand::Soak(args) => soak(args),
        LabCommand::Churn(args) => churn(args),
        LabCommand::Reread(args) => reread(args),
        LabCommand::Simulate(args) => simulate::run(args),
    }
}

fn measure(args: &BenchArgs) -> Result<u8> {
    let before = args
        .before
        .as_ref()
        .map(|path| fs::canonicalize(path).with_context(|| format!("finding {}", path.display())));
    let options = Options {
        weir: std::env::current_exe().context("finding this program's own file")?,
        quick: args.quick,
        full: args.full,
        rounds: args.rounds,
        seconds: args.seconds.map(|length| length.as_secs_f64()),
        trial: args.trial.map(|length| length.as_secs_f64()),
        searches: args.searches,
        before: before.transpose()?,
        suricata: args.suricata.clone(),
        guest_kernel: args.guest_kernel.clone(),
        disk: args.disk.clone(),
        singles: args.singles,
        only: args.only,
    };
    let stop = signals::stop_flag()?;
    let report = bench::run(&options, &stop, &|text| eprintln!("weir: {text}"))?;
    match &args.json {
        Some(path) if path == Path::new("-") => println!("{}", report.json()),
        Some(path) => {
            print!("{}", report.text());
            fs::write(path, report.json() + "\n")
                .with_context(|| format!("writing {}", path.display()))?;
        }
        None => print!("{}", report.text()),
    }
    let pages =
        [(&args.html, bench::page as fn(&Report) -> String), (&args.markdown, bench::markdown)];
    for (path, page) in pages {
        if let Some(path) = path {
            fs::write(path, page(&report))
                .with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(EXIT_RAN)
}

/// Runs each copier on a thread, and counts the frames that all of them copied.
fn copiers(args: &CopiersArgs) -> Result<u8> {
    let spec = SyntheticSpec {
        frame_bytes: args.size - FCS_BYTES,
        slots: RX_SLOTS,
        copiers: args.copiers,
        ring_mib: COPIER_RING_MIB,
    };
    let mut copiers = synthetic::copiers(spec)?;
    let begin = Instant::now();
    let frames: u64 = thread::scope(|scope| {
        let copy = |(copier, _): &mut (SyntheticCopier, _)| copier.copy_for(args.seconds);
        let threads: Vec<_> =
            copiers.iter_mut().map(|copier| scope.spawn(move || copy(copier))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a copier does not panic")).sum()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let mpps = frames as f64 / seconds / 1e6;
    if args.json {
        let json = serde_json::json!({
            "copiers": args.copiers, "size": args.size, "frames": frames, "duration_s": seconds,
            "mpps": mpps,
        });
        println!("{json}");
    } else {
        let copiers = counted(args.copiers.into(), "copier");
        let frames = counted(frames, "frame");
        println!("{copiers}, {} B: {frames}, {mpps:.2} Mpps", args.size);
    }
    Ok(EXIT_RAN)
}

fn churn(args: &ChurnArgs) -> Result<u8> {
    let churned = churn::run(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&churned)?);
    } else {
        println!("{churned:#?}");
    }
    Ok(EXIT_RAN)
}

fn reread(args: &RereadArgs) -> Result<u8> {
    let socket = weir_client::socket_path(args.socket.as_deref());
    let found = weir_lab::reread::reread(&socket, &args.source, args.seconds.as_secs_f64())?;
    if args.json {
        println!("{}", serde_json::to_string(&found)?);
    } else {
        println!(
            "first frame after {:.1} ms; {} frames in {:.2} s: {:.2} Mpps; memory {:.2} GB/s",
            found.first_ms,
            found.frames,
            found.seconds,
            found.mpps,
            found.bytes_per_second / 1e9
        );
    }
    Ok(EXIT_RAN)
}

fn soak(args: &SoakArgs) -> Result<u8> {
    let weir = std::env::current_exe().context("finding this program's own file")?;
    let options = SoakOptions { weir, seconds: args.seconds.as_secs_f64() };
    let stop = signals::stop_flag()?;
    let checks = bench::soak(&options, &stop, &mut |check| println!("{}", check.line()))?;
    let failed = checks.iter().any(|check| check.verdict == Verdict::Fails);
    Ok(if failed || signals::is_set(&stop) { EXIT_FAILED } else { EXIT_RAN })
}

fn load_bpf() -> u8 {
    // One of the programs is bound to a device, so it is loaded for a veth of the testbed.
    let bed = Testbed::new();
    let results = match &bed {
        Ok(bed) => bed.rx.run(|| bpf::load_all(Ok(&bed.rx.iface))),
        Err(error) => Ok(bpf::load_all(Err(error_text(error)))),
    };
    let results = results.unwrap_or_else(|error| bpf::load_all(Err(error_text(&error))));
    let steering = weir_capture::af_xdp::load_check();
    let generator = weir_lab::generator::load_check();
    let mut code = EXIT_RAN;
    let mut show = |name: &str, refusal: Option<String>| match refusal {
        None => println!("loaded {name}"),
        Some(error) => {
            println!("refused {name}: {error}");
            code = EXIT_FAILED;
        }
    };
    for (name, loaded) in results {
        match loaded {
            Loaded::Yes => show(name, None),
            Loaded::Refused(error) => show(name, Some(error_text(&error))),
            Loaded::Skipped(why) => println!("skipped {name}: {why}"),
        }
    }
    show("weir_xsk", steering.err().map(|error| error_text(&error)));
    show("weir_gen, weir_sink", generator.err().map(|error| error_text(&error)));
    code
}
