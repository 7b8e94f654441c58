//! A feed: the work behind the functions of the header.

use std::ffi::{CString, c_int};
use std::time::Duration;

use weir_abi::Stop;
use weir_client::FeedReader;
use weir_consumer::Pulled;
use weir_frame::pcapng::{SectionInfo, write};

use crate::failure::{Code, Failure};
use crate::frame::{Block, Frame};
use crate::options::Asked;
use crate::statistics::Statistics;
use crate::text;
use crate::unread::Unread;

/// The program's name in pcapng files.
const PROGRAM: &str = concat!("libweir (weir ", env!("CARGO_PKG_VERSION"), ")");

/// A feed.
pub struct Feed {
    reader: FeedReader,
    /// The frames of the reader's current run that were not handed out yet.
    unread: Unread,
    /// The frame that was handed out last.
    frame: Frame,
    block: Block,
    head: Vec<u8>,
    header: Vec<u8>,
    statistics: Option<Box<Statistics>>,
    interface_names: Vec<CString>,
    /// Number of interfaces that the program has already got for its file; `None`: not even a section header yet.
    described: Option<usize>,
    polling: Polling,
    /// The process to whose sleeper the interrupter belongs.
    pid: u32,
    /// Text of the last call that failed.
    error: CString,
    /// A call has panicked, so that the state may be inconsistent.
    is_broken: bool,
}

/// State of the descriptor for event loops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polling {
    /// No call has asked for the descriptor.
    Unused,
    /// The descriptor is readable.
    Readable,
    /// The descriptor becomes readable when frames or an end have come.
    Armed,
}

impl Feed {
    /// Connects to the daemon, and finds the source.
    pub fn connect(asked: &Asked) -> Result<(Feed, Stop), Failure> {
        let mut reader = FeedReader::connect(&asked.socket, &asked.open)?;
        if asked.blocks {
            reader.read_blocks();
        }
        let stop = Stop::new(reader.interrupter()?);
        let feed = Feed {
            reader,
            unread: Unread::NONE,
            frame: Frame::NONE,
            block: Block::NONE,
            head: Vec::new(),
            header: Vec::new(),
            statistics: None,
            interface_names: Vec::new(),
            described: None,
            polling: Polling::Unused,
            pid: std::process::id(),
            error: CString::default(),
            is_broken: false,
        };
        Ok((feed, stop))
    }

    pub fn error(&self) -> &CString {
        &self.error
    }

    /// Stores the text of the failure of a call; returns its result code.
    pub fn fail(&mut self, failure: &Failure) -> c_int {
        if failure.code == Code::Internal {
            self.is_broken = true;
            // `weir_next_frame` returns frames of the run without `check`.
            self.unread = Unread::NONE;
        }
        self.error = text::to_c(&failure.text);
        failure.result()
    }

    /// Fails if an earlier call has panicked: it may have left the state inconsistent.
    pub fn check(&self) -> Result<(), Failure> {
        match self.is_broken {
            true => Err(Failure {
                code: Code::Internal,
                text: "an earlier call met a bug of libweir; close the feed".into(),
            }),
            false => Ok(()),
        }
    }

    pub fn start(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.reader.open()?;
        if self.pid != std::process::id() {
            stop.replace(self.reader.interrupter()?);
            self.pid = std::process::id();
            // The child has another descriptor, and no call has asked for it yet.
            self.polling = Polling::Unused;
        }
        Ok(())
    }

    /// Returns the next frame of the current run; `None` if all were handed out.
    #[inline]
    pub fn next_taken(&mut self) -> Result<Option<&Frame>, Failure> {
        // SAFETY: the reader takes more frames only in `pull`, which sets `unread` to these frames. The caller uses the
        // frame until it asks for the next one, as the header says.
        let record = unsafe { self.unread.take() }?;
        Ok(record.map(|record| {
            self.frame = record.into();
            &self.frame
        }))
    }

    /// Tells whether the current run has frames that were not handed out yet.
    pub fn has_taken(&self) -> bool {
        self.unread.frames() > 0
    }

    /// Returns all frames of the current run that were not handed out yet; `None` if there are none.
    pub fn block_taken(&mut self) -> Option<&Block> {
        if !self.has_taken() {
            return None;
        }
        self.head.clear();
        let known = self.reader.numbering().map_or(0, |numbering| numbering.interfaces().len());
        if self.described.is_none_or(|described| described < known) {
            describe(&self.reader, self.described, &mut self.head);
            self.described = Some(known);
        }
        let (data, bytes, frames) = self.unread.take_all();
        let head = self.head.as_ptr();
        self.block = Block { data, bytes, frames, head, head_bytes: self.head.len() };
        Some(&self.block)
    }

    /// Fails if the wait must end. Frames that were not handed out yet stay for the next call.
    pub fn check_stop(&mut self, stop: &Stop) -> Result<(), Failure> {
        if stop.take() {
            self.be_readable()?;
            return Err(interrupted());
        }
        Ok(())
    }

