//! Writes the time at the beginning of a line.

use std::time::SystemTime;

use chrono::{DateTime, Local, NaiveDate, Offset, TimeZone};

use crate::text::Text;

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: i64 = 86_400;
/// Offsets from UTC change only at multiples of this number of seconds, in all time zones.
const OFFSET_HOLDS_S: i64 = 900;

/// Format of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeFormat {
    /// Local time of day.
    #[default]
    Local,
    /// Time of day in UTC.
    Utc,
    /// Seconds since the Unix epoch.
    Epoch,
    /// Time since the previous frame.
    Delta,
    /// Local date and time of day, in each line.
    Date,
    /// Time since the first frame.
    Start,
    /// No time.
    None,
}

/// Writes times. With a time of day, a line with the date is written before a frame whose date, or whose offset from
/// UTC, differs from that of the previous frame; the first frame is compared with the present time.
#[derive(Clone, Debug)]
pub struct Clock {
    format: TimeFormat,
    /// Digits of the fraction of a second: 6 or 9.
    digits: usize,
    /// The last date that the reader knows (days since 1970), and its offset from UTC in seconds.
    known: (i64, i64),
    /// The local offset from UTC, and the second from which on it is valid.
    offset: (i64, i64),
    /// Time of the previous frame or of the first frame, as the format requires.
    since_ns: Option<u64>,
    /// The last date that was written: days since 1970, and text.
    date: (i64, String),
}

impl Clock {
    /// Creates a clock. With `nanoseconds`, fractions have nine digits instead of six.
    #[must_use]
    pub fn new(format: TimeFormat, nanoseconds: bool) -> Clock {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let digits = if nanoseconds { 9 } else { 6 };
        let mut clock = Clock {
            format,
            digits,
            known: (0, 0),
            offset: (0, i64::MIN),
            since_ns: None,
            date: (i64::MIN, String::new()),
        };
        let now_s = now.as_secs() as i64;
        let offset = clock.offset_s(now_s);
        clock.known = ((now_s + offset).div_euclid(DAY_S), offset);
        clock
    }

    /// Appends the time of a frame, given in nanoseconds since 1970, and a blank. Appends nothing for
    /// [`TimeFormat::None`]. Before a time of day with a new date or offset, appends a line: `# 2026-11-26 UTC+01:00`.
    pub fn write(&mut self, out: &mut Vec<u8>, ts_ns: u64) {
        let second = (ts_ns / SECOND_NS) as i64;
        let fraction_ns = ts_ns % SECOND_NS;
        match self.format {
            TimeFormat::Local | TimeFormat::Utc => {
                let offset = self.offset_s(second);
                let (day, of_day) =
                    ((second + offset).div_euclid(DAY_S), (second + offset).rem_euclid(DAY_S));
                if (day, offset) != self.known {
                    self.known = (day, offset);
                    write_date(out, day, offset);
                }
                write_hms(out, of_day as u64);
            }
            TimeFormat::Epoch => out.dec(ts_ns / SECOND_NS),
            TimeFormat::Date => {
                let local = second + self.offset_s(second);
                let (day, of_day) = (local.div_euclid(DAY_S), local.rem_euclid(DAY_S));
                if self.date.0 != day {
                    self.date = (day, date(day).to_string());
                }
                out.put(&self.date.1);
                out.put(" ");
                write_hms(out, of_day as u64);
            }
            TimeFormat::Delta => {
                let before_ns = self.since_ns.replace(ts_ns).unwrap_or(ts_ns);
                return self.write_difference(out, ts_ns, before_ns);
            }
            TimeFormat::Start => {
                let first_ns = *self.since_ns.get_or_insert(ts_ns);
                return self.write_difference(out, ts_ns, first_ns);
            }
            TimeFormat::None => return,
        }
        self.write_fraction(out, fraction_ns);
        out.put(" ");
    }

    fn write_difference(&self, out: &mut Vec<u8>, ts_ns: u64, since_ns: u64) {
        let ns = ts_ns.abs_diff(since_ns);
        out.put(if ts_ns < since_ns { "-" } else { " " });
        write_hms(out, ns / SECOND_NS);
        self.write_fraction(out, ns % SECOND_NS);
        out.put(" ");
    }

    fn write_fraction(&self, out: &mut Vec<u8>, ns: u64) {
        out.put(".");
        let mut unit = SECOND_NS / 10;
        for _ in 0..self.digits {
            out.push(b'0' + (ns / unit % 10) as u8);
            unit /= 10;
        }
    }

