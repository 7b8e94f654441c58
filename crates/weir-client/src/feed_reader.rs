//! A feed of a daemon whose caller asks for frames: libraries for other programs are built on it.
//!
//! A program names its source, may set a filter, drop its rights or fork, and only then reads. So the connection is
//! made first, with the rights of then, and the feed is opened by the first call that needs it. A daemon that is
//! restarted is read on from, a feed that moves to other rings is followed, and so is a fork: the child has a
//! connection of its own from its first call on, and reads on where its parent was if the rings are the same. Its
//! statistics are those of the frames from where it begins.

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

/// A feed whose caller asks for frames.
pub struct FeedReader {
    socket: PathBuf,
    connection: Connection,
    source: Source,
    asked: Open,
    state: State,
    /// The process that made the connection.
    pid: u32,
    /// Account of the frames of feeds that it has read before.
    past: Past,
    /// Longest pause while frames come.
    pause_max: Duration,
    /// Frames that are copied at a time: many, if above 1.
    run_frames_max: u64,
}

enum State {
    /// Nobody has asked for frames yet. The caller can already be woken: it may wait before it
    /// reads.
    Closed(Option<Sleeper>),
    Open(Box<Reading>),
}

struct Reading {
    feed: OpenFeed,
    pull: Pull<FeedSource>,
    /// When the successor of a daemon that has ended is looked for next.
    retry_at: Option<Instant>,
    /// A sleep was interrupted since the feed has ended: by that, and not for the caller.
    has_heard: bool,
    /// Nothing comes any more, and this is its last ledger.
    ended: Option<Ledger>,
}

impl Reading {
    fn sleeper(&self) -> &Sleeper {
        self.pull.source().sleeper()
    }
}

/// Sleeps for so long, unless it is interrupted: no ring wakes it.
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

    /// The daemon's source: its name, the most bytes it keeps of a frame, its link type.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The request to the daemon: it may be changed as long as the feed is not open; later changes have no
    /// effect.
    pub fn asked_mut(&mut self) -> &mut Open {
        &mut self.asked
    }

    /// Longest pause between two looks while frames come, by which each may be late.
    pub fn set_pause_max(&mut self, pause_max: Duration) {
        self.pause_max = pause_max;
        if let State::Open(reading) = &mut self.state {
            reading.pull.set_pause_max(pause_max);
        }
    }

    /// Copies 256 KiB at a time instead of 16, where the feed has one ring: for callers that hand on blocks without
    /// a look at each frame. To be said before the feed is open.
    pub fn read_blocks(&mut self) {
        self.run_frames_max = u64::MAX;
    }

    /// Ends a wait from another thread, or from a signal handler.
    ///
    /// # Errors
    /// [`ClientError::Ring`]: no descriptor is left.
    pub fn interrupter(&self) -> Result<Interrupter, ClientError> {
        Ok(self.sleeper().interrupter()?)
    }

    fn sleeper(&self) -> &Sleeper {
        match &self.state {
            State::Closed(sleeper) => sleeper.as_ref().expect("a feed that failed to open has one"),
            State::Open(reading) => reading.sleeper(),
        }
    }

    /// Whether the feed is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Opens the feed, if it is not open, and follows a fork. Other calls do so by themselves.
    ///
    /// # Errors
    /// The daemon's error: of a filter, say.
    pub fn open(&mut self) -> Result<(), ClientError> {
        self.follow()?;
        if let State::Closed(_) = &self.state {
            let feed = match self.connection.open_feed(&self.asked) {
                // A daemon that was started again since.
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

    /// Follows a fork, if this is another process than the one that has read last. Other calls do so by themselves.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn follow(&mut self) -> Result<(), ClientError> {
        if self.pid == std::process::id() { Ok(()) } else { self.follow_fork() }
    }

    /// Reads this feed, on the existing sleeper: the descriptor for polling is the sleeper's, and stays the same.
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

    /// Waits for frames, at most `limit`, and takes those that are due next, at most `frames_max`, 1 or more:
    /// [`run`](FeedReader::run) has them.
    ///
    /// # Errors
    /// [`ClientError::Gone`] once everything was read of a feed that the daemon closed; the daemon's error at the
    /// opening; rings that contradict themselves.
    pub fn next(&mut self, frames_max: u64, limit: Duration) -> Result<Pulled, ClientError> {
        self.next_unless(frames_max, limit, || false)
    }

    /// The same, for a caller whose [`Interrupter`] comes with a flag that is set before it: an interruption that meets
    /// the end of the feed is not missed.
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
                // Between two daemons: it was there when this reader connected.
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

    /// The frames that [`next`](FeedReader::next) took: records end to end, there until its next call.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        match &self.state {
            State::Open(reading) => reading.pull.run(),
            State::Closed(_) => Run { block_bytes: &[], count: weir_consumer::Count::default() },
        }
    }

    /// Frames that were copied out of rings and not taken yet: they wait for older ones of other rings.
    #[must_use]
    pub fn held(&self) -> u64 {
        match &self.state {
            State::Open(reading) => reading.pull.held(),
            State::Closed(_) => 0,
        }
    }

    /// The interfaces that records name by number; `None` before the feed is open.
    #[must_use]
    pub fn numbering(&self) -> Option<&Numbering> {
        match &self.state {
            State::Open(reading) => Some(reading.pull.numbering()),
            State::Closed(_) => None,
        }
    }

    /// A descriptor for `poll`, `select` and `epoll`: readable when [`next`](FeedReader::next) is worth a call; at
    /// first, for the feed is to be opened. After a call it tells of new frames once it is
    /// [`armed`](FeedReader::arm). The same one each time, but for another process behind a fork.
    ///
    /// # Errors
    /// [`ClientError::Ring`].
    pub fn pollable(&self) -> Result<BorrowedFd<'_>, ClientError> {
        Ok(self.sleeper().pollable()?)
    }

    /// Keeps [`pollable`](FeedReader::pollable) readable until it is armed: the caller has more to do.
    ///
    /// # Errors
    /// [`ClientError::Ring`].
    pub fn disarm(&mut self) -> Result<(), ClientError> {
        Ok(self.sleeper().disarm()?)
    }

    /// Makes [`pollable`](FeedReader::pollable) become readable when there is something to do.
    ///
    /// # Errors
    /// [`ClientError::Ring`].
    pub fn arm(&mut self) -> Result<(), ClientError> {
        if let State::Open(reading) = &mut self.state {
            let limit = match (reading.retry_at, &reading.ended) {
                (Some(at), _) => at.saturating_duration_since(Instant::now()),
                // The caller is to hear of the end.
                (None, Some(_)) => Duration::ZERO,
                (None, None) => SLEEP_MAX,
            };
            reading.pull.arm(limit)?;
        }
        Ok(())
    }

    /// Account of the feed's frames so far, at the daemon and here. A question to the daemon.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn statistics(&mut self) -> Result<Statistics, ClientError> {
        self.statistics_within(PATIENCE_MAX)
    }

    /// The same, for a caller that waits so long for the answer and no longer: the daemon may be busy with another
    /// source, and who waits reads no frames.
    ///
    /// # Errors
    /// As [`statistics`](FeedReader::statistics).
    pub fn statistics_within(&mut self, limit: Duration) -> Result<Statistics, ClientError> {
        if self.is_open() {
            // A child asks by a connection of its own.
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

    /// Frames that were read, and those that were overwritten before. Asks nobody.
    #[must_use]
    pub fn delivered(&self) -> Delivered {
        match &self.state {
            State::Open(reading) => add(self.past.delivered, reading.pull.delivered()),
            State::Closed(_) => self.past.delivered,
        }
    }
}
