//! The probe: sources, feeds and consumers of one process, each of which comes and goes while the others run.
//!
//! | module | what it does |
//! |---|---|
//! | [`core`] | decides: commands and completions in, effects out; no thread, no clock, no file |
//! | [`cpus`] | where the threads of a source run |
#![forbid(unsafe_code)]

pub mod core;
pub mod cpus;

pub use cpus::CpuList;
