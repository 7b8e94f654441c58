//! The requests of callers.

use weir_probe::core::{Command, Note};

use super::World;
use crate::broken::hold;
use crate::event::Event;
use crate::meaning::{Changing, Wanting};
use crate::random::pick;

/// Limits that bound the memory of a run: sources, subscriptions and consumers at the same time.
const SOURCES_MAX: usize = 3;
const SUBSCRIPTIONS_MAX: usize = 9;
const CONSUMERS_MAX: usize = 6;

impl World {
    pub(super) fn command(&mut self, event: &Event) {
        let Some(command) = self.command_of(event) else { return };
        // A subscriber that ends does not rely on its subscription any more, whatever the result of the command.
        if let Command::Unsubscribe(gone) = &command {
            self.callers.subscriptions.remove(gone);
        }
        if let Command::RemoveConsumer(gone) | Command::Withdraw(gone) = &command {
            self.callers.consumers.remove(gone);
            self.reader_gone(*gone);
        }
        self.give(command);
    }

    pub(super) fn give(&mut self, command: Command<Wanting>) {
        let id = self.core.command(command.clone());
        hold!(self.callers.asked.insert(id, command).is_none(), "{id:?} is new");
        self.take_outputs();
    }

    /// Returns the command that an event means in the current state, if there is one.
    fn command_of(&mut self, event: &Event) -> Option<Command<Wanting>> {
        let source = |which| pick(which, self.callers.sources.iter().copied());
        let subscription = |which| pick(which, self.callers.subscriptions.keys().copied());
        let consumer = |which| pick(which, self.callers.consumers.iter().copied());
        let has_room = self.callers.subscriptions.len() < SUBSCRIPTIONS_MAX;
        Some(match *event {
            Event::Open { wants, count, follows } => {
                let wants = (0..count).map(|number| Wanting::of(wants >> (8 * number)));
                let is_one_more = has_room && self.core.sources().count() < SOURCES_MAX;
                let wants = wants.collect();
                is_one_more.then_some(Command::Open { wants, follows })?
            }
            Event::Start(which) => Command::Start(source(which)?),
            Event::Close(which) => Command::Close(source(which)?),
            Event::Subscribe(which, wants) if has_room => {
                Command::Subscribe { source: source(which)?, wants: Wanting::of(wants) }
            }
            Event::Unsubscribe(which) => Command::Unsubscribe(subscription(which)?),
            Event::Change(which, change) => {
                Command::Change(subscription(which)?, Changing::of(change))
            }
            Event::AddConsumer(kind) if self.callers.consumers.len() < CONSUMERS_MAX => {
                self.next_kind = kind;
                Command::AddConsumer
            }
            Event::RemoveConsumer(which) => Command::RemoveConsumer(consumer(which)?),
            Event::Withdraw(which) => Command::Withdraw(consumer(which)?),
            Event::Attach(who, which) => Command::Attach(consumer(who)?, subscription(which)?),
            Event::Detach(who, which) => Command::Detach(consumer(who)?, subscription(which)?),
            Event::Ledgers => Command::Ledgers(self.callers.sources.iter().copied().collect()),
            _ => return None,
        })
    }

    /// Reports a state change of a source to the core.
    pub(super) fn note(&mut self, which: u64, kind: u64) {
        let Some(source) = pick(which, self.callers.sources.iter().copied()) else { return };
        let is_open = self.open.contains_key(&source);
        let note = match kind {
            0 if is_open => Note::Ended,
            1 if is_open => Note::Failed("failed"),
            2..5 if is_open => Note::Vanished("vanished"),
            5..7 => Note::Down,
            7..9 => Note::Up,
            _ => Note::Appeared,
        };
        if is_open || self.is_opening(source) {
            match note {
                Note::Down => _ = self.down.insert(source),
                Note::Up => _ = self.down.remove(&source),
                _ => {}
            }
        }
        self.core.note(source, note);
        self.take_outputs();
    }
}
