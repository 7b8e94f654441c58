//! A feed of a daemon for a caller that asks for frames, such as a library for other programs.
//!
//! A program may name its source, then set a filter, drop its rights or fork, and only then read. So the connection is
//! made first, with the rights of that moment, and the first call that needs the feed opens it. If the daemon is
//! restarted or the feed moves to other rings, the reader opens the feed again and reads on. After a fork, the child
//! makes a connection of its own in its first call, and reads on where its parent was if the rings are the same. Its
//! statistics begin there.

mod changes;
mod fork;
mod going_on;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_consumer::{Delivered, FrameSource, Numbering, Pull, Pulled, Run};
use weir_plug::PlugError;
use weir_plug::limits::PATIENCE_MAX;
use weir_ring::idle::SLEEP_MAX;
use weir_ring::wake::{Interrupter, Sleeper, Woken};
use weir_ring::{Mapping, Reader};

use crate::connection::Connection;
use crate::error::ClientError;
use crate::feed::{FeedSource, OpenFeed};
use crate::limits::{LINES, RETRY_EVERY, SLACK};
use crate::protocol::{Ledger, Open, Source};
use crate::remote_feed::RemoteFeed;
pub use crate::statistics::Statistics;
use crate::statistics::{Past, add};
use going_on::is_gone;

/// A feed for a caller that asks for frames.
pub struct FeedReader {
    socket: PathBuf,
    connection: Connection,
    source: Source,
    asked: Open,
    state: State,
    /// The process that made the connection.
    pid: u32,
    /// Counts of the frames of feeds that were read before.
    past: Past,
    /// Longest pause while frames come.
    pause_max: Duration,
    /// Most frames that are copied at a time; above 1, whole runs are copied.
    run_frames_max: u64,
}

enum State {
    /// The feed is not open yet. The sleeper exists already, because the caller may wait for it or be interrupted
    /// before the first read.
    Closed(Option<Sleeper>),
    Open(Box<Reading>),
}

struct Reading {
    feed: OpenFeed,
    pull: Pull<FeedSource>,
    /// When to look next for the successor of a daemon that has ended, or to try again to open the feed.
    retry_at: Option<Instant>,
    /// An interruption has come since the feed ended. The first one comes from the end, and not from the caller.
    has_heard: bool,
    /// The last counts of the feed, once it has ended for good.
    ended: Option<Ledger>,
}

impl Reading {
    fn sleeper(&self) -> &Sleeper {
        self.pull.source().sleeper()
    }
}

/// Sleeps for `time`, unless it is interrupted. No ring wakes the sleeper.
fn sleep(sleeper: &Sleeper, time: Duration) -> Result<Woken, ClientError> {
    Ok(sleeper.sleep_on(std::iter::empty::<(usize, &Reader<Mapping>)>(), 1, time)?)
}

impl FeedReader {
    /// Connects to the daemon that listens at `socket`, and finds the source of `open` there. The feed is opened by the
    /// first call that reads or changes it.
    ///
    /// # Errors
    /// [`ClientError::Plug`], [`ClientError::NoSource`].
    pub fn connect(socket: &Path, open: &Open) -> Result<FeedReader, ClientError> {
        let connection = Connection::open(socket)?;
        let source = connection.sources()?.into_iter().find(|source| source.source == open.source);
        let source = source.ok_or_else(|| ClientError::NoSource(open.source.clone()))?;
        Ok(FeedReader {
            socket: socket.to_owned(),
            connection,
            source,
            asked: open.clone(),
            state: State::Closed(Some(Sleeper::new(LINES)?)),
            pid: std::process::id(),
            past: Past::default(),
            pause_max: Duration::MAX,
            run_frames_max: 1,
        })
    }

    /// Returns the daemon's source: its name, the most bytes it keeps of a frame, its link type.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the request to the daemon. It may be changed as long as the feed is not open; later changes have no
    /// effect.
    pub fn asked_mut(&mut self) -> &mut Open {
        &mut self.asked
    }

    /// Sets the longest pause between two reads of the rings while frames come. Each frame may be late by this time.
    pub fn set_pause_max(&mut self, pause_max: Duration) {
        self.pause_max = pause_max;
        if let State::Open(reading) = &mut self.state {
            reading.pull.set_pause_max(pause_max);
        }
    }

