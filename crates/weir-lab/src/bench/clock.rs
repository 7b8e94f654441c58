//! Parses times of day in the format of printed frames.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: Duration = Duration::from_secs(86_400);

/// Parses the time of day at the start of a line: `12:34:56.123456789 ...`.
pub(super) fn stamp(line: &str) -> Option<Duration> {
    let (clock, fraction) = line.split_whitespace().next()?.split_once('.')?;
    let mut parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    if fraction.len() != 9 || parts.next().is_some() {
        return None;
    }
    Some(Duration::new(hour * 3600 + minute * 60 + second, fraction.parse().ok()?))
}

pub(super) fn of_day(time: SystemTime) -> Duration {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::new(since.as_secs() % DAY.as_secs(), since.subsec_nanos())
}

/// Returns the time between two times of day. The later one may be after midnight.
pub(super) fn since(from: Duration, to: Duration) -> Duration {
    if to >= from { to - from } else { to + DAY - from }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_and_midnight_is_no_leap() {
        let at = stamp("23:59:59.999000000 wrx0 In ARP").unwrap();
        assert_eq!(at, Duration::new(86_399, 999_000_000));
        assert_eq!(since(at, Duration::from_millis(1)), Duration::from_millis(2));
        assert_eq!(of_day(UNIX_EPOCH + DAY + Duration::from_secs(5)), Duration::from_secs(5));
        for bad in ["", "weir: x", "1:2.123456789", "12:00:00.5 x", "12:00:00:00.123456789"] {
            assert_eq!(stamp(bad), None, "{bad}");
        }
    }
}
