//! Describes the frames that are wanted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use weir_filter::possible::{has_ports, possible};
use weir_filter::{Program, UserFilter};
use weir_frame::flow::FlowKey;
use weir_frame::headers::{Addresses, FrameView, Upper};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::index::Set;

/// Compiles the filter for a link type. The error is a text for the user.
pub type Compile = Box<dyn Fn(u16) -> Result<Program, String> + Send + Sync>;
/// Whether a flow is wanted, by its key, and for ICMP also by type and code.
pub type FlowTest = Box<dyn Fn(&FlowKey, Option<(u8, u8)>) -> bool + Send + Sync>;

/// The wanted flow or flows. Only Ethernet frames match, by their outer headers, and later fragments do not match.
pub enum Flow {
    /// The flow with this key, in both directions.
    Key(FlowKey),
    /// The flows for which the test is true.
    Test(FlowTest),
}

/// The description of the wanted frames: those that meet all conditions.
pub struct Query {
    /// The range of times, in nanoseconds since the Unix epoch.
    pub times_ns: RangeInclusive<u64>,
    /// The filter. If it cannot be compiled for a link type, no frame of that type is wanted.
    pub filter: Option<Compile>,
    /// The wanted flows.
    pub flow: Option<Flow>,
    filters: Mutex<HashMap<u16, Arc<LinkFilter>>>,
}

impl Default for Query {
    fn default() -> Query {
        Query::new(0..=u64::MAX, None, None)
    }
}

/// A filter for the frames of one link type.
pub(crate) enum LinkFilter {
    Everything,
    Nothing(String),
    Some(UserFilter),
}

impl Query {
    /// Creates a query for frames with these times that the filter accepts and that belong to the flow.
    #[must_use]
    pub fn new(
        times_ns: RangeInclusive<u64>,
        filter: Option<Compile>,
        flow: Option<Flow>,
    ) -> Query {
        Query { times_ns, filter, flow, filters: Mutex::default() }
    }

    /// Returns the link types in the files for which the filter could not be compiled, with the reason.
    #[must_use]
    pub fn refused(&self) -> Vec<(u16, String)> {
        let filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = filters.iter().filter_map(|(link_type, filter)| match &**filter {
            LinkFilter::Nothing(why) => Some((*link_type, why.clone())),
            _ => None,
        });
        let mut refused: Vec<_> = refused.collect();
        refused.sort();
        refused
    }

    /// Returns the number of link types in the files for which the filter was compiled.
    #[must_use]
    pub fn made(&self) -> usize {
        let filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        filters.values().filter(|filter| matches!(***filter, LinkFilter::Some(_))).count()
    }

    pub(crate) fn filter_for(&self, link_type: u16) -> Arc<LinkFilter> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            Arc::new(match &self.filter {
                None => LinkFilter::Everything,
                Some(compile) => match compile(link_type) {
                    Ok(program) => LinkFilter::Some(UserFilter::new(program)),
                    Err(why) => LinkFilter::Nothing(why),
                },
            })
        };
        Arc::clone(filters.entry(link_type).or_insert_with(make))
    }

    /// Returns whether frames with times from `first_ns` to `last_ns` may be wanted.
    pub(crate) fn overlaps(&self, first_ns: u64, last_ns: u64) -> bool {
        first_ns <= *self.times_ns.end() && last_ns >= *self.times_ns.start()
    }

    /// Returns whether a frame of this link type whose fields are in `set` may be wanted.
    pub(crate) fn possible(&self, filter: &LinkFilter, link_type: u16, set: &Set) -> bool {
        let by_filter = match filter {
            LinkFilter::Everything => true,
            LinkFilter::Nothing(_) => false,
            LinkFilter::Some(filter) => possible(filter.program(), link_type, set),
        };
        by_filter && self.flow.as_ref().is_none_or(|flow| flow.possible(link_type, set))
    }

    #[inline]
    pub(crate) fn wants(
        &self,
        filter: &LinkFilter,
        link_type: u16,
        ts_ns: u64,
        wire_len: u32,
        frame: &[u8],
    ) -> bool {
        if !self.times_ns.contains(&ts_ns) {
            return false;
        }
        let by_filter = match filter {
            LinkFilter::Everything => true,
            LinkFilter::Nothing(_) => false,
            LinkFilter::Some(filter) => filter.run(frame, wire_len) > 0,
        };
        by_filter && self.flow.as_ref().is_none_or(|flow| flow.has(link_type, frame))
    }
}

impl Flow {
    fn possible(&self, link_type: u16, set: &Set) -> bool {
        if link_type != LINKTYPE_ETHERNET {
            return false;
        }
        let Flow::Key(key) = self else { return true };
        let hosts = match key.addresses {
            Addresses::V4 { src, dst } => [IpAddr::V4(src), IpAddr::V4(dst)],
            Addresses::V6 { src, dst } => [IpAddr::V6(src), IpAddr::V6(dst)],
        };
        let ports = [key.src_port, key.dst_port];
        // A later fragment has no ports, and is a flow of its own.
        let ports = (has_ports(key.protocol) && ports != [0, 0]).then_some(ports);
        set.may_have_flow(hosts, key.protocol, ports)
    }

    fn has(&self, link_type: u16, frame: &[u8]) -> bool {
        if link_type != LINKTYPE_ETHERNET {
            return false;
        }
        let view = FrameView::parse(frame);
        let Some(ip) = view.ip() else { return false };
        let key = FlowKey::of_ip(ip);
        match self {
            Flow::Key(wanted) => key == *wanted || key == wanted.reversed(),
            Flow::Test(test) => test(
                &key,
                match ip.upper {
                    Upper::Icmp { kind, code } => Some((kind, code)),
                    _ => None,
                },
            ),
        }
    }
}
