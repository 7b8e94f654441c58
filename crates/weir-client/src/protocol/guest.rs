//! Messages about the guests of the daemon's file, for root and the daemon's user.

use serde::{Deserialize, Serialize};

/// A guest: `capture.guests` gives a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Its name in the daemon's file.
    pub name: String,
    /// State of its connection to the daemon.
    pub state: GuestState,
    /// Why it is so, where that is a fault; with what to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The version of its QEMU, while its monitor answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// A broker (`weir guest`) in it has a session.
    pub has_session: bool,
    /// The sources that it may open, by the file that the daemon has in force.
    #[serde(default)]
    pub sources: Vec<String>,
    /// Its open feeds.
    pub feeds: usize,
    /// MiB of its region, whether or not that is plugged in.
    pub region_mib: u64,
    /// MiB of it that rings have.
    pub used_mib: u64,
}

/// State of a guest's connection to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestState {
    /// No machine answers.
    Absent,
    /// A machine is there, and nothing is plugged in.
    Ready,
    /// The devices are plugged in.
    Plugged,
    /// The machine was asked to release its devices, and has not yet.
    Leaving,
    /// Kept without devices by `capture.guest_detach`.
    Detached,
}

/// `capture.guest_detach`: closes the feeds of a guest and unplugs its devices; refused if the guest has not released
/// them in time. It opens no feed until `capture.guest_attach`, or until its machine has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestDetach {
    /// Its name in the daemon's file.
    pub name: String,
    /// Longest wait for the guest to release the devices; default: 10 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
}

/// `capture.guest_attach`: the guest may open feeds again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestAttach {
    /// Its name in the daemon's file.
    pub name: String,
}
