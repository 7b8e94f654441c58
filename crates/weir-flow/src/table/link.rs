//! Link types of frames.

use weir_frame::pcapng::{LINKTYPE_ETHERNET, LINKTYPE_IPV4, LINKTYPE_IPV6, LINKTYPE_RAW};

/// The link layer of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet.
    #[default]
    Ethernet,
    /// No link-layer header: the IP header comes first, as on `tun` devices.
    Ip,
    /// A link layer that is not parsed: its frames are counted, and belong to no flow.
    Other,
}

impl LinkLayer {
    /// Returns the link layer of a LINKTYPE number. Source: draft-ietf-opsawg-pcaplinktype.
    #[must_use]
    pub const fn of(link_type: u16) -> LinkLayer {
        match link_type {
            LINKTYPE_ETHERNET => LinkLayer::Ethernet,
            LINKTYPE_RAW | LINKTYPE_IPV4 | LINKTYPE_IPV6 => LinkLayer::Ip,
            _ => LinkLayer::Other,
        }
    }
}
