//! Creates two network namespaces joined by a veth pair, for tests, the demo and benches.
//!
//! Traffic is sent at `tx` and captured at `rx`; the link works in both directions. By default there is no IPv6 and
//! there are no addresses, so the link is silent and a test can count frames exactly.

mod command;
mod huge_pages;
mod image;
mod netns;
mod pairs;
mod skip;
mod volume;

use std::ffi::CString;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::{Error, Result, ethtool};

pub use command::Running;
pub(crate) use command::ip;
pub use huge_pages::HugePages;
pub use image::pack_image;
pub use netns::{in_netns, spawn_in_netns, sweep};
pub use pairs::Pair;
pub use skip::{require_root, require_tool, skip};
pub use volume::volume;

/// Two namespaces and the veth pair between them. Dropping this value removes them, also after a panic.
///
/// A killed process leaves its namespaces behind. Their names contain its process id. [`Testbed::sweep`], which also
/// runs before a process creates its first testbed, removes them.
#[derive(Debug)]
pub struct Testbed {
    /// The sending end.
    pub tx: End,
    /// The receiving end.
    pub rx: End,
}

/// One end of the pair.
#[derive(Debug, Clone)]
pub struct End {
    /// Namespace name, as in `ip netns list`.
    pub netns: String,
    /// Interface name inside that namespace.
    pub iface: String,
    /// Interface index inside that namespace. The two ends often have the same index.
    pub ifindex: u32,
    /// Ethernet address.
    pub mac: [u8; 6],
}

/// Properties of a testbed; [`Builder::build`] creates it.
#[derive(Debug, Clone)]
pub struct Builder {
    mtu: u32,
    queues: u32,
    gro: bool,
    ipv6: bool,
    addresses: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Builder { mtu: 1500, queues: 1, gro: false, ipv6: false, addresses: false }
    }
}

impl Builder {
    /// Sets the MTU of both ends; 1500 by default. A veth supports up to 65535; with a native XDP program about 3500,
    /// unless the program supports fragments.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the number of RX and TX queues of each end; 1 by default. Frames sent by XDP arrive in queue `cpu %
    /// queues`.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Switches GRO at the receiving end; off by default. A veth drops frames sent to it by XDP (the kernel generator)
    /// unless its NAPI runs, which needs GRO or an XDP program. With GRO, the stack may join consecutive TCP segments.
    pub fn gro(mut self, on: bool) -> Self {
        self.gro = on;
        self
    }

    /// Switches IPv6 in the namespaces; off by default. With IPv6, the kernel sends frames of its own: neighbour
    /// discovery, router solicitations, multicast reports.
    pub fn ipv6(mut self, on: bool) -> Self {
        self.ipv6 = on;
        self
    }

    /// Assigns addresses: [`TX_IPV4`] and [`RX_IPV4`], and with [`Builder::ipv6`] also [`TX_IPV6`] and [`RX_IPV6`].
    /// None by default. With addresses, the ends answer ARP.
    pub fn addresses(mut self, on: bool) -> Self {
        self.addresses = on;
        self
    }

    /// Creates the namespaces and the pair. Returns when both ends are up and have a carrier.
    ///
    /// # Errors
    /// `ip` is missing or fails, mostly for lack of root. Parts that were already created are removed.
    pub fn build(&self) -> Result<Testbed> {
        static SWEEP: Once = Once::new();
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(|| _ = sweep());

        let serial = SERIAL.fetch_add(1, Relaxed);
        // The value exists before its first namespace, so that an error half way removes everything.
        let mut bed = Testbed {
            tx: End::not_yet_created(netns::owned_name(serial, "tx"), "wtx0"),
            rx: End::not_yet_created(netns::owned_name(serial, "rx"), "wrx0"),
        };
        for end in [&bed.tx, &bed.rx] {
            command::ip(&["netns", "add", &end.netns])?;
            in_netns(&end.netns, || netns::set_ipv6(self.ipv6))??;
        }
        self.add_pair(&bed)?;
        for end in [&mut bed.tx, &mut bed.rx] {
            command::ip(&["-n", &end.netns, "link", "set", &end.iface, "up"])?;
            end.learn()?;
        }
        if self.gro {
            in_netns(&bed.rx.netns, || ethtool::set_gro(&bed.rx.iface, true))??;
        }
        if self.addresses {
            self.add_addresses(&bed)?;
        }
        netns::wait_for_carrier(&bed.tx)?;
        netns::wait_for_carrier(&bed.rx)?;
        Ok(bed)
    }

