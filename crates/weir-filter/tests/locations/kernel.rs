//! A converted program in the kernel, run by `BPF_PROG_TEST_RUN`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use libbpf_sys::{
    BPF_F_XDP_HAS_FRAGS, BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_SOCKET_FILTER, BPF_PROG_TYPE_XDP,
};
use weir_filter::ebpf::{self, EbpfInsn, Target};
use weir_filter::{Insn, Program, Tag};

/// A program in the kernel.
pub struct Loaded(OwnedFd);

/// An instruction in its parts. Source: the kernel's instruction-set.rst.
pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> EbpfInsn {
    u64::from(code)
        | u64::from(src << 4 | dst) << 8
        | u64::from(off as u16) << 16
        | u64::from(imm as u32) << 32
}

impl Loaded {
    /// Converts and loads a program. The error contains the verifier's log.
    pub fn new(program: &Program, target: Target) -> Result<Loaded, String> {
        let code = ebpf::convert(program, target).map_err(|error| error.to_string())?;
        Loaded::code(&code, target)
    }

    /// The same for a set.
    pub fn set(set: &[Option<&Program>], target: Target) -> Result<Loaded, String> {
        let code = ebpf::convert_set(set, target).map_err(|error| error.to_string())?;
        Loaded::code(&code, target)
    }

    /// Loads a filter for XDP, after instructions that pass it a tag as if the driver had removed
    /// it.
    pub fn told(filter: &[EbpfInsn], tag: Tag) -> Result<Loaded, String> {
        let [p0, p1] = tag.protocol.to_be_bytes();
        let [t0, t1] = tag.tci.to_be_bytes();
        let mut code = vec![insn(0xb4, 2, 0, 0, i32::from_ne_bytes([p0, p1, t0, t1]))];
        code.extend(filter);
        Loaded::code(&code, Target::Xdp)
    }

    /// Loads a filter for TC, after instructions that give the frame a tag beside its bytes.
    pub fn tagging(filter: &[EbpfInsn], tag: Tag) -> Result<Loaded, String> {
        const SKB_VLAN_PUSH: i32 = 18;
        let mut code = vec![
            insn(0xbf, 6, 1, 0, 0),
            insn(0xb7, 2, 0, 0, i32::from(tag.protocol.to_be())),
            insn(0xb7, 3, 0, 0, i32::from(tag.tci)),
            insn(0x85, 0, 0, 0, SKB_VLAN_PUSH),
            insn(0xbf, 1, 6, 0, 0),
        ];
        code.extend(filter);
        Loaded::code(&code, Target::Tc)
    }

    /// Loads code that was assembled elsewhere.
    pub fn code(code: &[EbpfInsn], target: Target) -> Result<Loaded, String> {
        load_aloud(code, target)
    }

    /// Result of the program for the frame.
    #[track_caller]
    pub fn run(&self, bytes: &[u8]) -> u32 {
        self.run_often(bytes, 1)
    }

    /// Result of the last of `repeat` runs.
    #[track_caller]
    pub fn run_often(&self, bytes: &[u8], repeat: i32) -> u32 {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: bytes.as_ptr().cast(),
            data_size_in: bytes.len() as u32,
            repeat,
            ..Default::default()
        };
        // SAFETY: `options` and the frame it points to live through the call, with their true sizes.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), &raw mut options) };
        let error = io::Error::last_os_error();
        assert_eq!(result, 0, "test run of {} bytes: {error}", bytes.len());
        options.retval
    }
}

/// A socket with a program attached. A datagram that is sent to a Unix socket runs the socket's
/// filter, as a frame does at a packet socket.
pub struct Socket {
    sender: UnixDatagram,
    receiver: UnixDatagram,
}

impl Socket {
    pub fn new(filter: &Loaded) -> Socket {
        let socket = Socket::plain();
        let fd = filter.0.as_raw_fd();
        // SAFETY: the value is an int that lives through the call, with its true size.
        let result = unsafe {
            libc::setsockopt(
                socket.receiver.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_BPF,
                (&raw const fd).cast(),
                size_of_val(&fd) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "attaching: {}", io::Error::last_os_error());
        socket
    }

    /// A socket with a classic program.
    pub fn classic(program: &[Insn]) -> io::Result<Socket> {
        let socket = Socket::plain();
        attach_classic(socket.receiver.as_fd(), program)?;
        Ok(socket)
    }

    fn plain() -> Socket {
        let (sender, receiver) = UnixDatagram::pair().expect("two sockets");
        receiver.set_nonblocking(true).expect("a socket");
        Socket { sender, receiver }
    }

    /// Number of the frame's bytes that are delivered: 0 if it is rejected.
    pub fn run(&self, bytes: &[u8]) -> u32 {
        let sent = self.sender.send(bytes).expect("a rejected frame is sent, too");
        assert_eq!(sent, bytes.len());
        // When the send returns, the frame has been delivered or dropped.
        let mut got = vec![0; bytes.len()];
        match self.receiver.recv(&mut got) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            len => len.expect("what was sent") as u32,
        }
    }
}

/// Attaches a classic program to a socket.
pub fn attach_classic(socket: BorrowedFd<'_>, program: &[Insn]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len().try_into().expect("4096 at most"),
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the value is a `sock_fprog` that lives through the call, with its true size. It points to as many
    // instructions as it says, which are laid out as `sock_filter` and which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Loads the code. If the kernel refuses it, the error contains the verifier's reason.
fn load_aloud(code: &[EbpfInsn], target: Target) -> Result<Loaded, String> {
    let code = &ebpf::alone(code, target);
    let mut options = libbpf_sys::bpf_prog_load_opts::default();
    let (kind, flags) = match target {
        Target::Xdp | Target::XdpTag => (BPF_PROG_TYPE_XDP, BPF_F_XDP_HAS_FRAGS),
        Target::Tc => (BPF_PROG_TYPE_SCHED_CLS, 0),
        Target::Socket => (BPF_PROG_TYPE_SOCKET_FILTER, 0),
        Target::User => panic!("not for the kernel"),
    };
    options.prog_flags = flags;
    load(kind, code, &mut options).or_else(|_| {
        // Load again, with a log that contains the reason. The first load has no log, because writing it takes the
        // verifier longer than its checks.
        let mut log = vec![0u8; 1 << 20];
        options.log_level = 1;
        options.log_size = log.len() as u32;
        options.log_buf = log.as_mut_ptr().cast();
        load(kind, code, &mut options).map_err(|error| {
            let log = String::from_utf8_lossy(&log);
            format!("{} instructions: {error}\n{}", code.len(), tail(log.trim_end_matches('\0')))
        })
    })
}

/// The memory to which `options` points must be valid until the call returns.
fn load(
    kind: libbpf_sys::bpf_prog_type,
    code: &[EbpfInsn],
    options: &mut libbpf_sys::bpf_prog_load_opts,
) -> io::Result<Loaded> {
    options.sz = size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t;
    // SAFETY: name, license, instructions, options and what these point to live through the call; the
    // instructions are `code.len()` of 8 bytes each, which is the size of `bpf_insn`.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            c"weir_filter".as_ptr(),
            c"MIT".as_ptr(),
            code.as_ptr().cast(),
            code.len() as libbpf_sys::size_t,
            &raw mut *options,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(Loaded(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The end of the verifier's log, which contains the reason.
fn tail(log: &str) -> &str {
    let from = log.len().saturating_sub(3000);
    &log[(from..=log.len()).find(|&at| log.is_char_boundary(at)).unwrap_or(0)..]
}
