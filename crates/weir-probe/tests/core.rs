//! Tests of the core through its public interface: one fact per test.

use weir_probe::core::{
    Command, Completion, ConsumerId, Core, Effect, EffectId, FeedId, Note, Output, Refused, Reply,
    SourceId, SubscriptionId, Wanted,
};
use weir_ring::Ledger;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port(u16);

impl Wanted for Port {
    type Change = u16;

    fn is_like(&self, other: &Port) -> bool {
        self == other
    }

    fn with(&self, change: &u16) -> Port {
        Port(*change)
    }
}

type Outputs = Vec<Output<Port, String>>;

/// A core whose effects succeed at once, except those that the test completes itself.
#[derive(Default)]
struct Bench {
    core: Core<Port, String>,
    /// While true, effects are put into `held`, and the test completes them.
    holds: bool,
    held: Vec<(EffectId, Effect<Port>)>,
}

impl Bench {
    fn outputs(&mut self) -> Outputs {
        let mut all = Vec::new();
        while let Some(output) = self.core.output() {
            if let Output::Effect(id, effect) = &output {
                match self.holds {
                    true => self.held.push((*id, effect.clone())),
                    false => self.core.complete(*id, done(effect)),
                }
            }
            all.push(output);
        }
        all
    }

    fn give(&mut self, command: Command<Port>) -> Result<Reply, Refused<String>> {
        self.core.command(command);
        reply(self.outputs())
    }

    fn open(&mut self, ports: &[u16], follows: bool) -> (SourceId, Vec<SubscriptionId>) {
        let wants = ports.iter().map(|&port| Port(port)).collect();
        match self.give(Command::Open { wants, follows }) {
            Ok(Reply::Opened(source, own)) => (source, own),
            other => panic!("{other:?}"),
        }
    }

    fn reader(&mut self, of: &[SubscriptionId]) -> ConsumerId {
        let Ok(Reply::Added(consumer)) = self.give(Command::AddConsumer) else { panic!() };
        for &subscription in of {
            self.give(Command::Attach(consumer, subscription)).unwrap();
        }
        consumer
    }

    fn feed(&self, of: SubscriptionId) -> FeedId {
        self.core.feed_of(of).expect("a feed")
    }
}

fn done(effect: &Effect<Port>) -> Completion<String> {
    let empty = |feed: &FeedId| Completion::Ledgers(vec![(*feed, Ledger::default())]);
    match effect {
        Effect::RemoveFeed(_, feed)
        | Effect::ReadLedger(_, feed)
        | Effect::RenewFeed { old: feed, .. } => empty(feed),
        _ => Completion::Done,
    }
}

fn reply(outputs: Outputs) -> Result<Reply, Refused<String>> {
    let reply = outputs.into_iter().find_map(|output| match output {
        Output::Reply(_, result) => Some(result),
        _ => None,
    });
    reply.expect("an answer")
}

