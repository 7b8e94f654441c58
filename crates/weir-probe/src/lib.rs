//! The probe: sources, feeds and consumers of one process, each of which comes and goes while the others run.
//!
//! | module | what it does |
//! |---|---|
//! | [`core`] | decides: commands and completions in, effects out; no thread, no clock, no file |
//! | [`runtime`] | carries out: a thread a source, rings, wakers, interfaces that are watched |
//! | [`limits`] | how much a consumer that stands still may hold |
//! | [`cpus`] | where the threads of a source run |
//!
//! [`Probe`] is the handle; its commands come from any thread.
#![forbid(unsafe_code)]

pub mod core;
pub mod cpus;
pub mod error;
pub mod limits;
pub mod runtime;
mod wants;

pub use core::{ConsumerId, FeedId, SourceId, SubscriptionId};
pub use cpus::CpuList;
pub use error::ProbeError;
pub use runtime::{
    Consumer, Joined, LinkName, Opener, Probe, ProbeEvent, RemoteConsumer, SourceSpec, Update,
};
pub use wants::Wants;
