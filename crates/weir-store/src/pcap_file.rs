//! A classic pcap file with timestamps in nanoseconds, for tools that do not read pcapng. It has one link type, and
//! does not record the interfaces of frames.

use std::io::{self, Write};

use thiserror::Error;
use weir_consumer::{ConsumerError, Count, Sink};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::{CAPLEN_MAX, Record};

/// The magic number of a file with timestamps in nanoseconds. Source: draft-ietf-opsawg-pcap, section 4.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Bytes that are collected before a write.
const BUFFER_BYTES: usize = 1 << 20;

/// The reason why a pcap file cannot be written.
#[derive(Debug, Error)]
pub enum PcapError {
    /// The output returned an error.
    #[error("{name}: cannot be written; see that there is space")]
    Write {
        /// The name of the output.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The interfaces have different link types.
    #[error(
        "{name}: a pcap file has one link type, and the frames have {first} and {second}; choose by a filter, \
         or write pcapng"
    )]
    LinkTypes {
        /// The name of the output.
        name: String,
        /// LINKTYPE of the first interface.
        first: u16,
        /// LINKTYPE of the interface that was refused.
        second: u16,
    },
}

/// A pcap file that is being written.
pub struct PcapFile<W: Write> {
    out: W,
    name: String,
    buffer: Vec<u8>,
    link_type: Option<u16>,
    pending: Count,
    kept: Count,
}

impl<W: Write> PcapFile<W> {
    /// Creates a file that is written to `out`, which is called `name` in messages.
    #[must_use]
    pub fn new(out: W, name: &str) -> PcapFile<W> {
        let (buffer, kept) = (Vec::with_capacity(BUFFER_BYTES), Count::default());
        PcapFile { out, name: name.to_owned(), buffer, link_type: None, pending: kept, kept }
    }

    fn begin(&mut self, link_type: u16) {
        self.link_type = Some(link_type);
        let words = [MAGIC, 2 | 4 << 16, 0, 0, CAPLEN_MAX, link_type.into()];
        words.iter().for_each(|word| self.buffer.extend_from_slice(&word.to_le_bytes()));
    }

    fn write_out(&mut self) -> Result<(), PcapError> {
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        let pending = std::mem::take(&mut self.pending);
        written.map_err(|source| PcapError::Write { name: self.name.clone(), source })?;
        self.kept += pending;
        Ok(())
    }
}

fn failed(error: PcapError) -> ConsumerError {
    let is_gone = matches!(&error, PcapError::Write { source, .. } if source.kind() == io::ErrorKind::BrokenPipe);
    match is_gone {
        true => ConsumerError::ReaderGone(Box::new(error)),
        false => ConsumerError::Output(Box::new(error)),
    }
}

impl<W: Write> Sink for PcapFile<W> {
    fn describe(&mut self, _: u32, interface: &Interface, _: &str) -> Result<(), ConsumerError> {
        match self.link_type {
            None => self.begin(interface.link_type),
            Some(first) if first != interface.link_type => {
                let (name, second) = (self.name.clone(), interface.link_type);
                return Err(failed(PcapError::LinkTypes { name, first, second }));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        let ts_ns = record.meta.ts_ns;
        let words = [
            (ts_ns / 1_000_000_000) as u32,
            (ts_ns % 1_000_000_000) as u32,
            record.frame.len() as u32,
            record.meta.wire_len,
        ];
        words.iter().for_each(|word| self.buffer.extend_from_slice(&word.to_le_bytes()));
        self.buffer.extend_from_slice(record.frame);
        self.pending += Count::one(record.meta.wire_len);
        if self.buffer.len() >= BUFFER_BYTES { self.write_out().map_err(failed) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.write_out().map_err(failed)
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        if self.link_type.is_none() {
            self.begin(weir_frame::pcapng::LINKTYPE_ETHERNET);
        }
        self.write_out().map_err(failed)
    }

    fn kept(&self) -> Count {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use weir_frame::read::FrameReader;
    use weir_frame::record::{self, Meta};

    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        let mut file = PcapFile::new(&mut bytes, "test");
        let interface = Interface { link_type: 101, ..Interface::default() };
        file.describe(0, &interface, "").unwrap();
        file.describe(1, &interface, "").unwrap();
        let meta = Meta { ts_ns: 1_700_000_000_123_456_789, wire_len: 90, ..Meta::default() };
        let mut block = Vec::new();
        record::append(&mut block, &meta, &[7; 61]);
        file.take(&Record::parse(&block).unwrap()).unwrap();
        let other = Interface { link_type: 1, ..Interface::default() };
        let error = file.describe(2, &other, "").unwrap_err().to_string();
        assert!(error.contains("101 and 1"), "{error}");
        file.finish(&[]).unwrap();
        assert_eq!(file.kept().frames, 1);
        let mut reader = FrameReader::open(&bytes[..]).unwrap();
        let frame = reader.next().unwrap().unwrap();
        assert_eq!((frame.ts_ns, frame.data.len()), (meta.ts_ns, 61));
        assert!(reader.next().unwrap().is_none());
        assert_eq!(reader.interfaces()[0].link_type, 101);
    }
}
