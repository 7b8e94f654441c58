//! A domain of libvirt's, by its own client, virsh, which weir-vm runs.

use anyhow::{Result, bail};
use weir_vm::limits::VIRSH_COMMAND_TIME_MAX;
use weir_vm::{Domain, VmError};

/// A domain, and the libvirt that has it.
pub struct Virsh {
    /// libvirt's address.
    pub uri: String,
    /// The domain's name.
    pub domain: String,
}

/// State of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// It has a QEMU, paused or not.
    On,
    /// It has none.
    Off,
}

impl DomainState {
    /// Whether it has a QEMU.
    pub fn is_on(self) -> bool {
        self == DomainState::On
    }
}

impl Virsh {
    /// Output of a command.
    ///
    /// # Errors
    /// There is no virsh, it does not end in time, or its own error.
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

    /// Its XML, with passwords: as it runs, or as it will be when it is started next.
    ///
    /// # Errors
    /// As [`run`](Virsh::run).
    pub fn xml(&self, is_running: bool) -> Result<String> {
        let which: &[&str] = if is_running { &[] } else { &["--inactive"] };
        self.run(&[&["dumpxml", "--security-info", &self.domain], which].concat())
    }

    /// Its state.
    ///
    /// # Errors
    /// As [`run`](Virsh::run); there is no such domain.
    pub fn state(&self) -> Result<DomainState> {
        Ok(match &*self.run(&["domstate", &self.domain])? {
            "shut off" | "crashed" => DomainState::Off,
            _ => DomainState::On,
        })
    }
}
