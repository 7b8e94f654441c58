//! The probe: sources, feeds and consumers of one process, which are added and removed while the others run.
//!
//! | module | contents |
//! |---|---|
//! | [`core`] | decisions: a state machine from commands and completions to effects, without threads, clocks and files
//! |
//! | [`runtime`] | carries out effects: a thread for each source, rings, wakers, the watch of interfaces |
//! | [`block_lists`] | the block lists of subscriptions; removes expired entries |
//! | [`timed_list`] | one block list, with the times at which entries expire; no clock |
//! | [`limits`] | how much memory a stalled consumer may hold, and other limits |
//! | [`cpus`] | the CPUs on which the threads of a source run |
//!
//! [`Probe`] is the handle. Any thread may give it commands.
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
