//! Messages about the guests of the daemon's file, for root and the daemon's user.

use serde::{Deserialize, Serialize};

/// A guest: `capture.guests` returns a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// The guest's name in the daemon's file.
    pub name: String,
    /// State of the guest's connection to the daemon.
    pub state: GuestState,
    /// The reason of the state if it is a fault, with advice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The version of the guest's QEMU, while its monitor answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// A broker (`weir guest`) in the guest has a session.
    pub has_session: bool,
    /// The sources that the guest may open, by the file that is in force.
    #[serde(default)]
    pub sources: Vec<String>,
    /// Number of the guest's open feeds.
    pub feeds: usize,
    /// Size of the guest's region in MiB, whether or not it is plugged in.
    pub region_mib: u64,
    /// MiB of the region that rings use.
    pub used_mib: u64,
}

/// State of a guest's connection to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestState {
    /// No virtual machine answers.
    Absent,
    /// A machine is there, and no devices are plugged in.
    Ready,
    /// The devices are plugged in.
    Plugged,
    /// The machine was asked to release its devices, and has not released them yet.
    Leaving,
    /// `capture.guest_detach` has removed the devices, and prevents new feeds.
    Detached,
}

/// `capture.guest_detach`: closes the feeds of a guest and unplugs its devices. Refused if the guest does not release
/// them in time. The guest cannot open feeds until `capture.guest_attach`, or until its machine has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestDetach {
    /// The guest's name in the daemon's file.
    pub name: String,
    /// Longest wait for the guest to release the devices; default: 10 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
}

/// `capture.guest_attach`: the guest may open feeds again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestAttach {
    /// The guest's name in the daemon's file.
    pub name: String,
}
