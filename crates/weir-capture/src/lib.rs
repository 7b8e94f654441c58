//! Capture engines behind one [`Source`] trait: how a frame comes into a ring.
//!
//! | engine | module | frames come from |
//! |---|---|---|
//! | `bpf` | [`bpf`] | TC or XDP programs that write the ring in the kernel |
//! | `af_packet` | [`af_packet`] | a TPACKET_V3 socket |
//! | `replay` | [`replay`] | a pcap or pcapng file |
//! | `gen` | [`memgen`] | memory: made up, for everything behind the NIC |
//!
//! [`auto`] chooses between the live ones and says why; [`session`] runs sources on threads.

pub mod af_packet;
pub mod auto;
pub mod bpf;
pub mod error;
mod grace;
pub mod iface;
pub mod memgen;
pub mod pace;
pub mod replay;
pub mod session;
pub mod source;

pub use error::CaptureError;
pub use session::{Opener, Outcome, Session};
pub use source::{Direction, Info, Pumped, Setup, Source};
