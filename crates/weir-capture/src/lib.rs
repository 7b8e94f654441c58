//! Capture engines behind one [`Source`] trait: how a frame comes into a ring.
//!
//! | engine | module | frames come from |
//! |---|---|---|
//! | `bpf` | [`bpf`] | TC or XDP programs that write the ring in the kernel |
//! | `af_packet` | [`af_packet`] | a TPACKET_V3 socket |
//! | `af_xdp` | [`af_xdp`] | AF_XDP sockets, one a queue |
//! | `pcap` | [`pcap`](mod@pcap) | libpcap, whatever it does here |
//! | `dpdk` | `dpdk` (a Cargo feature) | a port of DPDK's, by any of its drivers |
//! | `replay` | [`replay`] | a pcap or pcapng file |
//! | `gen` | [`memgen`] | memory: made up, for everything behind the NIC |
//!
//! What subscribers want of a source is a [`Feed`] each. [`auto`] chooses between the live ones and says why; [`session`] runs sources on threads; [`room`] says
//! what memory there is for their rings; [`bpf::block`] keeps the block lists that act in the kernel.

pub mod af_packet;
pub mod af_xdp;
pub mod auto;
pub mod bpf;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod error;
mod fan;
pub mod feed;
mod filters;
mod grace;
pub mod holder;
pub mod iface;
pub mod memgen;
pub mod netns;
pub mod pace;
pub mod pcap;
pub mod replay;
pub mod room;
pub mod session;
pub mod source;
mod vlan;

pub use error::CaptureError;
pub use fan::BlockLists;
pub use feed::{Feed, Filter, Sampling};
pub use session::{Opener, Outcome, Remote, Session};
pub use source::{Change, Direction, Home, Info, Kind, Pumped, Setup, Source};
