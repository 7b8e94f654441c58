//! The memory that is available for rings: the free memory of the machine, within the limits of this
//! process's cgroups. Rings of BPF programs cannot be swapped out; memfds can, but then frames are lost. If
//! a cgroup exceeds its limit, the kernel kills its processes.

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest amount of free memory among the machine and the cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Free bytes.
    pub bytes: u64,
    /// The file that sets the limit; `None` if the limit is the machine's memory.
    pub limit: Option<PathBuf>,
}

/// Returns the memory that is free for this process; `None` if the kernel does not report it.
#[must_use]
pub fn free() -> Option<MemoryLimit> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = available(&read("/proc/meminfo")).map(|bytes| MemoryLimit { bytes, limit: None });
    let (own, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let groups = [Version::Two, Version::One].into_iter().filter_map(|version| {
        let (top, below) = version.find(&own, &mounts)?;
        version.least_in(&top, &below)
    });
    machine.into_iter().chain(groups).min_by_key(|room| room.bytes)
}

/// Returns the number of free huge pages of 2 MiB in the kernel's pool; `None`: the kernel has no pool of that size.
#[must_use]
pub fn free_huge_pages() -> Option<u64> {
    // `free_hugepages` includes the pages that are reserved for existing mappings.
    Some(huge_page_count("free_hugepages")?.saturating_sub(huge_page_count("resv_hugepages")?))
}

/// Returns the number of huge pages of 2 MiB in the kernel's pool, free or in use.
#[must_use]
pub fn huge_pages() -> Option<u64> {
    huge_page_count("nr_hugepages")
}

/// Reads a number of huge pages. Source: Documentation/admin-guide/mm/hugetlbpage.rst.
fn huge_page_count(file: &str) -> Option<u64> {
    let folder = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
    fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[derive(Clone, Copy, Debug)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Returns the mount point of the hierarchy, and the path of this process's group below it.
    fn find(self, own: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
        // `ID:CONTROLLERS:PATH`; cgroups(7).
        let group = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let ours = match self {
                Version::One => controllers.split(',').any(|name| name == "memory"),
                Version::Two => controllers.is_empty(),
            };
            ours.then(|| Path::new(path))
        })?;
        // `ID PARENT DEVICE ROOT POINT OPTIONS... - TYPE SOURCE OPTIONS`; proc_pid_mountinfo(5).
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let (kind, options) = (right.next()?, right.nth(1)?);
            let ours = match self {
                Version::One => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
                Version::Two => kind == "cgroup2",
            };
            let mut left = left.split(' ').skip(3);
            let (root, point) = (left.next()?, left.next()?);
            let below = group.strip_prefix(root).ok()?;
            ours.then(|| (PathBuf::from(point), below.to_owned()))
        })
    }

    /// Returns the smallest amount that is left in the group and in its ancestors. The root group has no limit.
    fn least_in(self, top: &Path, below: &Path) -> Option<MemoryLimit> {
        let groups = below.ancestors().map(|group| top.join(group));
        groups.filter_map(|group| self.left_in(&group)).min_by_key(|room| room.bytes)
    }

    fn left_in(self, group: &Path) -> Option<MemoryLimit> {
        let (limit, used, cache) = match self {
            Version::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            Version::Two => ("memory.max", "memory.current", ""),
        };
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        // "max" means no limit; it does not parse as a number.
        let (most, used) = (number(limit)?, number(used)?);
        // The kernel can reclaim the page cache of files.
        let stat = read("memory.stat").unwrap_or_default();
        let cached = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let name = name.strip_prefix(cache)?;
            matches!(name, "active_file" | "inactive_file").then(|| bytes.parse::<u64>().ok())?
        });
        let used = used.saturating_sub(cached.sum());
        Some(MemoryLimit { bytes: most.saturating_sub(used), limit: Some(group.join(limit)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_process_are_found_where_they_are_mounted() {
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n\
            33 31 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
            41 31 0:37 /pod /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = "9:name=systemd:/\n4:memory:/user/weir\n0::/pod/weir\n";
        let found = |version: Version| version.find(own, mounts);
        let path = |text: &str| PathBuf::from(text);
        let one = (path("/sys/fs/cgroup/memory"), path("user/weir"));
        assert_eq!(found(Version::One), Some(one));
        assert_eq!(found(Version::Two), Some((path("/sys/fs/cgroup/unified"), path("weir"))));
        // A group that is not below the mounted one.
        assert_eq!(Version::Two.find("0::/other", mounts), None);
    }

    #[test]
    fn the_least_of_all_groups_counts_without_what_is_only_cached() {
        let top = tempfile::tempdir().unwrap();
        let group = |below: &str, max: &str, current: &str, stat: &str| {
            let folder = top.path().join(below);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in
                [("memory.max", max), ("memory.current", current), ("memory.stat", stat)]
            {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        };
        let least = || Version::Two.least_in(top.path(), Path::new("a/b"));
        group("a/b", "max", "100", "");
        assert_eq!(least(), None);
        group("a", "1000", "900", "anon 300\ninactive_file 500\nactive_file 100");
        let limit = Some(top.path().join("a/memory.max"));
        assert_eq!(least(), Some(MemoryLimit { bytes: 700, limit }));
        group("a/b", "500", "600", "");
        let limit = Some(top.path().join("a/b/memory.max"));
        assert_eq!(least(), Some(MemoryLimit { bytes: 0, limit }));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(free().is_some_and(|room| room.bytes > 0));
    }
}
