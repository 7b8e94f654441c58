//! Homes of filters in front of user space.

use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::location::FilterLocation;

/// A place that frames come through before user space chooses for each feed, and that can leave out what none of them
/// wants: the filter of a packet socket, the program that steers frames into AF_XDP sockets. A NIC that filters
/// (ethtool ntuple rules, flower, `rte_flow`) would be one more.
pub(crate) trait Prefilter {
    /// From now on, leaves out what it can of what none of these feeds wants, and nothing else; what it cannot tell,
    /// passes. If just what the only feed wants gets through, that feed's frames are chosen there, and this says where.
    ///
    /// # Errors
    /// It cannot be changed, and goes on as before.
    fn choose(&mut self, feeds: &[Feed]) -> Result<Option<FilterLocation>, CaptureError>;
}
