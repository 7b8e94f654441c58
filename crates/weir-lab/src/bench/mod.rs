//! `weir lab bench` and `weir lab soak`: measures the product on this machine, beside its peers.
//!
//! | module | what it measures |
//! |---|---|
//! | `wire` | capture from a veth pair at the generator's maximum rate, each tool in turn |
//! | `before` | the same with another build, compared with this one |
//! | `zero_loss` | the highest rate at which each tool loses nothing |
//! | `latency` | the time from the generator's stamp to the consumer |
//! | `iperf` | the cost of a capture to TCP throughput |
//! | `memory` | the ring alone |
//! | `command` | a ring that the command line fills and reads |
//! | `files` | copying a trace to a trace |
//! | `af_xdp` | the engine `af_xdp` beside DPDK's driver, and the run times of both XDP programs |
//! | `copiers` | threads that share one RX ring |
//! | `filter` | the cost of filters, in the kernel and in user space |
//! | `idle` | a capture that receives no frames |
//! | `wakeups` | how often an idle capture wakes up, and how soon it has a frame after silence |
//! | `print` | frames as lines of text, beside tcpdump |
//! | `serve` | a daemon and its clients, beside as many captures with tcpdump |
//! | `guests` | virtual machines that read the host's feeds, beside virtio-net |
//! | `suricata` | Suricata on its own socket, and on a daemon's feed |
//! | `flows` | the flow monitor beside the null monitor, softflowd and Suricata's flow log |
//! | `recorder` | the recorder beside `fio` on the same file system |
//! | `any` | every link of a machine with two hundred of them, in one capture |
//! | `churn` | feeds and consumers that come and go at full rate |
//! | `soak` | ledgers after a long run at full rate |
//!
//! Each part has a file, an entry in [`PARTS`] and a paragraph in `page/words.rs`. The parts use `context` (what to
//! measure, and for how long), `tool`, `counted` and `child` (other programs), `row`, `bar` and `report` (results),
//! `page` (the report as HTML), and `markdown` (the report for docs/figures.md).
//!
//! Tools are compared only with tools that were measured in the same run and the same round, because the speed of a
//! machine drifts.

mod af_xdp;
mod ahead;
mod any;
mod bar;
mod before;
mod child;
mod churn;
mod clock;
mod command;
mod context;
mod copiers;
mod counted;
mod files;
mod filter;
mod flows;
mod footprint;
mod guests;
mod idle;
mod iperf;
mod latency;
mod machine;
mod markdown;
mod memory;
mod page;
mod percentiles;
mod print;
mod recorder;
pub mod report;
mod row;
mod serve;
mod soak;
pub mod stats;
mod suricata;
mod switches;
pub mod table;
mod tool;
mod tools;
mod wakeups;
mod wire;
mod zero_loss;

use std::str::FromStr;
use std::sync::atomic::AtomicBool;

pub use ahead::Ahead;
pub use bar::{Bar, Side};
pub use context::{Options, Section};
pub use footprint::Footprint;
pub use markdown::markdown;
pub use page::page;
pub use percentiles::Percentiles;
pub use recorder::sizing;
pub use report::Report;
pub use row::{Frames, Round, Row};
pub use soak::{Check, SoakOptions, Verdict, soak};

use crate::Result;
use context::{Context, PATIENCE, PATIENCE_ROUND, stopped};
use machine::Machine;

/// A part of the bench.
struct Part {
    /// The part's name, for `--only`; also the section of its rows.
    name: &'static str,
    /// Runs the measurement. Only a failure of the testbed is an error; a tool that fails gives a row with the reason.
    measure: fn(&Context) -> Result<Vec<Row>>,
    /// Targets for its rows.
    bars: fn(&[Row]) -> Vec<Bar>,
    /// Describes how the part is measured, in a sentence; empty if there is nothing to say.
    condition: fn(&Context) -> String,
}

