//! Parses and prints values with units.

use std::net::SocketAddr;
use std::time::Duration;

use weir_capture::af_xdp::Queues;
use weir_capture::replay::Speed;
use weir_client::limits::{BLOCK_TIME_MAX, BLOCK_TIME_MIN};
use weir_frame::record::CAPLEN_MAX;
use weir_lab::generator::Flows;
use weir_lab::generator::sizes::{IMIX, Sizes};
use weir_store::limits::ROTATE_BYTES_MIN;
use weir_store::recorder::settings::Quota;

/// Parses a size: `64MiB`, `1GiB`, `512KiB`, or a number of bytes. As with dd(1), `M` is a MiB and `MB` a million
/// bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bad =
        || format!("'{text}' is no size; write it in whole numbers like 64MiB, 1GiB or 1048576");
    let (number, unit) = split(text);
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(bad()),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).ok_or_else(bad)
}

/// Parses the address of a server: `127.0.0.1:9100`.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    text.parse().map_err(|_| match port {
        Ok(port) => format!("'{text}' is a port alone; write 127.0.0.1:{port}"),
        Err(_) => format!("'{text}' is no address with a port; write 127.0.0.1:9100 or [::1]:9100"),
    })
}

/// Parses the size at which a file is rotated: `1GiB`.
pub fn rotate_size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        size if size < ROTATE_BYTES_MIN => Err(format!(
            "'{text}': a file is followed by another at {ROTATE_BYTES_MIN} bytes or more"
        )),
        size => Ok(size),
    }
}

/// Parses a size like [`rotate_size`], but a number without a unit means millions of bytes, as with tcpdump.
pub fn rotate_millions(text: &str) -> Result<u64, String> {
    let bad =
        || format!("'{text}': write a whole number of millions of bytes such as 100, or 100MiB");
    match text.parse::<u64>() {
        Ok(0) => Err(bad()),
        Ok(millions) => millions.checked_mul(1_000_000).ok_or(format!("'{text}' is too large")),
        Err(_) if bytes(text).is_err() => Err(bad()),
        Err(_) => rotate_size(text),
    }
}

/// Parses the time after which a file is rotated, at least 1 s.
pub fn rotate_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < Duration::from_secs(1) => Err(format!("'{text}': the shortest time is 1s")),
        time => Ok(time),
    }
}

/// Parses the quota of recorded files: `20GiB`, or `50%` of the size of the file system.
pub fn quota(text: &str) -> Result<Quota, String> {
    match text.strip_suffix('%').map(str::parse::<u8>) {
        None => bytes(text).map(Quota::Bytes),
        Some(Ok(percent @ 1..=100)) => Ok(Quota::Percent(percent)),
        Some(_) => {
            Err(format!("'{text}' is no share; write a whole number of 1% to 100%, or 20GiB"))
        }
    }
}

/// Parses the compression: `zstd`, or `zstd:19` with a level. Returns the level.
pub fn compression(text: &str) -> Result<i32, String> {
    let bad =
        || format!("'{text}' is no compression; write zstd, or zstd:1 (fast) to zstd:19 (small)");
    match text.split_once(':') {
        None if text == "zstd" => Ok(1),
        Some(("zstd", level)) => {
            level.parse().ok().filter(|level| (1..=19).contains(level)).ok_or_else(bad)
        }
        _ => Err(bad()),
    }
}

/// Parses a time: `10s`, `500ms`, `2m`, `1h`, `3d`, `1.5s`; a number without a unit means seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no time; write it like 10s, 500ms, 2m, 1h or 3d");
    let (number, unit) = split(text);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())
}

/// Parses the length of a measurement, 100 ms to 60 s.
pub fn measured_time(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(60));
    duration(text).ok().filter(|time| (least..=most).contains(time)).ok_or_else(|| {
        format!("'{text}' is no length of a measurement; write a time from 100ms to 60s")
    })
}

