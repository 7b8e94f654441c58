//! Values with units, as they are typed and as they are printed.

use std::time::Duration;

use weir_lab::generator::Flows;

/// `64MiB`, `1GiB`, `512KiB`, or plain bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no size; write it like 64MiB, 1GiB or 1048576");
    let (number, unit) = split(text);
    let scale = match unit {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => return Err(bad()),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).ok_or_else(bad)
}

/// `10s`, `500ms`, `2m`, `1h`, `1.5s`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no time; write it like 10s, 500ms, 2m or 1h");
    let (number, unit) = split(text);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())
}

/// A number of frames: `1000000`, `1_000_000`, `1M`, `10k`.
pub fn count(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no number of frames; write it like 1000, 10k or 1M");
    let plain = text.replace('_', "");
    let (number, unit) = split(&plain);
    let scale = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(bad()),
    };
    let count = number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).ok_or_else(bad)?;
    if count == 0 { Err(bad()) } else { Ok(count) }
}

/// How fast frames go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrameRate {
    /// As fast as possible.
    Max,
    /// Frames a second.
    Pps(f64),
    /// Bits a second.
    Bps(f64),
}

/// `max`, `1Mpps`, `500kpps`, `1Gbps`, `100Mbps`.
pub fn frame_rate(text: &str) -> Result<FrameRate, String> {
    let bad = || format!("'{text}' is no rate; write max, or 1Mpps, or 1Gbps");
    if text == "max" {
        return Ok(FrameRate::Max);
    }
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let (scale, kind): (f64, fn(f64) -> FrameRate) = match unit {
        "pps" => (1.0, FrameRate::Pps),
        "kpps" => (1e3, FrameRate::Pps),
        "Mpps" => (1e6, FrameRate::Pps),
        "bps" => (1.0, FrameRate::Bps),
        "kbps" => (1e3, FrameRate::Bps),
        "Mbps" => (1e6, FrameRate::Bps),
        "Gbps" => (1e9, FrameRate::Bps),
        _ => return Err(bad()),
    };
    if number > 0.0 && number.is_finite() { Ok(kind(number * scale)) } else { Err(bad()) }
}

/// `single`, `multi`, or a number of flows.
pub fn flows(text: &str) -> Result<Flows, String> {
    match text {
        "single" => Ok(Flows::Single),
        "multi" => Ok(Flows::Multi),
        number => match number.parse() {
            Ok(n) if n > 0 => Ok(Flows::N(n)),
            _ => Err(format!("'{text}': write single, multi, or a number of flows above 0")),
        },
    }
}

/// How fast a file is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// As fast as possible.
    Max,
    /// This many times as fast as it was recorded.
    Times(f64),
}

/// `max`, `real`, `2x`, `0.5x`.
pub fn speed(text: &str) -> Result<Speed, String> {
    let bad = || format!("'{text}' is no speed; write max, real, or a factor such as 2x");
    match text {
        "max" => Ok(Speed::Max),
        "real" => Ok(Speed::Times(1.0)),
        factor => {
            let number = factor.strip_suffix('x').ok_or_else(bad)?;
            let number: f64 = number.parse().map_err(|_| bad())?;
            if number > 0.0 && number.is_finite() { Ok(Speed::Times(number)) } else { Err(bad()) }
        }
    }
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

/// `12 345 678`: digits in threes.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(count("10k"), Ok(10_000));
        assert_eq!(frame_rate("1.5Mpps"), Ok(FrameRate::Pps(1.5e6)));
        assert_eq!(speed("2x"), Ok(Speed::Times(2.0)));
    }

    #[test]
    fn nonsense_says_how_to_write_it() {
        for bad in ["", "MiB", "64MB5", "-1MiB", "99999999999999999999GiB", "1.5MiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert!(duration("10 parsecs").unwrap_err().contains("500ms"));
        assert!(duration("-1s").is_err() && duration("1e99h").is_err());
        assert!(count("0").is_err() && frame_rate("0pps").is_err() && speed("0x").is_err());
    }

    #[test]
    fn digits_come_in_threes() {
        assert_eq!(grouped(1_234_567), "1 234 567");
        assert_eq!(grouped(12), "12");
    }
}
