//! Opens the sources of a run with their engines, and requests their feeds.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use weir_capture::engines::declaration::Target;
use weir_capture::kernel::netns::OwnerFinder;
use weir_capture::{CaptureError, Feed, Filter, FilterLocation, Setup};
use weir_container::interface::{address_names, owner_finder, owners};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_probe::{LinkName, Opener, Probe, SourceId, SourceSpec, SubscriptionId, Wants};
use weir_store::Names;

use crate::error_words::error_text;
use crate::feeds::{self, Asked, FeedCompiler};
use crate::plan::own_traffic::{self, Found};
use crate::plan::{CapturePlan, PlannedSource};
use crate::refusals::Refusals;
use crate::source_name::{Part, SourceName};

/// The sources of a run, and the feeds that were requested from them.
#[derive(Default)]
pub struct Subscriptions {
    /// In the order in which they were named.
    pub sources: Vec<OpenSource>,
    /// Ordered by source.
    pub feeds: Vec<Subscribed>,
    /// Names of the owners' addresses, updated each time a source is opened.
    pub names: Names,
    /// Last known filter location of each feed.
    locations: Mutex<Vec<FilterLocation>>,
}

/// A source of the run. With `--follow` it may not exist yet.
pub struct OpenSource {
    pub id: SourceId,
    /// The name that the user gave.
    pub name: String,
    /// The pcap link type of its frames; Ethernet until the source has been opened.
    pub link_type: u16,
    /// Whether a daemon captures the source.
    pub is_of_daemon: bool,
    pub refusals: Arc<Refusals>,
}

/// A feed of one source.
#[derive(Clone, Debug)]
pub struct Subscribed {
    /// Index of the source.
    pub source: usize,
    /// Identifies the feed in calls to the probe.
    pub subscription: SubscriptionId,
    /// Index of the first feed of the run that reads the same rings. Outputs identify the feed by this number.
    pub output: usize,
    /// Name of the feed; empty if it is the only feed.
    pub name: String,
    /// The part of the source.
    pub part: Part,
    /// Settings of the feed. In results, the filter is the one that was in force last.
    pub takes: Feed,
    /// How often its filter has been changed.
    pub changes: u64,
    /// Name of the earlier feed whose rings this feed shares.
    pub shares: Option<String>,
}

/// The filter of a feed that is in force.
#[derive(Clone, Debug)]
pub struct InForce {
    /// `None`: all frames pass.
    pub filter: Option<Arc<Filter>>,
    /// How often the filter was changed. A change that was undone counts twice.
    pub changes: u64,
}

impl Subscriptions {
    /// Opens all sources of a run, in order. The sources offer no frames until they are started.
    ///
    /// # Errors
    /// A source cannot be opened, or a filter does not compile.
    pub fn open(probe: &Probe, plan: &CapturePlan) -> Result<Subscriptions> {
        let mut opened = Subscriptions::default();
        let mut feeds = FeedCompiler::new(&plan.feeds);
        for source in &plan.sources {
            // With --follow, the run waits for a missing virtual machine.
            if let Some(vm) = source.name.vm().filter(|_| !plan.follow) {
                weir_container::vm::find(&vm)?;
            }
            let mut asked = Vec::new();
            let link_type = link_type_for_filters(source, plan)?;
            for &part in &source.parts {
                asked.extend(feeds.of(link_type)?.into_iter().map(|feed| feed.of_part(part)));
            }
            feeds::share(&mut asked);
            describe(&mut asked, &source.name);
            let refusals = Arc::new(Refusals::default());
            let spec = spec(source, plan, &opened.names, Arc::clone(&refusals));
            let (id, own) = probe.open(spec, wants(&asked))?;
            opened.add(id, source, asked, own, refusals);
            let rings = probe.rings_of(opened.feeds[opened.feeds.len() - 1].subscription);
            if let Some(ring) = rings.first() {
                // The engine determines the link type, and writes it into its rings.
                let last = opened.sources.len() - 1;
                opened.sources[last].link_type = ring.identity()?.link_type;
            }
        }
        opened.look(probe);
        Ok(opened)
    }

    fn add(
        &mut self,
        id: SourceId,
        source: &PlannedSource,
        asked: Vec<Asked>,
        own: Vec<SubscriptionId>,
        refusals: Arc<Refusals>,
    ) {
        let (number, first) = (self.sources.len(), self.feeds.len());
        let (name, is_of_daemon) = (source.name.to_string(), source.name.is_of_daemon());
        let link_type = LINKTYPE_ETHERNET;
        self.sources.push(OpenSource { id, name, link_type, is_of_daemon, refusals });
        let names: Vec<String> = asked.iter().map(|asked| asked.name.clone()).collect();
        for (at, (asked, subscription)) in asked.into_iter().zip(own).enumerate() {
            self.feeds.push(Subscribed {
                source: number,
                subscription,
                output: first + asked.shares.unwrap_or(at),
                name: asked.name,
                part: asked.part,
                takes: asked.feed,
                changes: 0,
                shares: asked.shares.map(|other| names[other].clone()),
            });
        }
    }

