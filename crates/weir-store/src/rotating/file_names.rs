//! Names of successive files, in the scheme of tcpdump.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local};

use super::settings::Rotation;
use crate::file_error::FileError;

/// Number of successive names that are compared, to find names that do not differ.
const NAMES_COMPARED: u64 = 4;

/// Names of successive files.
///
/// With a rotation time, conversions of strftime(3) in the name are replaced by the local time at which a file's
/// period begins. If the name is the same as that of the file before, a number is appended: `a`, `a1`, `a2`. If a
/// number of files is reused in turn, all names have a number, with as many digits as the highest number.
///
/// Source: tcpdump(1), `-C`, `-G` and `-W`.
#[derive(Debug)]
pub(super) struct FileNames {
    /// The directory and the name that the user gave.
    pattern: PathBuf,
    /// The name with conversions of the time, if it has such conversions.
    time_format: Option<String>,
    ring_of: Option<NonZero<u32>>,
    digits: usize,
    /// The last name, without its number.
    base: Option<PathBuf>,
    number: u64,
}

impl FileNames {
    pub(super) fn new(pattern: &Path, rotation: &Rotation) -> FileNames {
        let ring_of = rotation.ring_of();
        FileNames {
            pattern: pattern.to_owned(),
            time_format: time_format(pattern, rotation),
            ring_of,
            digits: ring_of.map_or(0, |files| digits(files.get() - 1)),
            base: None,
            number: 0,
        }
    }

    /// Returns whether the names contain the time, so that they are not known before the first frame.
    pub(super) fn tell_the_time(&self) -> bool {
        self.time_format.is_some()
    }

    /// Returns the next name, for a file whose period begins at `ns` nanoseconds since the Unix epoch.
    pub(super) fn next(&mut self, ns: u64) -> PathBuf {
        let base = match &self.time_format {
            Some(format) => self.pattern.with_file_name(at(format, ns)),
            None => self.pattern.clone(),
        };
        let goes_on = self.base.as_ref() == Some(&base);
        self.number = if goes_on { self.number + 1 } else { 0 };
        if self.ring_of.is_some_and(|files| self.number >= files.get().into()) {
            self.number = 0;
        }
        let name = match (self.number, self.digits) {
            (0, 0) => base.clone(),
            (number, digits) => {
                let mut name: OsString = base.clone().into();
                name.push(format!("{number:0digits$}"));
                name.into()
            }
        };
        self.base = Some(base);
        name
    }
}

/// Refuses a name with an invalid time format, and a name that would be the same in successive periods.
///
/// # Errors
/// [`FileError::TimeFormat`], [`FileError::SameName`].
pub fn check_name(pattern: &Path, rotation: &Rotation) -> Result<(), FileError> {
    let Some(period) = rotation.file_time else { return Ok(()) };
    let has_parts = pattern.file_name().is_some_and(|name| name.as_encoded_bytes().contains(&b'%'));
    if !has_parts {
        return Ok(());
    }
    let bad = || FileError::TimeFormat { path: pattern.to_owned() };
    let format = time_format(pattern, rotation).ok_or_else(bad)?;
    // Fractions of a second have a point, which could be taken for the begin of the extension.
    if format.contains("%.") || StrftimeItems::new(&format).any(|item| item == Item::Error) {
        return Err(bad());
    }
    let now = Local::now().timestamp().max(0) as u64 * 1_000_000_000;
    let names = |period: Duration| {
        let times = (0..NAMES_COMPARED).map(move |number| now + number * nanoseconds(period));
        times.map(|ns| at(&format, ns)).collect::<Vec<_>>()
    };
    let names = names(period);
    if names.iter().any(|name| name.contains('/') || name.is_empty()) {
        return Err(bad());
    }
    // With numbers appended, the names differ.
    let is_numbered = rotation.file_bytes.is_some();
    let is_one = rotation.files_max.is_some_and(|files| files.get() == 1);
    if !is_numbered && !is_one && names.windows(2).any(|two| two[0] == two[1]) {
        return Err(FileError::SameName { path: pattern.to_owned(), period });
    }
    Ok(())
}

/// Returns a time in nanoseconds. A time above 584 years, which does not fit, becomes 73 years.
pub(super) fn nanoseconds(period: Duration) -> u64 {
    const MAX: u64 = u64::MAX / NAMES_COMPARED / 2;
    u64::try_from(period.as_nanos()).unwrap_or(MAX).min(MAX)
}