/// Parses the size of a direct write, a multiple of 4 KiB up to 64 MiB.
pub fn write_size(text: &str) -> Result<u64, String> {
    const ALIGN: u64 = weir_disk::ALIGN_BYTES as u64;
    match bytes(text)? {
        size @ ALIGN..=0x400_0000 if size.is_multiple_of(ALIGN) => Ok(size),
        _ => Err(format!(
            "'{text}' is no size of a direct write; write a multiple of 4KiB up to 64MiB"
        )),
    }
}

/// Parses the time for which an entry is blocked.
pub fn block_time(text: &str) -> Result<Duration, String> {
    let hours = BLOCK_TIME_MAX.as_secs() / 3600;
    let longest = format!("{hours}h ({} days)", hours / 24);
    let time = duration(text).map_err(|_| {
        format!(
            "'{text}' is no time; the units are ms, s, m, h and d, and the longest time is {longest}"
        )
    })?;
    if (BLOCK_TIME_MIN..=BLOCK_TIME_MAX).contains(&time) {
        return Ok(time);
    }
    Err(format!(
        "'{text}' is not 1s to {longest}; without a time an entry stays until it is removed"
    ))
}

/// Returns a time in whole seconds as text: `1h2m3s`, `9m58s`, `0s`.
pub fn whole_seconds(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let shown = parts.iter().filter(|(count, _)| *count > 0);
    let text: String = shown.map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Parses the most bytes that are kept of a frame. 0 means all, as with tcpdump.
pub fn snaplen(text: &str) -> Result<u32, String> {
    let bytes = text.parse().map_err(|_| format!("'{text}' is no number of bytes"))?;
    Ok(if bytes == 0 { CAPLEN_MAX } else { bytes })
}

/// Parses a number of frames, feeds or the like: `1000000`, `1_000_000`, `1M`, `10k`.
pub fn count(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no number above 0; write it like 1000, 10k or 1M");
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

/// The rate at which frames are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrameRate {
    /// As fast as possible.
    Max,
    /// Frames per second.
    Pps(f64),
    /// Bits per second.
    Bps(f64),
}

/// Parses a rate: `max`, `1Mpps`, `500kpps`, `1Gbps`, `100Mbps`, or `100Mbit/s` as in reports.
pub fn frame_rate(text: &str) -> Result<FrameRate, String> {
    const FORM: &str =
        "max, or frames a second as 1Mpps, 10kpps or 5pps, or bits a second as 1Gbps or 100Mbit/s";
    let bad = || format!("'{text}' is no rate; write {FORM}");
    if text == "max" {
        return Ok(FrameRate::Max);
    }
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let (scale, kind): (f64, fn(f64) -> FrameRate) = match unit {
        "pps" => (1.0, FrameRate::Pps),
        "kpps" => (1e3, FrameRate::Pps),
        "Mpps" => (1e6, FrameRate::Pps),
        "bps" | "bit/s" => (1.0, FrameRate::Bps),
        "kbps" | "kbit/s" => (1e3, FrameRate::Bps),
        "Mbps" | "Mbit/s" => (1e6, FrameRate::Bps),
        "Gbps" | "Gbit/s" => (1e9, FrameRate::Bps),
        "" | "k" | "M" | "G" if number > 0.0 => {
            return Err(format!(
                "'{text}' lacks its unit: {text}pps are frames a second, {text}bps are bits"
            ));
        }
        _ => return Err(bad()),
    };
    if number > 0.0 && number.is_finite() {
        Ok(kind(number * scale))
    } else {
        Err(format!("'{text}': a rate is above 0; write max for full speed"))
    }
}

/// Parses a number of flows: `single`, `multi`, or a number.
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

/// Parses a speed: `max`, `real`, `2x`, `0.5x`.
pub fn speed(text: &str) -> Result<Speed, String> {
    let bad = || format!("'{text}' is no speed; write max, real, or a factor such as 2x");
    match text {
        "max" => Ok(Speed::Top),
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

/// Returns a number in groups of three digits: `12 345 678`.
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

/// Returns a count with its noun: `1 file`, `2 files`, `1 234 entries left out`. The first word of `what` is the noun,
/// in the singular.
pub fn counted(count: u64, what: &str) -> String {
    let (noun, rest) = what.split_at(what.find(' ').unwrap_or(what.len()));
    let plural = match noun.strip_suffix('y') {
        _ if count == 1 => noun.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'o']) => format!("{stem}ies"),
        _ if ["s", "x", "ch", "sh"].iter().any(|end| noun.ends_with(end)) => format!("{noun}es"),
        _ => format!("{noun}s"),
    };
    format!("{} {plural}{rest}", grouped(count))
}

/// A unit of a rate.
pub struct Unit {
    name: &'static str,
    scale: f64,
    digits: usize,
    /// The smallest rate that is shown in this unit.
    from: f64,
}

const fn unit(name: &'static str, scale: f64, digits: usize, from: f64) -> Unit {
    Unit { name, scale, digits, from }
}

/// Units of packets per second, smallest unit first.
pub const PACKET_RATE: [Unit; 3] =
    [unit("pps", 1.0, 1, 0.0), unit("kpps", 1e3, 1, 1e3), unit("Mpps", 1e6, 3, 1e5)];

/// Units of bits per second, smallest unit first.
pub const BIT_RATE: [Unit; 3] =
    [unit("kbit/s", 1e3, 1, 0.0), unit("Mbit/s", 1e6, 1, 1e6), unit("Gbit/s", 1e9, 3, 1e8)];

/// Returns a packet rate as text: `1.234 Mpps`, `12.3 kpps`, `5.0 pps`.
pub fn packet_rate(pps: f64) -> String {
    HeldUnit::new(&PACKET_RATE).show(pps)
}

/// Returns a bit rate as text: `1.234 Gbit/s`, `12.3 Mbit/s`, `5.0 kbit/s`.
pub fn bit_rate(bps: f64) -> String {
    HeldUnit::new(&BIT_RATE).show(bps)
}

/// The unit of a rate that is shown repeatedly. A rate that varies around a bound keeps its unit, so that lines can
/// be compared.
pub struct HeldUnit {
    units: &'static [Unit],
    now: usize,
}

impl HeldUnit {
    /// Starts with the smallest unit.
    pub fn new(units: &'static [Unit]) -> HeldUnit {
        HeldUnit { units, now: 0 }
    }

    /// Returns the rate with its unit. A larger unit is used as soon as the rate reaches it, a smaller unit only below
    /// a tenth of the lower bound of the current one.
    pub fn show(&mut self, rate: f64) -> String {
        let fitting = self.units.iter().rposition(|unit| rate >= unit.from).unwrap_or(0);
        if fitting > self.now || rate < self.units[self.now].from / 10.0 {
            self.now = fitting;
        }
        let Unit { name, scale, digits, .. } = self.units[self.now];
        format!("{:.digits$} {name}", rate / scale)
    }
}

/// Parses queues: `all`, one queue as `2`, or a range as `0-3`.
pub fn queues(text: &str) -> Result<Queues, String> {
    if text == "all" {
        return Ok(Queues::All);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u32>().ok();
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(Queues::Range(first, last)),
        _ => Err("all, or a queue such as 2, or queues such as 0-3".to_owned()),
    }
}

/// Parses frame sizes on the wire: `64`, a mix such as `64:7,594:4,1518:1`, or `imix`, which is this same mix.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    let bad = || {
        format!(
            "'{text}' is no size; write bytes on the wire such as 64, or a mix as 64:7,594:4,1518:1, or imix"
        )
    };
    if text == "imix" {
        return Sizes::mix(&IMIX);
    }
    if let Ok(size) = text.strip_suffix('B').unwrap_or(text).parse::<u32>() {
        return Ok(size.into());
    }
    let share = |part: &str| {
        let (size, share) = part.split_once(':')?;
        Some((size.parse().ok()?, share.parse().ok()?))
    };
    let shares: Option<Vec<(u32, u32)>> = text.split(',').map(share).collect();
    Sizes::mix(&shares.ok_or_else(bad)?)
}

