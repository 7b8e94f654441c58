//! Abilities of Weir on this machine: facts, their meaning for capture, a plan, and its settings.
//!
//! [`facts`] are collected by [`machine`] and [`nic`], judged by [`judge`] and turned into a [`plan`];
//! judgement sees nothing but facts, so it is tested on recorded ones. [`settings`] are carried out and
//! taken back by [`apply`], which writes down what was.

pub mod apply;
pub mod facts;
pub mod judge;
pub mod machine;
pub mod nic;
pub mod plan;
pub mod record;
pub mod settings;
