//! Advice for a consumer that was too slow.

use super::Report;
use crate::units::bit_rate;

/// If less than this share of the frames was lapped, the consumer was fast enough on average, but not for bursts.
const BURSTS: f64 = 0.05;

impl Report<'_> {
    /// Returns lines for a run with lapped frames: the rates of captured and delivered frames, and remedies.
    pub(super) fn advice(&self) -> Vec<String> {
        let (total, main) = (self.total(), self.main());
        if main.delivered.lapped == 0 || total.captured == 0 || self.is_of_a_moment() {
            return Vec::new();
        }
        let seconds = self.duration.as_secs_f64().max(1e-9);
        let captured = total.wire_bytes as f64 * 8.0 / seconds;
        let took = self.gbps() * 1e9;
        let share = main.delivered.lapped as f64 / total.captured as f64;
        let mut lines = vec![format!(
            "  {:.1} % were lapped: {} were captured, and {} took {}",
            share * 100.0,
            bit_rate(captured),
            main.name,
            bit_rate(took)
        )];
        if share < BURSTS {
            lines.push("  a larger --ring-size holds longer bursts".to_owned());
        }
        lines.push(format!("  {}", less_or_faster(main.name)));
        lines
    }
}

/// Returns a remedy that makes a consumer of this kind faster, or gives it less to do.
fn less_or_faster(consumer: &str) -> &'static str {
    match consumer {
        "print" => "fewer frames: --filter; or --write FILE now, and print that later",
        "write" => {
            "faster: --write DIR/, at the disk's speed (a pipe is as slow as its reader); less: --snaplen 128 keeps \
             the headers, --filter chooses"
        }
        "record" => {
            "faster: a second --write DIR/ on another disk; less: --snaplen 128 keeps the headers, --filter chooses"
        }
        "flows" => {
            "less: --snaplen 128 is enough for flows, --filter chooses; or --in-kernel, which copies no frame"
        }
        _ => "less: --snaplen, --filter; or a CPU of its own for the capture: --cpus",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run_result::{ConsumerResult, SourceResult};
    use weir_consumer::Delivered;
    use weir_ring::Ledger;

    fn advice(name: &'static str, lapped: u64) -> String {
        let ledger =
            Ledger { offered: 1000, captured: 1000, wire_bytes: 1_250_000, ..Ledger::default() };
        let (frames, wire_bytes) = (1000 - lapped, (1000 - lapped) * 1250);
        let delivered = Delivered { frames, lapped, wire_bytes, ..Delivered::default() };
        let consumers = [ConsumerResult { name, delivered, ..ConsumerResult::default() }];
        let sources = [SourceResult { ledger, ..SourceResult::default() }];
        let duration = Duration::from_secs(1);
        let report =
            Report { sources: &sources, feeds: &[], consumers: &consumers, duration, rates: None };
        report.advice().join("\n")
    }

    #[test]
    fn what_was_lapped_is_said_with_its_rates_and_the_way_out() {
        assert_eq!(advice("write", 0), "");
        let much = advice("write", 630);
        for word in ["63.0 %", "10.0 Mbit/s", "3.7", "--write DIR/", "--snaplen"] {
            assert!(much.contains(word), "'{word}': {much}");
        }
        assert!(!much.contains("--ring-size"), "{much}");
        assert!(advice("write", 10).contains("--ring-size"));
        for (name, way_out) in
            [("print", "--write FILE"), ("record", "second"), ("count", "--cpus")]
        {
            assert!(advice(name, 500).contains(way_out), "{name}");
        }
    }
}
