//! Counters of a flow table.

use weir_frame::headers::{Ending, FrameView, ether_type};

/// Counters of one table since it was created. They only grow, except for `flows`.
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
    /// Flows that ended early to make space for another flow: the table, or the 32 slots of the new flow, were full.
    pub evicted: u64,
    /// Fragments after the first whose ports are known.
    pub fragments_attributed: u64,
    /// Fragments after the first without ports: the first was not seen, or is forgotten. They are counted in flows
    /// with ports 0.
    pub fragments_unattributed: u64,
    /// Packets that were forgotten although more of their fragments may have followed: there were more packets than
    /// [`FRAGMENTED_PACKETS_MAX`](crate::limits::FRAGMENTED_PACKETS_MAX), or more than four in one set of four
    /// entries.
    pub fragments_forgotten: u64,
    /// Forward steps of the frames' clock by more than [`CLOCK_AHEAD_MAX`](crate::limits::CLOCK_AHEAD_MAX).
    pub clock_steps_ahead: u64,
    /// Backward steps of the frames' clock by more than [`CLOCK_BACK_MAX`](crate::limits::CLOCK_BACK_MAX).
    pub clock_steps_back: u64,
}

/// Frames without a flow key, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotFlows {
    /// ARP frames.
    pub arp: u64,
    /// Frames with an ethertype other than IP and ARP, or with an 802.3 length.
    pub other_protocol: u64,
    /// Frames whose captured bytes end within Ethernet, VLAN or the fixed part of IP.
    pub cut_off: u64,
    /// Frames whose IP header contradicts itself.
    pub malformed: u64,
    /// Frames with more VLAN tags than the parser reads.
    pub too_many_vlans: u64,
    /// Frames of [`LinkLayer::Other`](crate::LinkLayer::Other).
    pub other_link_type: u64,
}

impl NotFlows {
    /// Returns the sum of all counters.
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
