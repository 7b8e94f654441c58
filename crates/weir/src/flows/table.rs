//! The table of `weir flows`.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use weir_flow::{FlowConfig, FlowError, FlowTable, Octets};

use crate::cli::FlowMonitorArgs;

/// Default capacity of the flow table, in flows.
const FLOWS: u64 = 1_000_000;

/// A flow table that is made before sources are opened. Allocating it can take tenths of a second. If a daemon's feed
/// were open by then, the frames that come meanwhile would be counted, although the run has not begun.
pub struct TableInAdvance(Mutex<Option<FlowTable>>);

impl TableInAdvance {
    /// Allocates the table.
    ///
    /// # Errors
    /// No memory, or a limit of the table.
    pub fn new(args: &FlowMonitorArgs) -> Result<TableInAdvance> {
        let timeout = |time: Duration| (!time.is_zero()).then_some(time);
        let config = FlowConfig {
            flows_max: args.flows_max.unwrap_or(FLOWS),
            idle_timeout: timeout(args.idle_timeout),
            active_timeout: timeout(args.active_timeout),
            biflow: args.biflow,
            by_vlan: args.vlan,
            octets: Octets::Ip,
            ..FlowConfig::default()
        };
        let table = FlowTable::new(config).map_err(named)?;
        Ok(TableInAdvance(Mutex::new(Some(table))))
    }

    /// Takes the table, which only one consumer can have.
    pub fn take(&self) -> Option<FlowTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for TableInAdvance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableInAdvance").finish_non_exhaustive()
    }
}

/// Converts an error of the flow table, with the names of the flags that caused it.
fn named(error: FlowError) -> anyhow::Error {
    match error {
        FlowError::Flows(_) => anyhow!("--flows-max: {error}"),
        FlowError::Timeout(_) => anyhow!("--idle-timeout, --active-timeout: {error} (0s)"),
        FlowError::NoMemory(_) => anyhow!("--flows-max: {error}"),
    }
}
