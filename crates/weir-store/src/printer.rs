//! Prints one line of text for each frame, and counts the lines that were written.

use std::io::{self, Write};

use thiserror::Error;
use weir_consumer::{ConsumerError, Count, Sink, Stalled, write_counted};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::{Flags, Record};
use weir_print::{Clock, Frame, Paint, TimeFormat, end_paint, write_line};

/// The reason why lines cannot be printed.
#[derive(Debug, Error)]
enum PrintError {
    #[error("{name}: its reader has gone")]
    ReaderGone { name: String },
    #[error("{name}: its reader takes nothing any more")]
    ReaderStalled { name: String },
    #[error("{name}: cannot be printed to after {kept} frames; free space, or print elsewhere")]
    Write { name: String, kept: u64, source: io::Error },
}

/// Bytes of lines that are collected before a write.
const BUFFER_BYTES: usize = 1 << 16;
/// The link type of an interface that was not described. It is not a LINKTYPE number.
const NO_LINK_TYPE: u16 = u16::MAX;
/// Most characters of an interface name that are printed. Names with a network namespace are shorter.
const NAME_CHARS_MAX: usize = 256;

/// Contents of printed lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrintOptions {
    /// The format of the frame itself.
    pub frame: weir_print::Options,
    /// The format of its time.
    pub time: TimeFormat,
    /// Print times in nanoseconds in place of microseconds.
    pub nanoseconds: bool,
    /// Print interface and direction even if there is only one interface.
    pub names: bool,
}

/// Prints a line for each frame: its time, with several interfaces also interface and direction, and its headers.
pub struct Printer<W> {
    out: W,
    options: PrintOptions,
    clock: Clock,
    /// Whether lines have interface and direction.
    has_names: bool,
    /// Name of the output in messages.
    name: String,
    /// For each interface number, the name with the feed's label, and the link type.
    interfaces: Vec<(String, u16)>,
    /// Lines that were not written yet; in `ends`, the end of each and the count of its frame.
    lines: Vec<u8>,
    ends: Vec<(usize, Count)>,
    kept: Count,
}

impl<W: Write> Printer<W> {
    /// Creates a printer. `out` must not buffer: bytes that it accepts are counted as written. `name` is its name in
    /// messages.
    #[must_use]
    pub fn new(out: W, name: &str, options: PrintOptions) -> Printer<W> {
        let lines = Vec::with_capacity(BUFFER_BYTES + 1024);
        Printer {
            out,
            options,
            clock: Clock::new(options.time, options.nanoseconds),
            has_names: options.names,
            name: name.to_owned(),
            interfaces: Vec::new(),
            lines,
            ends: Vec::new(),
            kept: Count::default(),
        }
    }

    fn line(&mut self, record: &Record<'_>) {
        let meta = &record.meta;
        let out = &mut self.lines;
        let color = self.options.frame.color;
        if color {
            Paint::Dim.begin(out);
        }
        self.clock.write(out, meta.ts_ns);
        if color {
            end_paint(out);
        }
        let interface = self.interfaces.get(meta.interface_id as usize);
        if self.has_names {
            if color {
                Paint::Cyan.begin(out);
            }
            out.extend_from_slice(interface.map_or("?", |(name, _)| name).as_bytes());
            if color {
                end_paint(out);
            }
            out.push(b' ');
        }
        let link_type = interface.map_or(NO_LINK_TYPE, |(_, link_type)| *link_type);
        // The direction is not printed twice: the line of a cooked header already contains it.
        let says_way = weir_print::has_direction(link_type, &self.options.frame);
        if (self.has_names || self.options.frame.link) && !says_way {
            out.extend_from_slice(match meta.flags {
                Some(flags) if flags.has(Flags::OUTBOUND) => b"Out ",
                Some(flags) if flags.has(Flags::INBOUND) => b"In ",
                _ => b"- ",
            });
        }
        let frame =
            Frame { link_type, data: record.frame, wire_len: meta.wire_len, flags: meta.flags };
        write_line(out, &frame, &self.options.frame);
        out.push(b'\n');
    }

