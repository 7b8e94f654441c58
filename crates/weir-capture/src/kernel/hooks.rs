//! Reads the programs on an interface's hooks and the XDP abilities of its driver.

use std::{fs, io};

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};

/// The hooks of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Id of the attached XDP program.
    pub xdp_program: Option<u32>,
    /// Whether the driver supports native XDP, and zero-copy AF_XDP; `None` before Linux 6.3.
    pub native: Option<(bool, bool)>,
    /// Number of tcx programs at ingress and at egress; `None` before Linux 6.6 and without CAP_NET_ADMIN.
    pub tcx: Option<(u32, u32)>,
    /// The programs: the XDP program first, then those at tcx ingress and egress in the order in which they
    /// run.
    pub programs: Vec<Attached>,
}

/// A place where a program can be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachPoint {
    /// XDP, in this mode.
    Xdp(XdpMode),
    /// tcx, received frames.
    TcxIngress,
    /// tcx, sent frames.
    TcxEgress,
}

/// A program on a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The place where it is attached.
    pub point: AttachPoint,
    /// Its id.
    pub program: u32,
    /// Its name; empty if this process lacks the privileges to read it.
    pub name: String,
    /// The BPF link that keeps it attached; it is detached when the last holder of the link closes it.
    /// `None` if there is no link.
    pub link: Option<u32>,
}

/// Reads the hooks of the interface with this index.
#[must_use]
pub fn hooks(ifindex: u32) -> Hooks {
    let xdp = query(ifindex);
    let attached = xdp.and_then(|xdp| attached_at_xdp(&xdp));
    let ingress = tcx(ifindex, AttachPoint::TcxIngress, libbpf_sys::BPF_TCX_INGRESS);
    let egress = tcx(ifindex, AttachPoint::TcxEgress, libbpf_sys::BPF_TCX_EGRESS);
    let counts = ingress.as_ref().zip(egress.as_ref());
    let tcx = counts.map(|(ingress, egress)| (ingress.len() as u32, egress.len() as u32));
    // NETDEV_XDP_ACT_BASIC and _XSK_ZEROCOPY, linux/netdev.h. The flags are 0 for a driver without XDP, but
    // also if the kernel does not report them. A kernel with tcx (6.6) reports them, so that 0 means no
    // XDP.
    let flags = xdp.map(|xdp| xdp.feature_flags).filter(|&flags| flags != 0 || tcx.is_some());
    let at_xdp = attached.map(|(program, mode)| Attached {
        point: AttachPoint::Xdp(mode),
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

/// Returns whether this process may list BPF links. Without CAP_SYS_ADMIN the list appears to be empty.
pub(crate) fn sees_links() -> bool {
    let mut first = 0;
    // SAFETY: the kernel writes one id, to a word that lives through the call.
    let result = unsafe { libbpf_sys::bpf_link_get_next_id(0, &raw mut first) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT)
}

/// Returns the BPF link that holds a program at the interface's XDP hook. One program may be attached to many
/// interfaces, each time by a link of its own, or without a link.
fn xdp_link(ifindex: u32, program: u32) -> Option<u32> {
    let here =
        |info: &LinkTypeInfo| matches!(info, LinkTypeInfo::Xdp(xdp) if xdp.ifindex == ifindex);
    let mut links = LinkInfoIter::default();
    links.find(|link| link.prog_id == program && here(&link.info)).map(|link| link.id)
}

/// Sets the names of the programs. This takes one pass over all loaded programs, of which there may be many more than
/// on this interface.
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

/// Most programs on one hook: `BPF_MPROG_MAX` of the kernel.
const TCX_MAX: usize = 64;

fn tcx(ifindex: u32, point: AttachPoint, at: libbpf_sys::bpf_attach_type) -> Option<Vec<Attached>> {
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
        point,
        program,
        name: String::new(),
        link: Some(link).filter(|&link| link != 0),
    };
    let list = programs.iter().zip(&links).take(count);
    (result == 0).then(|| list.map(attached).collect())
}

pub(crate) fn query(ifindex: u32) -> Option<libbpf_sys::bpf_xdp_query_opts> {
    let mut query = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `query` is whole, says its size, and lives through the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &raw mut query) };
    (result == 0).then_some(query)
}

