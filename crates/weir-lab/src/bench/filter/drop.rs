//! The smallest useful XDP program: it drops every frame.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::thread::sleep;
use std::time::Duration;

use crate::testbed::End;
use crate::{Error, Result, ethtool};

/// `r0 = XDP_DROP (1); exit`. Source: the kernel's Documentation/bpf/standardization/instruction-set.rst. From the low
/// end, a word has: opcode, registers, 16 bits of offset, 32 bits of immediate value.
const CODE: [u64; 2] = [1 << 32 | 0xb7, 0x95];
/// The device updates its counters at the end of a NAPI poll, which may come after the sender's last system call.
const SETTLE: Duration = Duration::from_millis(100);

/// The program, attached to an interface until this value is dropped.
pub(super) struct XdpDrop<'a> {
    end: &'a End,
    _link: OwnedFd,
    before: u64,
}

impl XdpDrop<'_> {
    /// Loads the program and attaches it to the interface.
    ///
    /// # Errors
    /// [`Error::Bpf`] if rights are missing, or a program is attached already.
    pub(super) fn attach(end: &End) -> Result<XdpDrop<'_>> {
        let link = end.run(|| link(&load()?, end.ifindex))??;
        Ok(XdpDrop { end, _link: link, before: drops(end)? })
    }

    /// Detaches the program. Returns the number of dropped frames, as counted by the device.
    ///
    /// # Errors
    /// [`Error::Ethtool`] if the device has no such counters.
    pub(super) fn finish(self) -> Result<u64> {
        sleep(SETTLE);
        Ok(drops(self.end)?.wrapping_sub(self.before))
    }
}

/// Returns the frames that XDP programs have dropped on all queues of a veth: `rx_queue_N_xdp_drops`.
fn drops(end: &End) -> Result<u64> {
    let iface = &end.iface;
    let (names, values) =
        end.run(|| Ok::<_, Error>((ethtool::stat_names(iface)?, ethtool::stats(iface)?)))??;
    let of_xdp = |name: &String| name.starts_with("rx_queue_") && name.ends_with("_xdp_drops");
    Ok(names.iter().zip(values).filter(|(name, _)| of_xdp(name)).map(|(_, value)| value).sum())
}

fn load() -> Result<OwnedFd> {
    // SAFETY: name, license and instructions outlive the call. There are `CODE.len()` instructions
    // of 8 bytes each, the size of `bpf_insn`. Null options select the defaults.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"weir_bare_drop".as_ptr(),
            c"GPL".as_ptr(),
            CODE.as_ptr().cast(),
            CODE.len() as libbpf_sys::size_t,
            null_mut(),
        )
    };
    owned(fd, "load a program of two instructions")
}

/// Attaches the program to an interface in the calling thread's network namespace. The link keeps the program loaded.
fn link(program: &OwnedFd, ifindex: u32) -> Result<OwnedFd> {
    // SAFETY: the descriptor is borrowed for longer than the call. Null options select the
    // defaults.
    let fd = unsafe {
        let (program, ifindex) = (program.as_raw_fd(), ifindex.cast_signed());
        libbpf_sys::bpf_link_create(program, ifindex, libbpf_sys::BPF_XDP, null_mut())
    };
    owned(fd, "attach it to the receiving end")
}

/// Converts a result of libbpf: a descriptor, or a negative errno.
fn owned(fd: i32, what: &'static str) -> Result<OwnedFd> {
    if fd < 0 {
        let source = libbpf_rs::Error::from_raw_os_error(-fd);
        return Err(Error::Bpf { what, source });
    }
    // SAFETY: the kernel has just made this descriptor for the caller, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::generator::{self, GenEngine, GenOptions};
    use crate::testbed::{Testbed, require_root};

    #[test]
    fn root_what_is_sent_is_dropped_and_counted() {
        if !require_root("root_what_is_sent_is_dropped_and_counted") {
            return;
        }
        // Without GRO and without the program at its other end, the veth would refuse every frame.
        let bed = Testbed::new().unwrap();
        let program = XdpDrop::attach(&bed.rx).unwrap();
        let options = GenOptions {
            frames: Some(10_000),
            engine: GenEngine::LiveFrames,
            ..GenOptions::default()
        };
        let run = || generator::run(&bed.tx.iface, &options, &AtomicBool::new(false));
        let sent = bed.tx.run(run).unwrap().unwrap().sent;
        assert!(sent > 0);
        assert_eq!(program.finish().unwrap(), sent);
        assert!(XdpDrop::attach(&bed.rx).is_ok(), "the first one has gone");
    }
}
