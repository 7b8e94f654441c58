//! The text after `host:`, and the link type of the source that it names.

use weir_client::{Address, Connection, socket_path};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::engines::declaration::Target;
use crate::error::CaptureError;

/// Parses the address of a daemon's source.
pub(super) fn address_of(target: &Target) -> Result<Address, CaptureError> {
    Address::parse(target.text()).map_err(|error| CaptureError::Options(error.to_string()))
}

/// Returns the source's link type as the daemon at the default socket reports it; Ethernet, if that daemon does not
/// answer or does not have the source.
pub(super) fn link_type(address: &Address) -> u16 {
    let told = Connection::open(&socket_path(None)).and_then(|connection| connection.sources());
    let sources = told.unwrap_or_default();
    let own = sources.iter().find(|source| source.source == address.source);
    own.map_or(LINKTYPE_ETHERNET, |own| own.link_type)
}
