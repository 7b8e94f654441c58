//! Packet filters, which select the frames of a feed: the pcap filter language, as classic BPF,
//! with the same meaning in every place where it runs.
//!
//! Text becomes a [`Program`] in the crate `weir-filter-compile`, which has libpcap's compiler; ready
//! bytecode becomes one here ([`Program::parse`], [`Program::new`]). Either way it is verified: a `Program`
//! terminates, reads and writes nothing but the frame and its own sixteen words, and divides by no constant
//! zero. It gives a *verdict*: 0 rejects the frame, any other number takes it (libpcap's programs give the
//! snapshot length there).
//!
//! | module | contents |
//! |---|---|
//! | [`program`] | a verified program; its text (`tcpdump -ddd`) and raw forms |
//! | [`insn`] | one instruction, and the opcodes |
//! | [`verify`] | the rules for programs, and the reasons for a refusal |
//! | [`frame`] | a program's view of a frame, and the treatment of a VLAN tag beside the bytes |
//! | [`interpret`] | the reference: a program run step by step |
//! | [`ebpf`] | the same program as eBPF, for XDP, TC, sockets, and user space; or several, as one |
//! | [`classic`] | the same program as classic BPF, for packet sockets where eBPF is not allowed |
//! | [`block`] | block lists: addresses, prefixes and flows that a feed leaves out |
//! | [`possible`] | whether any frame can pass, by a set of values that occur in some frames |
//! | [`user`] | filters for user space: machine code where possible, else the interpreter |
//!
//! # One meaning
//! The verdict of a program is that of libpcap's own interpreter on the whole frame, with its tag.
//! Tests compare every form of a program with it. Where the kernel's classic BPF differs from
//! libpcap's (indexes that wrap around, long shifts), libpcap's meaning holds here.
#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("converted programs are little-endian; big-endian hosts are not supported");

pub mod block;
mod both;
pub mod classic;
pub mod ebpf;
mod flow_graph;
pub mod frame;
pub mod insn;
pub mod interpret;
pub mod limits;
mod order;
pub mod possible;
pub mod program;
mod reach;
mod set;
mod step;
pub mod user;
pub mod verify;

pub use block::BlockList;
pub use both::BothError;
pub use frame::{Frame, Tag};
pub use insn::Insn;
pub use program::Program;
pub use set::SET_MAX;
pub use user::{UserFilter, UserFilterSet};
pub use verify::VerifyError;
