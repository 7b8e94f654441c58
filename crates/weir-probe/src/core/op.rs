//! Commands of one source, in its queue and while they are carried out.

use std::collections::{BTreeMap, VecDeque};

use weir_ring::Ledger;

use super::Core;
use super::words::{
    CommandId, ConsumerId, Effect, FeedId, Refused, Reply, SourceId, SubscriptionId, Wanted,
};

/// The part of a command that one source has to carry out.
#[derive(Clone, Debug)]
pub(super) enum Op<W: Wanted> {
    /// `None`: not from a command, because the interface has come back.
    Open(Option<(CommandId, Vec<SubscriptionId>)>),
    Start(CommandId),
    Subscribe(CommandId, SubscriptionId),
    Unsubscribe(CommandId, SubscriptionId),
    Change(CommandId, SubscriptionId, W::Change),
    Attach(CommandId, ConsumerId, SubscriptionId),
    Detach(CommandId, ConsumerId, SubscriptionId),
    // Parts of commands that concern several sources.
    Leave(CommandId, ConsumerId),
    Withdraw(CommandId, ConsumerId),
    Ledgers(CommandId),
}

/// The command that a source is carrying out.
#[derive(Debug)]
pub(super) struct Running<W: Wanted, E> {
    pub(super) op: Op<W>,
    /// Effects that can fail, in order.
    pub(super) forward: VecDeque<Effect<W>>,
    /// The error, if an effect has failed.
    pub(super) failure: Option<E>,
    /// Whether the command was committed or has failed: then the only work left is to remove unneeded feeds and wakers.
    pub(super) is_decided: bool,
    /// The feed that each of these subscriptions will read.
    pub(super) feeds: BTreeMap<SubscriptionId, FeedId>,
    /// The new feed that replaces each of these feeds.
    pub(super) renewed: BTreeMap<FeedId, FeedId>,
    /// The ledgers that were read.
    pub(super) ledgers: Vec<(FeedId, Ledger)>,
}

impl<W: Wanted, E> Running<W, E> {
    pub(super) fn new(op: Op<W>) -> Running<W, E> {
        Running {
            op,
            forward: VecDeque::new(),
            failure: None,
            is_decided: false,
            feeds: BTreeMap::new(),
            renewed: BTreeMap::new(),
            ledgers: Vec::new(),
        }
    }
}

impl<W: Wanted, E> Core<W, E> {
    /// Answers a command that was not carried out, because its source or its object does not exist any more.
    pub(super) fn refuse(&mut self, op: Op<W>, why: Refused<E>) {
        match op {
            Op::Open(None) => {}
            Op::Open(Some((command, _)))
            | Op::Start(command)
            | Op::Subscribe(command, _)
            | Op::Change(command, ..)
            | Op::Attach(command, ..) => self.reply(command, Err(why)),
            // The source has ended, and the subscription with it: nothing is left to undo.
            Op::Unsubscribe(command, _) | Op::Detach(command, ..) => {
                let is_gone = matches!(why, Refused::Ended);
                self.reply(command, if is_gone { Ok(Reply::Done) } else { Err(why) });
            }
            Op::Leave(command, _) | Op::Withdraw(command, _) | Op::Ledgers(command) => {
                self.part_done(command, Vec::new());
            }
        }
    }

    /// Answers a command that was committed or has failed.
    pub(super) fn answer(&mut self, running: Running<W, E>, source: SourceId) {
        let Running { op, failure, ledgers, .. } = running;
        let result = |done| failure.map_or(Ok(done), |error| Err(Refused::Failed(error)));
        match op {
            Op::Open(None) => {}
            Op::Open(Some((command, subscriptions))) => {
                self.reply(command, result(Reply::Opened(source, subscriptions)));
            }
            Op::Subscribe(command, id) => self.reply(command, result(Reply::Subscribed(id))),
            Op::Start(command)
            | Op::Unsubscribe(command, _)
            | Op::Change(command, ..)
            | Op::Attach(command, ..)
            | Op::Detach(command, ..) => self.reply(command, result(Reply::Done)),
            Op::Leave(command, _) | Op::Withdraw(command, _) => {
                self.part_done(command, Vec::new());
            }
            Op::Ledgers(command) => self.part_done(command, ledgers),
        }
    }
}
