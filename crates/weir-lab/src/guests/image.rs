//! Creates the boot files of a guest: a kernel, and an initramfs with busybox, weir and the modules for the guest's
//! devices.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Archive;
use crate::{Error, Result};

/// Drivers of the PCI bus, the ports, the network interface and the disk.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_console", "virtio_net", "virtio_blk"];

/// The first process. It loads drivers, starts the broker, and runs the commands that arrive on the second port; a
/// serial line would lose characters while the host is busy. Each command is a line. After a command's output, a line
/// gives the command's number and its exit status. The interface is promiscuous, as during a capture.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin HOME=/
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
for module in virtio_pci virtio_console virtio_net virtio_blk; do modprobe $module; done
ip link set lo up
ip link set eth0 up promisc on
weir guest >/tmp/guest.out 2>/tmp/guest.err &
echo $! >/tmp/guest.pid
for port in /sys/class/virtio-ports/*; do
    grep -qx org.weir.bench "$port/name" && commands=/dev/${port##*/}
done
exec <>"$commands" >&0 2>&1
echo WEIR-READY
while read -r number command; do
    sh -c "$command" </dev/null 2>&1
    echo "WEIR-DONE $number $?"
done
poweroff -f
"#;

/// A kernel and an initramfs as files, deleted on drop.
#[derive(Debug)]
pub(crate) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    _folder: tempfile::TempDir,
}

fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: "guest".to_owned(), reason: reason.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| failed(format!("{}: {error}", path.display())))
}

impl Image {
    /// Creates an image of this program, with the kernel of a folder with `vmlinuz` and `lib/modules`.
    /// tests/guest/kernel.sh creates such a folder.
    ///
    /// # Errors
    /// [`Error::Measure`] that names the missing part.
    pub(crate) fn new(kernel: &Path, weir: &Path) -> Result<Image> {
        let folder = tempfile::tempdir().map_err(failed)?;
        let mut archive = Archive::default();
        for name in ["dev", "proc", "sys", "tmp", "run"] {
            archive.folder(name);
        }
        archive.file("init", true, INIT.as_bytes());
        let busybox = on_path("busybox")
            .ok_or_else(|| failed("busybox is not installed (Debian: busybox-static)"))?;
        archive.file("bin/busybox", true, &read(&busybox)?);
        archive.link("bin/sh", "busybox");
        // Debug information is most of a build's size, and a guest keeps the whole file in memory.
        let stripped = folder.path().join("weir");
        let strip =
            Command::new("strip").args(["--strip-debug", "-o"]).arg(&stripped).arg(weir).status();
        let program = if strip.is_ok_and(|status| status.success()) { &stripped } else { weir };
        archive.file("bin/weir", true, &read(program)?);
        for program in [weir, &busybox] {
            for library in libraries(program) {
                archive.file(library.trim_start_matches('/'), true, &read(Path::new(&library))?);
            }
        }
        add_modules(&mut archive, kernel)?;
        let initramfs = folder.path().join("initramfs");
        fs::write(&initramfs, archive.finish()).map_err(failed)?;
        // The stripped copy is not needed any more, and is as large as the rest.
        let _ = fs::remove_file(&stripped);
        Ok(Image { kernel: kernel.join("vmlinuz"), initramfs, _folder: folder })
    }
}

/// Returns the path of a program.
fn on_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns the shared libraries of a program. A static program has none, and `ldd` refuses it.
fn libraries(program: &Path) -> Vec<String> {
    let Ok(output) = Command::new("ldd").arg(program).output() else { return Vec::new() };
    parse_libraries(&String::from_utf8_lossy(&output.stdout))
}

/// Parses lines of `NAME => PATH (ADDRESS)`; the line of the dynamic loader is `PATH (ADDRESS)`.
fn parse_libraries(ldd: &str) -> Vec<String> {
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    ldd.lines().filter_map(path).collect()
}

/// Adds the modules, their dependencies, and the lists that modprobe reads.
fn add_modules(archive: &mut Archive, kernel: &Path) -> Result<()> {
    let all = kernel.join("lib/modules");
    let missing = |_| failed(format!("{}: no kernel is there", kernel.display()));
    let mut versions = fs::read_dir(&all).map_err(missing)?.flatten();
    let version = versions.next().ok_or_else(|| failed(format!("{} is empty", all.display())))?;
    let name = version.file_name().to_string_lossy().into_owned();
    let dependencies =
        String::from_utf8(read(&version.path().join("modules.dep"))?).map_err(failed)?;
    for file in needed(&dependencies, &MODULES) {
        archive.file(
            &format!("lib/modules/{name}/{file}"),
            false,
            &read(&version.path().join(&file))?,
        );
    }
    for list in ["modules.alias", "modules.builtin", "modules.dep", "modules.order"] {
        let path = version.path().join(list);
        if path.is_file() {
            archive.file(&format!("lib/modules/{name}/{list}"), false, &read(&path)?);
        }
    }
    Ok(())
}

/// Returns the files of these modules and of their dependencies. A module's line in modules.dep names all of them. A
/// module without a line is built in.
fn needed(dependencies: &str, modules: &[&str]) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for line in dependencies.lines() {
        let Some((file, others)) = line.split_once(':') else { continue };
        let name =
            file.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default();
        if modules.contains(&name) {
            files.insert(file.to_owned());
            files.extend(others.split_whitespace().map(str::to_owned));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_brings_what_it_needs() {
        let dependencies = "kernel/drivers/net/virtio_net.ko: kernel/net/core/failover.ko \
            kernel/drivers/virtio/virtio.ko\n\
            kernel/net/core/failover.ko:\nkernel/drivers/net/veth.ko:\nkernel/drivers/virtio/virtio.ko:\n";
        let files: Vec<String> =
            needed(dependencies, &["virtio_net", "virtio_pci"]).into_iter().collect();
        let expected = [
            "kernel/drivers/net/virtio_net.ko",
            "kernel/drivers/virtio/virtio.ko",
            "kernel/net/core/failover.ko",
        ];
        assert_eq!(files, expected);
    }

    #[test]
    fn the_loader_is_a_library_too() {
        let text = "\tlinux-vdso.so.1 (0x00007f5a59aeb000)\n\
            \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f5a)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f5a59aed000)\n";
        assert_eq!(
            parse_libraries(text),
            ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert!(parse_libraries("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn a_folder_without_a_kernel_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            Image::new(folder.path(), &std::env::current_exe().unwrap()).unwrap_err().to_string();
        assert!(
            error.contains(&folder.path().display().to_string()) || error.contains("busybox"),
            "{error}"
        );
    }
}