    fn add_pair(&self, bed: &Testbed) -> Result<()> {
        let (mtu, queues) = (self.mtu.to_string(), self.queues.to_string());
        let shape = ["mtu", &mtu, "numtxqueues", &queues, "numrxqueues", &queues];
        let mut args = vec!["-n", &bed.tx.netns, "link", "add", "name", &bed.tx.iface];
        args.extend(shape);
        args.extend(["type", "veth", "peer", "name", &bed.rx.iface, "netns", &bed.rx.netns]);
        args.extend(shape);
        command::ip(&args)
    }

    fn add_addresses(&self, bed: &Testbed) -> Result<()> {
        for (end, v4, v6) in [(&bed.tx, TX_IPV4, TX_IPV6), (&bed.rx, RX_IPV4, RX_IPV6)] {
            let v4 = format!("{v4}/24");
            end.set_loopback_up()?;
            command::ip(&["-n", &end.netns, "address", "add", &v4, "dev", &end.iface])?;
            if self.ipv6 {
                let v6 = format!("{v6}/64");
                let args = ["-n", &end.netns, "address", "add", &v6, "dev", &end.iface, "nodad"];
                command::ip(&args)?;
            }
        }
        Ok(())
    }
}

/// IPv4 address of the sending end, if requested.
pub const TX_IPV4: &str = "10.77.0.1";
/// IPv4 address of the receiving end, if requested.
pub const RX_IPV4: &str = "10.77.0.2";
/// IPv6 address of the sending end, if requested.
pub const TX_IPV6: &str = "fd77::1";
/// IPv6 address of the receiving end, if requested.
pub const RX_IPV6: &str = "fd77::2";

impl Testbed {
    /// Creates a silent pair: MTU 1500, one queue, no GRO, no IPv6, no addresses.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new() -> Result<Testbed> {
        Builder::default().build()
    }

    /// Returns a builder with the default properties.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Removes the namespaces of processes that have ended. Returns their number. See [`sweep`].
    pub fn sweep() -> usize {
        sweep()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for end in [&self.tx, &self.rx] {
            // Drop cannot return an error, and a half-made testbed lacks namespaces. The next sweep removes the rest.
            _ = command::ip(&["netns", "delete", &end.netns]);
        }
    }
}

impl End {
    fn not_yet_created(netns: String, iface: &str) -> End {
        End { netns, iface: iface.to_owned(), ifindex: 0, mac: [0; 6] }
    }

    /// Reads index and Ethernet address from the kernel, once the interface exists.
    fn learn(&mut self) -> Result<()> {
        let (ifindex, mac) = in_netns(&self.netns, || {
            Ok::<_, Error>((ifindex(&self.iface)?, ethtool::mac(&self.iface)?))
        })??;
        (self.ifindex, self.mac) = (ifindex, mac);
        Ok(())
    }

    /// Runs `work` on a new thread inside this end's namespace. See [`in_netns`].
    ///
    /// # Errors
    /// As [`in_netns`].
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_netns(&self.netns, work)
    }

    /// Sets the namespace's loopback device up, so that 127.0.0.1 works.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn set_loopback_up(&self) -> Result<()> {
        command::ip(&["-n", &self.netns, "link", "set", "lo", "up"])
    }

    /// Waits until the interface is up and has a carrier. Frames sent after that arrive at the other end.
    ///
    /// # Errors
    /// [`Error::Timeout`] after five seconds.
    pub fn wait_for_carrier(&self) -> Result<()> {
        netns::wait_for_carrier(self)
    }

    /// Starts a command inside this end's namespace. Dropping the handle kills it.
    ///
    /// # Errors
    /// As [`spawn_in_netns`].
    pub fn spawn(&self, command: Command) -> Result<Running> {
        spawn_in_netns(&self.netns, command)
    }
}

/// Returns the index of an interface of the calling thread's network namespace.
///
/// # Errors
/// [`Error::NoInterface`].
pub fn ifindex(iface: &str) -> Result<u32> {
    let missing = || Error::NoInterface { iface: iface.to_owned() };
    let name = CString::new(iface).map_err(|_| missing())?;
    // SAFETY: `name` is a NUL-terminated string that lives across the call; nothing is kept.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(missing()),
        index => Ok(index),
    }
}
