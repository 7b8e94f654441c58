//! Events of a run. An event contains numbers that are interpreted only when it happens (which of the existing
//! sources, how many frames): so any event can be left out, and the others are still a valid run.

use crate::random::Random;
use crate::reader::Kind;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A source is opened, with `count` subscriptions.
    Open {
        /// Selects the wishes of the subscriptions.
        wants: u64,
        /// Number of subscriptions.
        count: u64,
        /// Whether the probe waits for the source if it is missing.
        follows: bool,
    },
    /// A source is started.
    Start(u64),
    /// A source is closed.
    Close(u64),
    /// A subscription to a source is added.
    Subscribe(u64, u64),
    /// A subscription ends.
    Unsubscribe(u64),
    /// The wishes of a subscription change.
    Change(u64, u64),
    /// A consumer is added.
    AddConsumer(Kind),
    /// A consumer is removed.
    RemoveConsumer(u64),
    /// A consumer is withdrawn: it loses the right to read.
    Withdraw(u64),
    /// A consumer is attached to a subscription.
    Attach(u64, u64),
    /// A consumer is detached from a subscription.
    Detach(u64, u64),
    /// The ledgers are requested.
    Ledgers,
    /// An effect of the core is carried out; with `true`, it fails.
    CarryOut(u64, bool),
    /// All effects are carried out, and the result is compared with the requests of the callers.
    Settle(u64),
    /// A source reports a state change.
    Note(u64, u64),
    /// Frames are offered, some of which may be lost; an effect may be carried out between two of them.
    Frames {
        /// Selects the source.
        source: u64,
        /// Number of frames.
        count: u64,
        /// Seed of their lengths, and of the events between them.
        seed: u64,
    },
    /// Twice this number of long frames is offered to a source, so that readers are overtaken.
    Burst(u64, u64),
    /// The clock is changed by this number of nanoseconds.
    Clock(i64),
    /// A consumer gets a turn of at most this number of frames.
    Turn(u64, u64),
    /// A consumer stops reading, or reads on.
    Stall(u64),
    /// A consumer disappears without notice.
    Kill(u64),
    /// The disk of a consumer refuses the next frames, in this number.
    DiskFull(u64, u64),
    /// A reader gets a ring with arbitrary words.
    Hostile(u64),
}

/// Frequencies of the kinds of events. They differ between runs: an event that is rare in one run is frequent in
/// another.
struct Mix(Vec<u64>);

/// Weights of the kinds of events, in the order of [`Event`].
const WEIGHTS: [u64; 23] =
    [12, 24, 2, 14, 10, 24, 8, 2, 2, 40, 10, 4, 160, 12, 14, 180, 5, 8, 220, 10, 2, 8, 5];

impl Mix {
    fn of(random: &mut Random) -> Mix {
        let weigh = |weight: &u64| weight * [1, 2, 4, 4, 8][random.below(5) as usize];
        Mix(WEIGHTS.iter().map(weigh).collect())
    }

    fn choose(&self, random: &mut Random) -> usize {
        let mut left = random.below(self.0.iter().sum());
        for (kind, weight) in self.0.iter().enumerate() {
            if left < *weight {
                return kind;
            }
            left -= weight;
        }
        unreachable!("a number below the sum")
    }
}

/// Returns the events of a seed.
#[must_use]
pub fn events_of(seed: u64, count: usize) -> Vec<Event> {
    let mut random = Random::new(seed);
    let mix = Mix::of(&mut random);
    (0..count).map(|_| event(&mix, &mut random)).collect()
}

fn event(mix: &Mix, random: &mut Random) -> Event {
    let kind = mix.choose(random);
    let (a, b) = (random.number() >> 16, random.number() >> 16);
    match kind {
        0 => Event::Open { wants: a, count: 1 + b % 3, follows: random.one_in(2) },
        1 => Event::Start(a),
        2 => Event::Close(a),
        3 => Event::Subscribe(a, b),
        4 => Event::Unsubscribe(a),
        5 => Event::Change(a, b),
        6 => Event::AddConsumer([Kind::Counts, Kind::Merges, Kind::Waits][(a % 3) as usize]),
        7 => Event::RemoveConsumer(a),
        8 => Event::Withdraw(a),
        9 => Event::Attach(a, b),
        10 => Event::Detach(a, b),
        11 => Event::Ledgers,
        12 => Event::CarryOut(a, b % 8 == 0),
        13 => Event::Settle(a),
        14 => Event::Note(a, b % 16),
        15 => Event::Frames { source: a, count: 1 + b % 24, seed: random.number() },
        16 => Event::Burst(a, 1 + b % 12),
        17 => Event::Clock(
            [-3_600_000_000_000, -200_000_000, -5_000, 1_000_000, 60_000_000_000][(a % 5) as usize],
        ),
        18 => Event::Turn(a, [1, 3, 10, 100, u64::MAX][(b % 5) as usize]),
        19 => Event::Stall(a),
        20 => Event::Kill(a),
        21 => Event::DiskFull(a, 1 + b % 5),
        _ => Event::Hostile(a),
    }
}
