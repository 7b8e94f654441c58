//! Measures how exactly the generator keeps a rate, on a veth pair whose far end drops in XDP.
//! Prints the table of docs/generator.md. Each case runs three times for two seconds; its row is
//! the median run.
//!
//! `cargo run --release -p weir-lab --example gen_accuracy` as root.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weir_lab::generator::sink::Sink;
use weir_lab::generator::sizes::{IMIX, Sizes};
use weir_lab::generator::{self, GenEngine, GenOptions, Rate};
use weir_lab::{Result, Testbed};

const SECONDS: f64 = 2.0;
const RUNS: usize = 3;

fn main() -> Result<()> {
    let bed = Testbed::new()?;
    let sink = bed.rx.run(|| Sink::attach(&bed.rx.iface, 0))??;
    let imix = Sizes::mix(&IMIX).expect("a mix");
    println!("| frames | by | asked | due | attempted | off by | held up | sent = arrived |");
    println!("|---|---|---|---|---|---|---|---|");
    for (name, engine) in
        [("live frames", GenEngine::LiveFrames), ("AF_PACKET", GenEngine::AfPacket)]
    {
        for (size, sizes) in
            [("64 B", Sizes::from(64)), ("1518 B", Sizes::from(1518)), ("imix", imix.clone())]
        {
            for (asked, rate) in [
                ("100 pps", Rate::Pps(100.0)),
                ("100 kpps", Rate::Pps(1e5)),
                ("1 Mpps", Rate::Pps(1e6)),
                ("100 Mbit/s", Rate::Bps(1e8)),
            ] {
                let options = GenOptions {
                    sizes: sizes.clone(),
                    rate,
                    engine,
                    duration: Some(Duration::from_secs_f64(SECONDS)),
                    ..GenOptions::default()
                };
                let due = match rate {
                    Rate::Max => unreachable!("none of the cases"),
                    Rate::Pps(pps) => pps * SECONDS,
                    Rate::Bps(bps) => bps * SECONDS / (sizes.mean() * 8.0),
                };
                let mut runs = Vec::new();
                for _ in 0..RUNS {
                    let before = sink.counts()?.frames;
                    let send = || generator::run(&bed.tx.iface, &options, &AtomicBool::new(false));
                    let report = bed.tx.run(send)??;
                    // The kernel may still be processing frames at the receiving end.
                    std::thread::sleep(Duration::from_millis(50));
                    let lost = report.sent.abs_diff(sink.counts()?.frames - before);
                    runs.push((report.attempted, report.given_up, lost));
                }
                runs.sort_unstable();
                let (attempted, held_up, lost) = runs[RUNS / 2];
                let off = (attempted as f64 - due) / due * 100.0;
                let same = if lost == 0 { "yes".to_owned() } else { format!("no: {lost}") };
                let held_up = held_up.as_secs_f64();
                println!(
                    "| {size} | {name} | {asked} | {due:.0} | {attempted} | {off:+.3} % | {held_up:.3} s | {same} |"
                );
            }
        }
    }
    Ok(())
}
