//! What is on an interface's hooks and what its driver has, without touching either.

use std::io;

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};

use super::xdp::{self, Mode};

/// The hooks of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Id of the XDP program that is there.
    pub xdp_program: Option<u32>,
    /// Whether the driver has native XDP, and AF_XDP without a copy; `None` before Linux 6.3.
    pub native: Option<(bool, bool)>,
    /// tcx programs at ingress and egress; `None` before Linux 6.6 and without CAP_NET_ADMIN.
    pub tcx: Option<(u32, u32)>,
    /// The programs themselves, the XDP program first, then tcx in the order that frames meet them.
    pub programs: Vec<Attached>,
}

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// XDP, in this mode.
    Xdp(Mode),
    /// tcx, frames that come in.
    TcxIngress,
    /// tcx, frames that go out.
    TcxEgress,
}

/// A program on a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Where.
    pub place: Place,
    /// Its id.
    pub program: u32,
    /// Its name; empty if that takes rights that this process lacks.
    pub name: String,
    /// The link that holds it there, and goes with whoever holds the link.
    pub link: Option<u32>,
}

/// Looks at the interface of this index.
#[must_use]
pub fn hooks(ifindex: u32) -> Hooks {
    let xdp = xdp::query(ifindex);
    let attached = xdp.and_then(|xdp| xdp::attached(&xdp));
    let ingress = tcx(ifindex, Place::TcxIngress, libbpf_sys::BPF_TCX_INGRESS);
    let egress = tcx(ifindex, Place::TcxEgress, libbpf_sys::BPF_TCX_EGRESS);
    let counts = ingress.as_ref().zip(egress.as_ref());
    let tcx = counts.map(|(ingress, egress)| (ingress.len() as u32, egress.len() as u32));
    // NETDEV_XDP_ACT_BASIC and _XSK_ZEROCOPY, linux/netdev.h. A kernel that does not say leaves 0, and so
    // does a driver without XDP: from 6.6 on, which has tcx, 0 is an answer.
    let flags = xdp.map(|xdp| xdp.feature_flags).filter(|&flags| flags != 0 || tcx.is_some());
    let at_xdp = attached.map(|(program, mode)| Attached {
        place: Place::Xdp(mode),
        program,
        name: String::new(),
        link: xdp_link(ifindex, program),
    });
    let ours = at_xdp.into_iter().chain(ingress.into_iter().flatten());
    let mut programs: Vec<Attached> = ours.chain(egress.into_iter().flatten()).collect();
    name(&mut programs);
    let native = flags.map(|flags| (flags & 1 != 0, flags & 8 != 0));
    Hooks { xdp_program: attached.map(|(program, _)| program), native, tcx, programs }
}

/// Whether this process may look at the machine's links: without CAP_SYS_ADMIN there seem to be none.
pub(crate) fn sees_links() -> bool {
    let mut first = 0;
    // SAFETY: the kernel writes one id, to a word that lives through the call.
    let result = unsafe { libbpf_sys::bpf_link_get_next_id(0, &raw mut first) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT)
}

/// The link that holds a program at the interface's XDP hook. One program may be on many interfaces, each time by
/// another link, or by none.
fn xdp_link(ifindex: u32, program: u32) -> Option<u32> {
    let here =
        |info: &LinkTypeInfo| matches!(info, LinkTypeInfo::Xdp(xdp) if xdp.ifindex == ifindex);
    let mut links = LinkInfoIter::default();
    links.find(|link| link.prog_id == program && here(&link.info)).map(|link| link.id)
}

/// Looks the names up: one way through the machine's programs, whose number has nothing to do with the interface's.
fn name(attached: &mut [Attached]) {
    if attached.is_empty() {
        return;
    }
    for program in ProgInfoIter::default() {
        for one in attached.iter_mut().filter(|one| one.program == program.id) {
            one.name = program.name.to_string_lossy().into_owned();
        }
    }
}

/// Programs that one hook may have: `BPF_MPROG_MAX` of the kernel.
const TCX_MAX: usize = 64;

fn tcx(ifindex: u32, place: Place, at: libbpf_sys::bpf_attach_type) -> Option<Vec<Attached>> {
    let (mut programs, mut links) = ([0u32; TCX_MAX], [0u32; TCX_MAX]);
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = TCX_MAX as u32;
    // SAFETY: `options` is whole and says its size; both lists have the `count` words that it states, and all lives
    // through the call.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(ifindex as i32, at, &raw mut options) };
    // SAFETY: every bit pattern of the union's members is a value of this one.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    let attached = |(&program, &link): (&u32, &u32)| Attached {
        place,
        program,
        name: String::new(),
        link: Some(link).filter(|&link| link != 0),
    };
    let list = programs.iter().zip(&links).take(count);
    (result == 0).then(|| list.map(attached).collect())
}
