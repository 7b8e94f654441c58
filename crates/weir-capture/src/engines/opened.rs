//! Common start of all engines of a single interface.

use crate::error::CaptureError;
use crate::kernel::interface::{Interface, InterfaceQuery, Missed};
use crate::kernel::rcu;
use crate::setup::Setup;

/// An interface that a source is opened on.
pub(super) struct Opened {
    pub(super) query: InterfaceQuery,
    pub(super) interface: Interface,
    /// Losses that it reports.
    pub(super) missed: Missed,
}

impl Opened {
    /// Finds the interface, gives the feeds its link type, and their rings the NUMA node of its NIC.
    pub(super) fn find(iface: &str, setup: &mut Setup) -> Result<Opened, CaptureError> {
        rcu::prepare();
        let query = InterfaceQuery::new()?;
        let interface = query.find(iface)?;
        setup.set_link_type(interface.link_type)?;
        if setup.near_nic && setup.ring_node.is_none() {
            setup.ring_node = query.driver(iface).ok().and_then(|driver| driver.numa_node());
        }
        let missed = Missed::new(interface.index);
        Ok(Opened { query, interface, missed })
    }
}
