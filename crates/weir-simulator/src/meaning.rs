//! The wishes of a subscriber in two forms: the simulator's short form, and the form of the probe.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use weir_capture::{Change, Feed, Filter, Sampling};
use weir_filter::block::Entry;
use weir_filter::insn::{ALU, AND, JEQ, JMP, LD_B_ABS, RET_K};
use weir_filter::{Insn, Program};
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_frame::record::CAPLEN_MAX;
use weir_probe::Wants;
use weir_probe::core::Wanted;

use crate::broken::hold;
use crate::frame::{Frame, HOST_AT, HOSTS, NUMBER_BYTES};

/// Number of filters: each accepts the hosts whose number has the same remainder.
pub const FILTERS: u8 = 3;

/// The selection of frames, and the number of bytes that are kept of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Accepts only hosts whose last two bits have this value; `None`: accepts all frames.
    pub filter: Option<u8>,
    /// Hosts whose frames are excluded.
    pub blocked: BTreeSet<u8>,
    /// Most bytes that are kept of a frame.
    pub snaplen: u32,
    /// One frame of this number is kept.
    pub one_in: u32,
}

impl Meaning {
    /// Returns the wishes that a number selects. There are only few different ones, so that subscribers share feeds.
    #[must_use]
    pub fn of(number: u64) -> Meaning {
        let filter = [None, Some(0), None, Some(1)][(number % 4) as usize];
        let blocked = if number % 5 == 4 { BTreeSet::from([2]) } else { BTreeSet::new() };
        let snaplen = match number % 7 {
            5 => 64,
            6 => NUMBER_BYTES as u32,
            _ => CAPLEN_MAX,
        };
        let one_in = if number % 11 == 10 { 3 } else { 1 };
        Meaning { filter, blocked, snaplen, one_in }
    }

    /// Returns whether the filter accepts a frame.
    #[must_use]
    pub fn passes(&self, frame: &Frame) -> bool {
        self.filter.is_none_or(|rest| frame.has_headers() && frame.host & 3 == rest)
    }

    /// Returns whether the block list excludes a frame.
    #[must_use]
    pub fn blocks(&self, frame: &Frame) -> bool {
        frame.has_headers() && self.blocked.contains(&frame.host)
    }

    /// Returns the wishes after a change.
    #[must_use]
    pub fn changed(&self, change: &Changing) -> Meaning {
        let mut changed = self.clone();
        match change.what {
            What::Filter(filter) => changed.filter = filter,
            What::Block(host) => _ = changed.blocked.insert(host),
            What::Unblock(host) => _ = changed.blocked.remove(&host),
        }
        changed
    }
}

/// A change, in the simulator's form.
#[derive(Clone, Copy, Debug)]
enum What {
    Filter(Option<u8>),
    Block(u8),
    Unblock(u8),
}

/// The wishes of a subscriber.
#[derive(Clone, Debug)]
pub struct Wanting {
    /// The wishes in the simulator's form.
    pub meaning: Meaning,
    /// The wishes in the form of the probe.
    pub real: Wants,
}

/// A change of a subscriber's wishes.
#[derive(Clone, Debug)]
pub struct Changing {
    what: What,
    /// The change in the form of the probe.
    pub real: Change,
}

impl Wanting {
    /// Returns the wishes that a number selects.
    #[must_use]
    pub fn of(number: u64) -> Wanting {
        let meaning = Meaning::of(number);
        let feed = Feed {
            filter: filter(meaning.filter),
            snaplen: meaning.snaplen,
            sampling: if meaning.one_in > 1 {
                Sampling::OneIn(meaning.one_in)
            } else {
                Sampling::All
            },
            ..Feed::default()
        };
        let blocked = meaning.blocked.iter().map(|host| entry(*host)).collect();
        Wanting { real: Wants { feed, blocked, group: 0 }, meaning }
    }
}

impl Changing {
    /// Returns the change that a number selects.
    #[must_use]
    pub fn of(number: u64) -> Changing {
        let host = (number / 4 % HOSTS) as u8;
        let block = |remove, add| Change::Block { remove, add };
        let (what, real) = match number % 4 {
            0 => (What::Block(host), block(Vec::new(), vec![entry(host)])),
            1 => (What::Unblock(host), block(vec![entry(host)], Vec::new())),
            _ => {
                let rest = Some(host).filter(|rest| *rest < FILTERS);
                (What::Filter(rest), Change::Filter(filter(rest)))
            }
        };
        Changing { what, real }
    }
}

impl Wanted for Wanting {
    type Change = Changing;

    fn is_like(&self, other: &Wanting) -> bool {
        let is_like = self.real.is_like(&other.real);
        hold!(is_like == (self.meaning == other.meaning), "alike: {self:?}, {other:?}");
        is_like
    }

    fn with(&self, change: &Changing) -> Wanting {
        let (meaning, real) = (self.meaning.changed(change), self.real.with(&change.real));
        Wanting { meaning, real }
    }
}

fn entry(host: u8) -> Entry {
    Entry::Address(Ipv4Addr::new(10, 0, 0, host).into())
}

fn filter(rest: Option<u8>) -> Option<Arc<Filter>> {
    let rest = rest?;
    let program = Program::new([
        Insn::new(LD_B_ABS, HOST_AT),
        Insn::new(ALU | AND, 3),
        Insn::jump(JMP | JEQ, rest.into(), 0, 1),
        Insn::new(RET_K, CAPLEN_MAX),
        Insn::new(RET_K, 0),
    ]);
    let program = program.expect("a program of ours");
    let text = format!("host & 3 = {rest}");
    Some(Arc::new(Filter { text, link_type: LINKTYPE_ETHERNET, program }))
}