    /// Copies up to 256 KiB at a time instead of 16 KiB if the feed has one ring: for callers that pass on blocks and
    /// do not read each frame. Must be called before the feed is open.
    pub fn read_blocks(&mut self) {
        self.run_frames_max = u64::MAX;
    }

    /// Returns a handle by which another thread or a signal handler can end a wait.
    ///
    /// # Errors
    /// [`ClientError::Ring`]: the process has no free descriptor.
    pub fn interrupter(&self) -> Result<Interrupter, ClientError> {
        Ok(self.sleeper().interrupter()?)
    }

    fn sleeper(&self) -> &Sleeper {
        match &self.state {
            State::Closed(sleeper) => sleeper.as_ref().expect("a feed that failed to open has one"),
            State::Open(reading) => reading.sleeper(),
        }
    }

    /// Tells whether the feed is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Opens the feed if it is not open, and follows a fork. Calls that need the feed do so themselves.
    ///
    /// # Errors
    /// The daemon's error, for example for an invalid filter.
    pub fn open(&mut self) -> Result<(), ClientError> {
        self.follow()?;
        if let State::Closed(_) = &self.state {
            let feed = match self.connection.open_feed(&self.asked) {
                // The daemon was restarted after this reader had connected.
                Err(ClientError::Plug(PlugError::Closed)) => {
                    self.connection = Connection::open(&self.socket)?;
                    self.connection.open_feed(&self.asked)?
                }
                other => other?,
            };
            self.begin(feed)?;
        }
        Ok(())
    }