    /// Returns one source with one feed without a filter.
    #[cfg(test)]
    pub fn of_one(id: SourceId, subscription: SubscriptionId) -> Subscriptions {
        let (name, part, takes) = (String::new(), Part::Whole, Feed::default());
        let (source, output, changes, shares) = (0, 0, 0, None);
        let feed = Subscribed { source, subscription, output, name, part, takes, changes, shares };
        let (name, link_type) = ("gen:".to_owned(), LINKTYPE_ETHERNET);
        let (is_of_daemon, refusals) = (false, Arc::default());
        let source = OpenSource { id, name, link_type, is_of_daemon, refusals };
        Subscriptions { sources: vec![source], feeds: vec![feed], ..Subscriptions::default() }
    }

    /// Retries the missing sources of daemons, because no event reports that a daemon has started. A source that its
    /// daemon has just refused is retried later. Returns whether there are missing sources.
    pub fn look_for_daemons(&self, probe: &Probe) -> bool {
        let is_waited_for = |at: usize| {
            let mut own = self.feeds.iter().filter(|feed| feed.source == at);
            own.all(|feed| probe.feed_of(feed.subscription).is_none())
        };
        let mut found = false;
        for (at, source) in self.sources.iter().enumerate() {
            if source.is_of_daemon && is_waited_for(at) {
                if !source.refusals.is_recent() {
                    probe.look_again(source.id);
                }
                found = true;
            }
        }
        found
    }

    /// Returns the feeds that have their own rings.
    pub fn outputs(&self) -> impl Iterator<Item = &Subscribed> {
        self.feeds.iter().enumerate().filter(|(at, feed)| feed.output == *at).map(|(_, feed)| feed)
    }

    /// Returns the output number of the feed that these subscriptions read, and its name in printed lines. Feeds that
    /// share rings have one number, and their names are joined by commas. `None` if no feed of the run is among the
    /// readers.
    pub fn output_of(&self, readers: &[SubscriptionId]) -> Option<(usize, String)> {
        let mut own = self.feeds.iter().filter(|feed| readers.contains(&feed.subscription));
        let output = own.next()?.output;
        let own = self.feeds.iter().filter(|feed| feed.output == output);
        let names: Vec<&str> = own.map(|feed| feed.name.as_str()).collect();
        let is_named = names.iter().any(|name| !name.is_empty());
        Some((output, if is_named { names.join(",") } else { String::new() }))
    }

    /// Returns the name of the feed's source as the user gave it, with the part.
    pub fn name_of(&self, feed: &Subscribed) -> String {
        format!("{}{}", self.sources[feed.source].name, feed.part)
    }

    /// Updates the filter location of each feed. A feed that is not open keeps its last location.
    pub fn look(&self, probe: &Probe) {
        let now: Vec<_> =
            self.feeds.iter().map(|feed| Some(probe.feed_of(feed.subscription)?.1)).collect();
        let mut locations = self.locations_now();
        locations.resize(self.feeds.len(), FilterLocation::default());
        for (location, now) in locations.iter_mut().zip(now) {
            *location = now.unwrap_or(*location);
        }
    }

    /// Returns the filter location of each feed at the last call of [`look`](Self::look).
    pub fn locations(&self) -> Vec<FilterLocation> {
        self.locations_now().clone()
    }

    fn locations_now(&self) -> MutexGuard<'_, Vec<FilterLocation>> {
        self.locations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the link type for which a source's filters are compiled: Ethernet for an interface that does not exist yet.
fn link_type_for_filters(source: &PlannedSource, plan: &CapturePlan) -> Result<u16> {
    if !plan.feeds.are_filtered() {
        return Ok(LINKTYPE_ETHERNET);
    }
    match source.link_type() {
        Err(error) if plan.follow && is_missing(&error) => Ok(LINKTYPE_ETHERNET),
        known => known,
    }
}

/// Returns the requests to the probe.
///
/// Only feeds that are equal at the start share rings. Feeds that become equal by a later change keep their own rings,
/// even after their source has come back, because each feed has its own counters.
fn wants(asked: &[Asked]) -> Vec<Wants> {
    let group = |at, asked: &Asked| asked.shares.unwrap_or(at);
    let asked = asked.iter().enumerate();
    asked
        .map(|(at, asked)| Wants { group: group(at, asked), ..asked.feed.clone().into() })
        .collect()
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CaptureError::NoInterface { .. }))
}

