//! Time-outs in the units of the programs: ticks of 16 bits for a quick check, nanoseconds for the exact one.

use std::time::Duration;

use weir_flow::FlowConfig;
use weir_flow::limits::TIMEOUT_MAX;

/// Most ticks from the first frame of a flow to its last possible frame: less than half of the range of 16 bits, so
/// that ages are unambiguous where they decide.
const TICKS_MAX: u64 = 0x7ff0;
/// A tick lasts 2^20 ns (about a millisecond) or more: the clock has no finer resolution.
const SHIFT_MIN: u32 = 20;
/// Ticks of a time-out that never expires: 16 bits do not reach this number.
const NEVER_TICKS: u32 = 0x1_0000;

/// Constants of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    pub shift: u32,
    /// Idle time-out; all ones: never.
    pub idle_ns: u64,
    pub active_ns: u64,
    /// After a pause of this length, ticks are ambiguous and only nanoseconds decide.
    pub look_ns: u64,
    /// A flow whose last tick is at least this far back is certainly idle.
    pub idle: u32,
    /// A flow whose first tick is less far back has certainly not reached its active time-out.
    pub active: u32,
}

impl Ticks {
    pub fn of(config: &FlowConfig) -> Ticks {
        let ns = |timeout: Option<Duration>| timeout.map_or(u64::MAX, |t| t.as_nanos() as u64);
        let (idle_ns, active_ns) = (ns(config.idle_timeout), ns(config.active_timeout));
        let sum = |timeout: Option<Duration>| ns(timeout.or(Some(TIMEOUT_MAX)));
        let horizon = sum(config.idle_timeout) + active_ns.min(sum(None));
        let mut shift = SHIFT_MIN;
        while horizon >> shift > TICKS_MAX {
            shift += 1;
        }
        let ticks = |ns: u64| (ns != u64::MAX).then_some((ns >> shift) as u32);
        Ticks {
            shift,
            idle_ns,
            active_ns,
            look_ns: idle_ns.min(TICKS_MAX << shift),
            idle: ticks(idle_ns).map_or(NEVER_TICKS, |ticks| ticks + 1),
            active: ticks(active_ns).unwrap_or(NEVER_TICKS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(idle: Option<u64>, active: Option<u64>) -> Ticks {
        let [idle_timeout, active_timeout] = [idle, active].map(|ms| ms.map(Duration::from_millis));
        Ticks::of(&FlowConfig { idle_timeout, active_timeout, ..FlowConfig::default() })
    }

    #[test]
    fn ages_of_flows_that_go_on_fit_half_of_16_bits() {
        let day = Some(24 * 3600 * 1000);
        for (idle, active) in [
            (Some(100), Some(100)),
            (Some(15_000), Some(60_000)),
            (day, day),
            (None, day),
            (day, None),
            (None, None),
        ] {
            let ticks = of(idle, active);
            let longest = |timeout: Option<u64>| timeout.map_or(0, |ms| ms * 1_000_000);
            assert!((longest(idle) + longest(active)) >> ticks.shift < 0x8000, "{ticks:?}");
            assert_eq!(ticks.idle > 0xffff, idle.is_none());
            assert_eq!(ticks.active > 0xffff, active.is_none());
            assert!(ticks.look_ns >> ticks.shift < 0x8000);
        }
    }

    #[test]
    fn ticks_are_as_short_as_can_be() {
        assert_eq!(of(Some(100), Some(100)).shift, SHIFT_MIN);
        let ticks = of(Some(15_000), Some(60_000));
        assert!(1 << ticks.shift < 5_000_000, "{ticks:?}");
    }
}