    fn offset_s(&mut self, second: i64) -> i64 {
        if !matches!(self.format, TimeFormat::Local | TimeFormat::Date) {
            return 0;
        }
        let from = second - second.rem_euclid(OFFSET_HOLDS_S);
        if self.offset.1 != from {
            let local = Local.timestamp_opt(from, 0).earliest();
            let offset = local.map_or(0, |time| time.offset().fix().local_minus_utc());
            self.offset = (i64::from(offset), from);
        }
        self.offset.0
    }
}

fn write_hms(out: &mut Vec<u8>, seconds: u64) {
    let mut two = |number: u64| {
        if number < 10 {
            out.push(b'0');
        }
        out.dec(number);
    };
    two(seconds / 3600);
    two(seconds / 60 % 60);
    two(seconds % 60);
    let end = out.len();
    // The last four digits are minutes and seconds.
    out.insert(end - 2, b':');
    out.insert(end - 4, b':');
}

fn date(day: i64) -> NaiveDate {
    DateTime::from_timestamp(day * DAY_S, 0).unwrap_or_default().date_naive()
}

fn write_date(out: &mut Vec<u8>, day: i64, offset_s: i64) {
    use std::io::Write;
    let date = date(day);
    let sign = if offset_s < 0 { '-' } else { '+' };
    let minutes = offset_s.unsigned_abs() / 60;
    let _ = match minutes {
        0 => writeln!(out, "# {date} UTC"),
        _ => writeln!(out, "# {date} UTC{sign}{:02}:{:02}", minutes / 60, minutes % 60),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(format: TimeFormat, nanoseconds: bool, stamps: &[u64]) -> String {
        let (mut clock, mut out) = (Clock::new(format, nanoseconds), Vec::new());
        for stamp in stamps {
            clock.write(&mut out, *stamp);
            out.push(b'\n');
        }
        String::from_utf8(out).unwrap().replace(" \n", "\n")
    }

    const STAMP: u64 = 86_399 * SECOND_NS + 123_456_789;

    #[test]
    fn the_date_has_a_line_when_it_changes() {
        let stamps = [STAMP, STAMP, STAMP + SECOND_NS];
        assert_eq!(
            times(TimeFormat::Utc, false, &stamps),
            "# 1970-01-01 UTC\n23:59:59.123456\n23:59:59.123456\n# 1970-01-02 UTC\n00:00:00.123456\n"
        );
    }

    #[test]
    fn todays_frames_need_no_date() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        // In the last second of a day the clock is made on the day before.
        if now % 86_400 < 86_398 {
            assert!(!times(TimeFormat::Utc, true, &[now * SECOND_NS]).contains('#'));
        }
    }

    #[test]
    fn seconds_since_1970_and_since_the_frame_before() {
        assert_eq!(times(TimeFormat::Epoch, true, &[STAMP]), "86399.123456789\n");
        assert_eq!(
            times(TimeFormat::Delta, false, &[STAMP, STAMP + 1_500_000, STAMP]),
            " 00:00:00.000000\n 00:00:00.001500\n-00:00:00.001500\n"
        );
    }

    #[test]
    fn time_since_the_first_frame_and_none() {
        assert_eq!(
            times(TimeFormat::Start, false, &[STAMP, STAMP + 1_500_000, STAMP, STAMP - 1000]),
            " 00:00:00.000000\n 00:00:00.001500\n 00:00:00.000000\n-00:00:00.000001\n"
        );
        assert_eq!(times(TimeFormat::None, false, &[0, STAMP]), "\n\n");
    }

    #[test]
    fn the_date_may_stand_in_each_line() {
        let text = times(TimeFormat::Date, true, &[STAMP, STAMP + 1, STAMP + 86_400 * SECOND_NS]);
        let dates: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(dates[0], dates[1], "{text}");
        assert!(dates[0] < dates[2] && dates[2].starts_with("1970-01-0"), "{text}");
        assert!(text.contains(":59.123456790\n") && !text.contains('#'), "{text}");
    }

    #[test]
    fn any_stamp_has_a_date() {
        for format in [TimeFormat::Local, TimeFormat::Utc] {
            assert!(times(format, false, &[0, u64::MAX]).contains("# 2554-07-2"));
        }
        assert!(times(TimeFormat::Date, false, &[0, u64::MAX]).contains("\n2554-07-2"));
    }

    #[test]
    fn another_offset_is_a_line_too() {
        let mut out = Vec::new();
        write_date(&mut out, 1, -12_600);
        assert_eq!(out, b"# 1970-01-02 UTC-03:30\n");
    }
}
