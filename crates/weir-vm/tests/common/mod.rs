//! A guest of the real QEMU: a stock Debian kernel, and a busybox whose `init` runs a script.
//!
//! If something is missing here (QEMU, the kernel, busybox, cpio), the test is skipped with a message. The QEMU
//! process and its files are gone when [`Guest`] is dropped.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_lab::testbed::{require_tool, skip};
use weir_ring::{Clock, Mapping, RingSpec, Writer, WriterKind};
use weir_vm::Qmp;

/// Longest that anything here may take: the guest is emulated, and the machine may be busy.
pub const LIMIT: Duration = Duration::from_secs(90);

/// The first process of a guest. It runs `/script` in another shell, with busybox's applets: an arithmetic error ends a
/// shell, and if the first process ended, the guest's kernel would panic without a message.
const INIT: &str = "#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
exec </dev/null >/dev/ttyS0 2>&1
echo booted
sh /script
echo the script has ended: $?
poweroff -f
";

/// Files from which guests are booted.
pub struct Means {
    kernel: PathBuf,
    /// One guest at a time: each guest keeps a CPU busy, and the tests have time limits.
    _alone: MutexGuard<'static, ()>,
}

/// Whether guests can be booted here. If not, the test is skipped aloud.
pub fn means(test: &str) -> Option<Means> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let tools = ["qemu-system-x86_64", "busybox", "cpio", "bash"];
    if !tools.iter().all(|tool| require_tool(test, tool)) {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/kernel.sh");
    let output = Command::new("bash").arg(script).stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        skip(test, &format!("needs a Debian kernel (tests/guest/kernel.sh: {last})"));
        return None;
    }
    let kernel = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()).join("vmlinuz");
    Some(Means { kernel, _alone: alone })
}

/// The spec of the smallest ring.
pub fn spec() -> RingSpec {
    RingSpec {
        data_blocks: 4,
        interfaces: vec![Interface { link_type: 1, snaplen: 65535, ..Interface::default() }],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    }
}

/// Writes this many frames, and publishes them.
pub fn write(writer: &mut Writer<Mapping>, frames: u64) {
    for _ in 0..frames {
        let meta = Meta { interface_id: 0, ts_ns: 1, wire_len: 60, flags: None, queue: None };
        writer.push(&meta, &[0xab; 60]);
    }
    writer.publish();
}

/// Prefix of the names of Weir's memory files.
const MEMORY: &str = "/memfd:weir-";

/// A descriptor that QEMU holds.
#[derive(Debug)]
pub struct Held {
    pub name: String,
    pub path: PathBuf,
}

/// A running guest.
pub struct Guest {
    qemu: Child,
    folder: TempDir,
    pub qmp: Qmp,
}

impl Guest {
    /// Boots a guest of this machine type (`pc`, `q35`), with more options, and waits until it has booted and runs this
    /// script. With the option `-S`, the guest stays stopped, and this does not wait.
    pub fn boot(means: &Means, machine: &str, options: &str, script: &str) -> Guest {
        Guest::boot_as(means, None, machine, options, script)
    }

    /// The same, but QEMU runs as another user.
    pub fn boot_as(
        means: &Means,
        user: Option<u32>,
        machine: &str,
        options: &str,
        script: &str,
    ) -> Guest {
        let folder = TempDir::with_prefix("weir-vm-guest-").unwrap();
        let initramfs = make_initramfs(folder.path(), script);
        let socket = folder.path().join("qmp");
        let log = |name: &str| fs::File::create(folder.path().join(name)).unwrap();
        let accel = std::env::var("WEIR_GUEST_ACCEL").unwrap_or_else(|_| "tcg".to_owned());
        let mut command = Command::new("qemu-system-x86_64");
        if let Some(user) = user {
            std::os::unix::fs::chown(folder.path(), Some(user), None).unwrap();
            command.uid(user).gid(user);
        }
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(["-machine", machine, "-cpu", "max", "-smp", "1", "-m", "256M"]);
        accel.split(':').for_each(|accel| _ = command.args(["-accel", accel]));
        command.arg("-kernel").arg(&means.kernel).arg("-initrd").arg(initramfs);
        command.args(["-append", "console=ttyS0 panic=-1 quiet"]);
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", socket.display())]);
        command.args(["-serial", &format!("file:{}", folder.path().join("console").display())]);
        command.args(options.split_whitespace());
        command.stdin(Stdio::null()).stdout(log("stdout")).stderr(log("stderr"));
        let mut qemu = command.spawn().unwrap();
        let start = Instant::now();
        let qmp = loop {
            match Qmp::connect(&socket, LIMIT) {
                Ok(qmp) => break qmp,
                Err(error) => {
                    let ended = qemu.try_wait().unwrap();
                    if ended.is_some() || start.elapsed() > LIMIT {
                        let _ = qemu.kill();
                        let _ = qemu.wait();
                        let said = fs::read_to_string(folder.path().join("stderr"));
                        panic!("QEMU does not start: {error} {ended:?} {said:?}");
                    }
                }
            }
            sleep(Duration::from_millis(20));
        };
        let guest = Guest { qemu, folder, qmp };
        if !options.split_whitespace().any(|option| option == "-S") {
            guest.wait_for("booted");
        }
        guest
    }

