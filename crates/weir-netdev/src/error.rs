//! Errors of making the interface, and of feeding frames into it.

use std::io;

use thiserror::Error;

use crate::name::NetdevName;

/// An error of an interface. Its text names the subject, the cause and a remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetdevError {
    /// /dev/net/tun cannot be opened.
    #[error(
        "{name}: no tap interface can be made, because /dev/net/tun cannot be opened; load the kernel's module `tun`, \
         or give the container the device: --device /dev/net/tun"
    )]
    NoDevice {
        /// The interface.
        name: NetdevName,
        /// The kernel's error.
        source: io::Error,
    },
    /// An interface of this name exists.
    #[error(
        "{name}: an interface of this name exists, and is left alone; choose another --netdev, or remove that one (`ip \
         link del {name}`)"
    )]
    Exists {
        /// The interface.
        name: NetdevName,
    },
    /// This process lacks privileges.
    #[error(
        "{name}: {what} needs {needs}; run as root, or give the container these: --cap-add NET_ADMIN --cap-add BPF \
         (SYS_ADMIN where Docker does not know BPF)"
    )]
    NoRights {
        /// The interface.
        name: NetdevName,
        /// The action that failed.
        what: &'static str,
        /// Capabilities that the action needs.
        needs: &'static str,
    },
    /// The kernel refused a program.
    #[error("{name}: the kernel refused {what}; `weir attach` needs Linux 6.1 or later")]
    Bpf {
        /// The interface.
        name: NetdevName,
        /// The action that failed.
        what: &'static str,
        /// The error of libbpf or the kernel.
        source: libbpf_rs::Error,
    },
    /// Another program removed the interface.
    #[error("{name} was removed while frames were fed into it; `weir attach` makes it anew")]
    Gone {
        /// The interface.
        name: NetdevName,
    },
    /// A system call failed.
    #[error("{name}: {what}")]
    Os {
        /// The interface.
        name: NetdevName,
        /// The action that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
