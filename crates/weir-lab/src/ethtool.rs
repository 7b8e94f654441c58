//! Sends requests to an interface by ioctl: driver name, statistics, GRO, address, flags, MTU.
//!
//! All requests refer to the calling thread's network namespace. Layouts: `linux/ethtool.h`, `linux/if.h`.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Error, Result};

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
const GSTRING_BYTES: usize = 32;
/// Most statistics of a device. Drivers with hundreds of queues have some ten thousand.
const STATS_MAX: usize = 1 << 14;

/// Returns the driver's name: `veth`, `virtio_net`, `ice`, ...
///
/// # Errors
/// [`Error::NoInterface`], or [`Error::Ethtool`] if the driver gives no information.
pub fn driver(iface: &str) -> Result<String> {
    // struct ethtool_drvinfo: cmd, driver[32], version[32], fw_version[32], bus_info[32], erom_version[32],
    // reserved2[12], five u32: 196 bytes. An array of words, so that it is aligned.
    let mut info = [0u32; 196 / 4];
    info[0] = ETHTOOL_GDRVINFO;
    request(iface, "driver information", &mut info)?;
    let bytes: Vec<u8> = info[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(text(&bytes))
}

/// Switches GRO on or off, as `ethtool -K IFACE gro on` does.
///
/// # Errors
/// [`Error::NoInterface`], or [`Error::Ethtool`] without CAP_NET_ADMIN.
pub fn set_gro(iface: &str, on: bool) -> Result<()> {
    // struct ethtool_value.
    request(iface, "gro", &mut [ETHTOOL_SGRO, u32::from(on)])
}

/// Returns whether the interface has a link. The request also updates `IFF_RUNNING` of the interface.
///
/// # Errors
/// [`Error::NoInterface`], or [`Error::Ethtool`] if the driver does not support the request.
pub fn has_link(iface: &str) -> Result<bool> {
    // struct ethtool_value.
    let mut value = [ETHTOOL_GLINK, 0u32];
    request(iface, "link", &mut value)?;
    Ok(value[1] != 0)
}

/// Returns the names of the driver's statistics, in the order of [`stats`].
///
/// # Errors
/// [`Error::NoInterface`], or [`Error::Ethtool`] if the driver has none.
pub fn stat_names(iface: &str) -> Result<Vec<String>> {
    let count = stat_count(iface)?;
    // struct ethtool_gstrings: cmd, string_set, len, then `len` strings of 32 bytes.
    let mut strings = vec![0u32; 3 + with_room(count) * GSTRING_BYTES / 4];
    strings[..2].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS]);
    strings[2] = u32::try_from(count).unwrap_or(0);
    request(iface, "statistics' names", &mut strings)?;
    let bytes: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(bytes.chunks_exact(GSTRING_BYTES).take(count).map(text).collect())
}

/// Returns the values of the driver's statistics.
///
/// # Errors
/// As [`stat_names`].
pub fn stats(iface: &str) -> Result<Vec<u64>> {
    let count = stat_count(iface)?;
    // struct ethtool_stats: cmd and n_stats (two u32, so one u64), then the values.
    let mut values = vec![0u64; 1 + with_room(count)];
    values[0] = join(ETHTOOL_GSTATS, u32::try_from(count).unwrap_or(0));
    request(iface, "statistics", &mut values)?;
    values.truncate(1 + count);
    values.remove(0);
    Ok(values)
}

/// Returns the number of entries to allocate for `count` statistics. A device may get more queues between the two
/// requests, and older kernels write all statistics of a device, even if fewer were requested.
fn with_room(count: usize) -> usize {
    (count * 2).max(STATS_MAX)
}

