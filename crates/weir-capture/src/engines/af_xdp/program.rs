//! The program that redirects frames to the sockets, loaded for one interface.

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/af_xdp.skel.rs"));
}

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use skel::{AfXdpSkelBuilder, OpenAfXdpSkel};
use weir_filter::ebpf::Target;

use crate::engines::bpf::memory::refused;
use crate::engines::bpf::{attach, xdp};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::filters::{Prefilter, Sieve, Template, prepare};
use crate::feed::location::FilterLocation;
use crate::kernel::interface::Interface;

/// Descriptors of the program's maps.
pub(super) struct Program {
    pub(super) control: MapHandle,
    sockets: MapHandle,
    /// Whether the program asks the driver for VLAN tags.
    pub(super) sees_tags: bool,
}

enum Xdp {
    Plain(OwnedFd),
    /// A program that can be replaced: feeds have filters, or may get filters.
    Sieve(Sieve),
}

/// Settings with which a program is loaded.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    /// Number of queues that may have sockets.
    pub(super) queues: u32,
    /// Number of possible CPUs.
    pub(super) cpus: u32,
    /// Whether the program writes metadata words in front of frames.
    pub(super) with_words: bool,
    /// Whether feeds have filters, or may get filters.
    pub(super) has_filters: bool,
}

impl Program {
    /// Loads the program. Binds it to the device if the device may report VLAN tags.
    pub(super) fn load(
        interface: &Interface,
        needs: Needs,
    ) -> Result<(Program, OnInterface), CaptureError> {
        // As in the engine `bpf`: the kernel often refuses the bound program, and the plain program is loaded instead.
        if needs.with_words
            && xdp::metadata_possible(interface)
            && let Ok(program) = load(interface, needs, true)
        {
            return Ok(program);
        }
        load(interface, needs, false)
    }

    /// Redirects the frames of `queue` to `socket`, which is bound.
    pub(super) fn steer(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), CaptureError> {
        let value = socket.as_raw_fd().to_ne_bytes();
        self.sockets
            .update(&queue.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(refused("the map of AF_XDP sockets"))
    }
}

/// A program for an interface, and its link while it is attached.
pub(super) struct OnInterface {
    interface: Interface,
    xdp: Xdp,
    link: Option<OwnedFd>,
}

impl OnInterface {
    /// Attaches the program: frames come from now on.
    pub(super) fn attach(&mut self) -> Result<(), CaptureError> {
        let program = match &self.xdp {
            Xdp::Plain(program) => program.as_fd(),
            Xdp::Sieve(sieve) => sieve.program(),
        };
        let link = attach::link(program, self.interface.index, libbpf_sys::BPF_XDP, 0);
        self.link = Some(link.map_err(|source| xdp::attach_error(&self.interface, source))?);
        Ok(())
    }

    /// Detaches the program: no more frames come.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }
}

impl Prefilter for OnInterface {
    fn choose(&mut self, feeds: &[Feed]) -> Result<Option<FilterLocation>, CaptureError> {
        let link = self.link.as_ref();
        let put = |program: BorrowedFd<'_>| match link {
            Some(link) => attach::update(link.as_fd(), program),
            None => Ok(()),
        };
        let Xdp::Sieve(sieve) = &mut self.xdp else { return Ok(None) };
        let is_all = sieve.choose(feeds, put);
        let is_all = is_all.map_err(|source| xdp::attach_error(&self.interface, source))?;
        Ok(is_all.then_some(FilterLocation::Hook))
    }
}

/// The program as the prefilter of a fan-out. The source and the threads that change feeds share it.
pub(super) struct AtHook(pub(super) Arc<Mutex<OnInterface>>);

impl Prefilter for AtHook {
    fn choose(&mut self, feeds: &[Feed]) -> Result<Option<FilterLocation>, CaptureError> {
        lock(&self.0).choose(feeds)
    }
}

/// Locks the program. Ignores poisoning: the data is valid even if a thread panicked, because its parts are replaced
/// one at a time.
pub(super) fn lock(at_hook: &Mutex<OnInterface>) -> MutexGuard<'_, OnInterface> {
    at_hook.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if the kernel can redirect frames in several parts to a socket, which it can since Linux 6.6. Before,
/// this was impossible even if the frame fitted into one chunk of the socket.
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
    needs: Needs,
    tags: bool,
) -> Result<(Program, OnInterface), CaptureError> {
    let refuse = refused("the AF_XDP steering program");
    let mut object = MaybeUninit::uninit();
    let mut open = AfXdpSkelBuilder::default().open(&mut object).map_err(refuse)?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    rodata.with_words = u32::from(needs.with_words);
    rodata.takes_parts = u32::from(takes_parts());
    rodata.with_filters = u32::from(needs.has_filters);
    open.maps.sockets.set_max_entries(needs.queues).map_err(refuse)?;
    open.maps.control.set_max_entries(1 + needs.cpus).map_err(refuse)?;
    open.progs.weir_xsk.set_autoload(!tags);
    open.progs.weir_xsk_tags.set_autoload(tags);
    // Programs with filters, and programs that are bound to a device, are loaded by this crate: libbpf cannot reserve
    // the space in which bound programs grow (decision 0020).
    let by_us = tags || needs.has_filters;
    let template = match by_us {
        true => Some(template(&mut open, tags.then_some(interface.index)).map_err(refuse)?),
        false => None,
    };
    let skel = open.load().map_err(refuse)?;
    let plain = match &template {
        Some(template) => template.plain(),
        None => skel.progs.weir_xsk.as_fd().try_clone_to_owned(),
    };
    let plain = plain.map_err(|error| refuse(error.into()))?;
    let xdp = match template.filter(|_| needs.has_filters) {
        Some(template) => Xdp::Sieve(Sieve::new(template, plain)),
        None => Xdp::Plain(plain),
    };
    let program = Program {
        control: MapHandle::try_from(&skel.maps.control).map_err(refuse)?,
        sockets: MapHandle::try_from(&skel.maps.sockets).map_err(refuse)?,
        sees_tags: tags,
    };
    Ok((program, OnInterface { interface: interface.clone(), xdp, link: None }))
}

/// Takes the program out of the object, as a template, so that libbpf does not load it.
fn template(
    open: &mut OpenAfXdpSkel<'_>,
    device: Option<u32>,
) -> Result<Template, libbpf_rs::Error> {
    prepare(open.open_object())?;
    let (program, target) = match device {
        Some(_) => (&open.progs.weir_xsk_tags, Target::XdpTag),
        None => (&open.progs.weir_xsk, Target::Xdp),
    };
    let template = Template::take(open.open_object(), program, target, c"weir_judge_xsk", device)?;
    open.progs.weir_xsk.set_autoload(false);
    open.progs.weir_xsk_tags.set_autoload(false);
    Ok(template)
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
