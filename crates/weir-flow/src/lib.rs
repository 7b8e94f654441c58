//! Flows: frames counted by 5-tuple, in memory that does not grow.
//!
//! A [`FlowTable`] takes the frames of one ring and gives a [`FlowRecord`] for each flow that has ended. It does no
//! I/O, keeps no thread and looks at no clock: time is that of the frames, and of [`FlowTable::advance`] on a quiet
//! link. Several rings have a table each; [`merge`] makes one record of those of one flow.
//!
//! Every frame is in one record or in [`Counters::not_flows`], by name: of a finished table, the packets of all records
//! and those frames together are [`Counters::frames`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`table`] | the hash table, and what of it others see |
//! | [`config`] | how frames become flows |
//! | [`record`] | a flow that has ended; records of several rings made one |
//! | [`counters`] | frames, evictions, fragments, clock steps |
//! | [`mod@community_id`] | the text by which tools agree on a flow |
//! | [`limits`] | how many flows, how long |
//! | `fast` | the headers of most frames, without a walk |
//! | `key` | the key of a frame as words |
//! | `slots` | the memory of a table: lines of tags and ages, counts |
//! | `ticks` | time as frames tell it, and steps of their clocks |
//! | `fragments` | ports of packets whose fragments come |
//! | `keyed_hash` | the keyed hash that selects the lines of a key |
//! | `lines` | memory in cache lines; the only unsafe code |
#![deny(unsafe_code)]

pub mod community_id;
pub mod config;
pub mod counters;
mod fast;
mod fragments;
mod key;
mod keyed_hash;
pub mod limits;
mod lines;
pub mod record;
mod slots;
pub mod table;
#[cfg(test)]
mod table_tests;
mod ticks;

pub use community_id::community_id;
pub use config::{FlowConfig, FlowError, Octets};
pub use counters::{Counters, NotFlows};
pub use lines::NoMemory;
pub use record::{EndReason, FlowRecord, Totals, merge};
pub use table::{FlowTable, LinkLayer, Seen};
