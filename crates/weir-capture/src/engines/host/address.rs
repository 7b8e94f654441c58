//! The text behind `host:`, and the address of its daemon.

use weir_client::{Address, Connection, socket_path};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::engines::declaration::Target;
use crate::error::CaptureError;

/// The source of a daemon that a target names.
pub(super) fn address_of(target: &Target) -> Result<Address, CaptureError> {
    Address::parse(target.text()).map_err(|error| CaptureError::Options(error.to_string()))
}

/// The link type that the daemon of this environment tells; Ethernet, if it is elsewhere or tells nothing.
pub(super) fn link_type(address: &Address) -> u16 {
    let told = Connection::open(&socket_path(None)).and_then(|connection| connection.sources());
    let sources = told.unwrap_or_default();
    let own = sources.iter().find(|source| source.source == address.source);
    own.map_or(LINKTYPE_ETHERNET, |own| own.link_type)
}