fn stat_count(iface: &str) -> Result<usize> {
    // struct ethtool_sset_info: cmd, reserved, u64 mask, then one u32 for each bit set. The kernel clears the bit in
    // the mask if the driver has no such set.
    let mut info = [join(ETHTOOL_GSSET_INFO, 0), 1 << ETH_SS_STATS, 0];
    request(iface, "number of statistics", &mut info)?;
    let [low, high] = split(info[2]);
    let count = if cfg!(target_endian = "little") { low } else { high } as usize;
    let none = || Error::Ethtool {
        iface: iface.to_owned(),
        request: "statistics",
        source: io::Error::from(io::ErrorKind::Unsupported),
    };
    if info[1] == 0 || count == 0 || count > STATS_MAX { Err(none()) } else { Ok(count) }
}

/// Returns the interface's Ethernet address.
///
/// # Errors
/// [`Error::NoInterface`].
pub fn mac(iface: &str) -> Result<[u8; 6]> {
    let mut ifr = named(iface)?;
    interface_ioctl(iface, "address", libc::SIOCGIFHWADDR, &mut ifr)?;
    // SAFETY: the ioctl has filled in this member of the union; all members are plain numbers.
    let address = unsafe { ifr.ifr_ifru.ifru_hwaddr };
    Ok(std::array::from_fn(|i| address.sa_data[i].cast_unsigned()))
}

/// Returns the interface's flags: `IFF_UP`, `IFF_RUNNING`, ... of `linux/if.h`.
///
/// # Errors
/// [`Error::NoInterface`].
pub fn link_flags(iface: &str) -> Result<i32> {
    let mut ifr = named(iface)?;
    interface_ioctl(iface, "flags", libc::SIOCGIFFLAGS, &mut ifr)?;
    // SAFETY: the ioctl has filled in this member of the union; all members are plain numbers.
    Ok(i32::from(unsafe { ifr.ifr_ifru.ifru_flags }))
}

/// Returns the interface's MTU, in bytes of layer 3.
///
/// # Errors
/// [`Error::NoInterface`].
pub fn mtu(iface: &str) -> Result<u32> {
    let mut ifr = named(iface)?;
    interface_ioctl(iface, "mtu", libc::SIOCGIFMTU, &mut ifr)?;
    // SAFETY: the ioctl has filled in this member of the union; all members are plain numbers.
    Ok(u32::try_from(unsafe { ifr.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// Runs one `SIOCETHTOOL` request. `words` contain the struct of the request.
fn request<T: Copy>(iface: &str, what: &'static str, words: &mut [T]) -> Result<()> {
    let mut ifr = named(iface)?;
    ifr.ifr_ifru.ifru_data = words.as_mut_ptr().cast::<c_void>().cast();
    interface_ioctl(iface, what, libc::SIOCETHTOOL, &mut ifr)
}

fn interface_ioctl(
    iface: &str,
    what: &'static str,
    number: libc::c_ulong,
    ifr: &mut libc::ifreq,
) -> Result<()> {
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENODEV) => Error::NoInterface { iface: iface.to_owned() },
        _ => Error::Ethtool { iface: iface.to_owned(), request: what, source },
    };
    // SAFETY: no pointers. The result is checked before it is used.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: `fd` is a descriptor just made and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `ifr` is a whole ifreq, borrowed mutably for the call. For SIOCETHTOOL its data
    // pointer leads to the caller's mutable slice (`request`), aligned for u32 at least, and as long
    // as the struct that its command word names; the callers that ask for lists keep room for all
    // that a driver may have (`with_room`, bounded in `stat_count`). The kernel keeps no pointer.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number as _, ifr) } {
        0 => Ok(()),
        _ => Err(failed(io::Error::last_os_error())),
    }
}

/// Returns an ifreq with this name; the rest is zero.
fn named(iface: &str) -> Result<libc::ifreq> {
    if iface.is_empty() || iface.len() >= libc::IFNAMSIZ || iface.contains('\0') {
        return Err(Error::NoInterface { iface: iface.to_owned() });
    }
    // SAFETY: ifreq is made of arrays, integers and a raw pointer: all zero is a value of each.
    let mut ifr: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in ifr.ifr_name.iter_mut().zip(iface.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(ifr)
}

/// Returns the text up to the first NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Joins two u32, which follow each other in memory, to one u64.
fn join(first: u32, second: u32) -> u64 {
    let (a, b) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

fn split(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
