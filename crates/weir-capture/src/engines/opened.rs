//! The first steps of opening a source, for all engines that capture a single interface.

use crate::error::CaptureError;
use crate::kernel::interface::{Interface, InterfaceQuery, Missed};
use crate::kernel::rcu;
use crate::setup::Setup;

/// The interface of a source, as found when the source is opened.
pub(super) struct Opened {
    pub(super) query: InterfaceQuery,
    pub(super) interface: Interface,
    /// Losses that the interface reports.
    pub(super) missed: Missed,
}

impl Opened {
    /// Finds the interface, and sets the link type of the feeds to its type. If the setup asks for it, also sets the
    /// NUMA node of the rings to that of the NIC, if that is known.
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
