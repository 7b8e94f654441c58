//! Flows counted in the kernel, so that no frame comes to user space.
//!
//! A BPF program at XDP or TC counts each frame of an interface in a table of the CPU that handles the frame, in
//! memory that this process maps. [`KernelTable`] reads this memory and gives a record for each flow that has ended,
//! and for the other flows on request. A [`weir_flow::FlowTable`] does the same with captured frames, and gives the
//! same records.
//!
//! Every frame is in one record, in [`NotFlows`](weir_flow::NotFlows) or in [`KernelCounters::lost_packets`]. Once a
//! table was [finished](KernelTable::finish), these together are [`Counters::frames`](weir_flow::Counters::frames).
//!
//! | module | contents |
//! |---|---|
//! | [`table`] | the public interface of the table |
//! | [`config`] | settings: which frames are counted, and at which hook |
//! | [`counters`] | counters of frames, flows and losses |
//! | [`error`] | errors of opening and reading a table |
//! | [`limits`] | limits of flows, records and interfaces |
//! | `programs` | the object of bpf/flow_table.bpf.c: loaded for each interface and attached |
//! | `layout` | the memory that programs write, and consistent reads of its slots |
//! | `mapped` | BPF maps mapped as words; the only unsafe code |
//! | `records` | flows that the programs have ended |
//! | `reported` | flows that were reported while they are still in the table |
//! | `ticks` | time-outs in the units of the programs |
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
