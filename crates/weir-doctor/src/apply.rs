//! Changes settings, and restores them.
//!
//! Each former value is recorded before its setting is changed, so that the change can be undone, however this process
//! ends.

use std::io;

use thiserror::Error;

use crate::record::{Book, Change, Record};
use crate::settings::{Knob, Panel, Setting};

/// The reason why settings were not changed, or not restored.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// This process lacks rights.
    #[error(
        "changing settings needs {needs}; run as root, or carry out the commands that the plan names"
    )]
    NoRights {
        /// The missing rights.
        needs: &'static str,
    },
    /// The record cannot be read or written.
    #[error(
        "the record of changes under /run/weir-doctor; nothing is changed that cannot be written down"
    )]
    Record(#[source] io::Error),
}

/// Result for one setting.
#[derive(Debug)]
pub enum Outcome {
    /// The setting had the first value, and now has the second.
    Changed(String, String),
    /// The setting had this value already.
    Already(String),
    /// The setting has this value, which somebody else has set since our change. It is not restored.
    Foreign(String),
    /// The kernel or the driver refused.
    Failed(io::Error),
}

/// A setting, and the result for it.
pub type Step = (Knob, Outcome);

/// Changes all settings that can be changed: if one fails, the others are still changed.
///
/// # Errors
/// [`ApplyError::Record`]; the changes so far are recorded.
pub fn apply(
    panel: &mut dyn Panel,
    book: &Book,
    iface: &str,
    address: [u8; 6],
    settings: &[Setting],
) -> Result<Vec<Step>, ApplyError> {
    let found = book.find(iface).map_err(ApplyError::Record)?;
    let fresh = Record { iface: iface.to_owned(), address, changes: Vec::new() };
    let mut record = found.filter(|record| record.address == address).unwrap_or(fresh);
    let mut steps = Vec::new();
    for Setting { knob, value, .. } in settings {
        let outcome = match panel.read(knob) {
            Err(error) => Outcome::Failed(error),
            Ok(now) if now == *value => Outcome::Already(now),
            Ok(now) => turn(panel, book, &mut record, knob, &now, value)?,
        };
        steps.push((knob.clone(), outcome));
    }
    Ok(steps)
}

fn turn(
    panel: &mut dyn Panel,
    book: &Book,
    record: &mut Record,
    knob: &Knob,
    now: &str,
    value: &str,
) -> Result<Outcome, ApplyError> {
    let at = record.changes.iter().position(|change| change.knob == *knob);
    let at = at.unwrap_or_else(|| {
        let (before, after) = (now.to_owned(), value.to_owned());
        record.changes.push(Change { knob: knob.clone(), before, after });
        record.changes.len() - 1
    });
    record.changes[at].after = value.to_owned();
    book.keep(record).map_err(ApplyError::Record)?;
    let result = panel.write(knob, value);
    // A driver may round the value. To undo the change later, the actual value must be known.
    let after = panel.read(knob).unwrap_or_else(|_| value.to_owned());
    let refused = after == now;
    if refused && record.changes[at].before == now {
        record.changes.remove(at);
    } else {
        record.changes[at].after.clone_from(&after);
    }
    book.keep(record).map_err(ApplyError::Record)?;
    Ok(match result {
        Err(error) => Outcome::Failed(error),
        Ok(()) if refused => {
            Outcome::Failed(io::Error::other("it took the value and did not change"))
        }
        Ok(()) => Outcome::Changed(now.to_owned(), after),
    })
}

/// Undoes the changes of an interface, last change first. If a setting cannot be restored, its record is kept. Does
/// nothing if there is no record. The record of an earlier interface of the same name is removed.
///
/// # Errors
/// [`ApplyError::Record`].
pub fn undo(
    panel: &mut dyn Panel,
    book: &Book,
    iface: &str,
    address: [u8; 6],
) -> Result<Vec<Step>, ApplyError> {
    let Some(mut record) = book.find(iface).map_err(ApplyError::Record)? else {
        return Ok(Vec::new());
    };
    if record.address != address {
        record.changes.clear();
        book.keep(&record).map_err(ApplyError::Record)?;
        return Ok(Vec::new());
    }
    let mut steps = Vec::new();
    for at in (0..record.changes.len()).rev() {
        let Change { knob, before, after } = record.changes[at].clone();
        let outcome = put_back(panel, &knob, &before, &after);
        if !matches!(outcome, Outcome::Failed(_)) {
            record.changes.remove(at);
            book.keep(&record).map_err(ApplyError::Record)?;
        }
        steps.push((knob, outcome));
    }
    Ok(steps)
}

fn put_back(panel: &mut dyn Panel, knob: &Knob, before: &str, after: &str) -> Outcome {
    let now = match panel.read(knob) {
        Err(error) => return Outcome::Failed(error),
        Ok(now) if now == before => return Outcome::Already(now),
        Ok(now) if now != after => return Outcome::Foreign(now),
        Ok(now) => now,
    };
    match panel.write(knob, before).and_then(|()| panel.read(knob)) {
        Err(error) => Outcome::Failed(error),
        Ok(back) if back == before => Outcome::Changed(now, back),
        Ok(back) => {
            Outcome::Failed(io::Error::other(format!("it was {before} and came to {back}")))
        }
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
