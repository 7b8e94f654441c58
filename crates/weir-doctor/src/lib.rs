//! Finds out how well Weir can capture on this machine: facts, their meaning for capture, a plan, and its settings.
//!
//! [`machine`] and [`nic`] collect [`facts`], [`judge`] judges them, and [`plan`] makes a plan of them. The latter two
//! use nothing but facts, so they are tested with recorded facts. [`apply`] changes and restores [`settings`], and
//! records the former values.

pub mod apply;
pub mod facts;
pub mod judge;
pub mod machine;
pub mod nic;
pub mod plan;
pub mod record;
pub mod settings;