    fn be_readable(&mut self) -> Result<(), Failure> {
        if self.polling == Polling::Armed {
            self.reader.disarm()?;
            self.polling = Polling::Readable;
        }
        Ok(())
    }

    /// Waits for frames for at most `limit`, and takes some. Returns false if none came in time.
    pub fn pull(&mut self, stop: &Stop, limit: Duration) -> Result<bool, Failure> {
        self.unread = Unread::NONE;
        self.start(stop)?;
        let pulled = self.reader.next_unless(u64::MAX, limit, || stop.is_set());
        if let Ok(Pulled::Frames(frames)) = pulled {
            self.unread = Unread::of(self.reader.run().block_bytes, frames);
        }
        match (&pulled, self.polling) {
            (_, Polling::Unused) => {}
            (Ok(Pulled::Nothing), _) => {
                self.reader.arm()?;
                self.polling = Polling::Armed;
            }
            _ => self.be_readable()?,
        }
        match pulled? {
            Pulled::Frames(_) => Ok(true),
            Pulled::Nothing => Ok(false),
            Pulled::Interrupted => {
                stop.take();
                Err(interrupted())
            }
            Pulled::Ended => {
                Err(Failure { code: Code::End, text: "the source has come to its end".into() })
            }
        }
    }

    pub fn pollable(&mut self, stop: &Stop) -> Result<c_int, Failure> {
        if self.pid != std::process::id() {
            self.start(stop)?;
        }
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.reader.pollable()?);
        if self.polling == Polling::Unused {
            // Readable at first: an earlier call may have left frames that were not handed out yet.
            self.reader.disarm()?;
            self.polling = Polling::Readable;
        }
        Ok(fd)
    }

    pub fn set_filter(&mut self, stop: &Stop, filter: &str) -> Result<(), Failure> {
        self.follow_fork(stop)?;
        self.reader.set_filter(filter)?;
        // The feed may have moved to other rings. Their writers do not know yet that they must wake this reader.
        self.be_readable()
    }

    pub fn block(&mut self, stop: &Stop, add: &[String], remove: &[String]) -> Result<(), Failure> {
        self.start(stop)?;
        self.reader.block(add, remove)?;
        self.be_readable()
    }

    pub fn block_for(
        &mut self,
        stop: &Stop,
        add: &[String],
        time: Duration,
    ) -> Result<(), Failure> {
        self.start(stop)?;
        self.reader.block_for(add, time)?;
        self.be_readable()
    }

    fn follow_fork(&mut self, stop: &Stop) -> Result<(), Failure> {
        if self.reader.is_open() { self.start(stop) } else { Ok(()) }
    }

    pub fn statistics(&mut self, stop: &Stop) -> Result<&Statistics, Failure> {
        self.follow_fork(stop)?;
        let statistics = self.reader.statistics()?;
        let statistics = Statistics::new(&statistics, self.unread.frames());
        Ok(self.statistics.insert(Box::new(statistics)))
    }

    /// Returns a section header and the descriptions of all interfaces so far.
    pub fn pcapng_header(&mut self, stop: &Stop) -> Result<&[u8], Failure> {
        self.start(stop)?;
        self.header.clear();
        describe(&self.reader, None, &mut self.header);
        let known = self.reader.numbering().map_or(0, |numbering| numbering.interfaces().len());
        self.described = Some(known);
        Ok(&self.header)
    }

    pub fn link_type(&self) -> c_int {
        let interfaces = self.reader.numbering().map(|numbering| numbering.interfaces());
        let first = interfaces.and_then(<[_]>::first);
        first.map_or(self.reader.source().link_type, |first| first.interface.link_type).into()
    }

    pub fn interface_name(&mut self, number: u32) -> Option<&CString> {
        let interfaces = self.reader.numbering()?.interfaces();
        // The vector may grow: the text of a string that was handed out does not move then.
        let new = interfaces.iter().skip(self.interface_names.len());
        self.interface_names.extend(new.map(|new| text::to_c(&new.interface.name)));
        self.interface_names.get(number as usize)
    }
}

fn interrupted() -> Failure {
    Failure { code: Code::Interrupted, text: "interrupted; call again".into() }
}

/// Appends the descriptions of interfaces that a file with the first `described` interfaces lacks.
fn describe(reader: &FeedReader, described: Option<usize>, out: &mut Vec<u8>) {
    if described.is_none() {
        let userappl = Some(PROGRAM.to_owned());
        write::section_header(out, &SectionInfo { userappl, ..SectionInfo::default() });
    }
    let interfaces = reader.numbering().map(|numbering| numbering.interfaces()).unwrap_or_default();
    let new = interfaces.iter().skip(described.unwrap_or(0));
    new.for_each(|new| write::interface(out, &new.interface));
}
