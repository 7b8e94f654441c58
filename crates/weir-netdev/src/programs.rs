//! The programs of the interface: those at TC, that of its tap, and the one by which frames are received.
//!
//! The last one is also attached to the interface at XDP, where it passes every frame that is written into the tap. If
//! a program is not attached anywhere, the kernel puts it into its XDP dispatcher for each run, and then removes it;
//! both wait for an RCU grace period. A run then takes 26 ms, for any number of frames. Kernel:
//! `bpf_prog_test_run_xdp`, `bpf_dispatcher_change_prog`.

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/netdev.skel.rs"));
}

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook};
use skel::NetdevSkelBuilder;

use crate::error::NetdevError;
use crate::staged::{LONGEST, Staged};
use crate::tap::Tap;

/// Runs the program on frames that the kernel then receives. Source: linux/bpf.h.
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// Number of frames that the kernel receives together: its own default, a NAPI budget.
const BATCH: u32 = 64;

/// The programs of the interface. Those at TC are detached when the interface is removed or, if they are attached by
/// links, when this value is dropped. That of the tap is detached when the tap is removed.
pub(crate) struct Programs {
    feed: OwnedFd,
    /// Whether `feed` is attached at XDP, so that its runs begin without waiting for RCU.
    pub(crate) runs: bool,
    _links: Vec<OwnedFd>,
}

impl Programs {
    /// Loads the programs, and attaches those at TC and that of the tap. From then on no frame bypasses them.
    pub(crate) fn put(tap: &Tap) -> Result<(Programs, Staged), NetdevError> {
        let (name, index) = (tap.name(), tap.index);
        let what = "the programs that keep frames to packet sockets";
        // If the verifier refuses a program, the error is EACCES, which has the same kind as EPERM. libbpf-rs does not
        // return the number of the error, but its text contains it.
        let lacks_rights = |error: &libbpf_rs::Error| {
            format!("{error:#}").contains(&format!("(os error {})", libc::EPERM))
        };
        let refused = |source: libbpf_rs::Error| match lacks_rights(&source) {
            true => NetdevError::NoRights {
                name: name.clone(),
                what: "loading the programs that keep frames from the network stack",
                needs: "CAP_BPF and CAP_NET_ADMIN",
            },
            false => NetdevError::Bpf { name: name.clone(), what, source },
        };
        let failed = |source| NetdevError::Os { name: name.clone(), what, source };
        let mut storage = MaybeUninit::uninit();
        let open = NetdevSkelBuilder::default().open(&mut storage).map_err(refused)?;
        let skel = open.load().map_err(refused)?;
        let owned = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(failed);
        let staged = Staged::map(skel.maps.staged.as_fd()).map_err(failed)?;
        let mut links = Vec::new();
        for (program, tcx, point) in [
            (skel.progs.weir_netdev_in.as_fd(), libbpf_sys::BPF_TCX_INGRESS, TC_INGRESS),
            (skel.progs.weir_netdev_out.as_fd(), libbpf_sys::BPF_TCX_EGRESS, TC_EGRESS),
        ] {
            match link(program, index, tcx) {
                Ok(link) => links.push(link),
                // There is no tcx before Linux 6.6. The filter is removed with the interface, which belongs to this
                // process.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    attach_filter(program, index, point).map_err(refused)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        tap.filter(skel.progs.weir_netdev_bypass.as_fd()).map_err(failed)?;
        let feed = skel.progs.weir_netdev_feed.as_fd();
        // If the kernel refuses this, frames are written one by one, which is only slower.
        let parked = link(feed, index, libbpf_sys::BPF_XDP).ok();
        let runs = parked.is_some();
        links.extend(parked);
        Ok((Programs { feed: owned(feed)?, runs, _links: links }, staged))
    }

    /// Makes the interface with this index receive `frames` of the staged frames. The interface must be in the calling
    /// thread's network namespace. `largest`: the result of [`Staged::begin_run`].
    pub(crate) fn run(&self, index: u32, frames: usize, largest: usize) -> io::Result<()> {
        static BLANK: [u8; LONGEST] = [0; LONGEST];
        let context = libbpf_sys::xdp_md {
            data_end: largest as u32,
            ingress_ifindex: index,
            ..Default::default()
        };
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: BLANK[..largest].as_ptr().cast(),
            data_size_in: largest as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: frames as i32,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: BATCH,
            ..Default::default()
        };
        // SAFETY: the descriptor is open. `options` is whole, `sz` says how long; `data_in` and `ctx_in` are readable
        // for the lengths beside them and live through the call; all other pointers are null with length 0, which the
        // kernel takes as "none". Nothing is kept.
        match unsafe { libbpf_sys::bpf_prog_test_run_opts(self.feed.as_raw_fd(), &raw mut options) }
        {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

fn link(
    program: BorrowedFd<'_>,
    index: u32,
    kind: libbpf_sys::bpf_attach_type,
) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is borrowed for the call; null options mean defaults.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), index as i32, kind, std::ptr::null())
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel just gave us this link's descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn attach_filter(
    program: BorrowedFd<'_>,
    index: u32,
    point: TcAttachPoint,
) -> Result<(), libbpf_rs::Error> {
    let mut hook = TcHook::new(program);
    hook.ifindex(index as i32).attach_point(point).handle(1).priority(1);
    hook.create()?;
    hook.attach().map(drop)
}
