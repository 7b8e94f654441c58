//! BPF programs of others on the interface, as raw instructions. The tcx and XDP programs need none of the kernel's
//! modules act_* and cls_*.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libbpf_rs::{TC_INGRESS, TcHook};
use weir_lab::testbed::End;

use super::within;

/// One instruction. Source: the kernel's Documentation/bpf/standardization/instruction-set.rst.
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    u64::from(code)
        | u64::from(src << 4 | dst) << 8
        | u64::from(off as u16) << 16
        | u64::from(imm as u32) << 32
}

const MOV_IMM: u8 = 0xb7;
const MOV_REG: u8 = 0xbf;
const ADD_IMM: u8 = 0x07;
const ST_W: u8 = 0x62;
const LD_MAP: u8 = 0x18;
const CALL: u8 = 0x85;
const JEQ_IMM: u8 = 0x15;
const ATOMIC_DW: u8 = 0xdb;
const EXIT: u8 = 0x95;

fn load(kind: libbpf_sys::bpf_prog_type, name: &std::ffi::CStr, code: &[u64]) -> OwnedFd {
    // SAFETY: name, license and instructions live through the call, the latter `code.len()` of 8
    // bytes each, which is the size of `bpf_insn`; null options mean defaults.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as libbpf_sys::size_t,
            ptr::null_mut(),
        )
    };
    assert!(fd >= 0, "loading {name:?}: {}", io::Error::from_raw_os_error(-fd));
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn link(program: BorrowedFd<'_>, ifindex: u32, kind: libbpf_sys::bpf_attach_type) -> OwnedFd {
    try_link(program, ifindex, kind).unwrap_or_else(|error| panic!("attaching: {error}"))
}

fn try_link(
    program: BorrowedFd<'_>,
    ifindex: u32,
    kind: libbpf_sys::bpf_attach_type,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: if kind == libbpf_sys::BPF_XDP { 0 } else { libbpf_sys::BPF_F_BEFORE },
        ..Default::default()
    };
    // SAFETY: `options` is whole and lives through the call; the descriptor is borrowed.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &raw const options)
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives every frame that leaves the end a VLAN tag in its metadata, as a VLAN interface does on a device that inserts
/// tags in hardware. Runs before programs that were attached earlier.
pub struct Tagger(OwnedFd);

impl Tagger {
    pub fn attach(end: &End, protocol: u16, tci: u16) -> Tagger {
        const SKB_VLAN_PUSH: i32 = 18;
        let code = [
            insn(MOV_IMM, 2, 0, 0, i32::from(protocol.to_be())),
            insn(MOV_IMM, 3, 0, 0, i32::from(tci)),
            insn(CALL, 0, 0, 0, SKB_VLAN_PUSH),
            insn(MOV_IMM, 0, 0, 0, -1), // TCX_NEXT
            insn(EXIT, 0, 0, 0, 0),
        ];
        within(end, || {
            let program = load(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, c"test_tagger", &code);
            Tagger(link(program.as_fd(), end.ifindex, libbpf_sys::BPF_TCX_EGRESS))
        })
    }
}

/// An XDP program of somebody else, which passes everything.
pub struct XdpPass(OwnedFd);

impl XdpPass {
    pub fn attach(end: &End) -> XdpPass {
        let code = [insn(MOV_IMM, 0, 0, 0, 2), insn(EXIT, 0, 0, 0, 0)];
        within(end, || {
            let program = load(libbpf_sys::BPF_PROG_TYPE_XDP, c"test_xdp_pass", &code);
            XdpPass(link(program.as_fd(), end.ifindex, libbpf_sys::BPF_XDP))
        })
    }
}

/// Attaches such a program without a BPF link, as `ip link set dev IFACE xdp obj` does: it stays until it is detached.
/// `mode`: a flag, such as `XDP_FLAGS_SKB_MODE` for `xdpgeneric`, or 0 for the driver's default.
pub fn attach_xdp_for_good(end: &End, mode: u32) {
    let code = [insn(MOV_IMM, 0, 0, 0, 2), insn(EXIT, 0, 0, 0, 0)];
    within(end, || {
        let program = load(libbpf_sys::BPF_PROG_TYPE_XDP, c"test_xdp_stays", &code);
        // SAFETY: the descriptor is open, and null options mean defaults.
        let result = unsafe {
            libbpf_sys::bpf_xdp_attach(end.ifindex as i32, program.as_raw_fd(), mode, ptr::null())
        };
        assert_eq!(result, 0, "attaching: {}", io::Error::from_raw_os_error(-result));
    });
}

/// A clsact filter of somebody else at ingress, which counts frames, and drops or passes all of them.
pub struct CountingFilter {
    map: OwnedFd,
    _program: OwnedFd,
}

