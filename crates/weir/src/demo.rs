//! `weir demo`: the main job, shown on traffic that stays on this machine.

use anyhow::{Result, bail};

use crate::cli::DemoArgs;

/// Runs the command.
pub fn run(_args: &DemoArgs) -> Result<u8> {
    bail!("not yet")
}