/// Parses a list of CPUs, each once: `0`, `0,2-3`.
pub fn cpus(text: &str) -> Result<Cpus, String> {
    let bad = || format!("'{text}' is no list of CPUs; write it like 0 or 0,2-3, each once");
    let number = |text: &str| text.parse::<u16>().map_err(|_| bad());
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || cpus.iter().any(|cpu| (first.into()..=last.into()).contains(cpu)) {
            return Err(bad());
        }
        cpus.extend(usize::from(first)..=usize::from(last));
    }
    Ok(Cpus(cpus))
}

/// CPUs, in the given order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

/// Parses the permissions of a file: `600`, `0640`.
pub fn file_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("write three octal digits, such as 600 or 640".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        for same in ["64MiB", "64M", "64mib", "65536K", "67108864", "67108864B"] {
            assert_eq!(bytes(same), Ok(64 << 20), "{same}");
        }
        assert_eq!((bytes("64MB"), bytes("2gb")), (Ok(64_000_000), Ok(2_000_000_000)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("3d"), Ok(Duration::from_secs(3 * 86_400)));
        assert_eq!(count("10k"), Ok(10_000));
        assert_eq!(frame_rate("1.5Mpps"), Ok(FrameRate::Pps(1.5e6)));
        assert_eq!(frame_rate("10Gbit/s"), frame_rate("10Gbps"));
        assert_eq!(speed("2x"), Ok(Speed::Times(2.0)));
    }

    #[test]
    fn files_have_sizes_times_and_a_quota() {
        assert_eq!((rotate_size("4MiB"), quota("50%")), (Ok(4 << 20), Ok(Quota::Percent(50))));
        assert_eq!((rotate_millions("1"), rotate_millions("1MiB")), (Ok(1_000_000), Ok(1 << 20)));
        assert_eq!(quota("1GiB"), Ok(Quota::Bytes(1 << 30)));
        for bad in ["0", "-1", "1.5", "", "%", "1KiB", "99999999999999999"] {
            assert!(rotate_millions(bad).is_err(), "{bad}");
        }
        assert!(rotate_size("100").unwrap_err().contains("4096"));
        assert!(quota("0%").is_err() && quota("101%").is_err() && quota("1.5%").is_err());
        assert!(rotate_time("999ms").unwrap_err().contains("1s") && rotate_time("1").is_ok());
    }

    #[test]
    fn nonsense_says_how_to_write_it() {
        for bad in ["", "MiB", "64MB5", "-1MiB", "99999999999999999999GiB", "1.5MiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert!(
            frame_rate("1M").unwrap_err().contains("1Mpps are frames a second, 1Mbps are bits")
        );
        assert!(frame_rate("0").unwrap_err().contains("100Mbit/s"));
        assert!(duration("10 parsecs").unwrap_err().contains("500ms"));
        assert!(duration("-1s").is_err() && duration("1e99h").is_err());
        assert!(count("0").is_err() && frame_rate("0pps").is_err() && speed("0x").is_err());
    }

    #[test]
    fn digits_come_in_threes() {
        assert_eq!(grouped(1_234_567), "1 234 567");
        assert_eq!(grouped(12), "12");
    }

    #[test]
    fn one_has_no_plural() {
        assert_eq!((counted(1, "file"), counted(0, "file")), ("1 file".into(), "0 files".into()));
        let many = ["entry", "index", "relay", "alert of a feed"].map(|what| counted(2, what));
        assert_eq!(many, ["2 entries", "2 indexes", "2 relays", "2 alerts of a feed"]);
        assert_eq!(
            (counted(1, "entry"), counted(1234, "frame")),
            ("1 entry".into(), "1 234 frames".into())
        );
    }

    #[test]
    fn small_rates_are_seen() {
        let rates = [2_500_000.0, 100_000.0, 99_999.0, 1_000.0, 12.34, 0.0].map(packet_rate);
        let shown = ["2.500 Mpps", "0.100 Mpps", "100.0 kpps", "1.0 kpps", "12.3 pps", "0.0 pps"];
        assert_eq!(rates, shown);
        assert_eq!(bit_rate(1.5e9), "1.500 Gbit/s");
        assert_eq!(bit_rate(2e6), "2.0 Mbit/s");
        assert_eq!(bit_rate(480.0), "0.5 kbit/s");
    }

    #[test]
    fn a_unit_stays_while_the_rate_goes_up_and_down() {
        let mut held = HeldUnit::new(&PACKET_RATE);
        let shown = [5.0, 99e3, 101e3, 99e3, 2e6, 10e3, 9e3, 101.0, 99.0].map(|pps| held.show(pps));
        let units: Vec<_> = shown.iter().map(|text| text.split(' ').nth(1).unwrap()).collect();
        assert_eq!(
            units,
            ["pps", "kpps", "Mpps", "Mpps", "Mpps", "Mpps", "kpps", "kpps", "pps"],
            "{shown:?}"
        );
        assert_eq!(shown[3], "0.099 Mpps");
    }

    #[test]
    fn an_address_has_a_port_and_a_port_alone_is_told_so() {
        assert!(address("127.0.0.1:9100").is_ok() && address("[::1]:0").is_ok());
        for (text, hint) in [
            ("9100", "write 127.0.0.1:9100"),
            (":8080", "write 127.0.0.1:8080"),
            ("localhost:9100", "no address with a port"),
            ("::1", "or [::1]:9100"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_one_or_a_mix() {
        assert_eq!(sizes("1518"), Ok(Sizes::from(1518)));
        assert_eq!(sizes("64B"), sizes("64"));
        assert_eq!(sizes("imix"), sizes("64:7,594:4,1518:1"));
        assert_eq!(sizes("64:7,594:4,1518:1").unwrap().shares(), IMIX);
        for bad in ["", "x", "64:", ":1", "64:1,", "64,128", "-64", "64:1:1", "64:1.5", "IMIX"] {
            assert!(sizes(bad).unwrap_err().contains("64:7,594:4,1518:1"), "{bad}");
        }
        assert!(sizes("64:1,64:2").unwrap_err().contains("twice"));
    }

    #[test]
    fn how_long_to_block_says_its_units_and_its_limits() {
        assert_eq!(block_time("720h"), Ok(Duration::from_secs(720 * 3600)));
        for bad in ["1w", "x", "", "-1s"] {
            let error = block_time(bad).unwrap_err();
            assert!(
                error.contains("ms, s, m, h and d") && error.contains("720h (30 days)"),
                "{error}"
            );
        }
        for bad in ["721h", "31d", "999ms", "0"] {
            assert!(block_time(bad).unwrap_err().contains("is not 1s to 720h (30 days)"), "{bad}");
        }
    }

    #[test]
    fn cpus_are_a_list_without_doubles() {
        assert_eq!(cpus("3"), Ok(Cpus(vec![3])));
        assert_eq!(cpus("4,0,2-3"), Ok(Cpus(vec![4, 0, 2, 3])));
        for bad in ["", ",", "1,", "0-", "3-2", "0,0-1", "1-3,2", "a", "-1", "70000", "0 1"] {
            assert!(cpus(bad).unwrap_err().contains("0,2-3"), "{bad}");
        }
    }

    #[test]
    fn queues_are_all_or_one_or_some() {
        assert_eq!(queues("all"), Ok(Queues::All));
        assert_eq!(queues("2"), Ok(Queues::Range(2, 2)));
        assert_eq!(queues("0-3"), Ok(Queues::Range(0, 3)));
        for bad in ["", "x", "3-1", "-1", "1-", "0-3-5", "99999999999"] {
            assert!(queues(bad).unwrap_err().contains("such as"), "{bad}");
        }
    }
}