impl CountingFilter {
    /// With the priority that the kernel assigns, as for `tc` without a priority: it runs after Weir's filter.
    pub fn attach(end: &End, drop_all: bool) -> CountingFilter {
        CountingFilter::attach_at(end, drop_all, 0)
    }

    pub fn attach_at(end: &End, drop_all: bool, priority: u32) -> CountingFilter {
        // TC_ACT_SHOT 2, TC_ACT_OK 0.
        let verdict = if drop_all { 2 } else { 0 };
        // SAFETY: the name lives through the call; null options mean defaults.
        let map = unsafe {
            libbpf_sys::bpf_map_create(
                libbpf_sys::BPF_MAP_TYPE_ARRAY,
                c"test_count".as_ptr(),
                4,
                8,
                1,
                ptr::null(),
            )
        };
        assert!(map >= 0, "a map: {}", io::Error::from_raw_os_error(-map));
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        let map = unsafe { OwnedFd::from_raw_fd(map) };
        let code = [
            insn(ST_W, 10, 0, -4, 0),
            insn(MOV_REG, 2, 10, 0, 0),
            insn(ADD_IMM, 2, 0, 0, -4),
            insn(LD_MAP, 1, 1, 0, map.as_raw_fd()), // src 1: the immediate is a map's descriptor
            0,
            insn(CALL, 0, 0, 0, 1), // bpf_map_lookup_elem
            insn(JEQ_IMM, 0, 0, 2, 0),
            insn(MOV_IMM, 1, 0, 0, 1),
            insn(ATOMIC_DW, 0, 1, 0, 0), // add
            insn(MOV_IMM, 0, 0, 0, verdict),
            insn(EXIT, 0, 0, 0, 0),
        ];
        within(end, || {
            let program = load(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, c"test_filter", &code);
            let mut hook = TcHook::new(program.as_fd());
            hook.ifindex(end.ifindex as i32).attach_point(TC_INGRESS).priority(priority);
            hook.create().expect("a clsact qdisc");
            hook.attach().expect("a filter");
            CountingFilter { map, _program: program }
        })
    }

    /// The number of frames that reached the filter.
    pub fn count(&self) -> u64 {
        let (key, mut value) = (0u32, 0u64);
        // SAFETY: the map's keys have 4 bytes and its values 8, as the two variables have.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.map.as_raw_fd(),
                (&raw const key).cast(),
                (&raw mut value).cast(),
            )
        };
        assert_eq!(result, 0, "reading the count");
        value
    }
}

/// The numbers of programs on the end's interface: tcx ingress, tcx egress, XDP.
pub fn attached(end: &End) -> [u32; 3] {
    within(end, || {
        [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS, libbpf_sys::BPF_XDP]
            .map(|kind| query(end.ifindex, kind))
    })
}

fn query(ifindex: u32, kind: libbpf_sys::bpf_attach_type) -> u32 {
    if kind == libbpf_sys::BPF_XDP {
        let mut id = 0;
        // SAFETY: the kernel fills the one integer that is passed.
        let result = unsafe { libbpf_sys::bpf_xdp_query_id(ifindex as i32, 0, &raw mut id) };
        assert_eq!(result, 0, "asking for XDP programs");
        return u32::from(id != 0);
    }
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `options` is whole, says its size, and lives through the call.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(ifindex as i32, kind, &raw mut options) };
    match -result {
        0 => {
            // SAFETY: every bit pattern of the union's members is a value of this one.
            unsafe { options.__bindgen_anon_1.count }
        }
        // No tcx before Linux 6.6.
        libc::EINVAL => 0,
        error => panic!("asking for tcx programs: {}", io::Error::from_raw_os_error(error)),
    }
}

/// Programs that occupy all places of a TC hook of the end, until dropped.
pub struct FullHook(#[allow(dead_code, reason = "held, not read")] Vec<OwnedFd>);

impl FullHook {
    pub fn fill(end: &End, kind: libbpf_sys::bpf_attach_type) -> FullHook {
        let code = [insn(MOV_IMM, 0, 0, 0, -1), insn(EXIT, 0, 0, 0, 0)]; // TCX_NEXT
        within(end, || {
            // A hook accepts each program only once, so every place needs a program of its own.
            let place = || {
                let program = load(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, c"test_place", &code);
                try_link(program.as_fd(), end.ifindex, kind)
            };
            let mut places = Vec::new();
            let refusal = loop {
                match place() {
                    Ok(fd) => places.push(fd),
                    Err(refusal) => break refusal,
                }
            };
            assert_eq!(refusal.raw_os_error(), Some(libc::ERANGE), "after {}", places.len());
            FullHook(places)
        })
    }
}
