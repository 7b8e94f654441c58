//! The command line of `weir vm`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weir_region::limits::{REGION_BYTES_MAX, REGION_BYTES_MIN, REGION_MIB_DEFAULT};
use weir_serve::config::check_guest_name;
use weir_vm::libvirt::SYSTEM_URI;

use crate::units;

/// `weir vm`.
#[derive(Args, Debug)]
pub struct VmArgs {
    /// The command.
    #[command(subcommand)]
    pub command: VmCommand,
}

/// The verbs of `weir vm`.
#[derive(Subcommand, Debug)]
pub enum VmCommand {
    /// Print what a virtual machine and the daemon's file need, or change a libvirt domain (--libvirt --apply)
    Prepare(PrepareArgs),
    /// Find what prevents a guest from reading feeds, with a remedy for each; exit 1 if something does
    Check(CheckArgs),
    /// List the guests of the daemon's file: state, feeds, memory
    List(ListArgs),
    /// Close a guest's feeds and unplug its devices, before a migration or a snapshot, until it is attached again
    Detach(DetachGuestArgs),
    /// Let a guest that was detached open feeds again
    Attach(AttachGuestArgs),
}

/// A machine type of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MachineName {
    /// i440FX: devices are plugged into its root bus.
    Pc,
    /// Devices are plugged into PCIe root ports.
    Q35,
}

impl MachineName {
    /// Returns the name of the machine type for QEMU's `-machine`.
    pub fn qemu_name(self) -> &'static str {
        match self {
            MachineName::Pc => "pc",
            MachineName::Q35 => "q35",
        }
    }
}

/// `weir vm prepare`.
#[derive(Args, Debug)]
pub struct PrepareArgs {
    /// The guest's name in the daemon's file; with --libvirt also that of the domain, unless --domain says another
    #[arg(value_name = "NAME", value_parser = guest_name)]
    pub name: String,
    /// It is a domain of libvirt
    #[arg(long)]
    pub libvirt: bool,
    /// The name of the domain [default: NAME]
    #[arg(long, value_name = "DOMAIN", requires = "libvirt")]
    pub domain: Option<String>,
    /// libvirt's address
    #[arg(long, value_name = "URI", default_value = SYSTEM_URI, requires = "libvirt")]
    pub uri: String,
    /// The machine's type; with --libvirt it is that of the domain
    #[arg(long, value_name = "TYPE", default_value = "q35", conflicts_with = "libvirt")]
    pub machine: MachineName,
    /// Reach the guest by a vsock, which vhost-device-vsock carries, instead of a virtio-serial port
    #[arg(long, conflicts_with = "libvirt")]
    pub vsock: bool,
    /// MiB of the memory that it shares with the daemon, for the rings of all of its feeds; a power of two
    #[arg(long, value_name = "N", default_value_t = REGION_MIB_DEFAULT, value_parser = region_mib)]
    pub region_mib: u64,
    /// Change the domain: show the difference, define it, and plug the channel into a domain that runs
    #[arg(long, requires = "libvirt")]
    pub apply: bool,
}

/// `weir vm check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The guest's name in the daemon's file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The daemon's file
    #[arg(long, value_name = "PATH", default_value = "/etc/weir/weir.toml")]
    pub config: PathBuf,
    /// Answer with one JSON object: guest, ok, findings; the exit code is the same
    #[arg(long)]
    pub json: bool,
}

/// `weir vm list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Answer with one JSON object; a failure is plain text on stderr, and exit 2
    #[arg(long)]
    pub json: bool,
}

/// `weir vm detach`.
#[derive(Args, Debug)]
pub struct DetachGuestArgs {
    /// The guest's name in the daemon's file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How long to wait for the guest to release its devices. Detaching goes on after that: see `weir vm list`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub within: Duration,
}

/// `weir vm attach`.
#[derive(Args, Debug)]
pub struct AttachGuestArgs {
    /// The guest's name in the daemon's file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

fn guest_name(text: &str) -> Result<String, String> {
    check_guest_name(text).map(|()| text.to_owned())
}

fn region_mib(text: &str) -> Result<u64, String> {
    let (min, max) = (REGION_BYTES_MIN >> 20, REGION_BYTES_MAX >> 20);
    match text.parse() {
        Ok(mib) if u64::is_power_of_two(mib) && (min..=max).contains(&mib) => Ok(mib),
        _ => Err(format!("use a power of two from {min} to {max}")),
    }
}
