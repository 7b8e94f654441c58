//! Filters in front of user space.

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::location::FilterLocation;

/// A filter that frames pass before user space selects for each feed, and that can reject frames that no
/// feed wants: the filter of a packet socket, or the program that redirects frames to AF_XDP sockets.
/// Filters in the NIC (ethtool ntuple rules, flower, `rte_flow`) could be another.
pub(crate) trait Prefilter {
    /// Rejects, from now on, frames that none of these feeds wants, and no others. Frames that it cannot decide pass.
    /// If there is one feed and exactly its frames pass, returns the place where that feed's filter runs.
    ///
    /// # Errors
    /// The filter could not be changed; the old one stays.
    fn choose(&mut self, feeds: &[Feed]) -> Result<Option<FilterLocation>, CaptureError>;
}