    /// The text of the guest's console so far.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.folder.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Waits until this text is on the guest's console.
    pub fn wait_for(&self, text: &str) {
        self.wait_until(text, |console| console.contains(text));
    }

    /// Waits until `is_so` is true of the text of the guest's console. `what` names the condition if the time runs out.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !is_so(&self.console()) {
            assert!(start.elapsed() < LIMIT, "no {what}: {}", self.console());
            sleep(Duration::from_millis(20));
        }
    }

    /// The files of Weir's memory that QEMU has open.
    pub fn held_files(&self) -> Vec<Held> {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.qemu.id())).unwrap();
        let paths = fds.filter_map(Result::ok).map(|fd| fd.path());
        let of = |path: PathBuf| {
            Some(Held { name: fs::read_link(&path).ok()?.display().to_string(), path })
        };
        paths.filter_map(of).filter(|held| held.name.starts_with(MEMORY)).collect()
    }

    /// The names of these files, and QEMU's mappings of them.
    pub fn holds(&self) -> Vec<String> {
        let mut held: Vec<String> = self.held_files().into_iter().map(|held| held.name).collect();
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.qemu.id())).unwrap();
        held.extend(maps.lines().filter(|line| line.contains(MEMORY)).map(str::to_owned));
        held
    }

    /// Waits until QEMU holds none of them: it closes files in another thread, after the object has gone.
    pub fn wait_until_released(&self) {
        let start = Instant::now();
        while !self.holds().is_empty() {
            assert!(start.elapsed() < LIMIT, "QEMU still holds {:?}", self.holds());
            sleep(Duration::from_millis(20));
        }
    }

    /// Open descriptors of QEMU.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.qemu.id())).unwrap().count()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = fs::read_to_string(self.folder.path().join("stderr"));
            eprintln!("QEMU: {:?}, {said:?}; guest: {}", self.qemu.try_wait(), self.console());
        }
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn make_initramfs(folder: &Path, script: &str) -> PathBuf {
    let tree = folder.join("tree");
    for name in ["bin", "dev", "proc", "sys"] {
        fs::create_dir_all(tree.join(name)).unwrap();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let busybox = std::env::split_paths(&path).map(|dir| dir.join("busybox"));
    fs::copy(busybox.into_iter().find(|file| file.is_file()).unwrap(), tree.join("bin/busybox"))
        .unwrap();
    // A busybox that is linked against libraries needs them.
    let output = Command::new("ldd").arg(tree.join("bin/busybox")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = tree.join(library.trim_start_matches('/').trim_end_matches(':'));
        if !library.ends_with(':') {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(library, to).unwrap();
        }
    }
    symlink("busybox", tree.join("bin/sh")).unwrap();
    fs::write(tree.join("init"), INIT).unwrap();
    fs::write(tree.join("script"), script).unwrap();
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let pack = "find . -print0 | cpio --quiet --null -o -H newc -R 0:0 >../initramfs";
    let status = Command::new("bash").args(["-c", pack]).current_dir(&tree).status().unwrap();
    assert!(status.success(), "cpio: {status}");
    folder.join("initramfs")
}
