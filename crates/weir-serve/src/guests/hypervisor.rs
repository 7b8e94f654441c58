//! Finds the port and the monitor of a guest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_vm::{Domain, Monitor, Qmp, VmError};

use crate::guests::config::GuestConfig;
use crate::limits::{
    GUEST_CONNECT_EVERY, LIBVIRT_LOOK_EVERY, LIBVIRT_STATE_AGAIN_AFTER, LIBVIRT_UNPLUG_LOOK_AFTER,
    QMP_PATIENCE_MAX, UNPLUG_LOOK_AFTER,
};
use crate::private::{self, NotPrivate};

/// The program that runs a guest's machine.
pub(crate) trait Hypervisor: Send + Sync {
    /// Connects to the machine's monitor.
    fn monitor(&self) -> Result<Box<dyn Monitor + Send>, Unreachable>;
    /// Returns the path of the socket of the machine's port.
    fn port(&self) -> Result<PathBuf, Unreachable>;
    /// Returns the interval at which a missing machine is looked for.
    fn look_every(&self) -> Duration;
    /// Returns the pause before the first check whether QEMU has released the memory of a removed device.
    fn unplug_look_after(&self) -> Duration {
        UNPLUG_LOOK_AFTER
    }
    /// Returns times after a connection at which the machine's state is read again, because events may have been
    /// missed.
    fn state_again_after(&self) -> &[Duration] {
        &[]
    }
}

/// The reason why a machine cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error(transparent)]
    Exposed(#[from] NotPrivate),
}

impl Unreachable {
    /// Tells whether the reason is that there is no machine.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Unreachable::Vm(error) if error.is_absence())
    }
}

/// Returns the hypervisor of a guest in the file.
pub(crate) fn of(config: &GuestConfig) -> Box<dyn Hypervisor> {
    match (&config.port, &config.qmp, &config.libvirt) {
        (_, _, Some(domain)) => Box::new(Domain::new(config.libvirt_uri.as_deref(), domain)),
        (port, qmp, None) => Box::new(Sockets {
            port: port.clone().unwrap_or_default(),
            qmp: qmp.clone().unwrap_or_default(),
        }),
    }
}

/// A QEMU that was started without libvirt and has two sockets.
struct Sockets {
    port: PathBuf,
    qmp: PathBuf,
}

impl Sockets {
    /// Checks that no other process can put its own socket at this path. The daemon would take that process for the
    /// guest, and give it the guest's memory.
    fn check(path: &Path) -> Result<(), NotPrivate> {
        private::check_folder_of(path)
    }
}

impl Hypervisor for Sockets {
    fn monitor(&self) -> Result<Box<dyn Monitor + Send>, Unreachable> {
        Sockets::check(&self.qmp)?;
        Ok(Box::new(Qmp::connect(&self.qmp, QMP_PATIENCE_MAX)?))
    }

    fn port(&self) -> Result<PathBuf, Unreachable> {
        Sockets::check(&self.port)?;
        Ok(self.port.clone())
    }

    fn look_every(&self) -> Duration {
        GUEST_CONNECT_EVERY
    }
}

impl Hypervisor for Domain {
    fn monitor(&self) -> Result<Box<dyn Monitor + Send>, Unreachable> {
        Ok(Box::new(self.connect()?))
    }

    fn port(&self) -> Result<PathBuf, Unreachable> {
        Ok(self.channel(weir_plug::port::NAME)?)
    }

    fn look_every(&self) -> Duration {
        LIBVIRT_LOOK_EVERY
    }

    fn unplug_look_after(&self) -> Duration {
        LIBVIRT_UNPLUG_LOOK_AFTER
    }

    fn state_again_after(&self) -> &[Duration] {
        &LIBVIRT_STATE_AGAIN_AFTER
    }
}
