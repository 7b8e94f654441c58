//! `--print` and what its lines show.

use std::io::IsTerminal;

use clap::{ArgAction, Args, ValueEnum};
use weir_print::{Dump, Options, TimeFormat};
use weir_store::PrintOptions;

/// How times are shown, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TimeName {
    /// Time of day here (TZ)
    #[default]
    Local,
    /// Time of day, UTC
    Utc,
    /// Seconds since 1970
    Epoch,
    /// Time since the frame before
    Delta,
}

/// Lines on standard output.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct PrintArgs {
    /// Print one line a frame, in tcpdump's words; docs/printing.md says what is in it. For a full decode of every
    /// protocol: weir capture SOURCE --write - | tshark -r -
    #[arg(long)]
    pub print: bool,
    /// The time at the start of a line; a line with the date comes before frames of another day
    #[arg(long, value_enum, value_name = "FORM", default_value_t = TimeName::Local, requires = "print")]
    time: TimeName,
    /// Times of --print have nanoseconds, not microseconds
    #[arg(long, requires = "print")]
    nano: bool,
    /// More of the headers: TTL, id, offset, flags, protocol, length, checksums
    #[arg(short, long, action = ArgAction::Count, requires = "print")]
    verbose: u8,
    /// The link layer, too: direction, MAC addresses, ethertype, length of the frame
    #[arg(short = 'e', long, requires = "print")]
    link_header: bool,
    /// Bytes of the packet below its line, as hexadecimal numbers and characters; -XX: with the link-layer header
    #[arg(short = 'X', long = "hex", action = ArgAction::Count, requires = "print")]
    bytes: u8,
}

impl PrintArgs {
    /// What lines show; `names`: interfaces and directions in each.
    pub fn options(self, names: bool) -> PrintOptions {
        let time = match self.time {
            TimeName::Local => TimeFormat::Local,
            TimeName::Utc => TimeFormat::Utc,
            TimeName::Epoch => TimeFormat::Epoch,
            TimeName::Delta => TimeFormat::Delta,
        };
        let bytes = match self.bytes {
            0 => Dump::None,
            1 => Dump::Packet,
            _ => Dump::Frame,
        };
        let (verbose, link) = (self.verbose > 0, self.link_header);
        let frame = Options { verbose, link, bytes, color: is_colored() };
        PrintOptions { frame, time, nanoseconds: self.nano, names }
    }
}

/// On a terminal that knows colours, unless `NO_COLOR` is set (<https://no-color.org>).
fn is_colored() -> bool {
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|found| found == value);
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !wants_none && !is("TERM", "dumb")
}
