//! `--print`, and flags for the contents of its lines.

use std::io::IsTerminal;

use clap::{ArgAction, Args, ValueEnum};
use weir_print::{Dump, DumpForm, Options, TimeFormat};
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
    /// Date and time of day here (TZ), in each line
    Date,
    /// Time since the first frame
    Start,
    /// No time
    None,
}

/// Flags for printed lines.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct PrintArgs {
    /// Print one line for each frame, in tcpdump's words; docs/printing.md explains it. For a full decode of every
    /// protocol: weir capture SOURCE --write - | tshark -r -
    #[arg(long)]
    pub print: bool,
    /// The time at the start of a line; a line with the date comes before frames of another day
    #[arg(long, value_enum, value_name = "FORM", default_value_t = TimeName::Local, requires = "print")]
    time: TimeName,
    /// The same by tcpdump's letters: -t none, -tt epoch, -ttt delta, -tttt date, -ttttt start
    #[arg(
        short = 't', action = ArgAction::Count, value_parser = clap::value_parser!(u8).range(..=5), requires = "print",
        conflicts_with = "time"
    )]
    time_by_letters: u8,
    /// Times of --print have nanoseconds, not microseconds
    #[arg(long, requires = "print")]
    nano: bool,
    /// More of the headers: TTL, id, offset, flags, protocol, length, checksums
    #[arg(short, long, action = ArgAction::Count, requires = "print")]
    verbose: u8,
    /// With --verbose: do not check checksums
    #[arg(short = 'K', long = "dont-verify-checksums", requires = "print")]
    unchecked: bool,
    /// The link layer, too: direction, MAC addresses, ethertype, length of the frame
    #[arg(short = 'e', long, requires = "print")]
    link_header: bool,
    /// Bytes of the packet below its line, as hexadecimal numbers and characters; -XX: with the link-layer header
    #[arg(short = 'X', long = "hex", action = ArgAction::Count, requires = "print")]
    bytes: u8,
    /// The same as hexadecimal numbers alone; -xx: with the link-layer header
    #[arg(short = 'x', action = ArgAction::Count, requires = "print")]
    hex_alone: u8,
    /// The same as text alone; -AA: with the link-layer header. Line ends and tabs are as the packet has them, other
    /// control characters are dots
    #[arg(short = 'A', action = ArgAction::Count, requires = "print")]
    text_alone: u8,
    /// Show absolute sequence numbers, as without this flag, too
    #[arg(short = 'S', long = "absolute-tcp-sequence-numbers", hide = true)]
    _absolute: bool,
}

impl PrintArgs {
    /// Returns the format of printed lines. `names`: each line has the interface and the direction.
    pub fn options(self, names: bool) -> PrintOptions {
        let (bytes, form) = self.bytes();
        let frame = Options {
            verbose: self.verbose > 0,
            link: self.link_header,
            unchecked: self.unchecked,
            bytes,
            form,
            color: is_colored(),
        };
        PrintOptions { frame, time: self.time(), nanoseconds: self.nano, names }
    }

    fn time(self) -> TimeFormat {
        match (self.time_by_letters, self.time) {
            (1, _) | (_, TimeName::None) => TimeFormat::None,
            (2, _) | (_, TimeName::Epoch) => TimeFormat::Epoch,
            (3, _) | (_, TimeName::Delta) => TimeFormat::Delta,
            (4, _) | (_, TimeName::Date) => TimeFormat::Date,
            (5.., _) | (_, TimeName::Start) => TimeFormat::Start,
            (0, TimeName::Local) => TimeFormat::Local,
            (0, TimeName::Utc) => TimeFormat::Utc,
        }
    }

    /// Returns the bytes to dump, and their form. If several forms are given, the first in this list applies, as with
    /// tcpdump.
    fn bytes(self) -> (Dump, DumpForm) {
        let forms = [
            (self.bytes, DumpForm::HexAndText),
            (self.hex_alone, DumpForm::Hex),
            (self.text_alone, DumpForm::Text),
        ];
        let asked = forms.into_iter().find(|(times, _)| *times > 0);
        match asked {
            None => (Dump::None, DumpForm::default()),
            Some((1, form)) => (Dump::Packet, form),
            Some((_, form)) => (Dump::Frame, form),
        }
    }
}

/// Returns whether lines are coloured: on a terminal that supports colours, unless `NO_COLOR` is set
/// (<https://no-color.org>).
fn is_colored() -> bool {
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|found| found == value);
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !wants_none && !is("TERM", "dumb")
}