/// Sets the interface of each feed, which its rings describe.
fn describe(asked: &mut [Asked], source: &SourceName) {
    // All feeds get the same snaplen: tcpdump refuses files whose interfaces have different ones.
    let snaplen = asked.iter().map(|asked| asked.feed.snaplen).max().unwrap_or_default();
    for one in asked {
        one.feed.interface = Interface {
            name: source.in_rings(one.part),
            description: (!one.name.is_empty()).then(|| format!("feed {}", one.name)),
            filter: one.feed.filter.as_ref().map(|filter| filter.text.clone()),
            link_type: LINKTYPE_ETHERNET,
            snaplen,
        };
    }
}

/// Returns a finder of owners that also records the names of the owners' addresses.
fn finder_for(names: Names) -> OwnerFinder {
    OwnerFinder::new(move |ifaces| {
        let found = owners(ifaces);
        names.learn(found.iter().flatten().flat_map(address_names));
        found
    })
}

/// Returns the specification by which the probe opens a source.
fn spec(
    source: &PlannedSource,
    plan: &CapturePlan,
    names: &Names,
    refusals: Arc<Refusals>,
) -> SourceSpec {
    let PlannedSource { target, request, .. } = source.clone();
    let (planned, asks_before) = (source.clone(), plan.asks_before_consuming);
    let link = match &target {
        Target::Interface { netns, iface } => {
            Some(LinkName { netns: netns.clone(), iface: Some(iface.clone()) })
        }
        // Interfaces of the namespace join and leave the source. The source ends with the namespace. It comes back if
        // the process to which the namespace belongs is started again.
        Target::Pattern { netns: Some(netns), .. } if plan.follow => {
            Some(LinkName { netns: Some(netns.clone()), iface: None })
        }
        _ => None,
    };
    let is_of_daemon = source.name.is_of_daemon();
    // After a restart of the daemon, the source is read again, even without --follow.
    let follows = (plan.follow && link.is_some()) || is_of_daemon;
    let must_be_there = AtomicBool::new(is_of_daemon && !plan.follow);
    // Names are written into files only.
    let writes = plan.outputs.write.is_some() || !plan.outputs.record.is_empty();
    let learned_by = writes.then(|| names.clone());
    let setup = Setup {
        ring_bytes: plan.ring_bytes,
        ring_pages: plan.ring_pages,
        // With --cpus, rings are allocated near those CPUs instead.
        near_nic: plan.cpus.is_none(),
        promiscuous: plan.promiscuous,
        may_change: plan.control.is_some(),
        owner_finder: Some(learned_by.clone().map_or_else(owner_finder, finder_for)),
        ..Setup::default()
    };
    let open: Opener = std::sync::Arc::new(move |feeds| {
        // Checked each time the source is opened, because an interface that comes back may have an address by then.
        if asks_before {
            let found = own_traffic::check_one(&planned)
                .map_err(|refused| CaptureError::Options(format!("{refused:#}")))?;
            // The interface may exist by now. With --follow, the opener is called again.
            if let (Found::Unknown(error), true) = (found, follows) {
                return Err(error);
            }
        }
        let opened = request.open(&target, &Setup { feeds, ..setup.clone() });
        if let (Ok(source), Some(names)) = (&opened, &learned_by) {
            // The names are updated each time the source is opened, because a restarted container may have another
            // address.
            names.learn(source.info().owner.iter().flat_map(address_names));
        }
        refusals.note(opened.as_ref().err());
        match opened {
            // At the first opening, a missing daemon is an error that ends the run.
            Err(missing @ (CaptureError::NoDaemon { .. } | CaptureError::DaemonBusy { .. }))
                if must_be_there.load(Relaxed) =>
            {
                Err(CaptureError::Options(error_text(&missing)))
            }
            opened => {
                must_be_there.store(false, Relaxed);
                opened
            }
        }
    });
    SourceSpec { name: source.name.to_string(), open, link, follows, cpus: plan.cpus.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feeds_share_rings_with_those_that_they_share_with_from_the_start() {
        let asked = |shares| {
            let (name, part, feed) = (String::new(), Part::Whole, Feed::default());
            Asked { name, part, feed, shares }
        };
        let wants = wants(&[asked(None), asked(Some(0)), asked(None)]);
        assert_eq!(wants.iter().map(|wants| wants.group).collect::<Vec<_>>(), [0, 0, 2]);
    }
}