fn time_format(pattern: &Path, rotation: &Rotation) -> Option<String> {
    let name = pattern.file_name()?.to_str()?;
    (rotation.file_time.is_some() && name.contains('%')).then(|| name.to_owned())
}

/// Returns the name for a time; if the format is invalid, the format itself.
fn at(format: &str, ns: u64) -> String {
    let seconds = i64::try_from(ns / 1_000_000_000).unwrap_or_default();
    let time = DateTime::from_timestamp(seconds, (ns % 1_000_000_000) as u32).unwrap_or_default();
    let mut name = String::new();
    match write!(name, "{}", time.with_timezone(&Local).format(format)) {
        Ok(()) => name,
        Err(_) => format.to_owned(),
    }
}

/// Returns the number of decimal digits of a number; none for 0.
fn digits(number: u32) -> usize {
    number.checked_ilog10().map_or(0, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pattern: &str, rotation: Rotation, seconds: &[u64]) -> Vec<String> {
        let mut names = FileNames::new(Path::new(pattern), &rotation);
        let next = |second: &u64| names.next(second * 1_000_000_000).display().to_string();
        seconds.iter().map(next).collect()
    }

    fn rotation(size: bool, time: bool, files: u32) -> Rotation {
        Rotation {
            file_bytes: size.then_some(1),
            file_time: time.then_some(Duration::from_secs(10)),
            files_max: NonZero::new(files),
            quota_bytes: None,
        }
    }

    #[test]
    fn a_size_puts_a_number_behind_the_name() {
        let all = names("d/a.b", rotation(true, false, 0), &[0, 0, 0]);
        assert_eq!(all, ["d/a.b", "d/a.b1", "d/a.b2"]);
        // Parts of a time are for a time.
        assert_eq!(names("a%S", rotation(true, false, 0), &[7, 8]), ["a%S", "a%S1"]);
    }

    #[test]
    fn files_in_turn_have_as_many_digits_as_the_highest() {
        let ring = |files| names("a", rotation(true, false, files), &[0; 12]);
        assert_eq!(ring(1)[..2], ["a", "a"]);
        assert_eq!(ring(3)[..4], ["a0", "a1", "a2", "a0"]);
        assert_eq!(ring(10)[8..], ["a8", "a9", "a0", "a1"]);
        assert_eq!(ring(11)[9..], ["a09", "a10", "a00"]);
    }

    #[test]
    fn a_time_stands_in_the_name_and_sizes_behind_it() {
        // Minutes and seconds: the same in nearly every time zone.
        let both = rotation(true, true, 0);
        let all = names("a-%S%%.x", both, &[5, 5, 15, 15, 15, 25]);
        assert_eq!(all, ["a-05%.x", "a-05%.x1", "a-15%.x", "a-15%.x1", "a-15%.x2", "a-25%.x"]);
        assert_eq!(names("a", both, &[5, 15, 25]), ["a", "a1", "a2"]);
        // As when a clock is set back: files that this run wrote stay.
        assert_eq!(names("a%S", rotation(false, true, 0), &[5, 5]), ["a05", "a051"]);
    }

    #[test]
    fn names_that_say_no_time_are_refused() {
        let time = rotation(false, true, 0);
        let check = |name: &str, rotation| check_name(Path::new(name), &rotation);
        for good in ["a%S", "a-%Y%m%d-%H%M%S.pcapng", "%s", "a", "d%Q/a%S"] {
            assert!(check(good, time).is_ok(), "{good}");
        }
        for bad in ["a%", "a%Q%S", "a%.3f", "a%D%S", "%n%"] {
            let error = check(bad, time).unwrap_err();
            assert!(matches!(error, FileError::TimeFormat { .. }), "{bad}: {error}");
        }
        for same in ["a%H", "a%Y%m%d", "a%%"] {
            let error = check(same, time).unwrap_err();
            assert!(matches!(error, FileError::SameName { .. }), "{same}: {error}");
            assert!(check(same, rotation(true, true, 0)).is_ok(), "{same}");
            assert!(check(same, rotation(false, true, 1)).is_ok(), "{same}");
        }
        let years = Rotation { file_time: Some(Duration::MAX), ..time };
        assert!(check("a%Y", years).is_ok());
    }
}
