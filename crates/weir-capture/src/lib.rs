//! Capture engines behind one [`Source`] trait: how a frame comes into a ring.
//!
//! [`source`] defines the trait. [`engines`] has a folder for each engine, and `auto`, which selects one of
//! the live engines and says why. With [`PlainEngine`], any crate can define an engine in a few lines. A
//! subscriber's selection of frames is a [`Feed`] ([`feed`]: filters, fan-out in user space, block lists,
//! updates). [`kernel`] is the access to the kernel: interfaces, namespaces, memory limits.

pub mod engines;
pub mod error;
pub mod feed;
mod in_parallel;
pub mod kernel;
pub mod limits;
pub mod memory;
mod own_thread;
mod plain_engine;
pub mod rights;
pub mod setup;
pub mod source;

pub use engines::{af_packet, af_xdp, auto, bpf, generator, netns, pcap, replay};
pub use error::CaptureError;
pub use feed::change::Change;
pub use feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
pub use feed::direction::Direction;
pub use feed::interfaces::InterfaceLedger;
pub use feed::location::FilterLocation;
pub use feed::{Feed, Filter, Sampling, pace};
pub use kernel::{interface, memory_limit};
pub use own_thread::in_own_thread;
pub use plain_engine::{FrameInput, PlainEngine};
pub use setup::Setup;
pub use source::{Info, Pumped, Source, SourceEvent};
