//! The next step after everything of a feed was read: its end, or opening it again.

use std::time::Instant;

use weir_plug::PlugError;
use weir_plug::message::BUSY;

use super::{FeedReader, State};
use crate::connection::Connection;
use crate::ending::EndReason;
use crate::error::ClientError;
use crate::limits::RETRY_EVERY;

impl FeedReader {
    /// Marks the feed as ended, or opens it again, after everything was read.
    pub(super) fn go_on(&mut self) -> Result<(), ClientError> {
        let State::Open(reading) = &mut self.state else { return Ok(()) };
        let ended = match reading.feed.ended() {
            // The daemon that moved the feed has ended since, and has not kept the other rings.
            Some(EndReason::Moved) if self.connection.sources().is_err_and(|e| is_gone(&e)) => {
                Some(EndReason::DaemonEnded)
            }
            other => other,
        };
        match ended {
            None | Some(EndReason::SourceEnded) => {
                let closed = reading.feed.close();
                let ledger = closed.ok().and_then(|closed| closed.ledger).unwrap_or_default();
                reading.ended = Some(ledger);
                Ok(())
            }
            Some(EndReason::Failed(reason)) => Err(ClientError::Gone(reason)),
            Some(EndReason::Moved) => self.open_again(false),
            Some(EndReason::DaemonEnded) => self.open_again(true),
        }
    }

    /// Opens the feed again, at the same daemon or at its successor. If the daemon is not there yet, is busy, or ends
    /// meanwhile, a later call tries again.
    fn open_again(&mut self, has_daemon_ended: bool) -> Result<(), ClientError> {
        let State::Open(reading) = &mut self.state else { return Ok(()) };
        let ledger = reading.feed.ledger().unwrap_or_default();
        let connection = match has_daemon_ended {
            true => Connection::open(&self.socket),
            false => Ok(self.connection.clone()),
        };
        let reopened = connection.and_then(|connection| {
            reading.feed.reopen(&connection)?;
            Ok(connection)
        });
        match reopened {
            Ok(connection) => {
                reading.pull.take_gone();
                (reading.retry_at, reading.has_heard) = (None, false);
                self.connection = connection;
                self.past.ledger += &ledger;
                self.past.daemons += u64::from(has_daemon_ended);
                Ok(())
            }
            Err(error) if is_refused(&error) => Err(error),
            Err(_) => {
                reading.retry_at = Some(Instant::now() + RETRY_EVERY);
                Ok(())
            }
        }
    }
}

/// Tells whether the error means that no daemon is there now.
pub(super) fn is_gone(error: &ClientError) -> bool {
    matches!(error, ClientError::Plug(PlugError::Closed | PlugError::Os { .. }))
}

/// Tells whether the daemon has refused for good.
fn is_refused(error: &ClientError) -> bool {
    matches!(error, ClientError::Plug(PlugError::Refused(refused)) if refused.code != BUSY)
}
