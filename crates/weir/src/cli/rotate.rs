//! When a recorder goes on in another file, and how many bytes its files may have.

use std::time::Duration;

use clap::Args;
use weir_store::recorder::settings::Quota;

use crate::units;

/// When a recorder goes on in another file, and how many bytes its files may have.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct RotateArgs {
    /// In a directory that is recorded into, files have so many bytes at most
    #[arg(long, value_name = "SIZE", value_parser = units::file_size, requires = "write")]
    pub rotate_size: Option<u64>,
    /// In a directory that is recorded into, files are written for so long at most
    #[arg(long, value_name = "TIME", value_parser = units::rotate_time, requires = "write")]
    pub rotate_time: Option<Duration>,
    /// In each directory that is recorded into, all recorded files have so many bytes at most (20GiB), or this share of
    /// the file system (80%): the oldest are deleted, but none that is being read
    #[arg(long, value_name = "SIZE|SHARE", value_parser = units::quota, requires = "write")]
    pub quota: Option<Quota>,
}

impl RotateArgs {
    /// The flag that was given first, if any was.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--rotate-size", self.rotate_size.is_some()),
            ("--rotate-time", self.rotate_time.is_some()),
            ("--quota", self.quota.is_some()),
        ];
        flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }
}
