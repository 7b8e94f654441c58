//! Flags for the rotation of files, and their quota.

use std::time::Duration;

use clap::Args;
use weir_store::recorder::settings::Quota;

use crate::units;

/// Rotation of written files, and their quota.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct RotateArgs {
    /// Files have at most this size (100MiB; MB are millions of bytes): out.pcapng is followed by out.pcapng1,
    /// out.pcapng2
    #[arg(long, value_name = "SIZE", value_parser = units::rotate_size, requires = "write")]
    pub rotate_size: Option<u64>,
    /// The same in millions of bytes, as in tcpdump; or with a unit: 100MiB
    #[arg(short = 'C', value_name = "MILLIONS", value_parser = units::rotate_millions, requires = "write")]
    #[arg(conflicts_with = "rotate_size")]
    pub rotate_millions: Option<u64>,
    /// Files have the frames of at most this time (a number is seconds). A file's name may have parts of the time as in
    /// strftime: out-%H%M%S.pcapng
    #[arg(short = 'G', long, value_name = "TIME", value_parser = units::rotate_time, requires = "write")]
    pub rotate_time: Option<Duration>,
    /// With a size: this many files are written in turn, the oldest is replaced. With a time: the capture ends after
    /// this many files
    #[arg(short = 'W', long, value_name = "N", requires = "write")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub rotate_files: Option<u32>,
    /// The files of this run have at most this size together (20GiB): the oldest are deleted. When recording, this
    /// holds for all recorded files of each directory, and may be a share of the file system (80%); files that are
    /// being read are not deleted
    #[arg(long, value_name = "SIZE|SHARE", value_parser = units::quota, requires = "write")]
    pub quota: Option<Quota>,
}

impl RotateArgs {
    /// Returns the size at which a file is rotated, by either flag.
    pub fn size(&self) -> Option<u64> {
        self.rotate_size.or(self.rotate_millions)
    }

    /// Returns the flag by which the size was given.
    pub fn size_flag(&self) -> &'static str {
        if self.rotate_millions.is_some() { "-C" } else { "--rotate-size" }
    }

    /// Returns the first flag in this list that was given.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--rotate-size", self.rotate_size.is_some()),
            ("-C", self.rotate_millions.is_some()),
            ("--rotate-time", self.rotate_time.is_some()),
            ("--rotate-files", self.rotate_files.is_some()),
            ("--quota", self.quota.is_some()),
        ];
        flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }
}
