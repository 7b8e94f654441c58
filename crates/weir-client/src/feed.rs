//! The feed of one consumer at a daemon, as a frame source.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_consumer::{Begin, FeedChange, FrameSource, JoinedFeed};
use weir_plug::PlugError;
use weir_plug::limits::PATIENCE_MAX;
use weir_ring::wake::{Interrupter, Sleeper};

use crate::connection::Connection;
use crate::ending::EndReason;
use crate::error::ClientError;
use crate::limits::LINES;
use crate::lock::lock;
use crate::protocol::{Closed, Ledger, Open, Opened, SHARED};
use crate::remote_feed::RemoteFeed;

/// Messages to a consumer.
struct Shared {
    sleeper: Sleeper,
    interrupter: Interrupter,
    changes: Mutex<Vec<FeedChange>>,
    is_complete: AtomicBool,
    /// Lines that were given to rings so far; each ring has its own.
    lines: AtomicUsize,
    channels: AtomicUsize,
    /// The consumer's thread makes the changes itself, so none of them finds it asleep.
    is_driven: bool,
}

impl Shared {
    fn push(&self, change: FeedChange) {
        lock(&self.changes).push(change);
        if !self.is_driven {
            self.interrupter.interrupt();
        }
    }

    fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
        self.interrupter.interrupt();
    }

    /// Makes a consumer read this feed.
    fn join(&self, feed: &RemoteFeed) -> Result<(), ClientError> {
        let rings = feed.rings().to_vec();
        let first_line = self.lines.fetch_add(rings.len(), Ordering::Relaxed);
        if first_line + rings.len() > LINES {
            return Err(ClientError::TooManyChanges(LINES));
        }
        // Closed after this, because a copy of the writer's end would hide that the daemon has died.
        let descriptors = self.sleeper.channel()?;
        let channel = self.channels.fetch_add(1, Ordering::Relaxed);
        {
            let descriptors = descriptors;
            feed.attach(&descriptors, first_line)?;
        }
        self.push(FeedChange::Joined(JoinedFeed {
            key: feed.opened().key,
            output: 0,
            label: String::new(),
            rings,
            first_line,
            channel: Some(channel),
            begin: Begin::At(feed.begin.clone()),
        }));
        Ok(())
    }

    fn left(&self, closed: Closed) {
        if !closed.ended {
            self.push(FeedChange::Left { key: closed.key, until: closed.until });
        }
    }
}

/// The source of a consumer.
pub struct FeedSource(Arc<Shared>);

impl FrameSource for FeedSource {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        std::mem::take(&mut *lock(&self.0.changes))
    }

    fn sleeper(&self) -> &Sleeper {
        &self.0.sleeper
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete.load(Ordering::Acquire)
    }
}

/// A feed that one consumer reads. Dropping it closes it, and has the consumer end.
pub struct OpenFeed {
    connection: Mutex<Connection>,
    shared: Arc<Shared>,
    asked: Mutex<Open>,
    feed: Mutex<RemoteFeed>,
    /// Those that it has read before: their sleepers are woken until it is dropped.
    past: Mutex<Vec<RemoteFeed>>,
    /// Account of their frames.
    past_ledger: Mutex<Ledger>,
}

impl OpenFeed {
    /// Opens a feed for one consumer.
    ///
    /// # Errors
    /// As [`Connection::open_feed`].
    pub fn new(
        connection: &Connection,
        open: &Open,
    ) -> Result<(OpenFeed, FeedSource), ClientError> {
        let feed = connection.open_feed(open)?;
        OpenFeed::of(connection, open, feed, &mut Some(Sleeper::new(LINES)?), false)
    }

    /// The same of a feed that was opened as `open` says, with a sleeper that was made before, for a consumer whose
    /// thread makes all changes: nothing but the feed's end interrupts it. If it fails, the sleeper stays where it
    /// is.
    pub(crate) fn with(
        connection: &Connection,
        open: &Open,
        feed: RemoteFeed,
        sleeper: &mut Option<Sleeper>,
    ) -> Result<(OpenFeed, FeedSource), ClientError> {
        OpenFeed::of(connection, open, feed, sleeper, true)
    }

