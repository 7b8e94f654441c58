//! libvirt's own client, as a child: its C library cannot be part of a static program.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A domain, and the libvirt that has it.
pub struct Virsh {
    /// libvirt's address.
    pub uri: String,
    /// The domain's name.
    pub domain: String,
}

/// What a domain does.
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
    /// What a command prints.
    ///
    /// # Errors
    /// There is no virsh, or what it says.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("virsh");
        command.args(["--quiet", "--connect", &self.uri]).args(arguments).stdin(Stdio::null());
        // Its words are looked at.
        let output = command.env("LC_ALL", "C").output().context(
            "virsh, libvirt's client, cannot be started; on Debian it is in the package libvirt-clients",
        )?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !output.status.success() {
            let said = text(&output.stderr);
            let said = said.lines().map(|line| line.trim_start_matches("error: "));
            bail!("virsh {}: {}", arguments[0], said.collect::<Vec<_>>().join("; "));
        }
        Ok(text(&output.stdout))
    }

    /// Its XML, with passwords: as it runs, or as it will be when it is started next.
    ///
    /// # Errors
    /// As [`run`](Virsh::run).
    pub fn xml(&self, is_running: bool) -> Result<String> {
        let which: &[&str] = if is_running { &[] } else { &["--inactive"] };
        self.run(&[&["dumpxml", "--security-info", &self.domain], which].concat())
    }

    /// What it does.
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
