//! Counters of a table beside its flows.

use weir_frame::headers::{Ending, FrameView, ether_type};

/// Counts of one table since it was made. They only grow, but for `flows`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were given to the table.
    pub frames: u64,
    /// Of these, frames that belong to no flow.
    pub not_flows: NotFlows,
    /// Flows in the table now.
    pub flows: u64,
    /// Flows that began.
    pub began: u64,
    /// Flows that ended early, so that another could begin: the table, or 32 places of it, were full.
    pub evicted: u64,
    /// Later fragments whose ports are known.
    pub fragments_attributed: u64,
    /// Later fragments without ports: their first was not seen, or is forgotten. They are flows with ports 0.
    pub fragments_unattributed: u64,
    /// Packets that were forgotten while their fragments may still have come: more than
    /// [`FRAGMENTED_PACKETS_MAX`](crate::limits::FRAGMENTED_PACKETS_MAX), or several in the same four places.
    pub fragments_forgotten: u64,
    /// Steps ahead of the frames' clock, of more than [`CLOCK_AHEAD_MAX`](crate::limits::CLOCK_AHEAD_MAX).
    pub clock_steps_ahead: u64,
    /// Steps back of the frames' clock, of more than [`CLOCK_BACK_MAX`](crate::limits::CLOCK_BACK_MAX).
    pub clock_steps_back: u64,
}

/// Frames without a flow key, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotFlows {
    /// ARP.
    pub arp: u64,
    /// Another ethertype than IP and ARP, or an 802.3 length.
    pub other_protocol: u64,
    /// Headers end within Ethernet, VLAN or the fixed part of IP.
    pub cut_off: u64,
    /// The IP header contradicts itself.
    pub malformed: u64,
    /// More VLAN tags than are walked.
    pub too_many_vlans: u64,
    /// Frames of [`LinkLayer::Other`](crate::LinkLayer::Other).
    pub other_link_type: u64,
}

impl NotFlows {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let NotFlows { arp, other_protocol, cut_off, malformed, too_many_vlans, other_link_type } =
            *self;
        arp + other_protocol + cut_off + malformed + too_many_vlans + other_link_type
    }

    /// Counts a frame that has no IP header.
    #[cold]
    pub(crate) fn count(&mut self, view: &FrameView<'_>) {
        *match view.ending() {
            Ending::CutOff(_) => &mut self.cut_off,
            Ending::Malformed(_) => &mut self.malformed,
            Ending::TooDeep(_) => &mut self.too_many_vlans,
            Ending::Whole if view.ether_type() == Some(ether_type::ARP) => &mut self.arp,
            Ending::Whole => &mut self.other_protocol,
        } += 1;
    }
}
