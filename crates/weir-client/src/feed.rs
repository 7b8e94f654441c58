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

/// State that an [`OpenFeed`] and its consumer's [`FeedSource`] share.
struct Shared {
    sleeper: Sleeper,
    interrupter: Interrupter,
    changes: Mutex<Vec<FeedChange>>,
    is_complete: AtomicBool,
    /// Number of lines of the wake page that were assigned to rings; each ring has its own line.
    lines: AtomicUsize,
    channels: AtomicUsize,
    /// The consumer's own thread makes all changes, so a change need not wake it.
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

    /// Makes the consumer read this feed.
    fn join(&self, feed: &RemoteFeed) -> Result<(), ClientError> {
        let rings = feed.rings().to_vec();
        let first_line = self.lines.fetch_add(rings.len(), Ordering::Relaxed);
        if first_line + rings.len() > LINES {
            return Err(ClientError::TooManyChanges(LINES));
        }
        // Closed before this function returns: a copy of the writer's end would hide that the daemon has died.
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

/// The frame source of a consumer.
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

/// A feed that one consumer reads. Dropping it closes the feed and ends the consumer.
pub struct OpenFeed {
    connection: Mutex<Connection>,
    shared: Arc<Shared>,
    asked: Mutex<Open>,
    feed: Mutex<RemoteFeed>,
    /// Feeds that the consumer has read before. They wake its sleeper until they are dropped.
    past: Mutex<Vec<RemoteFeed>>,
    /// Counts of the frames of these feeds.
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

    /// Like [`new`](OpenFeed::new), for a feed that was opened with `open`, an existing sleeper, and a consumer whose
    /// own thread makes all changes: only the feed's end interrupts the sleeper. On an error, the sleeper is left in
    /// `sleeper`.
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

    /// Returns the daemon's number of the rings that are currently read. Feeds that share rings have the same number.
    #[must_use]
    pub fn key(&self) -> u64 {
        lock(&self.feed).opened().key
    }

    /// Returns the reason of the feed's end; `None` if it has not ended.
    #[must_use]
    pub fn ended(&self) -> Option<EndReason> {
        lock(&self.feed).ending().reason()
    }

    /// Sets another filter; an empty one takes all frames. If others read the same rings, the feed moves to rings of
    /// its own. Frames that come during the move and that both filters take may come twice.
    ///
    /// # Errors
    /// The daemon's error; the filter has not changed then.
    pub fn set_filter(&self, filter: &str) -> Result<(), ClientError> {
        self.change(|feed, asked| match feed.set_filter(filter) {
            Err(error) if is_shared(&error) => {
                let open = Open { filter: filter.to_owned(), own: true, ..asked.clone() };
                self.move_to(feed, asked, open)
            }
            other => other.map(|()| asked.filter = filter.to_owned()),
        })
    }

    /// Blocks frames by the entries of `add`, and unblocks those of `remove`. If others read the same rings, the feed
    /// moves to rings of its own, as with [`set_filter`](OpenFeed::set_filter).
    ///
    /// # Errors
    /// The daemon's error. Of a long list, a part may be in force then.
    pub fn block(&self, add: &[String], remove: &[String]) -> Result<(), ClientError> {
        // A feed with shared rings has no entries, so there are none to remove.
        self.block_by(|feed| feed.block(add, remove), |feed| feed.block(add, &[]))
    }

    /// Blocks frames by these entries for `time`, as [`RemoteFeed::block_for`] does.
    ///
    /// # Errors
    /// As [`block`](OpenFeed::block), or the time is too short or too long ([`limits`](crate::limits)).
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

    /// Carries out a change. If the daemon has just moved the feed to other rings, and the consumer still reads the old
    /// ones, the feed is opened in the other rings first: only these can be changed.
    fn change(
        &self,
        carry_out: impl Fn(&mut RemoteFeed, &mut Open) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut asked = lock(&self.asked);
        let mut feed = lock(&self.feed);
        let changed = carry_out(&mut feed, &mut asked);
        // A consumer with a thread of its own may have read the old rings to their end and have ended.
        let follows = self.shared.is_driven && feed.ending().reason() == Some(EndReason::Moved);
        if changed.is_ok() || !follows {
            return changed;
        }
        let open = asked.clone();
        self.move_to(&mut feed, &mut asked, open)?;
        carry_out(&mut feed, &mut asked)
    }

    /// Opens a feed with `open`, and makes the consumer read it. The consumer also reads the old rings as far as they
    /// were written.
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
        // The end of the old feed no longer ends the consumer.
        old.ending().listen(|| ());
        if old.ending().reason().is_some() {
            self.shared.interrupter.take_back();
            self.shared.is_complete.store(false, Ordering::Release);
        }
        // Only after the reset: the new feed may have ended already.
        listen(feed, &self.shared);
        let closed = old.close().unwrap_or_else(|_| {
            // The daemon does not answer, but the new feed is open.
            let until = old.frames_written();
            Closed { key: old.opened().key, until, ledger: Some(as_read(&old)), ended: false }
        });
        *lock(&self.past_ledger) += &closed.ledger.clone().unwrap_or_default();
        lock(&self.past).push(old);
        self.shared.left(closed);
        Ok(())
    }

    /// Opens the feed again after its end, at the same daemon or at its successor. The consumer has read the old rings
    /// to their end, so the lines of its wake page are assigned anew.
    pub(crate) fn reopen(&self, connection: &Connection) -> Result<(), ClientError> {
        let asked = lock(&self.asked);
        let mut feed = lock(&self.feed);
        let new = connection.open_feed(&asked)?;
        self.shared.lines.store(0, Ordering::Relaxed);
        // The end of the old feed must not interrupt reads of the new one.
        self.shared.interrupter.take_back();
        self.shared.join(&new)?;
        // No step after this fails. The end of the new feed sets the flag again.
        self.shared.is_complete.store(false, Ordering::Release);
        listen(&new, &self.shared);
        *lock(&self.connection) = connection.clone();
        lock(&self.past).clear();
        *lock(&self.past_ledger) = Ledger::default();
        *feed = new;
        Ok(())
    }

    /// Returns the daemon's answer to the opening of the current rings.
    #[must_use]
    pub fn opened(&self) -> Opened {
        lock(&self.feed).opened().clone()
    }

    /// Returns the counts so far, including those of the rings that were read before a change. If the daemon has ended,
    /// they are computed from the rings.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn ledger(&self) -> Result<Ledger, ClientError> {
        self.ledger_within(PATIENCE_MAX)
    }

    /// Like [`ledger`](OpenFeed::ledger); fails if the daemon does not answer within `limit`.
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

    /// Closes the feed, and returns its counts, including those of the rings that were read before a change. The
    /// consumer reads the frames that were captured until then, and ends.
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

/// Makes the end of the feed end its consumer.
fn listen(feed: &RemoteFeed, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    feed.ending().listen(move || shared.complete());
}

/// Computes counts from a feed's rings, for when the daemon does not report them.
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
