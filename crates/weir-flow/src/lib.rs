//! Flows: frames counted by 5-tuple, in memory that does not grow.
//!
//! A [`FlowTable`] takes the frames of one ring and gives a [`FlowRecord`] for each flow that has ended. It does no
//! I/O, starts no thread and reads no clock: its time comes from the frames, and from [`FlowTable::advance`] on a
//! quiet link. Several rings have a table each; [`merge`] joins the records of one flow from several tables.
//!
//! Every frame is counted in one record or in [`Counters::not_flows`], by reason: once a table is finished, the
//! packets of all records and those frames together are [`Counters::frames`].
//!
//! | module | contents |
//! |---|---|
//! | [`table`] | the hash table and its public interface |
//! | [`config`] | how frames are grouped into flows |
//! | [`record`] | a flow that has ended; merging the records of several rings |
//! | [`counters`] | frames, evictions, fragments, clock steps |
//! | [`mod@community_id`] | a text that identifies a flow in the same way in all tools |
//! | [`limits`] | limits of the number of flows and of times |
//! | `fast` | a fast parser of the headers of most frames |
//! | `key` | the key of a frame as words |
//! | `slots` | the memory of a table: lines of tags and ages, and counts |
//! | `ticks` | time according to the frames, and steps of their clocks |
//! | `fragments` | ports of fragmented packets |
//! | `keyed_hash` | the keyed hash that selects the lines of a key |
//! | `lines` | memory aligned to cache lines; the only unsafe code |
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
