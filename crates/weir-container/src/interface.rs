//! Finds the owners of the host's interfaces. The owner of a tap is the VM or process that has the tap open. The owner
//! of a veth is the container, pod, process or named network namespace at the other end.
//!
//! No function here returns an error: without an owner, or without the rights to search, the result is `None` or empty.
//! The time of a search and the bytes that it reads are limited.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weir_capture::CaptureError;
use weir_capture::kernel::interface::{Connection, NetnsNumbers, addresses, connection};
use weir_capture::kernel::netns::{
    Located, Netns, NetnsName, Owner, OwnerFinder, netns_of_process,
};
use weir_frame::pcapng::AddressName;

use crate::limits::{FIND_TIME_MAX, FIND_WAIT_MAX, NAME_TIME_MAX};
use crate::process::{Process, container_of, plain};
use crate::{docker, pod};

/// Folder in which `ip netns` and CNI plugins keep named network namespaces.
const NAMED: &str = "/run/netns";
/// PID of init, which is in the host's network namespace.
const INIT: u32 = 1;

/// Creates a finder of owners on this machine ([`owners`]).
#[must_use]
pub fn owner_finder() -> OwnerFinder {
    OwnerFinder::new(owners)
}

/// Finds the owners of these interfaces of the calling thread's network namespace, in the order of `ifaces`.
#[must_use]
pub fn owners(ifaces: &[&str]) -> Vec<Option<Owner>> {
    let search = Search::begin(FIND_TIME_MAX);
    let connected = |iface: &&str| connection(iface).unwrap_or(Connection::Other);
    let connections: Vec<Connection> = ifaces.iter().map(connected).collect();
    let mut peers = BTreeMap::new();
    for connection in &connections {
        if let Connection::Veth(peer) = connection {
            peers.insert(*peer, Peer::default());
        }
    }
    if !peers.is_empty() {
        search.look_into(&mut peers);
    }
    let is_tap = |(_, connection): &(&&str, &Connection)| **connection == Connection::Tun;
    let taps: Vec<&str> = ifaces.iter().zip(&connections).filter(is_tap).map(|(i, _)| *i).collect();
    let holders = if taps.is_empty() { BTreeMap::new() } else { search.holders(&taps) };
    let owner = |(iface, connection): (&&str, &Connection)| match connection {
        Connection::Tun => holders.get(*iface).cloned(),
        Connection::Veth(peer) => peers.get(peer)?.owner(),
        Connection::Other => None,
    };
    ifaces.iter().zip(&connections).map(owner).collect()
}

/// Returns the present addresses of an owner's network namespace, without loopback addresses, each with the owner's
/// name. Empty for a VM, because only its own kernel knows its addresses, and if this process may not enter the
/// namespace.
#[must_use]
pub fn address_names(owner: &Owner) -> Vec<AddressName> {
    let name = match (owner.kind, owner.pid) {
        ("vm", _) => return Vec::new(),
        ("process", Some(pid)) => format!("{}({pid})", owner.name),
        _ => owner.name.clone(),
    };
    let all = addresses_of(owner).unwrap_or_default().into_iter().map(|(_, address)| address);
    let outside = all.filter(|address| !address.is_loopback());
    outside.map(|address| AddressName { address, name: name.clone() }).collect()
}

fn addresses_of(owner: &Owner) -> Option<Vec<(String, IpAddr)>> {
    let here = fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino());
    if owner.netns != 0 && owner.netns == here {
        return addresses().ok();
    }
    let netns = match owner.pid {
        Some(pid) => NetnsName::located("process:", &pid.to_string(), of_pid),
        None => NetnsName::named(&owner.name),
    };
    let netns = Netns::open(&netns).ok()?;
    // By now another process may have the PID, or another namespace the name.
    let is_same = owner.netns == 0 || netns.owner().netns == owner.netns;
    is_same.then(|| netns.ask(addresses).ok()?.ok())?
}

fn of_pid(pid: &str) -> Result<Located, CaptureError> {
    let path = pid.parse().map(netns_of_process).map_err(|_| CaptureError::Ended)?;
    Ok(Located { path, owner: Owner::default() })
}