    fn of(
        connection: &Connection,
        open: &Open,
        feed: RemoteFeed,
        slot: &mut Option<Sleeper>,
        is_driven: bool,
    ) -> Result<(OpenFeed, FeedSource), ClientError> {
        let sleeper = slot.take().map_or_else(|| Sleeper::new(LINES), Ok)?;
        let interrupter = match sleeper.interrupter() {
            Ok(interrupter) => interrupter,
            Err(error) => {
                *slot = Some(sleeper);
                return Err(error.into());
            }
        };
        let shared = Arc::new(Shared {
            interrupter,
            sleeper,
            changes: Mutex::default(),
            is_complete: AtomicBool::new(false),
            lines: AtomicUsize::new(0),
            channels: AtomicUsize::new(0),
            is_driven,
        });
        if let Err(error) = shared.join(&feed) {
            *slot = Arc::into_inner(shared).map(|shared| shared.sleeper);
            return Err(error);
        }
        listen(&feed, &shared);
        let source = FeedSource(Arc::clone(&shared));
        let (connection, asked) = (Mutex::new(connection.clone()), Mutex::new(open.clone()));
        let (feed, past, past_ledger) = (Mutex::new(feed), Mutex::default(), Mutex::default());
        Ok((OpenFeed { connection, shared, asked, feed, past, past_ledger }, source))
    }

    /// The daemon's number of the rings that are read now: those that share them have the same.
    #[must_use]
    pub fn key(&self) -> u64 {
        lock(&self.feed).opened().key
    }

    /// Why nothing more comes, once that is so.
    #[must_use]
    pub fn ended(&self) -> Option<EndReason> {
        lock(&self.feed).ending().reason()
    }

    /// Sets another filter from here on; empty takes all. If others read the same rings, it moves to rings of its own:
    /// frames that come meanwhile and that both filters take may come twice.
    ///
    /// # Errors
    /// The daemon's error; nothing has changed then.
    pub fn set_filter(&self, filter: &str) -> Result<(), ClientError> {
        self.change(|feed, asked| match feed.set_filter(filter) {
            Err(error) if is_shared(&error) => {
                let open = Open { filter: filter.to_owned(), own: true, ..asked.clone() };
                self.move_to(feed, asked, open)
            }
            other => other.map(|()| asked.filter = filter.to_owned()),
        })
    }

    /// Blocks frames by these entries, and unblocks others. If others read the same rings, it moves to rings of its
    /// own, as with [`set_filter`](OpenFeed::set_filter).
    ///
    /// # Errors
    /// The daemon's error; of a long list a part may be in force then.
    pub fn block(&self, add: &[String], remove: &[String]) -> Result<(), ClientError> {
        // A shared feed blocks nothing yet, so there is nothing to remove.
        self.block_by(|feed| feed.block(add, remove), |feed| feed.block(add, &[]))
    }

    /// Blocks frames by these entries for this time, as [`RemoteFeed::block_for`] does.
    ///
    /// # Errors
    /// As [`block`](OpenFeed::block), and a time that is too short or too long ([`limits`](crate::limits)).
    pub fn block_for(&self, add: &[String], time: Duration) -> Result<(), ClientError> {
        self.block_by(|feed| feed.block_for(add, time), |feed| feed.block_for(add, time))
    }

    fn block_by(
        &self,
        block: impl Fn(&RemoteFeed) -> Result<(), ClientError>,
        after_moving: impl Fn(&RemoteFeed) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        self.change(|feed, asked| match block(feed) {
            Err(error) if is_shared(&error) => {
                let open = Open { own: true, ..asked.clone() };
                self.move_to(feed, asked, open)?;
                after_moving(feed)
            }
            other => other,
        })
    }

    /// Carries out a change. A feed that the daemon has just moved to fresh rings, and whose consumer still reads the
    /// old ones, is read on there first: only those can be changed.
    fn change(
        &self,
        carry_out: impl Fn(&mut RemoteFeed, &mut Open) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut asked = lock(&self.asked);
        let mut feed = lock(&self.feed);
        let changed = carry_out(&mut feed, &mut asked);
        // A consumer with a thread of its own may have read everything by now, and have ended.
        let follows = self.shared.is_driven && feed.ending().reason() == Some(EndReason::Moved);
        if changed.is_ok() || !follows {
            return changed;
        }
        let open = asked.clone();
        self.move_to(&mut feed, &mut asked, open)?;
        carry_out(&mut feed, &mut asked)
    }

