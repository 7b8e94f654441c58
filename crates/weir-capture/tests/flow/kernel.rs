//! Runs the programs of `bpf/tests/flow_test.bpf.c` (`BPF_PROG_TEST_RUN`).

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, dead_code)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/flow_test.skel.rs"));
}

use skel::{FlowTestSkel, FlowTestSkelBuilder};

/// Memory from which the skeleton borrows.
pub type Storage = Box<MaybeUninit<libbpf_rs::OpenObject>>;

pub fn storage() -> Storage {
    Box::new(MaybeUninit::uninit())
}

/// The VLAN tag that was removed from the frame's bytes, as in flow_test.bpf.c.
const TAG: [u8; 4] = [0x88, 0xa8, 0, 7];

/// The hook, and whether the driver or the stack has removed a tag from the frame.
#[derive(Clone, Copy, Debug)]
pub enum Hook {
    Tc,
    TcTagged,
    Xdp,
    XdpTagged,
}

impl Hook {
    /// Whether a test run at this hook accepts the frame. At TC, the frame must fit in one page, and be long
    /// enough for an IP header.
    pub fn meets(self, frame: &[u8]) -> bool {
        match self {
            Hook::Tc | Hook::TcTagged => (14 + 40..3000).contains(&frame.len()),
            Hook::Xdp | Hook::XdpTagged => frame.len() >= 14,
        }
    }

    /// The frame as it was on the wire: with the tag, if one was removed.
    pub fn on_the_wire(self, frame: &[u8]) -> Vec<u8> {
        let mut wire = frame.to_vec();
        if matches!(self, Hook::TcTagged | Hook::XdpTagged) {
            wire.splice(12..12, TAG);
        }
        wire
    }
}

/// `struct weir_found`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub key: Option<FlowKey>,
    pub fragment: bool,
    pub hash: u64,
    pub shard_hash: u64,
}

impl Found {
    fn read(bytes: &[u8]) -> Found {
        let half = |at: usize| u16::from_ne_bytes(*bytes[at..].first_chunk().expect("in bounds"));
        let word = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("in bounds"));
        let end = |at: usize| Ipv6Addr::from(*bytes[at..].first_chunk::<16>().expect("in bounds"));
        let v4 = |at: usize| -> Ipv4Addr { end(at).to_ipv4_mapped().expect("::ffff:a.b.c.d") };
        let addresses = match bytes[37] {
            4 => Some(Addresses::V4 { src: v4(0), dst: v4(16) }),
            6 => Some(Addresses::V6 { src: end(0), dst: end(16) }),
            0 => {
                assert_eq!(bytes[..40], [0; 40], "no key is all zero");
                None
            }
            version => panic!("IP version {version}"),
        };
        assert_eq!(bytes[39], 0);
        let key = addresses.map(|addresses| FlowKey {
            addresses,
            src_port: half(32),
            dst_port: half(34),
            protocol: bytes[36],
        });
        Found { key, fragment: bytes[38] != 0, hash: word(40), shard_hash: word(48) }
    }
}

/// The loaded programs. They are not attached.
pub struct Programs<'obj> {
    pub skel: FlowTestSkel<'obj>,
}

impl<'obj> Programs<'obj> {
    pub fn load(storage: &'obj mut Storage) -> Programs<'obj> {
        let open = FlowTestSkelBuilder::default().open(storage).expect("a sound object");
        Programs { skel: open.load().expect("the kernel takes the programs") }
    }

    /// Results of the whole function, which has a fast path, and of the walk through the headers alone.
    pub fn find(&self, hook: Hook, frame: &[u8]) -> (Found, Found) {
        let programs = &self.skel.progs;
        let program = match hook {
            Hook::Tc => &programs.flow_tc,
            Hook::TcTagged => &programs.flow_tc_tagged,
            Hook::Xdp => &programs.flow_xdp,
            Hook::XdpTagged => &programs.flow_xdp_tagged,
        };
        let input = ProgramInput { data_in: Some(frame), ..ProgramInput::default() };
        let run = program.test_run(input);
        run.unwrap_or_else(|error| panic!("{hook:?}, {} bytes: {error}", frame.len()));
        (self.told(0), self.told(1))
    }

    fn told(&self, index: u32) -> Found {
        let found = self.skel.maps.found.lookup(&index.to_ne_bytes(), MapFlags::ANY);
        Found::read(&found.expect("an array").expect("in bounds"))
    }
}