/// A network namespace at the other end of veths, and its possible owners.
#[derive(Default)]
struct Peer {
    is_of_host: bool,
    /// The container or pod of a process in the namespace.
    has_engine: Option<Owner>,
    name: Option<Owner>,
    /// The first process that was found in the namespace and belongs to no container or pod.
    process: Option<Owner>,
}

impl Peer {
    fn is_settled(&self) -> bool {
        self.is_of_host || self.has_engine.is_some()
    }

    fn owner(&self) -> Option<Owner> {
        let found = self.has_engine.as_ref().or(self.name.as_ref()).or(self.process.as_ref());
        // The host is not reported as an owner: its interfaces are captured by their own names.
        found.filter(|_| !self.is_of_host).cloned()
    }
}

/// Returns the CPU time of the calling thread so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A search for owners by one thread, with limits of its CPU time and of the time that passes.
struct Search {
    cpu_time_end: Duration,
    deadline: Instant,
}

impl Search {
    fn begin(limit: Duration) -> Search {
        Search { cpu_time_end: cpu_time() + limit, deadline: Instant::now() + FIND_WAIT_MAX }
    }

    fn is_over(&self) -> bool {
        cpu_time() >= self.cpu_time_end || Instant::now() >= self.deadline
    }

    /// Returns all processes, until the search is over.
    fn processes(&self) -> impl Iterator<Item = Process> {
        Process::all().into_iter().take_while(|_| !self.is_over())
    }

    /// Finds the possible owners of these network namespaces. The keys are the numbers (nsid) that the namespaces have
    /// in the calling thread's namespace.
    fn look_into(&self, peers: &mut BTreeMap<i32, Peer>) {
        let Ok(numbers) = NetnsNumbers::open() else { return };
        if let Some(peer) = numbers.of_process(INIT).and_then(|number| peers.get_mut(&number)) {
            peer.is_of_host = true;
        }
        for entry in fs::read_dir(NAMED).into_iter().flatten().flatten() {
            if self.is_over() {
                return;
            }
            let Ok(file) = File::open(entry.path()) else { continue };
            let Some(peer) = numbers.of_file(&file).and_then(|number| peers.get_mut(&number))
            else {
                continue;
            };
            let name = plain(&entry.file_name().to_string_lossy());
            let netns = file.metadata().map_or(0, |file| file.ino());
            peer.name.get_or_insert(Owner { kind: "netns", name, netns, ..Owner::default() });
        }
        let mut engine = Engine::Answers;
        for process in self.processes() {
            let number = numbers.of_process(process.pid);
            let Some(peer) = number.and_then(|number| peers.get_mut(&number)) else { continue };
            if peer.is_settled() {
                continue;
            }
            match of_engine(&process, &mut engine) {
                Some(owner) => peer.has_engine = Some(owner),
                None if peer.process.is_none() => peer.process = of_process(&process),
                None => continue,
            }
            if peers.values().all(Peer::is_settled) {
                return;
            }
        }
    }

    /// Finds the processes that have these taps open. Only processes in the calling thread's network namespace count:
    /// in another namespace, a tap of the same name is another tap.
    fn holders(&self, taps: &[&str]) -> BTreeMap<String, Owner> {
        let mut holders: BTreeMap<String, Owner> = BTreeMap::new();
        let Ok(here) = fs::read_link("/proc/thread-self/ns/net") else { return holders };
        let held = |process: &Process| -> Vec<String> {
            let is_here = process.netns().as_deref() == Some(&here);
            let held = if is_here { process.taps() } else { Vec::new() };
            held.into_iter().filter(|tap| taps.contains(&tap.as_str())).collect()
        };
        // VMs are searched first: the process that made the tap of a VM may have it open, too. Moreover, reading all
        // command lines takes less time than reading the descriptors of all processes.
        let mut others = Vec::new();
        for process in self.processes() {
            let Some(name) = process.vm() else {
                others.push(process);
                continue;
            };
            let vm = Owner { kind: "vm", name, pid: Some(process.pid), ..Owner::default() };
            held(&process).into_iter().for_each(|tap| _ = holders.entry(tap).or_insert(vm.clone()));
        }
        for process in others {
            if holders.len() >= taps.len() || self.is_over() {
                break;
            }
            let held = held(&process);
            let is_free = |tap: &String| !holders.contains_key(tap);
            let free: Vec<String> = held.into_iter().filter(is_free).collect();
            for tap in free {
                holders.extend(of_process(&process).map(|owner| (tap, owner)));
            }
        }
        holders
    }
}