    /// Reads on by `open`, in rings of its own. Those of before are read as far as they were written.
    fn move_to(
        &self,
        feed: &mut RemoteFeed,
        asked: &mut Open,
        open: Open,
    ) -> Result<(), ClientError> {
        let new = lock(&self.connection).open_feed(&open)?;
        self.shared.join(&new)?;
        let old = std::mem::replace(feed, new);
        *asked = open;
        // Its end is not the end of the source that is read.
        old.ending().listen(|| ());
        if old.ending().reason().is_some() {
            self.shared.interrupter.take_back();
            self.shared.is_complete.store(false, Ordering::Release);
        }
        // Behind that: it may have ended already.
        listen(feed, &self.shared);
        let closed = old.close().unwrap_or_else(|_| {
            // The daemon does not answer, but it has moved.
            let until = old.frames_written();
            Closed { key: old.opened().key, until, ledger: Some(as_read(&old)), ended: false }
        });
        *lock(&self.past_ledger) += &closed.ledger.clone().unwrap_or_default();
        lock(&self.past).push(old);
        self.shared.left(closed);
        Ok(())
    }

    /// Opens it again behind its end, at the same daemon or at its successor, for a consumer that has read
    /// everything of before: its wake page's lines are given anew.
    pub(crate) fn reopen(&self, connection: &Connection) -> Result<(), ClientError> {
        let asked = lock(&self.asked);
        let mut feed = lock(&self.feed);
        let new = connection.open_feed(&asked)?;
        self.shared.lines.store(0, Ordering::Relaxed);
        // The end of before is no interruption of what comes.
        self.shared.interrupter.take_back();
        self.shared.join(&new)?;
        // Behind this nothing fails. The end of the new one sets it again.
        self.shared.is_complete.store(false, Ordering::Release);
        listen(&new, &self.shared);
        *lock(&self.connection) = connection.clone();
        lock(&self.past).clear();
        *lock(&self.past_ledger) = Ledger::default();
        *feed = new;
        Ok(())
    }

    /// The daemon's answer for the present rings.
    #[must_use]
    pub fn opened(&self) -> Opened {
        lock(&self.feed).opened().clone()
    }

    /// The ledger so far, also of the rings that were read before a change. Once the daemon has gone, it is the
    /// count of the rings.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn ledger(&self) -> Result<Ledger, ClientError> {
        self.ledger_within(PATIENCE_MAX)
    }

    /// The same, for a caller that waits so long for the answer and no longer.
    ///
    /// # Errors
    /// As [`ledger`](OpenFeed::ledger).
    pub fn ledger_within(&self, limit: Duration) -> Result<Ledger, ClientError> {
        let feed = lock(&self.feed);
        let ledger = match feed.ledger_within(limit) {
            Ok(ledger) => ledger.unwrap_or_default(),
            Err(ClientError::Plug(PlugError::Closed)) => as_read(&feed),
            Err(error) => return Err(error),
        };
        let mut all = lock(&self.past_ledger).clone();
        all += &ledger;
        Ok(all)
    }

    /// Leaves it, and gives its ledger, also of the rings that were read before a change. Its consumer reads frames
    /// that were captured by then and ends.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn close(&self) -> Result<Closed, ClientError> {
        let feed = lock(&self.feed);
        let closed = feed.close()?;
        self.shared.left(closed.clone());
        self.shared.complete();
        let with_past = |ledger: Ledger| {
            let mut all = lock(&self.past_ledger).clone();
            all += &ledger;
            all
        };
        Ok(Closed { ledger: closed.ledger.map(with_past), ..closed })
    }
}

/// The end of the feed is the end of its consumer.
fn listen(feed: &RemoteFeed, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    feed.ending().listen(move || shared.complete());
}

/// Counts of the rings of a feed, if the daemon does not report them.
fn as_read(feed: &RemoteFeed) -> Ledger {
    let from = feed.opened().from.iter().chain(std::iter::repeat(&0));
    let captured = feed
        .frames_written()
        .into_iter()
        .zip(from)
        .map(|(until, from)| until.saturating_sub(*from));
    let captured = captured.fold(0, u64::saturating_add);
    Ledger { captured, offered: captured, ..Ledger::default() }
}

fn is_shared(error: &ClientError) -> bool {
    matches!(error, ClientError::Plug(PlugError::Refused(refused)) if refused.code == SHARED)
}

impl Drop for OpenFeed {
    fn drop(&mut self) {
        self.shared.complete();
    }
}