/// The mode in which an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the network stack, behind the driver.
    Generic,
    /// In the NIC.
    Offloaded,
}

impl XdpMode {
    /// Returns the keyword for this mode in `ip link set dev IFACE WORD off`. `xdp` means native mode if the driver
    /// supports native mode, whichever program is attached: on a veth it does not detach a generic program.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            XdpMode::Native => "xdp",
            XdpMode::Generic => "xdpgeneric",
            XdpMode::Offloaded => "xdpoffload",
        }
    }
}

/// Returns the attached program and its mode. If an offloaded program and another one are attached, returns the other
/// one, because that is the program that blocks the hook.
///
/// Source: linux/if_link.h, IFLA_XDP_ATTACHED; `rtnl_xdp_fill`, net/core/rtnetlink.c.
pub(crate) fn attached_at_xdp(query: &libbpf_sys::bpf_xdp_query_opts) -> Option<(u32, XdpMode)> {
    match u32::from(query.attach_mode) {
        libbpf_sys::XDP_ATTACHED_DRV => Some((query.prog_id, XdpMode::Native)),
        libbpf_sys::XDP_ATTACHED_SKB => Some((query.prog_id, XdpMode::Generic)),
        libbpf_sys::XDP_ATTACHED_HW => Some((query.prog_id, XdpMode::Offloaded)),
        libbpf_sys::XDP_ATTACHED_MULTI => {
            let all = [(query.drv_prog_id, XdpMode::Native), (query.skb_prog_id, XdpMode::Generic)];
            all.into_iter().find(|(id, _)| *id != 0)
        }
        _ => None,
    }
}

/// The object that keeps an XDP program attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpOwner {
    /// A process has the link open; the program is detached when the process ends.
    Process {
        /// Its id.
        pid: u32,
        /// Its name.
        name: String,
        /// The link's id.
        link: u32,
    },
    /// A link that no visible process has open: it is pinned, or a process in another PID namespace has it
    /// open.
    Link(u32),
    /// The program was attached by netlink, without a link. The command that detaches it depends on the mode.
    Netlink(XdpMode),
}

impl XdpOwner {
    /// Finds the owner of this program at the interface of this index; `None` if it cannot be determined.
    pub(crate) fn find(ifindex: u32, program: u32) -> Option<XdpOwner> {
        if program == 0 || !sees_links() {
            return None;
        }
        let here = hooks(ifindex).programs;
        let (one, mode) = here.iter().find_map(|one| match one.point {
            AttachPoint::Xdp(mode) if one.program == program => Some((one, mode)),
            _ => None,
        })?;
        let Some(link) = one.link else { return Some(XdpOwner::Netlink(mode)) };
        Some(match process_with(link) {
            Some((pid, name)) => XdpOwner::Process { pid, name, link },
            None => XdpOwner::Link(link),
        })
    }
}

/// Returns a process that has the link open, and its name. Only root can read the descriptors of other users'
/// processes.
fn process_with(link: u32) -> Option<(u32, String)> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        // The process may have ended by now.
        let open = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        open.into_iter()
            .any(|fd| fs::read_to_string(fd.path()).is_ok_and(|info| is_of(&info, link)))
    })?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim().to_owned()))
}

/// Returns whether a descriptor's /proc/PID/fdinfo describes this link. Source: `bpf_link_show_fdinfo` of the kernel.
fn is_of(fdinfo: &str, link: u32) -> bool {
    let value = fdinfo.lines().find_map(|line| line.strip_prefix("link_id:"));
    value.is_some_and(|value| value.trim().parse() == Ok(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_its_own_number() {
        let info = "pos:\t0\nflags:\t02000002\nlink_type:\txdp\nlink_id:\t12\nprog_id:\t7\n";
        assert!(is_of(info, 12));
        assert!(!is_of(info, 7) && !is_of(info, 1));
        assert!(!is_of("prog_type:\t6\nprog_id:\t12\n", 12));
    }
}