/// Whether container engines have answered so far in a search.
#[derive(PartialEq)]
enum Engine {
    Answers,
    /// One did not answer in time. None is asked again, since the source that is being opened waits.
    Hangs,
}

/// Returns the pod or the container that a process belongs to.
fn of_engine(process: &Process, engine: &mut Engine) -> Option<Owner> {
    let cgroup = process.cgroup()?;
    let (pid, netns) = (Some(process.pid), inode(process.pid));
    if let Some((name, id)) = pod::of_cgroup(&cgroup) {
        return Some(Owner { kind: "pod", name, id: Some(id), pid, netns, ..Owner::default() });
    }
    let id = container_of(&cgroup)?;
    let begin = Instant::now();
    let described = if *engine == Engine::Answers { docker::describe(id) } else { None };
    if begin.elapsed() >= NAME_TIME_MAX {
        *engine = Engine::Hangs;
    }
    // If the name is not known: the first 12 digits of the id, as `docker ps` shows them.
    let (name, image) = described.unwrap_or_else(|| (id[..12].to_owned(), None));
    Some(Owner { kind: "container", name, id: Some(id.to_owned()), image, pid, netns })
}

fn of_process(process: &Process) -> Option<Owner> {
    let (name, pid, netns) = (process.command()?, Some(process.pid), inode(process.pid));
    Some(Owner { kind: "process", name, pid, netns, ..Owner::default() })
}

/// Returns the inode of a process's network namespace; 0 if it cannot be read.
fn inode(pid: u32) -> u64 {
    fs::metadata(netns_of_process(pid)).map_or(0, |file| file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_goes_before_a_name_and_a_name_before_a_process() {
        let owner = |kind| Some(Owner { kind, ..Owner::default() });
        let mut peer = Peer::default();
        assert_eq!(peer.owner(), None);
        peer.process = owner("process");
        assert_eq!(peer.owner(), owner("process"));
        peer.name = owner("netns");
        assert_eq!(peer.owner(), owner("netns"));
        peer.has_engine = owner("container");
        assert_eq!(peer.owner(), owner("container"));
        peer.is_of_host = true;
        assert_eq!(peer.owner(), None);
    }

    #[test]
    fn what_leads_to_nobody_has_no_owner_and_takes_no_time() {
        let begin = cpu_time();
        assert_eq!(owners(&["lo", "weir-no-such"]), [None, None]);
        assert_eq!(owners(&[]), []);
        assert!(cpu_time() - begin < FIND_TIME_MAX, "{:?}", cpu_time() - begin);
    }

    #[test]
    fn an_owner_in_this_network_namespace_has_its_addresses_but_those_of_loopback() {
        let own = Owner { kind: "process", name: "x".into(), pid: Some(7), ..Owner::default() };
        let here = Owner { netns: inode(std::process::id()), ..own.clone() };
        let outside = addresses().unwrap().into_iter().filter(|(_, own)| !own.is_loopback());
        let wanted: Vec<IpAddr> = outside.map(|(_, address)| address).collect();
        let found = address_names(&here);
        assert!(found.iter().all(|found| found.name == "x(7)"), "{found:?}");
        assert_eq!(found.into_iter().map(|found| found.address).collect::<Vec<_>>(), wanted);
        assert_eq!(address_names(&Owner { kind: "vm", ..here }), []);
        // No process has this PID: Linux has none above 4,194,304 (PID_MAX_LIMIT).
        assert_eq!(address_names(&Owner { pid: Some(4_194_305), ..own }), []);
    }

    #[test]
    fn a_search_without_time_reads_nothing() {
        let search = Search::begin(Duration::ZERO);
        assert_eq!(search.processes().count(), 0);
        assert_eq!(search.holders(&["vnet0"]), BTreeMap::new());
        let mut peers = BTreeMap::from([(0, Peer::default())]);
        search.look_into(&mut peers);
        assert_eq!(peers[&0].owner(), None);
    }
}
