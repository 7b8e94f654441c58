//! Sources opened with their engines.

use anyhow::Result;
use weir_capture::pace::Pace;
use weir_capture::{CaptureError, Feed, Opener, Session, Setup};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_probe::CpuList;
use weir_ring::Ring;

use crate::feeds::{self, Asked, Feeds};
use crate::plan::{CapturePlan, PlannedSource};
use crate::source_name::{Part, SourceName};

/// The sources of a run, open.
pub struct Opened {
    /// The interfaces of their feeds by id: those of the first source first.
    pub interfaces: Vec<Interface>,
    /// The feeds that were asked for, source by source, and the id of what each one reads.
    pub feeds: Vec<Subscribed>,
    /// For each ring, the number of its feed among those that have rings: the id of its interface in outputs.
    pub feed_of: Vec<usize>,
    /// Rings whose source waits for consumers: ring number, and where they join.
    pub paces: Vec<(usize, Pace)>,
}

/// A feed of one source.
#[derive(Clone, Debug)]
pub struct Subscribed {
    /// Number of the source.
    pub source: usize,
    /// Number of the feed whose rings it reads, among those of the source.
    pub feed: usize,
    /// Its number among the feeds of the run: the id of its interface in outputs, where each feed has one.
    pub interface_id: u32,
    /// Its name; empty for the only one.
    pub name: String,
    /// Which part of the source.
    pub part: Part,
    /// What it takes; the filter is the one in force when this was said.
    pub takes: Feed,
    /// How often its filter was changed by then.
    pub changes: u64,
    /// The name of the feed that it shares its rings with.
    pub shares: Option<String>,
}

/// Opens all sources of a run, in order.
pub fn open_all(session: &mut Session, plan: &CapturePlan) -> Result<Opened> {
    let mut opened = Opened {
        interfaces: Vec::new(),
        feeds: Vec::new(),
        feed_of: Vec::new(),
        paces: Vec::new(),
    };
    let mut feeds = Feeds::new(&plan.feeds);
    for (number, source) in plan.sources.iter().enumerate() {
        let filtered = plan.feeds.are_filtered();
        let link_type = if filtered { source.link_type()? } else { LINKTYPE_ETHERNET };
        let mut asked = Vec::new();
        for &part in &source.parts {
            asked.extend(feeds.of(link_type)?.into_iter().map(|feed| feed.of_part(part)));
        }
        feeds::share(&mut asked);
        let before = session.rings().len();
        let own = subscribe(&mut opened, number, &source.name, &asked);
        let setup = Setup {
            feeds: own,
            ring_bytes: plan.ring_bytes,
            promiscuous: plan.promiscuous,
            may_change: plan.control.is_some(),
        };
        let count = setup.feeds.len();
        open_one(session, source, setup, plan.cpus.as_ref())?;
        // The engine knows the link type; its rings say it.
        let ring: &Ring<_> = &session.rings()[before];
        let link_type = ring.identity()?.link_type;
        let all = opened.interfaces.len();
        let each = (session.rings().len() - before) / count;
        opened.feed_of.extend((all - count..all).flat_map(|feed| std::iter::repeat_n(feed, each)));
        opened.interfaces[all - count..].iter_mut().for_each(|own| own.link_type = link_type);
    }
    opened.paces = session.paces();
    Ok(opened)
}

/// Gives each feed of the source that differs from the others an interface; gives these feeds.
fn subscribe(
    opened: &mut Opened,
    number: usize,
    source: &SourceName,
    asked: &[Asked],
) -> Vec<Feed> {
    // tcpdump refuses files whose interfaces differ in this.
    let snaplen = asked.iter().map(|asked| asked.feed.snaplen).max().unwrap_or_default();
    let first = opened.feeds.len();
    let mut own: Vec<Feed> = Vec::new();
    for one in asked {
        let mut feed = one.feed.clone();
        let at = match one.shares {
            Some(other) => opened.feeds[first + other].feed,
            None => {
                feed.interface = Interface {
                    name: format!("{source}{}", one.part),
                    description: (!one.name.is_empty()).then(|| format!("feed {}", one.name)),
                    filter: feed.filter.as_ref().map(|filter| filter.text.clone()),
                    link_type: LINKTYPE_ETHERNET,
                    snaplen,
                };
                opened.interfaces.push(feed.interface.clone());
                own.push(feed.clone());
                own.len() - 1
            }
        };
        opened.feeds.push(Subscribed {
            source: number,
            feed: at,
            interface_id: (opened.interfaces.len() - own.len() + at) as u32,
            name: one.name.clone(),
            part: one.part,
            takes: feed,
            changes: 0,
            shares: one.shares.map(|other| asked[other].name.clone()),
        });
    }
    own
}

fn open_one(
    session: &mut Session,
    source: &PlannedSource,
    setup: Setup,
    cpus: Option<&CpuList>,
) -> Result<()> {
    let PlannedSource { target, request, .. } = source.clone();
    session.open(on_cpus(cpus, Box::new(move || request.open(&target, &setup))))?;
    Ok(())
}

/// Has a source's thread, and those that it starts, run where it was asked for.
fn on_cpus(cpus: Option<&CpuList>, open: Opener) -> Opener {
    let Some(cpus) = cpus.cloned() else { return open };
    Box::new(move || {
        let doing = || format!("--cpus {cpus}");
        cpus.apply().map_err(|source| CaptureError::Os { doing: doing(), source })?;
        open()
    })
}
