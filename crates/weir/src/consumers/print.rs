//! `--print`: one line a frame, and a count of the lines that really went out.

use std::io::{self, Write};

use anyhow::{Context, Result};
use thiserror::Error;
use weir_consumer::{ConsumerError, Count, Sink, Stalled, write_counted};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET, Statistics};
use weir_frame::record::{Flags, Record};
use weir_frame::summary::one_line;

use super::{Input, RunConsumer};
use crate::interruptible_writer::InterruptibleWriter;
use crate::sources::Subscribed;

/// The interfaces, each under its own name and those of the feeds that read it: `eth0[web]`, `eth0[web,also]`.
pub fn with_feeds(mut interfaces: Vec<Interface>, feeds: &[Subscribed]) -> Vec<Interface> {
    for (id, interface) in interfaces.iter_mut().enumerate() {
        let own = feeds.iter().filter(|feed| feed.interface_id as usize == id);
        let names: Vec<&str> = own.map(|feed| feed.name.as_str()).collect();
        if names.iter().any(|name| !name.is_empty()) {
            interface.name += &format!("[{}]", names.join(","));
        }
    }
    interfaces
}

/// Why lines cannot be printed.
#[derive(Debug, Error)]
enum PrintError {
    #[error("standard output: its reader has gone")]
    ReaderGone,
    #[error("standard output: its reader takes nothing any more")]
    ReaderStalled,
    #[error(
        "standard output: cannot be printed to after {kept} frames; free space, or print elsewhere"
    )]
    Write { kept: u64, source: io::Error },
}

pub(super) fn open(input: &Input<'_>) -> Result<Box<dyn RunConsumer>> {
    let out = InterruptibleWriter::stdout(input.stop.clone()).context("standard output")?;
    input.ordered(Printer::new(out, input.named.clone()))
}

/// Bytes of lines collected before a write.
const BUFFER_BYTES: usize = 1 << 16;

/// One line a frame: time of day (UTC), interface, direction, summary.
pub struct Printer<W> {
    out: W,
    interfaces: Vec<Interface>,
    /// Lines that wait; where each ends, and its frame.
    lines: Vec<u8>,
    ends: Vec<(usize, Count)>,
    kept: Count,
}

impl<W: Write> Printer<W> {
    /// `out` has no buffer of its own: what it takes is out.
    pub fn new(out: W, interfaces: Vec<Interface>) -> Printer<W> {
        let lines = Vec::with_capacity(BUFFER_BYTES + 1024);
        Printer { out, interfaces, lines, ends: Vec::new(), kept: Count::default() }
    }

    fn line(&mut self, record: &Record<'_>) -> io::Result<()> {
        let meta = &record.meta;
        let second = meta.ts_ns / 1_000_000_000;
        let (h, m, s) = (second / 3600 % 24, second / 60 % 60, second % 60);
        let way = match meta.flags {
            Some(flags) if flags.has(Flags::OUTBOUND) => "out",
            Some(flags) if flags.has(Flags::INBOUND) => "in",
            _ => "-",
        };
        let interface = self.interfaces.get(meta.interface_id as usize);
        let name = interface.map_or("?", |interface| &interface.name);
        let ns = meta.ts_ns % 1_000_000_000;
        let out = &mut self.lines;
        write!(out, "{h:02}:{m:02}:{s:02}.{ns:09} {name} {way} ")?;
        match interface.map(|interface| interface.link_type) {
            Some(LINKTYPE_ETHERNET) => writeln!(out, "{}", one_line(record.frame, meta.wire_len)),
            // Only Ethernet is taken apart: anything else would be shown as what it is not.
            other => {
                let link_type = other.unwrap_or_default();
                writeln!(out, "link type {link_type}, {} bytes", meta.wire_len)
            }
        }
    }

    fn failed(&self, source: io::Error) -> ConsumerError {
        if Stalled::is_why(&source) {
            return ConsumerError::ReaderStalled(PrintError::ReaderStalled.into());
        }
        if source.kind() == io::ErrorKind::BrokenPipe {
            return ConsumerError::ReaderGone(PrintError::ReaderGone.into());
        }
        ConsumerError::Output(PrintError::Write { kept: self.kept.frames, source }.into())
    }

    fn write(&mut self) -> io::Result<()> {
        let (taken, result) = write_counted(&mut self.out, &self.lines);
        let whole = self.ends.iter().take_while(|(end, _)| *end <= taken);
        whole.for_each(|(_, frame)| self.kept += *frame);
        // A line that was refused is lost, and must not be counted by a later write.
        self.lines.clear();
        self.ends.clear();
        result.and_then(|()| self.out.flush())
    }
}

impl<W: Write> Sink for Printer<W> {
    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        self.line(record).map_err(|source| self.failed(source))?;
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
        let mut printer = Printer::new(&mut room[..], vec![interface]);
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
        let whole = room.iter().filter(|&&byte| byte == b'\n').count() as u64;
        assert!((1..5).contains(&kept) && kept == whole, "{kept} of {whole}");
    }
}
