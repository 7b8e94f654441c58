//! Which frames are wanted.

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

/// Makes the filter for a link type; the error is a text for people.
pub type Compile = Box<dyn Fn(u16) -> Result<Program, String> + Send + Sync>;
/// Whether a flow is wanted, by its key and, of ICMP, type and code.
pub type FlowTest = Box<dyn Fn(&FlowKey, Option<(u8, u8)>) -> bool + Send + Sync>;

/// The flow that is wanted, of Ethernet frames: by their outer headers, without later fragments.
pub enum Flow {
    /// This one, both directions.
    Key(FlowKey),
    /// Those for which the test is true.
    Test(FlowTest),
}

/// The frames that are wanted: those for which all of it is true.
pub struct Query {
    /// Nanoseconds since the Unix epoch, both ends included.
    pub times_ns: RangeInclusive<u64>,
    /// A filter. Where it cannot be made for a link type, no frame of that is taken.
    pub filter: Option<Compile>,
    /// A flow.
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
    /// Frames of these times that the filter accepts and that belong to the flow.
    #[must_use]
    pub fn new(
        times_ns: RangeInclusive<u64>,
        filter: Option<Compile>,
        flow: Option<Flow>,
    ) -> Query {
        Query { times_ns, filter, flow, filters: Mutex::default() }
    }

    /// The link types that the filter cannot be made for, of those that were met, and why.
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

    /// How many link types were met that the filter was made for.
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

    /// Whether frames of these times may be wanted.
    pub(crate) fn overlaps(&self, first_ns: u64, last_ns: u64) -> bool {
        first_ns <= *self.times_ns.end() && last_ns >= *self.times_ns.start()
    }

    /// Whether any frame of this link type may be wanted, of those that have the fields of this set.
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
        // A later fragment has none, and is a flow of its own.
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
