//! Times the generator on a veth pair whose far end drops in XDP: one line for each case, three
//! runs of two seconds each, lowest to highest.
//!
//! `cargo run --release -p weir-lab --example gen_speed` as root, on a machine that does nothing else.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weir_lab::generator::sink::Sink;
use weir_lab::generator::{self, Flows, GenEngine, GenOptions, Rate};
use weir_lab::{Result, Testbed};

fn main() -> Result<()> {
    let packet = GenOptions { engine: GenEngine::AfPacket, ..GenOptions::default() };
    let large = GenOptions { sizes: 1518.into(), ..GenOptions::default() };
    let plain = GenOptions::default();
    let cases = [
        ("64 B, one flow", plain.clone()),
        ("64 B, 1000 flows", GenOptions { flows: Flows::N(1000), ..plain.clone() }),
        ("64 B, every frame new", GenOptions { flows: Flows::Multi, ..plain.clone() }),
        ("64 B, one flow, stamped", GenOptions { stamp: true, ..plain.clone() }),
        ("64 B, 1 Mpps asked for", GenOptions { rate: Rate::Pps(1e6), ..plain }),
        ("1518 B, one flow", large.clone()),
        ("64 B, AF_PACKET", packet.clone()),
        ("1518 B, AF_PACKET", GenOptions { engine: GenEngine::AfPacket, ..large }),
    ];
    let bed = Testbed::new()?;
    let sink = bed.rx.run(|| Sink::attach(&bed.rx.iface, 0))??;
    for (name, options) in cases {
        let duration = Some(Duration::from_secs(2));
        let options = GenOptions { cpus: vec![0], duration, ..options };
        let mut runs = Vec::new();
        for _ in 0..3 {
            let before = sink.counts()?.frames;
            let send = || generator::run(&bed.tx.iface, &options, &AtomicBool::new(false));
            let report = bed.tx.run(send)??;
            let lost = report.sent.abs_diff(sink.counts()?.frames - before);
            runs.push((report.mpps(), report.gbps(), report.refused, lost));
        }
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (low, high) = (runs[0], runs[2]);
        let refused: u64 = runs.iter().map(|run| run.2).sum();
        let lost: u64 = runs.iter().map(|run| run.3).sum();
        println!(
            "{name:26} {:6.3} - {:6.3} Mpps, {:5.1} Gbit/s; refused {refused}, sent != arrived {lost}",
            low.0, high.0, high.1
        );
    }
    Ok(())
}
