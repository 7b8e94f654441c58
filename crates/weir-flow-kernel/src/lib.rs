//! Flows counted in the kernel: no frame comes to user space.
//!
//! A BPF program at XDP or TC counts each frame of an interface in a table of the CPU that handles it, in memory that
//! this process maps. [`KernelTable`] reads it there: flows that have ended as records, others whenever it is asked.
//! A [`weir_flow::FlowTable`] does the same with frames that were captured, and gives the same records.
//!
//! Every frame is in one record, in [`NotFlows`](weir_flow::NotFlows) or in [`KernelCounters::lost_packets`]: of a
//! table that was [finished](KernelTable::finish), these together are
//! [`Counters::frames`](weir_flow::Counters::frames).
//!
//! | module | what it holds |
//! |---|---|
//! | [`table`] | the table, as its user sees it |
//! | [`config`] | settings: which frames are counted, and where |
//! | [`counters`] | frames, flows, losses |
//! | [`error`] | why there is no table |
//! | [`limits`] | how many flows, records, interfaces |
//! | `programs` | the object of bpf/flow_table.bpf.c: loaded for each interface and attached |
//! | `layout` | the memory that programs write; slots read whole |
//! | `mapped` | maps as words; the only unsafe code |
//! | `records` | flows that the programs have ended |
//! | `reported` | flows that were reported while they are still in the table |
//! | `ticks` | time-outs as the programs take them |
//! | `clock` | the programs' clock |
#![deny(unsafe_code)]

mod clock;
pub mod config;
pub mod counters;
#[cfg(test)]
mod differential_tests;
pub mod error;
mod layout;
pub mod limits;
mod mapped;
mod programs;
mod records;
mod reported;
pub mod table;
mod ticks;

pub use clock::now_ns;
pub use config::{Hook, KernelConfig};
pub use counters::KernelCounters;
pub use error::KernelFlowError;
pub use table::KernelTable;