/// The parts, in the order of the report.
const PARTS: [Part; 24] = [
    Part {
        name: wire::SECTION,
        measure: wire::measure,
        bars: wire::bars,
        condition: wire::condition,
    },
    Part {
        name: before::SECTION,
        measure: before::measure,
        bars: before::bars,
        condition: before::condition,
    },
    Part {
        name: zero_loss::SECTION,
        measure: zero_loss::measure,
        bars: |_| Vec::new(),
        condition: zero_loss::condition,
    },
    Part {
        name: latency::SECTION,
        measure: latency::measure,
        bars: |_| Vec::new(),
        condition: latency::condition,
    },
    Part {
        name: iperf::SECTION,
        measure: iperf::measure,
        bars: iperf::bars,
        condition: iperf::condition,
    },
    Part {
        name: memory::SECTION,
        measure: memory::measure,
        bars: memory::bars,
        condition: memory::condition,
    },
    Part {
        name: command::SECTION,
        measure: command::measure,
        bars: command::bars,
        condition: command::condition,
    },
    Part {
        name: files::SECTION,
        measure: files::measure,
        bars: files::bars,
        condition: files::condition,
    },
    Part {
        name: af_xdp::SECTION,
        measure: af_xdp::measure,
        bars: af_xdp::bars,
        condition: af_xdp::condition,
    },
    Part {
        name: copiers::SECTION,
        measure: copiers::measure,
        bars: copiers::bars,
        condition: copiers::condition,
    },
    Part {
        name: churn::SECTION,
        measure: churn::measure,
        bars: churn::bars,
        condition: churn::condition,
    },
    Part {
        name: filter::SECTION,
        measure: filter::measure,
        bars: filter::bars,
        condition: filter::condition,
    },
    Part {
        name: idle::SECTION,
        measure: idle::measure,
        bars: idle::bars,
        condition: |_| String::new(),
    },
    Part {
        name: wakeups::SECTION,
        measure: wakeups::measure,
        bars: wakeups::bars,
        condition: wakeups::condition,
    },
    Part {
        name: print::SECTION,
        measure: print::measure,
        bars: print::bars,
        condition: print::condition,
    },
    Part {
        name: serve::SECTION,
        measure: serve::measure,
        bars: serve::bars,
        condition: serve::condition,
    },
    Part {
        name: guests::SECTION,
        measure: guests::measure,
        bars: guests::bars,
        condition: guests::condition,
    },
    Part {
        name: tools::SECTION,
        measure: tools::measure,
        bars: tools::bars,
        condition: tools::condition,
    },
    Part {
        name: suricata::SECTION,
        measure: suricata::measure,
        bars: suricata::bars,
        condition: suricata::condition,
    },
    Part {
        name: flows::SECTION,
        measure: flows::measure,
        bars: flows::bars,
        condition: flows::condition,
    },
    Part {
        name: recorder::SECTION,
        measure: recorder::measure,
        bars: recorder::bars,
        condition: recorder::condition,
    },
    Part {
        name: recorder::live::SECTION,
        measure: recorder::live::measure,
        bars: recorder::live::bars,
        condition: recorder::live::condition,
    },
    Part {
        name: recorder::store::SECTION,
        measure: recorder::store::measure,
        bars: recorder::store::bars,
        condition: recorder::store::condition,
    },
    Part { name: any::SECTION, measure: any::measure, bars: any::bars, condition: any::condition },
];

impl FromStr for Section {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Section, String> {
        let mut names = PARTS.iter().map(|part| part.name);
        names.find(|name| *name == text).map(Section).ok_or_else(|| {
            let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
            format!("'{text}' is no part of the bench; there are {}", names.join(", "))
        })
    }
}

/// Measures the parts that `options` selects, and reports progress through `talk`. Ends early, with
/// the measurements so far, when `stop` is set.
///
/// # Errors
/// No testbed can be made, mostly for lack of root. A tool that is missing or fails gives a row with the reason.
pub fn run(options: &Options, stop: &AtomicBool, talk: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    let context = Context::new(options, stop, talk);
    let mut machine = Machine::look(&options.weir);
    for tool in [
        "tcpdump",
        "dumpcap",
        "editcap",
        "netsniff-ng",
        "dpdk-testpmd",
        "xdpdump",
        "iperf3",
        "softflowd",
        "fio",
    ] {
        machine.add_tool(tool);
    }
    let is_wanted = |part: &&Part| options.only.is_none_or(|only| only == Section(part.name));
    let (mut rows, mut conditions) = (Vec::new(), vec![rounds(&context)]);
    let mut asked: Vec<&Part> = Vec::new();
    for part in PARTS.iter().filter(is_wanted) {
        if !stopped(stop) {
            rows.extend((part.measure)(&context)?);
            conditions.push((part.condition)(&context));
            asked.push(part);
        }
    }
    machine.finish();
    conditions.retain(|condition| !condition.is_empty());
    let bars = asked.iter().flat_map(|part| (part.bars)(&rows)).collect();
    let (ahead, interrupted) = (ahead::ahead(&rows), stopped(stop));
    Ok(Report { machine, conditions, rows, bars, ahead, interrupted })
}

fn rounds(context: &Context) -> String {
    format!(
        "{} interleaved rounds of {} s; ratios are medians of ratios within a round; each waits for a \
         quiet moment, up to {} s and {} s in all",
        context.rounds,
        context.seconds,
        PATIENCE_ROUND.as_secs(),
        PATIENCE.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names() {
        assert_eq!("iperf3".parse(), Ok(Section(iperf::SECTION)));
        let error = "disk".parse::<Section>().unwrap_err();
        assert!(error.contains("wire, before, zero-loss, latency, iperf3, memory"), "{error}");
    }

    #[test]
    fn every_section_is_explained() {
        for name in PARTS.map(|part| part.name).into_iter().chain([
            memory::READERS,
            af_xdp::PROGRAMS,
            serve::COSTS,
            guests::COSTS,
        ]) {
            assert!(!page::words::of_section(name).is_empty(), "{name}");
        }
    }
}
