//! Names of files. They begin with a time. A later file never gets an earlier time, even if the clock was set back:
//! decision 0049.

use std::collections::VecDeque;

use chrono::{DateTime, NaiveDateTime, Utc};
use weir_disk::Disk;

use super::Volumes;
use crate::limits::NAME_NS_MAX;
use crate::recorder::housekeeping::Past;

/// The format of the beginning of a file name: a time in UTC, [`TIME_BYTES`] bytes long.
const TIME_FORMAT: &str = "%Y%m%dT%H%M%S%.9fZ";
const TIME_BYTES: usize = 26;

/// Returns the beginning of the name of a file with this time, in nanoseconds since the Unix epoch.
pub fn begin_of_name(time_ns: u64) -> String {
    DateTime::<Utc>::from_timestamp_nanos(time_ns as i64).format(TIME_FORMAT).to_string()
}

/// Returns the time in the name of a file, in nanoseconds since the Unix epoch; `None` if there is no time, or if it
/// is later than [`NAME_NS_MAX`].
fn time_of_name(name: &str) -> Option<u64> {
    let time = NaiveDateTime::parse_from_str(name.get(..TIME_BYTES)?, TIME_FORMAT).ok()?;
    let time_ns = u64::try_from(time.and_utc().timestamp_nanos_opt()?).ok()?;
    (time_ns <= NAME_NS_MAX).then_some(time_ns)
}

/// Returns the latest time in the names of these files, or 0.
pub fn newest_ns(past: &VecDeque<Past>) -> u64 {
    let names = past.iter().filter_map(|past| past.path.file_name()?.to_str());
    names.filter_map(time_of_name).max().unwrap_or(0)
}

impl<D: Disk> Volumes<D> {
    /// Returns the time for the name of a new file: `now_ns`, or, if that is not later than the newest name in the
    /// directory, the next nanosecond after that name.
    pub fn name_ns(&mut self, volume: usize, now_ns: u64) -> u64 {
        let own = &mut self.all[volume];
        own.newest_ns = now_ns.max(own.newest_ns + 1);
        own.newest_ns
    }

    /// Returns notes for the user at the start: about file systems on which deletions for the quota delay writes, and
    /// about names that are later than the clock.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.all.iter().flat_map(|volume| {
            let name = volume.directory.display();
            let is_slow = volume.quota.is_some() && volume.housekeeping.discards();
            let slow = is_slow.then(|| {
                format!(
                    "{name}: the file system is mounted with `discard`, so that writes wait for the quota's \
                     deletions; mounted with `nodiscard`, and with fstrim from time to time, it takes more"
                )
            });
            let ahead = volume.ahead_ns.map(|newest_ns| {
                format!(
                    "{name}: the name of a file begins with {}, which is later than the clock; until the clock has \
                     passed that time, new files get names just after it, so that names stay in order",
                    begin_of_name(newest_ns)
                )
            });
            slow.into_iter().chain(ahead)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_name_is_the_time_that_it_was_made_of() {
        for time_ns in [0, 1, 1_795_685_239_123_456_789, NAME_NS_MAX] {
            let name = format!("{}_eth0_0.pcapng", begin_of_name(time_ns));
            assert_eq!(time_of_name(&name), Some(time_ns), "{name}");
        }
        for name in [
            "",
            "eth0.pcapng",
            "20261326T092719.123456789Z_eth0_0.pcapng",
            "99991231T235959.999999999Z_eth0_0.pcapng",
            "22620411T234716.854775807Z_eth0_0.pcapng",
            "19691231T235959.999999999Z_eth0_0.pcapng",
            "2026112\u{e9}T092719.12345678Z_eth0_0.pcapng",
        ] {
            assert_eq!(time_of_name(name), None, "{name}");
        }
    }
}
