//! Facts about a process from /proc that lead to a container or a VM. The process itself may have written any of them.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::limits::{DESCRIPTORS_MAX, OWNER_NAME_MAX, PROC_BYTES_MAX};

/// A process that may have ended.
pub(crate) struct Process {
    pub(crate) pid: u32,
}

impl Process {
    /// Returns all processes, lowest ids first.
    pub(crate) fn all() -> Vec<Process> {
        let number = |entry: std::io::Result<fs::DirEntry>| -> Option<u32> {
            entry.ok()?.file_name().to_str()?.parse().ok()
        };
        let mut pids: Vec<u32> =
            fs::read_dir("/proc").into_iter().flatten().filter_map(number).collect();
        pids.sort_unstable();
        pids.into_iter().map(|pid| Process { pid }).collect()
    }

    fn path(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.pid).into()
    }

    fn read(&self, file: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.path(file)).ok()?.take(PROC_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the identity of the process's network namespace, such as `net:[4026531840]`; `None` without rights.
    pub(crate) fn netns(&self) -> Option<PathBuf> {
        fs::read_link(self.path("ns/net")).ok()
    }

    pub(crate) fn cgroup(&self) -> Option<String> {
        self.read("cgroup")
    }

    /// Returns the name of the process's command.
    pub(crate) fn command(&self) -> Option<String> {
        self.read("comm").map(|name| plain(name.trim_end()))
    }

    /// Returns the name of the VM that the process runs, if the process is QEMU and was started with a name.
    pub(crate) fn vm(&self) -> Option<String> {
        vm_of(&self.read("cmdline")?)
    }

    /// Returns the taps and tuns that the process has open. If a descriptor of /dev/net/tun was passed to another
    /// process, both processes have it open.
    pub(crate) fn taps(&self) -> Vec<String> {
        let descriptors = fs::read_dir(self.path("fd")).into_iter().flatten().flatten();
        let is_tun = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("/dev/net/tun"))
        };
        let tap = |entry: fs::DirEntry| {
            let number = entry.file_name().into_string().ok()?;
            tap_of(&self.read(&format!("fdinfo/{number}"))?)
        };
        // Each queue of a tap has a descriptor.
        let mut taps: Vec<String> =
            descriptors.take(DESCRIPTORS_MAX).filter(is_tun).filter_map(tap).collect();
        taps.sort();
        taps.dedup();
        taps
    }
}

/// Parses the name of a tap. If no tap is attached to the descriptor yet, there is no name after `iff:`. Source:
/// `tun_chr_show_fdinfo`, drivers/net/tun.c.
fn tap_of(fdinfo: &str) -> Option<String> {
    let name = fdinfo.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Parses the name of a VM. Source: qemu(1), `-name [guest=]string[,process=string][,debug-threads=on|off]`; a comma in
/// a name is doubled.
fn vm_of(command_line: &str) -> Option<String> {
    let mut words = command_line.split('\0');
    let program = words.next()?.rsplit('/').next()?;
    if !program.contains("qemu") && !program.contains("kvm") {
        return None;
    }
    words.by_ref().find(|word| matches!(*word, "-name" | "--name"))?;
    let value = words.next()?.replace(",,", "\0");
    let mut options = value.split(',');
    let first = options.next()?;
    let name = match (first.strip_prefix("guest="), first.contains('=')) {
        (Some(name), _) => name,
        (None, false) => first,
        (None, true) => options.find_map(|option| option.strip_prefix("guest="))?,
    };
    Some(plain(&name.replace('\0', ","))).filter(|name| !name.is_empty())
}

/// Replaces control characters, which would act on a terminal, and shortens the name to `OWNER_NAME_MAX`.
pub(crate) fn plain(name: &str) -> String {
    let shown = name.chars().map(|c| if c.is_control() { '?' } else { c });
    shown.take(OWNER_NAME_MAX).collect()
}

/// Returns the id of the container to which a process with this `/proc/PID/cgroup` belongs: 64 hexadecimal digits in
/// the name of a folder, after the engine's name if systemd made the folder (`docker-ID.scope`, `libpod-ID.scope`).
pub(crate) fn container_of(cgroup: &str) -> Option<&str> {
    let id = |folder| {
        let folder: &str = folder;
        let folder = folder.strip_suffix(".scope").unwrap_or(folder);
        let id = folder.rsplit_once('-').map_or(folder, |(_, id)| id);
        let is_id =
            id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_id.then_some(id)
    };
    // The innermost container is returned, because containers may run in containers.
    cgroup.lines().find_map(|line| line.rsplit('/').find_map(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_called_as_qemu_was_told() {
        let vm = |line: &str| vm_of(&line.replace(' ', "\0"));
        let web1 = Some("web1".to_owned());
        assert_eq!(
            vm("/usr/bin/qemu-system-x86_64 -S -name guest=web1,debug-threads=on -m 1"),
            web1
        );
        assert_eq!(vm("qemu-system-x86_64 --name web1"), web1);
        assert_eq!(vm("/usr/libexec/qemu-kvm -name debug-threads=on,guest=web1"), web1);
        assert_eq!(vm("kvm -name a,,b,process=x"), Some("a,b".to_owned()));
        assert_eq!(vm("kvm -name \x1b[2J\u{9b}1"), Some("?[2J?1".to_owned()));
        assert_eq!(vm(&format!("kvm -name {}", "x".repeat(9999))).unwrap().len(), OWNER_NAME_MAX);
        for line in [
            "",
            "qemu",
            "qemu -name",
            "qemu -name debug-threads=on",
            "qemu -name ",
            "sh -name web1",
        ] {
            assert_eq!(vm(line), None, "{line}");
        }
    }

    #[test]
    fn a_descriptor_says_its_tap() {
        let fdinfo = |iff: &str| format!("pos:\t104\nflags:\t0104002\nmnt_id:\t19\niff:\t{iff}\n");
        assert_eq!(tap_of(&fdinfo("vnet0")), Some("vnet0".to_owned()));
        assert_eq!(tap_of(&fdinfo("")), None);
        assert_eq!(tap_of("pos:\t0\n"), None);
    }

    #[test]
    fn a_container_is_in_the_path_of_its_cgroup() {
        let id = "3f2a91c0d7e4".repeat(5) + "aaaa";
        for path in [
            format!("12:pids:/\n0::/system.slice/docker-{id}.scope\n"),
            format!("4:memory:/docker/{id}\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
            format!("0::/docker/{}/docker/{id}/init.scope\n", "b".repeat(64)),
        ] {
            assert_eq!(container_of(&path), Some(&id[..]), "{path}");
        }
        for path in ["0::/init.scope\n", "0::/user.slice/session-3.scope\n", ""] {
            assert_eq!(container_of(path), None, "{path}");
        }
        assert_eq!(container_of(&format!("0::/x/{}\n", "Z".repeat(64))), None);
    }
}