/// The first two words of each effect, each message to a consumer and each event, in order. Replies are left out.
fn words(outputs: &Outputs) -> Vec<String> {
    let shown = outputs.iter().filter_map(|output| match output {
        Output::Effect(_, effect) => Some(format!("{effect:?}")),
        Output::Joined(..) | Output::Left(..) | Output::Event(_) => Some(format!("{output:?}")),
        Output::Reply(..) => None,
    });
    // The rest of the text has the ids, which do not matter.
    shown.map(|text| text.split(['(', ' ']).take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn equal_subscriptions_share_a_feed_and_the_last_one_takes_it_away() {
    let mut bench = Bench::default();
    let (source, first) = bench.open(&[80, 443, 80], false);
    assert_eq!(bench.feed(first[0]), bench.feed(first[2]));
    assert_ne!(bench.feed(first[0]), bench.feed(first[1]));
    let subscribe = Command::Subscribe { source, wants: Port(443) };
    let Ok(Reply::Subscribed(more)) = bench.give(subscribe) else { panic!() };
    assert_eq!(bench.feed(more), bench.feed(first[1]));
    bench.core.command(Command::Unsubscribe(more));
    assert!(words(&bench.outputs()).is_empty());
    bench.core.command(Command::Unsubscribe(first[1]));
    assert_eq!(words(&bench.outputs()), ["RemoveFeed SourceId", "Event FeedClosed"]);
}

#[test]
fn a_change_of_a_shared_feed_gives_the_one_who_asks_a_feed_of_its_own() {
    let mut bench = Bench::default();
    let (_, own) = bench.open(&[80, 80], false);
    let (a, b) = (own[0], own[1]);
    let reader = bench.reader(&[a, b]);
    let before = bench.feed(a);
    // A change to the same value has no effect.
    bench.core.command(Command::Change(a, 80));
    let outputs = bench.outputs();
    assert!(words(&outputs).is_empty(), "{outputs:?}");
    assert_eq!((reply(outputs), bench.feed(a)), (Ok(Reply::Done), before));
    bench.core.command(Command::Change(a, 81));
    let outputs = bench.outputs();
    let expected = ["AddFeed SourceId", "AttachWaker SourceId", "Event Reads", "Joined ConsumerId"];
    assert_eq!(words(&outputs), expected, "the reader reads the old one for the other");
    assert_eq!((bench.feed(b), bench.core.wants_of(b)), (before, Some(&Port(80))));
    // Now each subscription has a feed of its own, which is changed in place.
    bench.core.command(Command::Change(b, 82));
    assert_eq!(words(&bench.outputs()), ["ChangeFeed SourceId"]);
    assert_eq!(bench.feed(b), before);
    bench.give(Command::Detach(reader, a)).unwrap();
}

#[test]
fn ledgers_of_one_source_do_not_wait_for_another() {
    let mut bench = Bench::default();
    let (open, own) = bench.open(&[80], false);
    let expected = Reply::Ledgers(vec![(bench.feed(own[0]), Ledger::default())]);
    bench.holds = true;
    bench.core.command(Command::Open { wants: vec![Port(443)], follows: false });
    bench.outputs();
    bench.holds = false;
    assert_eq!(bench.give(Command::Ledgers([open].into())), Ok(expected));
    // A request for the ledgers of both sources waits for both.
    let both = bench.core.sources().collect();
    bench.core.command(Command::Ledgers(both));
    assert!(!bench.outputs().iter().any(|output| matches!(output, Output::Reply(..))));
    let (opening, _) = bench.held.pop().expect("a source that is being opened");
    bench.core.complete(opening, Completion::Done);
    let replies = bench.outputs();
    let of = |output: &Output<Port, String>| match output {
        Output::Reply(_, Ok(Reply::Ledgers(ledgers))) => Some(ledgers.len()),
        _ => None,
    };
    assert_eq!(replies.iter().filter_map(of).collect::<Vec<_>>(), [2]);
}

#[test]
fn what_fails_half_way_is_taken_back() {
    let mut bench = Bench::default();
    let (_, own) = bench.open(&[80, 80], false);
    bench.reader(&[own[0]]);
    let before = bench.feed(own[0]);
    bench.holds = true;
    bench.core.command(Command::Change(own[0], 81));
    bench.outputs();
    let (add, _) = bench.held.remove(0);
    bench.core.complete(add, Completion::Done);
    bench.outputs();
    let (attach, effect) = bench.held.remove(0);
    assert!(matches!(effect, Effect::AttachWaker(..)));
    bench.holds = false;
    bench.core.complete(attach, Completion::Failed("no lines left".into()));
    let outputs = bench.outputs();
    assert_eq!(words(&outputs), ["RemoveFeed SourceId", "Event FeedClosed"]);
    assert_eq!(reply(outputs), Err(Refused::Failed("no lines left".into())));
    assert_eq!((bench.feed(own[0]), bench.core.wants_of(own[0])), (before, Some(&Port(80))));
}

#[test]
fn whose_right_is_withdrawn_sees_no_frame_more_and_the_others_move() {
    let mut bench = Bench::default();
    let (_, own) = bench.open(&[80, 443], false);
    let (stays, goes) = (bench.reader(&own[..1]), bench.reader(&own));
    // The consumer does not read this feed any more, but may still have its memory mapped.
    bench.give(Command::Detach(goes, own[1])).unwrap();
    let before = [bench.feed(own[0]), bench.feed(own[1])];
    bench.core.command(Command::Withdraw(goes));
    let outputs = bench.outputs();
    let renewed = outputs.iter().filter(|output| {
        matches!(output, Output::Effect(_, Effect::RenewFeed { old, .. }) if before.contains(old))
    });
    assert_eq!(renewed.count(), 2);
    let joined = outputs.iter().filter_map(|output| match output {
        Output::Joined(consumer, feed) => Some((*consumer, *feed)),
        _ => None,
    });
    assert_eq!(joined.collect::<Vec<_>>(), [(stays, bench.feed(own[0]))]);
    assert_eq!(bench.give(Command::Attach(goes, own[0])), Err(Refused::Unknown));
}

#[test]
fn without_fresh_rings_the_old_ones_end_for_all_of_their_readers() {
    let mut bench = Bench::default();
    let (_, own) = bench.open(&[80], false);
    let goes = bench.reader(&own);
    bench.holds = true;
    bench.core.command(Command::Withdraw(goes));
    bench.outputs();
    bench.holds = false;
    let (renew, _) = bench.held.remove(0);
    bench.core.complete(renew, Completion::Failed("no memory".into()));
    let told = words(&bench.outputs());
    let expected =
        ["Event FeedLost", "Left ConsumerId", "DetachWaker SourceId", "RemoveFeed SourceId"];
    assert!(expected.iter().all(|word| told.contains(&(*word).to_owned())), "{told:?}");
    assert_eq!(bench.core.feed_of(own[0]), None);
}

#[test]
fn a_source_fails_alone() {
    let mut bench = Bench::default();
    let (fails, own) = bench.open(&[80], false);
    let (_, others) = bench.open(&[80], false);
    bench.reader(&[own[0], others[0]]);
    bench.core.note(fails, Note::Failed("the driver is gone".into()));
    let told = words(&bench.outputs());
    let expected = [
        "Event Failed",
        "CloseSource SourceId",
        "Event FeedClosed",
        "Left ConsumerId",
        "Event Closed",
    ];
    assert_eq!(told, expected);
    assert_eq!(bench.core.feed_of(own[0]), None);
    assert!(bench.core.feed_of(others[0]).is_some());
    assert_eq!(bench.give(Command::Start(fails)), Err(Refused::Unknown));
}

#[test]
fn a_source_that_ends_while_it_starts_was_started() {
    let mut bench = Bench::default();
    let (source, _) = bench.open(&[80], false);
    bench.holds = true;
    bench.core.command(Command::Start(source));
    bench.outputs();
    let (start, _) = bench.held.remove(0);
    bench.core.note(source, Note::Ended);
    bench.core.complete(start, Completion::Done);
    assert_eq!(reply(bench.outputs()), Ok(Reply::Done));
}

#[test]
fn a_source_that_is_followed_comes_back_with_feeds_of_their_own() {
    let mut bench = Bench::default();
    let (source, own) = bench.open(&[80], true);
    bench.reader(&own);
    bench.give(Command::Start(source)).unwrap();
    let before = bench.feed(own[0]);
    bench.holds = true;
    bench.core.note(source, Note::Vanished("gone".into()));
    bench.outputs();
    let (close, _) = bench.held.remove(0);
    bench.core.complete(close, Completion::Done);
    bench.outputs();
    // The interface is looked for at once: it may have come back before the probe noticed that it had vanished.
    let (open, _) = bench.held.remove(0);
    bench.core.complete(open, Completion::Missing("not there".into()));
    assert!(words(&bench.outputs()).is_empty());
    // A subscription can be changed while its source is waited for.
    bench.core.command(Command::Change(own[0], 81));
    assert_eq!(reply(bench.outputs()), Ok(Reply::Done));
    bench.holds = false;
    bench.core.note(source, Note::Appeared);
    let outputs = bench.outputs();
    let expected = [
        "OpenSource SourceId",
        "AttachWaker SourceId",
        "StartSource SourceId",
        "Event CameBack",
        "Event Reads",
        "Joined ConsumerId",
    ];
    assert_eq!(words(&outputs), expected);
    let with = outputs.iter().find_map(|output| match output {
        Output::Effect(_, Effect::OpenSource(_, feeds)) => Some(feeds.clone()),
        _ => None,
    });
    assert_eq!(with.unwrap(), [(bench.feed(own[0]), Port(81))]);
    assert_ne!(bench.feed(own[0]), before);
}

#[test]
fn a_source_that_nobody_is_subscribed_to_comes_back_with_the_next_subscription() {
    let mut bench = Bench::default();
    let (source, own) = bench.open(&[80], true);
    bench.give(Command::Start(source)).unwrap();
    bench.give(Command::Unsubscribe(own[0])).unwrap();
    bench.core.note(source, Note::Vanished("gone".into()));
    assert_eq!(words(&bench.outputs()), ["Event Vanished", "CloseSource SourceId"]);
    bench.core.note(source, Note::Appeared);
    assert!(words(&bench.outputs()).is_empty(), "an engine opens no source without a feed");
    bench.core.command(Command::Subscribe { source, wants: Port(443) });
    let outputs = bench.outputs();
    let expected = ["OpenSource SourceId", "StartSource SourceId", "Event CameBack", "Event Reads"];
    assert_eq!(words(&outputs)[..4], expected);
    let Ok(Reply::Subscribed(subscription)) = reply(outputs) else { panic!() };
    bench.feed(subscription);
}

#[test]
fn a_life_that_is_over_before_it_was_told_is_told() {
    for note in [Note::Ended, Note::Vanished("gone again".into())] {
        let mut bench = Bench::default();
        let (source, own) = bench.open(&[80], true);
        bench.reader(&own);
        bench.give(Command::Start(source)).unwrap();
        bench.holds = true;
        bench.core.note(source, Note::Vanished("gone".into()));
        bench.outputs();
        // The source is closed and opened, and its reader is attached. Now the source is being started.
        for _ in 0..3 {
            let (effect, of) = bench.held.remove(0);
            bench.core.complete(effect, done(&of));
            bench.outputs();
        }
        let (start, of) = bench.held.remove(0);
        assert!(matches!(of, Effect::StartSource(_)), "{of:?}");
        bench.core.note(source, note);
        bench.outputs();
        bench.core.complete(start, Completion::Done);
        let told = words(&bench.outputs());
        assert_eq!(told[..3], ["Event CameBack", "Event Reads", "Joined ConsumerId"]);
    }
}

#[test]
fn a_source_whose_interface_vanishes_while_it_starts_is_waited_for() {
    let mut bench = Bench::default();
    let (source, own) = bench.open(&[80], true);
    bench.holds = true;
    bench.core.command(Command::Start(source));
    bench.outputs();
    let (start, _) = bench.held.remove(0);
    bench.core.complete(start, Completion::Missing("gone".into()));
    assert_eq!(words(&bench.outputs()), ["Event Vanished", "CloseSource SourceId"]);
    let (close, _) = bench.held.remove(0);
    bench.core.complete(close, Completion::Done);
    bench.outputs();
    let (open, _) = bench.held.remove(0);
    bench.core.complete(open, Completion::Missing("not there".into()));
    assert_eq!(reply(bench.outputs()), Ok(Reply::Done), "started, as soon as it is there");
    bench.holds = false;
    bench.core.note(source, Note::Appeared);
    let told = words(&bench.outputs());
    assert_eq!(told[..3], ["OpenSource SourceId", "StartSource SourceId", "Event CameBack"]);
    assert!(bench.core.feed_of(own[0]).is_some());
}

#[test]
fn who_goes_down_is_told_once_and_goes_on() {
    let mut bench = Bench::default();
    let (source, own) = bench.open(&[80], false);
    for note in [Note::Down, Note::Down, Note::Up, Note::Up] {
        bench.core.note(source, note);
    }
    assert_eq!(words(&bench.outputs()), ["Event Down", "Event Up"]);
    assert!(bench.core.feed_of(own[0]).is_some());
}

#[test]
fn a_source_that_goes_down_while_it_is_opened_is_down_once_it_is_open() {
    let mut bench = Bench { holds: true, ..Bench::default() };
    bench.core.command(Command::Open { wants: vec![Port(80)], follows: true });
    bench.outputs();
    let (open, effect) = bench.held.remove(0);
    let source = effect.source();
    for note in [Note::Down, Note::Up, Note::Down] {
        bench.core.note(source, note);
    }
    assert!(words(&bench.outputs()).is_empty());
    bench.core.complete(open, Completion::Done);
    assert_eq!(words(&bench.outputs()), ["Event Opened", "Event Down", "Event Reads"]);
    bench.core.note(source, Note::Up);
    assert_eq!(words(&bench.outputs()), ["Event Up"]);
}

#[test]
fn a_consumer_that_could_not_be_attached_is_attached_when_the_source_comes_back() {
    let mut bench = Bench::default();
    let (source, own) = bench.open(&[80], true);
    bench.reader(&own);
    let come_back = |bench: &mut Bench, attached: Completion<String>| {
        bench.holds = true;
        bench.core.note(source, Note::Vanished("gone".into()));
        bench.outputs();
        // The source is closed and opened. Now its reader is being attached.
        for _ in 0..2 {
            let (effect, of) = bench.held.remove(0);
            bench.core.complete(effect, done(&of));
            bench.outputs();
        }
        let (attach, of) = bench.held.remove(0);
        assert!(matches!(of, Effect::AttachWaker(..)), "{of:?}");
        bench.holds = false;
        bench.core.complete(attach, attached);
        words(&bench.outputs())
    };
    let told = come_back(&mut bench, Completion::Failed("no room".into()));
    assert_eq!(told, ["Event NotAttached", "Event CameBack", "Event Reads"]);
    // The consumer could not be attached to the old feed. So a change that gives the subscription a feed of its own
    // succeeds even if the consumer cannot be attached to the new feed either.
    bench.give(Command::Subscribe { source, wants: Port(80) }).unwrap();
    bench.holds = true;
    bench.core.command(Command::Change(own[0], 81));
    bench.outputs();
    let (add, of) = bench.held.remove(0);
    bench.core.complete(add, done(&of));
    bench.outputs();
    let (attach, _) = bench.held.remove(0);
    bench.core.complete(attach, Completion::Failed("no room".into()));
    let outputs = bench.outputs();
    assert_eq!(words(&outputs), ["Event NotAttached", "Event Reads"]);
    assert_eq!(reply(outputs), Ok(Reply::Done));
    let told = come_back(&mut bench, Completion::Done);
    assert_eq!(told, ["Event CameBack", "Event Reads", "Event Reads", "Joined ConsumerId"]);
}

#[test]
fn a_stopped_probe_takes_nothing_more() {
    let mut bench = Bench::default();
    bench.open(&[80], false);
    bench.open(&[80, 443], true);
    assert_eq!(bench.give(Command::Stop), Ok(Reply::Done));
    assert_eq!(bench.core.sources().count(), 0);
    let open = Command::Open { wants: vec![Port(80)], follows: false };
    assert_eq!(bench.give(open), Err(Refused::Stopped));
    assert_eq!(bench.give(Command::Stop), Ok(Reply::Done));
}
