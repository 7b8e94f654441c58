//! A virtual machine in the daemon's file.

use std::path::PathBuf;

use serde::Deserialize;
use weir_vm::Pages;

/// A virtual machine that may have feeds, and how it is reached: by the sockets `port` (or `vsock`) and `qmp`, or as a
/// domain of libvirt's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// The socket of its port: QEMU's `-chardev socket,path=PORT,server=on,wait=off`.
    pub port: Option<PathBuf>,
    /// Instead of a port: the `uds-path` of the guest's `vhost-device-vsock`.
    pub vsock: Option<PathBuf>,
    /// The socket of its monitor: QEMU's `-qmp unix:QMP,server=on,wait=off`.
    pub qmp: Option<PathBuf>,
    /// Its name, UUID or number in libvirt, which knows its port and its monitor.
    pub libvirt: Option<String>,
    /// Which libvirt; the system's (`qemu:///system`), if nothing is said.
    pub libvirt_uri: Option<String>,
    /// MiB of the memory that it shares: a power of two, which holds the rings of all of its feeds.
    #[serde(default = "region_mib")]
    pub region_mib: u64,
    /// That memory is of huge pages that are reserved (`vm.nr_hugepages`).
    #[serde(default)]
    pub hugepages: bool,
}

/// MiB of a guest's region: the rings of three feeds of the usual size.
fn region_mib() -> u64 {
    256
}

impl GuestConfig {
    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.port.is_some() && self.vsock.is_some() {
            return Err("it has both a port and a vsock; leave out one".into());
        }
        match (self.port.as_ref().or(self.vsock.as_ref()), &self.qmp, &self.libvirt) {
            (Some(_), Some(_), None) if self.libvirt_uri.is_some() => {
                Err("libvirt_uri goes with libvirt = \"DOMAIN\"".into())
            }
            (Some(_), Some(_), None) => Ok(()),
            (None, None, Some(domain)) => {
                let is_name = |text: &str| {
                    !text.is_empty()
                        && !text.starts_with('-')
                        && !text.chars().any(char::is_control)
                };
                let uri = self.libvirt_uri.as_deref().unwrap_or(weir_vm::libvirt::SYSTEM_URI);
                if is_name(domain) && is_name(uri) {
                    Ok(())
                } else {
                    Err("libvirt and libvirt_uri are names without control characters, and no '-' in front".into())
                }
            }
            _ => {
                Err("say how it is reached: port (or vsock) and qmp, the sockets of its QEMU, or \
                      libvirt = \"DOMAIN\""
                    .into())
            }
        }
    }

    /// Pages of its memory.
    pub(crate) fn pages(&self) -> Pages {
        if self.hugepages { Pages::Reserved } else { Pages::Now }
    }
}
