//! Measures the memory of a process: its rings, and the rest.

use std::collections::BTreeMap;
use std::fs;

/// Names of mappings that are rings: BPF arrays, memfds and packet sockets.
const RINGS: [&str; 3] = ["bpf-map", "/memfd:weir", "socket:["];
/// Names of mappings that are rings, but not BPF maps.
const RINGS_OF_USER: [&str; 2] = ["/memfd:weir", "socket:["];

/// Memory of one process, KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Resident memory outside rings.
    pub own_kib: u64,
    /// Size of the rings that are not BPF maps, each counted once.
    pub rings_kib: u64,
    /// Memory of the process's open BPF maps, rings included, as reported by the kernel.
    pub maps_kib: u64,
}

impl Footprint {
    /// Reads the memory of a process. `None` if the process has ended or access is denied.
    #[must_use]
    pub fn of(process: u32) -> Option<Footprint> {
        let smaps = fs::read_to_string(format!("/proc/{process}/smaps")).ok()?;
        let infos = fs::read_dir(format!("/proc/{process}/fdinfo")).ok()?.flatten();
        let infos: Vec<_> = infos.filter_map(|info| fs::read_to_string(info.path()).ok()).collect();
        Some(Footprint {
            own_kib: beyond_rings(&smaps),
            rings_kib: rings(&smaps),
            maps_kib: maps(&infos),
        })
    }

    /// Returns the sum.
    #[must_use]
    pub fn kib(self) -> u64 {
        self.own_kib + self.rings_kib + self.maps_kib
    }
}

/// Returns the mappings of a `smaps` file: the first line of each, and the value of `field` in KiB.
fn mappings<'a>(smaps: &'a str, field: &str) -> Vec<(&'a str, u64)> {
    let mut found: Vec<(&str, u64)> = Vec::new();
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix(field) {
            let kib = rest.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
            if let Some(last) = found.last_mut() {
                last.1 = kib.unwrap_or(0);
            }
        } else if line.split_whitespace().next().is_some_and(|first| !first.ends_with(':')) {
            found.push((line, 0));
        }
    }
    found
}

/// Returns the resident KiB of mappings that are not rings.
fn beyond_rings(smaps: &str) -> u64 {
    let is_ring = |line: &str| RINGS.iter().any(|ring| line.contains(ring));
    let own = mappings(smaps, "Rss:").into_iter().filter(|(line, _)| !is_ring(line));
    own.map(|(_, kib)| kib).sum()
}

/// Returns the KiB of rings that user space writes. Mappings of the same device and inode are counted once.
fn rings(smaps: &str) -> u64 {
    let is_ring = |line: &str| RINGS_OF_USER.iter().any(|ring| line.contains(ring));
    let mut files: BTreeMap<(String, String), u64> = BTreeMap::new();
    for (line, kib) in mappings(smaps, "Size:").into_iter().filter(|(line, _)| is_ring(line)) {
        // The fields are: address, permissions, offset, device, inode, name.
        let fields: Vec<_> = line.split_whitespace().collect();
        let file = |index: usize| fields.get(index).map_or_else(String::new, |&field| field.into());
        let size = files.entry((file(3), file(4))).or_default();
        *size = kib.max(*size);
    }
    files.into_values().sum()
}

/// Returns the KiB of the BPF maps that these `fdinfo` files describe, each map counted once.
fn maps(infos: &[String]) -> u64 {
    let number = |info: &str, name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        line[name.len()..].trim().parse::<u64>().ok()
    };
    let map = |info: &String| Some((number(info, "map_id:")?, number(info, "memlock:")?));
    let maps: BTreeMap<u64, u64> = infos.iter().filter_map(map).collect();
    maps.into_values().sum::<u64>() / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "55d0-55d1 r-xp 00000000 fe:00 12 /usr/bin/weir\nSize: 2000 kB\nRss:  1500 kB\n\
        VmFlags: rd ex mr\n\
        7f00-7f01 r--s 00000000 00:0e 9 anon_inode:bpf-map\nSize: 33792 kB\nRss: 33792 kB\n\
        7f02-7f03 rw-s 00000000 00:01 2 /memfd:weir-ring (deleted)\nSize: 400 kB\nRss: 100 kB\n\
        7f06-7f07 r--s 00000000 00:01 2 /memfd:weir-ring (deleted)\nSize: 400 kB\nRss: 100 kB\n\
        7f04-7f05 rw-p 00000000 00:00 0 \nSize: 90 kB\nRss: 30 kB\n";

    #[test]
    fn rings_are_left_out_of_the_rest_and_counted_once() {
        assert_eq!(beyond_rings(SMAPS), 1530);
        assert_eq!(rings(SMAPS), 400);
    }

    #[test]
    fn a_map_that_is_open_twice_is_one() {
        let info = |id, bytes| format!("pos:\t0\nmap_type:\t2\nmemlock:\t{bytes}\nmap_id:\t{id}\n");
        let infos = [info(7, 4096), info(7, 4096), info(8, 8192), "pos:\t0\n".to_owned()];
        assert_eq!(maps(&infos), 12);
    }

    #[test]
    fn this_process_has_memory_and_one_that_is_gone_has_none() {
        assert!(Footprint::of(std::process::id()).is_some_and(|found| found.kib() > 0));
        assert_eq!(Footprint::of(u32::MAX), None);
    }
}
