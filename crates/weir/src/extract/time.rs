//! Parses times of the command line.

use anyhow::{Result, bail};
use chrono::{DateTime, Local, NaiveDate, NaiveDateTime, NaiveTime, TimeZone};

use crate::units;

/// Parses a time. Returns nanoseconds since the Unix epoch. `now` is the reference for relative times.
///
/// # Errors
/// The text is not a time; the message shows the forms.
pub fn parse(text: &str, now: DateTime<Local>) -> Result<u64> {
    let text = text.trim();
    if text == "now" {
        return Ok(nanoseconds(now));
    }
    if let Some(ago) = text.strip_prefix('-').or_else(|| text.strip_suffix(" ago"))
        && let Ok(ago) = units::duration(ago)
    {
        let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
        return Ok(nanoseconds(now).saturating_sub(ago));
    }
    if let Some(seconds) = since_epoch(text) {
        return Ok(seconds);
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(nanoseconds(time));
    }
    if let Some(local) = local(text, now.date_naive()) {
        return match Local.from_local_datetime(&local).earliest() {
            Some(time) => Ok(nanoseconds(time)),
            None => bail!("'{text}': there is no such time here: the clock was put forward then"),
        };
    }
    bail!(
        "'{text}' is no time; write it like 2026-11-26T09:27:19Z, '2026-11-26 09:27' or 09:27:19 (local time), \
         1795685239.5 (seconds since 1970), -5m (five minutes ago; s, h and d are seconds, hours and days) or now"
    )
}

fn nanoseconds<Z: TimeZone>(time: DateTime<Z>) -> u64 {
    time.timestamp_nanos_opt().and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0)
}

/// Parses seconds since the Unix epoch with a fraction of up to nine digits, as tshark and tcpdump print them.
fn since_epoch(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.len() < 5 || !is_number(seconds) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

fn local(text: &str, today: NaiveDate) -> Option<NaiveDateTime> {
    for form in ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"]
    {
        if let Ok(time) = NaiveDateTime::parse_from_str(text, form) {
            return Some(time);
        }
    }
    if let Ok(day) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return Some(day.and_time(NaiveTime::MIN));
    }
    let time =
        ["%H:%M:%S%.f", "%H:%M"].iter().find_map(|form| NaiveTime::parse_from_str(text, form).ok());
    Some(today.and_time(time?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_form_that_help_names() {
        let now = Local.with_ymd_and_hms(2026, 11, 26, 9, 30, 0).unwrap();
        let at = |text: &str| parse(text, now).unwrap();
        let base = nanoseconds(now);
        assert_eq!(at("now"), base);
        assert_eq!(at("-5m"), base - 300_000_000_000);
        assert_eq!(at("-2d"), base - 172_800_000_000_000);
        assert_eq!(at("90s ago"), base - 90_000_000_000);
        assert_eq!(at("09:30"), base);
        assert_eq!(at("2026-11-26 09:30:00.5"), base + 500_000_000);
        assert_eq!(at("2026-11-26 09:30"), base);
        assert_eq!(at(&now.to_rfc3339()), base);
        assert_eq!(at("2026-11-26T09:27:19.000000001Z"), 1_795_685_239_000_000_001);
        assert_eq!(at("1795685239.5"), 1_795_685_239_500_000_000);
        assert_eq!(at("1795685239.000000001"), 1_795_685_239_000_000_001);
        for bad in ["", "yesterday", "25:00", "2026-13-01", "-", "1.2.3", "12"] {
            let error = parse(bad, now).unwrap_err().to_string();
            assert!(error.contains("write it like"), "{bad}: {error}");
        }
    }
}
