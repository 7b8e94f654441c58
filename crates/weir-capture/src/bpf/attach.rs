//! Programs put on an interface and taken off again.
//!
//! Links (tcx, XDP) belong to a descriptor: whatever ends this process ends them. Only clsact filters,
//! for kernels before 6.6, can outlive it; see [`super::clsact`].

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::clsact::{self, Filter};
use super::program::Programs;
use super::xdp;
use super::{BpfOptions, Hook, TcAttach};
use crate::error::CaptureError;
use crate::iface::Interface;
use crate::source::Direction;
use std::os::fd::AsFd;

/// One program on one hook, until dropped.
pub(super) enum Attachment {
    Link { _fd: OwnedFd },
    Filter { _filter: Filter },
}

/// Puts the programs on the interface.
pub(super) fn attach(
    interface: &Interface,
    programs: &Programs,
    options: &BpfOptions,
    direction: Direction,
) -> Result<Vec<Attachment>, CaptureError> {
    if let Some(program) = programs.xdp.as_ref().or(programs.tc_in.as_ref()) {
        clsact::sweep(program.as_fd());
    }
    if let (Hook::Xdp, Some(xdp)) = (options.hook, &programs.xdp) {
        let link = link(xdp.as_fd(), interface.index, libbpf_sys::BPF_XDP, 0);
        let link = link.map_err(|source| xdp::attach_error(interface, source))?;
        return Ok(vec![Attachment::Link { _fd: link }]);
    }
    let wanted = [
        (direction.takes_in(), &programs.tc_in, clsact::Side::Ingress),
        (direction.takes_out(), &programs.tc_out, clsact::Side::Egress),
    ];
    let mut attachments = Vec::new();
    for (wanted, program, side) in wanted {
        if let (true, Some(program)) = (wanted, program) {
            attachments.push(attach_tc(interface, program.as_fd(), side, options.tc_attach)?);
        }
    }
    Ok(attachments)
}

fn attach_tc(
    interface: &Interface,
    program: BorrowedFd<'_>,
    side: clsact::Side,
    how: TcAttach,
) -> Result<Attachment, CaptureError> {
    if how == TcAttach::Best {
        // First of all programs, so that frames that a later one drops or redirects are seen too.
        match link(program, interface.index, side.tcx(), libbpf_sys::BPF_F_BEFORE) {
            Ok(fd) => return Ok(Attachment::Link { _fd: fd }),
            // No tcx before Linux 6.6.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(source) => {
                let doing = format!("attaching to TC {side} of {}", interface.name);
                return Err(CaptureError::Os { doing, source });
            }
        }
    }
    Ok(Attachment::Filter { _filter: Filter::attach(interface, program, side)? })
}

fn link(
    program: BorrowedFd<'_>,
    ifindex: u32,
    kind: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags,
        ..Default::default()
    };
    // SAFETY: `options` is whole and lives through the call; the program descriptor is borrowed.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &raw const options)
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel just gave us this link's descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
