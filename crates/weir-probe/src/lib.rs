//! The probe: sources, feeds and consumers of one process, each of which comes and goes while the others run.
//!
//! | module | what it does |
//! |---|---|
//! | [`core`] | decides: commands and completions in, effects out; no thread, no clock, no file |
//! | [`runtime`] | carries out: a thread a source, rings, wakers, interfaces that are watched |
//! | [`block_lists`] | what subscriptions block, and takes out what ends |
//! | [`timed_list`] | one such list, with its ends; no clock |
//! | [`limits`] | how much a consumer that stands still may hold |
//! | [`cpus`] | where the threads of a source run |
//!
//! [`Probe`] is the handle; its commands come from any thread.
#![forbid(unsafe_code)]

pub mod block_lists;
pub mod core;
pub mod cpus;
pub mod error;
pub mod limits;
pub mod runtime;
pub mod timed_list;
mod wants;

pub use block_lists::BlockLists;
pub use core::{ConsumerId, FeedId, SourceId, SubscriptionId};
pub use cpus::CpuList;
pub use error::ProbeError;
pub use runtime::{
    Consumer, Joined, LinkName, Opener, Probe, ProbeEvent, RemoteConsumer, SourceSpec, Update,
};
pub use timed_list::ListChange;
pub use wants::Wants;
