//! The program that steers frames into the sockets, loaded for one interface.

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/xsk.skel.rs"));
}

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use skel::XskSkelBuilder;

use crate::bpf::memory::refused;
use crate::bpf::xdp;
use crate::error::CaptureError;
use crate::iface::Interface;

/// Descriptors that keep it all alive in the kernel.
pub(super) struct Program {
    pub(super) xdp: OwnedFd,
    pub(super) control: MapHandle,
    sockets: MapHandle,
    /// It asks the driver for VLAN tags.
    pub(super) sees_tags: bool,
}

impl Program {
    /// Loads it for queues up to `queues`; bound to the device if that can tell VLAN tags.
    pub(super) fn load(
        interface: &Interface,
        queues: u32,
        cpus: u32,
        with_words: bool,
    ) -> Result<Program, CaptureError> {
        // As in the bpf engine: a refusal is likely here, and the plain program answers them all.
        if with_words
            && xdp::metadata_possible(interface)
            && let Ok(program) = load(interface, queues, cpus, with_words, true)
        {
            return Ok(program);
        }
        load(interface, queues, cpus, with_words, false)
    }

    /// Sends the frames of `queue` to a bound socket.
    pub(super) fn steer(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), CaptureError> {
        let value = socket.as_raw_fd().to_ne_bytes();
        self.sockets
            .update(&queue.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(refused("the map of AF_XDP sockets"))
    }
}

/// Whether frames in several parts can be steered into a socket: since Linux 6.6, even where the socket
/// would have taken them in one chunk.
fn takes_parts() -> bool {
    let kernel = rustix::system::uname();
    is_at_least(&kernel.release().to_string_lossy(), (6, 6))
}

fn is_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= least,
        _ => false,
    }
}

fn load(
    interface: &Interface,
    queues: u32,
    cpus: u32,
    with_words: bool,
    tags: bool,
) -> Result<Program, CaptureError> {
    let refuse = refused("the AF_XDP steering program");
    let mut object = MaybeUninit::uninit();
    let mut open = XskSkelBuilder::default().open(&mut object).map_err(refuse)?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    rodata.with_words = u32::from(with_words);
    rodata.takes_parts = u32::from(takes_parts());
    open.maps.sockets.set_max_entries(queues).map_err(refuse)?;
    open.maps.control.set_max_entries(1 + cpus).map_err(refuse)?;
    open.progs.weir_xsk.set_autoload(!tags);
    open.progs.weir_xsk_tags.set_autoload(tags);
    if tags {
        open.progs.weir_xsk_tags.set_ifindex(interface.index);
        open.progs.weir_xsk_tags.set_flags(libbpf_sys::BPF_F_XDP_DEV_BOUND_ONLY);
    }
    let skel = open.load().map_err(refuse)?;
    let xdp = if tags { skel.progs.weir_xsk_tags.as_fd() } else { skel.progs.weir_xsk.as_fd() };
    Ok(Program {
        xdp: xdp.try_clone_to_owned().map_err(CaptureError::os("duplicating a program"))?,
        control: MapHandle::try_from(&skel.maps.control).map_err(refuse)?,
        sockets: MapHandle::try_from(&skel.maps.sockets).map_err(refuse)?,
        sees_tags: tags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        for (release, is) in [
            ("6.1.0-41-cloud-amd64", false),
            ("6.5.13", false),
            ("6.6.0", true),
            ("6.18.44-fc-v669", true),
            ("10.0-rc1", true),
            ("strange", false),
        ] {
            assert_eq!(is_at_least(release, (6, 6)), is, "{release}");
        }
    }
}
