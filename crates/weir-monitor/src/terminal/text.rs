//! Formats numbers, times and names for people.

use chrono::{DateTime, Utc};
use weir_frame::flow::{FlowKey, protocol_name};
use weir_frame::headers::Addresses;

/// Formats frames per second: `1.23 Mpps`.
pub fn packet_rate(rate: f64) -> String {
    scaled(rate, ["pps", "kpps", "Mpps", "Gpps", "Tpps"])
}

/// Formats bits per second: `4.56 Gb/s`.
pub fn bit_rate(rate: f64) -> String {
    scaled(rate, ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"])
}

/// Formats bytes, in powers of 1000 as for rates: `7.89 GB`.
pub fn bytes(count: u64) -> String {
    match count {
        0..1000 => format!("{count} B"),
        _ => scaled(count as f64, ["B", "kB", "MB", "GB", "TB"]),
    }
}

/// Formats a rate of events, without a unit prefix: `1,234/s`.
pub fn per_second(rate: f64) -> String {
    match rate {
        rate if !is_rate(rate) => "0/s".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}/s"),
        // Saturates, as `as` does.
        rate => format!("{}/s", grouped(rate.round() as u64)),
    }
}

/// Formats a number with a comma between groups of three digits: `12,345`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a value with three digits, in the largest unit in which it is at least 1.
fn scaled(rate: f64, units: [&str; 5]) -> String {
    let (mut value, mut unit) = (if is_rate(rate) { rate } else { 0.0 }, 0);
    // Values from 999.5 on would be rounded to 1000, which has four digits.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let unit = units[unit];
    match value {
        0.0 => format!("0 {unit}"),
        value if value < 9.995 => format!("{value:.2} {unit}"),
        value if value < 99.95 => format!("{value:.1} {unit}"),
        value if value < 1e6 => format!("{value:.0} {unit}"),
        value => format!("{value:.1e} {unit}"),
    }
}

/// Returns whether a rate is finite and above 0. Rates are computed with clocks of other processes, so they may be NaN
/// or infinite.
fn is_rate(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}

/// Formats a duration in nanoseconds: `0.123s`, `12.3s`, `1m2s`, `3h4m`, `5d6h`.
pub fn span(ns: u64) -> String {
    let tenths = ns / 100_000_000;
    let seconds = tenths / 10;
    match seconds {
        0 => format!("0.{:03}s", ns / 1_000_000),
        1..60 => format!("{seconds}.{}s", tenths % 10),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats nanoseconds since the Unix epoch as time of day in UTC: `02:40:00`.
pub fn clock(ns: u64) -> String {
    date_time(ns).format("%H:%M:%S").to_string()
}

/// Formats nanoseconds since the Unix epoch: `2017-07-14 02:40:00.123456789 UTC`.
pub fn date(ns: u64) -> String {
    date_time(ns).format("%Y-%m-%d %H:%M:%S%.9f UTC").to_string()
}

fn date_time(ns: u64) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(ns.try_into().unwrap_or(i64::MAX))
}

/// Returns the name of a protocol, such as `tcp`, or its number if it has no usual name.
pub fn protocol(number: u8) -> String {
    protocol_name(number).map_or_else(|| number.to_string(), str::to_owned)
}

/// Formats source and destination, with their ports if these are not 0: `10.0.0.1:80`, `[::1]:80`.
pub fn ends(key: &FlowKey) -> [String; 2] {
    let v4 = |address, port| match port {
        0 => format!("{address}"),
        port => format!("{address}:{port}"),
    };
    let v6 = |address, port| match port {
        0 => format!("{address}"),
        port => format!("[{address}]:{port}"),
    };
    match key.addresses {
        Addresses::V4 { src, dst } => [v4(src, key.src_port), v4(dst, key.dst_port)],
        Addresses::V6 { src, dst } => [v6(src, key.src_port), v6(dst, key.dst_port)],
    }
}

/// Formats source and destination without ports.
pub fn addresses(key: &FlowKey) -> [String; 2] {
    match key.addresses {
        Addresses::V4 { src, dst } => [src.to_string(), dst.to_string()],
        Addresses::V6 { src, dst } => [src.to_string(), dst.to_string()],
    }
}

/// Formats TCP flags as letters, in the order `CEUAPRSF`; `-` if none was set.
pub fn tcp_flags(flags: u8) -> String {
    let letters = (0..8).rev().zip("CEUAPRSF".chars());
    let set: String =
        letters.filter(|(bit, _)| flags & (1 << bit) != 0).map(|(_, letter)| letter).collect();
    if set.is_empty() { "-".to_owned() } else { set }
}

/// Escapes a name from outside. Terminals act on control characters, and some other characters move or hide the text
/// around them.
pub fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter {
            '"' | '\'' | '\\' => text.push(letter),
            _ => text.extend(letter.escape_debug()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_the_largest_unit() {
        let shown =
            [0.0, 0.5, 3.0, 12.34, 999.4, 999.5, 1_234_567.0, 45_600_000_000.0, 1e15, 1e300]
                .map(bit_rate);
        let wanted = [
            "0 b/s",
            "0.50 b/s",
            "3.00 b/s",
            "12.3 b/s",
            "999 b/s",
            "1.00 kb/s",
            "1.23 Mb/s",
            "45.6 Gb/s",
            "1000 Tb/s",
            "1.0e288 Tb/s",
        ];
        assert_eq!(shown, wanted);
        for no_rate in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!((packet_rate(no_rate), per_second(no_rate)), ("0 pps".into(), "0/s".into()));
        }
        assert_eq!(packet_rate(1_230_000.0), "1.23 Mpps");
        assert_eq!(
            [0, 999, 1000, 7_890_000_000].map(bytes),
            ["0 B", "999 B", "1.00 kB", "7.89 GB"]
        );
        assert_eq!(bytes(u64::MAX), "1.8e7 TB");
        assert_eq!(
            [0.04, 9.94, 9.95, 1234.4].map(per_second),
            ["0.0/s", "9.9/s", "10/s", "1,234/s"]
        );
        assert_eq!(
            [0, 999, 1000, 123_456, 1_234_567].map(grouped),
            ["0", "999", "1,000", "123,456", "1,234,567"]
        );
    }

    #[test]
    fn times_are_as_short_as_their_column() {
        let seconds = |seconds: f64| span((seconds * 1e9) as u64);
        assert_eq!(
            [0.0, 0.123, 59.99, 62.0, 11_040.0, 453_600.0].map(seconds),
            ["0.000s", "0.123s", "59.9s", "1m2s", "3h4m", "5d6h"]
        );
        assert_eq!(clock(1_500_000_000_123_456_789), "02:40:00");
        assert_eq!(date(1_500_000_000_123_456_789), "2017-07-14 02:40:00.123456789 UTC");
        assert!(span(u64::MAX).len() < 12 && !clock(u64::MAX).is_empty());
    }

    #[test]
    fn names_cannot_reach_the_terminal() {
        assert_eq!(escaped("eth0\x1b[2J\n"), "eth0\\u{1b}[2J\\n");
        assert_eq!(escaped("a\u{202e}b\u{9b}c\u{200b}"), "a\\u{202e}b\\u{9b}c\\u{200b}");
        assert_eq!(escaped("Köln's \"web\""), "Köln's \"web\"");
    }

    #[test]
    fn flags_are_letters() {
        assert_eq!([0, 0b1_0010, 0xff].map(tcp_flags), ["-", "AS", "CEUAPRSF"]);
    }
}
