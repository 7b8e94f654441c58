//! Access to a libvirt domain with virsh, libvirt's client.

use anyhow::{Result, bail};
use weir_vm::limits::VIRSH_COMMAND_TIME_MAX;
use weir_vm::{Domain, VmError};

/// A domain, and the URI of its libvirt.
pub struct Virsh {
    /// The libvirt URI.
    pub uri: String,
    /// The domain's name.
    pub domain: String,
}

/// State of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// The domain has a QEMU process, paused or not.
    On,
    /// The domain has no QEMU process.
    Off,
}

impl DomainState {
    /// Returns whether the domain has a QEMU process.
    pub fn is_on(self) -> bool {
        self == DomainState::On
    }
}

impl Virsh {
    /// Runs a virsh command, and returns its output.
    ///
    /// # Errors
    /// virsh is not installed, does not end in time, or fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let domain = Domain::new(Some(&self.uri), &self.domain);
        let result = match domain.run("virsh", arguments, VIRSH_COMMAND_TIME_MAX) {
            Err(VmError::TimeOut { limit_ms, .. }) => bail!(
                "virsh {}: it has not ended within {} s; is libvirtd stopped?",
                arguments[0],
                limit_ms / 1000
            ),
            result => result?,
        };
        if !result.is_success {
            let said = result.errors.trim().lines();
            let said = said.map(|line| line.trim_start_matches("error: "));
            bail!("virsh {}: {}", arguments[0], said.collect::<Vec<_>>().join("; "));
        }
        Ok(result.output.trim().to_owned())
    }

    /// Returns the domain's XML with passwords: of the running domain, or of its next start.
    ///
    /// # Errors
    /// As [`run`](Virsh::run).
    pub fn xml(&self, is_running: bool) -> Result<String> {
        let which: &[&str] = if is_running { &[] } else { &["--inactive"] };
        self.run(&[&["dumpxml", "--security-info", &self.domain], which].concat())
    }

    /// Returns the domain's state.
    ///
    /// # Errors
    /// As [`run`](Virsh::run). It is also an error if there is no such domain.
    pub fn state(&self) -> Result<DomainState> {
        Ok(match &*self.run(&["domstate", &self.domain])? {
            "shut off" | "crashed" => DomainState::Off,
            _ => DomainState::On,
        })
    }
}