    fn failed(&self, source: io::Error) -> ConsumerError {
        let name = self.name.clone();
        if Stalled::is_why(&source) {
            return ConsumerError::ReaderStalled(PrintError::ReaderStalled { name }.into());
        }
        if source.kind() == io::ErrorKind::BrokenPipe {
            return ConsumerError::ReaderGone(PrintError::ReaderGone { name }.into());
        }
        ConsumerError::Output(PrintError::Write { name, kept: self.kept.frames, source }.into())
    }

    fn write(&mut self) -> io::Result<()> {
        let (taken, result) = write_counted(&mut self.out, &self.lines);
        let whole = self.ends.iter().take_while(|(end, _)| *end <= taken);
        whole.for_each(|(_, frame)| self.kept += *frame);
        // Lines that were not written are lost, and must not be counted by a later write.
        self.lines.clear();
        self.ends.clear();
        result.and_then(|()| self.out.flush())
    }
}

/// Returns a name for a line, without control characters, because the writer of the ring chose the name.
fn printable(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    name.chars().take(NAME_CHARS_MAX).map(shown).collect()
}

impl<W: Write> Sink for Printer<W> {
    /// Adds an interface, which lines call `eth0`, or `eth0[web]` with the label of a feed.
    fn describe(
        &mut self,
        _number: u32,
        interface: &Interface,
        label: &str,
    ) -> Result<(), ConsumerError> {
        let mut name = printable(&interface.name);
        if !label.is_empty() {
            name += &format!("[{label}]");
        }
        self.interfaces.push((name, interface.link_type));
        self.has_names |= self.interfaces.len() > 1 || !label.is_empty();
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        self.line(record);
        self.ends.push((self.lines.len(), Count::one(record.meta.wire_len)));
        if self.lines.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.write().map_err(|source| self.failed(source))
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        self.flush()
    }

    fn kept(&self) -> Count {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_frame::record::Meta;

    #[test]
    fn only_whole_lines_that_went_out_are_counted() {
        let interface = Interface { name: "eth0".into(), link_type: 1, ..Interface::default() };
        let mut room = [0; 100];
        let mut printer = Printer::new(&mut room[..], "room", PrintOptions::default());
        printer.describe(0, &interface, "").unwrap();
        let frame = [0; 60];
        let meta = Meta { wire_len: 60, ..Meta::default() };
        let record = Record { meta, frame: &frame, block: &[] };
        for _ in 0..5 {
            printer.take(&record).unwrap();
        }
        assert_eq!(printer.kept(), Count::default(), "lines that wait are not out");
        assert!(printer.flush().is_err());
        let Count { frames: kept, wire_bytes } = printer.kept();
        assert_eq!(wire_bytes, kept * 60);
        assert!(
            printer.flush().is_ok() && printer.kept().frames == kept,
            "a refused line came again"
        );
        // All frames are of 1970, so one more line has the date.
        let whole = room.iter().filter(|&&byte| byte == b'\n').count() as u64 - 1;
        assert!((1..5).contains(&kept) && kept == whole, "{kept} of {whole}");
    }

    #[test]
    fn names_have_their_feeds_label_and_no_control_characters() {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, "out", PrintOptions::default());
        let interface =
            |name: &str| Interface { name: name.into(), link_type: 1, ..Interface::default() };
        printer.describe(0, &interface("eth0"), "web,also").unwrap();
        printer.describe(1, &interface("\x1b[2Jx\n"), "").unwrap();
        for interface_id in [0, 1] {
            let meta = Meta { interface_id, wire_len: 60, ..Meta::default() };
            printer.take(&Record { meta, frame: &[0; 60], block: &[] }).unwrap();
        }
        printer.flush().unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let names: Vec<_> = lines.filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(names, ["eth0[web,also]", "\u{fffd}[2Jx\u{fffd}"]);
    }
}