    /// Follows a fork, if another process than this one has made the connection. Calls that need the feed do so
    /// themselves.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn follow(&mut self) -> Result<(), ClientError> {
        if self.pid == std::process::id() { Ok(()) } else { self.follow_fork() }
    }

    /// Reads this feed with the existing sleeper. So the descriptor for polling, which belongs to the sleeper, stays
    /// the same.
    fn begin(&mut self, feed: RemoteFeed) -> Result<(), ClientError> {
        let State::Closed(sleeper) = &mut self.state else { return Ok(()) };
        let (feed, source) = OpenFeed::with(&self.connection, &self.asked, feed, sleeper)?;
        let mut pull = Pull::new(source, SLACK, self.run_frames_max);
        pull.set_pause_max(self.pause_max);
        self.state = State::Open(Box::new(Reading {
            feed,
            pull,
            retry_at: None,
            has_heard: false,
            ended: None,
        }));
        Ok(())
    }

    /// Waits for frames for at most `limit`, and takes the frames that are due next, at most `frames_max`, which is 1
    /// or more. [`run`](FeedReader::run) returns them.
    ///
    /// # Errors
    /// [`ClientError::Gone`] once everything was read from a feed that the daemon closed; the daemon's error when the
    /// feed is opened; inconsistent rings.
    pub fn next(&mut self, frames_max: u64, limit: Duration) -> Result<Pulled, ClientError> {
        self.next_unless(frames_max, limit, || false)
    }

    /// Like [`next`](FeedReader::next), for a caller that sets a flag before it uses its [`Interrupter`]. With the
    /// flag, an interruption is not lost when it comes together with the end of the feed.
    ///
    /// # Errors
    /// As [`next`](FeedReader::next).
    pub fn next_unless(
        &mut self,
        frames_max: u64,
        limit: Duration,
        is_stopped: impl Fn() -> bool,
    ) -> Result<Pulled, ClientError> {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            match self.open() {
                // The daemon is being restarted: it was there when this reader connected.
                Err(error) if is_gone(&error) && !is_stopped() => {
                    match sleep(self.sleeper(), RETRY_EVERY.min(left))? {
                        Woken::Interrupted => return Ok(Pulled::Interrupted),
                        _ if left <= RETRY_EVERY => return Ok(Pulled::Nothing),
                        _ => continue,
                    }
                }
                opened => opened?,
            }
            let State::Open(reading) = &mut self.state else { return Ok(Pulled::Nothing) };
            if reading.ended.is_some() {
                return Ok(Pulled::Ended);
            }
            match reading.retry_at {
                None => match reading.pull.next(frames_max, left) {
                    Ok(Pulled::Ended) => self.go_on()?,
                    Ok(Pulled::Interrupted)
                        if !reading.has_heard && reading.feed.ended().is_some() =>
                    {
                        reading.has_heard = true;
                    }
                    other => return Ok(other?),
                },
                Some(at) => {
                    let wait = at.saturating_duration_since(Instant::now());
                    match sleep(reading.sleeper(), wait.min(left))? {
                        Woken::Interrupted if reading.has_heard => return Ok(Pulled::Interrupted),
                        Woken::Interrupted => reading.has_heard = true,
                        _ if wait > left => return Ok(Pulled::Nothing),
                        _ => {}
                    }
                    self.go_on()?;
                }
            }
            if is_stopped() {
                return Ok(Pulled::Interrupted);
            }
        }
    }

    /// Returns the frames that [`next`](FeedReader::next) took, as consecutive records. They are valid until its next
    /// call.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        match &self.state {
            State::Open(reading) => reading.pull.run(),
            State::Closed(_) => Run { block_bytes: &[], count: weir_consumer::Count::default() },
        }
    }

    /// Returns the number of frames that were copied out of rings and not taken yet, because older frames of other
    /// rings may still come.
    #[must_use]
    pub fn held(&self) -> u64 {
        match &self.state {
            State::Open(reading) => reading.pull.held(),
            State::Closed(_) => 0,
        }
    }

    /// Returns the interfaces, to which records refer by number; `None` before the feed is open.
    #[must_use]
    pub fn numbering(&self) -> Option<&Numbering> {
        match &self.state {
            State::Open(reading) => Some(reading.pull.numbering()),
            State::Closed(_) => None,
        }
    }

    /// Returns a descriptor for `poll`, `select` and `epoll`. It is readable when [`next`](FeedReader::next) should be
    /// called; also at first, because that call opens the feed. After a call it becomes readable for new frames only if
    /// it is [`armed`](FeedReader::arm). It stays the same, except in the child of a fork.
    ///
    /// # Errors
    /// [`ClientError::Ring`].
    pub fn pollable(&self) -> Result<BorrowedFd<'_>, ClientError> {
        Ok(self.sleeper().pollable()?)
    }

    /// Keeps [`pollable`](FeedReader::pollable) readable until it is armed: the caller has more frames to take.
    ///
    /// # Errors
    /// [`ClientError::Ring`].
    pub fn disarm(&mut self) -> Result<(), ClientError> {
        Ok(self.sleeper().disarm()?)
    }

    /// Makes [`pollable`](FeedReader::pollable) become readable when frames or an end have come.
    ///
    /// # Errors
    /// [`ClientError::Ring`].
    pub fn arm(&mut self) -> Result<(), ClientError> {
        if let State::Open(reading) = &mut self.state {
            let limit = match (reading.retry_at, &reading.ended) {
                (Some(at), _) => at.saturating_duration_since(Instant::now()),
                // The caller must learn of the end.
                (None, Some(_)) => Duration::ZERO,
                (None, None) => SLEEP_MAX,
            };
            reading.pull.arm(limit)?;
        }
        Ok(())
    }

    /// Returns the counts of the feed's frames so far, at the daemon and here. Asks the daemon.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn statistics(&mut self) -> Result<Statistics, ClientError> {
        self.statistics_within(PATIENCE_MAX)
    }

    /// Like [`statistics`](FeedReader::statistics); fails if the daemon does not answer within `limit`. The daemon may
    /// be busy with another source, and a caller that waits reads no frames.
    ///
    /// # Errors
    /// As [`statistics`](FeedReader::statistics).
    pub fn statistics_within(&mut self, limit: Duration) -> Result<Statistics, ClientError> {
        if self.is_open() {
            // A child asks with a connection of its own.
            self.open()?;
        }
        let Past { ledger, delivered, daemons } = &self.past;
        let mut statistics =
            Statistics { ledger: ledger.clone(), delivered: *delivered, lives: daemons + 1 };
        if let State::Open(reading) = &self.state {
            match &reading.ended {
                Some(last) => statistics.ledger += last,
                None => statistics.ledger += &reading.feed.ledger_within(limit)?,
            }
            statistics.delivered = add(statistics.delivered, reading.pull.delivered());
        }
        Ok(statistics)
    }

    /// Returns the numbers of frames that were read, and of frames that were overwritten before they were read. Does
    /// not ask the daemon.
    #[must_use]
    pub fn delivered(&self) -> Delivered {
        match &self.state {
            State::Open(reading) => add(self.past.delivered, reading.pull.delivered()),
            State::Closed(_) => self.past.delivered,
        }
    }
}
