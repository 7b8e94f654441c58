//! Runs a guest: QEMU as a child process, and commands in the guest.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::testbed::{End, Running};
use crate::{Error, Result};

use super::Image;

const QEMU: &str = "qemu-system-x86_64";
/// Time limit for booting. An emulated guest alone boots in 2.5 s; several at the same time share the CPUs.
const BOOTS_WITHIN: Duration = Duration::from_secs(90);
/// Time limit for booting with KVM. A guest boots with KVM in less than 2 s if KVM works.
const KVM_BOOTS_WITHIN: Duration = Duration::from_secs(10);
const MEMORY_MIB: u64 = 512;
/// Interval at which the caller's `is_stopped` is called during a command.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// How a guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// By the processor (KVM).
    Kvm,
    /// By QEMU's emulation (TCG).
    Tcg,
}

impl Accelerator {
    /// Returns KVM if it boots a guest. This needs a trial: in virtual machines, it is common that `/dev/kvm` can be
    /// opened but boots no guest.
    pub(crate) fn find(image: &Image, end: Option<&End>, folder: &Path) -> Accelerator {
        let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
        if opened.is_err() {
            return Accelerator::Tcg;
        }
        let sockets = Sockets::new(folder, "trial");
        let guest = Guest::start(image, Accelerator::Kvm, end, &sockets, Hardware::default());
        match guest.and_then(|mut guest| guest.wait_until_ready(KVM_BOOTS_WITHIN)) {
            Ok(()) => Accelerator::Kvm,
            Err(_) => Accelerator::Tcg,
        }
    }

    /// Returns the name that QEMU uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

/// Unix sockets on which QEMU listens.
#[derive(Debug, Clone)]
pub(crate) struct Sockets {
    /// Socket of the port of `weir guest`.
    pub(crate) port: PathBuf,
    /// Socket of QEMU's monitor.
    pub(crate) qmp: PathBuf,
    console: PathBuf,
}

impl Sockets {
    /// Returns the sockets in this folder for the guest with this name.
    pub(crate) fn new(folder: &Path, name: &str) -> Sockets {
        let path = |what: &str| folder.join(format!("{name}.{what}"));
        Sockets { port: path("port"), qmp: path("qmp"), console: path("console") }
    }
}

/// Hardware of a guest, besides its ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hardware<'a> {
    pub(crate) vcpus: usize,
    pub(crate) memory_mib: u64,
    /// The host's CPU on which QEMU runs.
    pub(crate) host_cpu: Option<usize>,
    /// A tap of the host, for a network interface.
    pub(crate) tap: Option<&'a str>,
    /// A file for a virtio-blk disk. QEMU bypasses the host's page cache.
    pub(crate) disk: Option<&'a Path>,
}

impl Default for Hardware<'_> {
    fn default() -> Self {
        Hardware { vcpus: 1, memory_mib: MEMORY_MIB, host_cpu: None, tap: None, disk: None }
    }
}

/// A running guest. Dropping it kills QEMU and waits for it.
#[derive(Debug)]
pub(crate) struct Guest {
    qemu: Running,
    commands: ChildStdin,
    answers: Receiver<String>,
    console: PathBuf,
    number: u64,
}

fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: "guest".to_owned(), reason: reason.to_string() }
}

impl Guest {
    /// Starts QEMU, in the namespace of `end` if there is one.
    /// [`wait_until_ready`](Guest::wait_until_ready) waits until it has booted.
    ///
    /// # Errors
    /// [`Error::Measure`] if QEMU cannot be run.
    pub(crate) fn start(
        image: &Image,
        accelerator: Accelerator,
        end: Option<&End>,
        sockets: &Sockets,
        hardware: Hardware,
    ) -> Result<Guest> {
        let mut command = match hardware.host_cpu {
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &cpu.to_string(), QEMU]);
                command
            }
            None => Command::new(QEMU),
        };
        let listen = |path: &Path| format!("path={},server=on,wait=off", path.display());
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(["-machine", "pc", "-cpu", "max", "-smp", &hardware.vcpus.to_string()]);
        command.args(["-m", &format!("{}M", hardware.memory_mib)]);
        command.args(["-accel", accelerator.name()]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
        command.args(["-append", "console=ttyS0 quiet panic=-1"]);
        command.args(["-serial", &format!("file:{}", sockets.console.display())]);
        command.args(["-device", "virtio-serial"]);
        command.args(["-chardev", &format!("socket,id=weir,{}", listen(&sockets.port))]);
        command.args(["-device", "virtserialport,chardev=weir,name=org.weir.0"]);
        // On a separate device, so that the bench's commands cause no traffic on the first one.
        command.args([
            "-chardev",
            "stdio,id=commands,signal=off",
            "-device",
            "virtio-serial,id=bench",
        ]);
        command
            .args(["-device", "virtserialport,bus=bench.0,chardev=commands,name=org.weir.bench"]);
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", sockets.qmp.display())]);
        if let Some(disk) = hardware.disk {
            let options = "format=raw,if=none,id=disk,cache=none,aio=native";
            // In a value, QEMU needs two commas for one.
            let file = disk.display().to_string().replace(',', ",,");
            command.args(["-drive", &format!("{options},file={file}")]);
            command.args(["-object", "iothread,id=disks"]);
            command.args(["-device", "virtio-blk-pci,drive=disk,iothread=disks"]);
        }
        if let Some(tap) = hardware.tap {
            command.args(["-netdev", &format!("tap,id=net,ifname={tap},script=no,downscript=no")]);
            command.args(["-device", "virtio-net-pci,netdev=net"]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let missing = || failed(format!("{QEMU} cannot be run (Debian: qemu-system-x86)"));
        let spawned = match end {
            Some(end) => end.spawn(command),
            None => command.spawn().map(Running::from).map_err(|_| missing()),
        };
        let mut qemu = spawned.map_err(|error| match error {
            Error::Spawn { .. } => missing(),
            error => error,
        })?;
        let commands = qemu.stdin.take().expect("it was piped");
        let (send, answers) = channel();
        let output = qemu.stdout.take().expect("it was piped");
        let errors = qemu.stderr.take().expect("it was piped");
        let forward = |reader: Box<dyn std::io::Read + Send>,
                       send: std::sync::mpsc::Sender<String>| {
            // The thread ends when the pipe is closed, at the latest when QEMU ends.
            thread::spawn(move || {
                let lines = BufReader::new(reader).split(b'\n').map_while(std::result::Result::ok);
                for line in lines {
                    let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
                    if send.send(line).is_err() {
                        break;
                    }
                }
            });
        };
        forward(Box::new(output), send.clone());
        forward(Box::new(errors), send);
        Ok(Guest { qemu, commands, answers, console: sockets.console.clone(), number: 0 })
    }

    /// Waits until the guest accepts commands. Its broker has been started, but may still be
    /// looking for the daemon.
    ///
    /// # Errors
    /// [`Error::Measure`] with the guest's last message, if it does not boot within `limit`.
    pub(crate) fn wait_until_ready(&mut self, limit: Duration) -> Result<()> {
        let is_ready = |line: &str| (line == "WEIR-READY").then_some(());
        self.read_until(limit, "booting", is_ready, &|| false).map(|_| ())
    }

    /// Waits as [`wait_until_ready`](Guest::wait_until_ready) does, with a limit that suffices for emulation.
    ///
    /// # Errors
    /// As [`wait_until_ready`](Guest::wait_until_ready).
    pub(crate) fn wait_for_boot(&mut self) -> Result<()> {
        self.wait_until_ready(BOOTS_WITHIN)
    }

    /// Runs a line of shell in the guest, and returns its output.
    ///
    /// # Errors
    /// [`Error::Measure`] if the command fails, or takes longer than `limit`. After a time-out, later commands fail as
    /// well.
    pub(crate) fn run(&mut self, command: &str, limit: Duration) -> Result<String> {
        self.run_unless(command, limit, &|| false)
    }

    /// Runs a line of shell as [`run`](Guest::run) does, but ends with an error as soon as `is_stopped` returns true.
    ///
    /// # Errors
    /// As [`run`](Guest::run).
    pub(crate) fn run_unless(
        &mut self,
        command: &str,
        limit: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<String> {
        assert!(!command.contains('\n'), "a command is a line");
        self.number += 1;
        let number = self.number;
        writeln!(self.commands, "{number} {command}")
            .map_err(|error| failed(format!("QEMU has ended: {error}")))?;
        let (mut lines, status) =
            self.read_until(limit, command, |line| status_of(line, number), is_stopped)?;
        match status {
            0 => Ok(lines.join("\n")),
            status => {
                let last = lines.pop().unwrap_or_default();
                Err(failed(format!("`{command}` ended with {status}: {last}")))
            }
        }
    }

    /// Returns the process id of QEMU.
    pub(crate) fn id(&self) -> u32 {
        self.qemu.id()
    }

    /// Reads lines until `wanted` returns a value for one. Returns the lines before this one, and the value.
    fn read_until<T>(
        &mut self,
        limit: Duration,
        doing: &str,
        wanted: impl Fn(&str) -> Option<T>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<String>, T)> {
        let (begin, mut lines) = (Instant::now(), Vec::new());
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            match self.answers.recv_timeout(left.min(ASK_EVERY)) {
                Ok(line) => match wanted(&line) {
                    Some(found) => return Ok((lines, found)),
                    None => lines.push(line),
                },
                Err(RecvTimeoutError::Timeout) if left > ASK_EVERY && !is_stopped() => {}
                Err(error) => {
                    let what = match error {
                        RecvTimeoutError::Timeout if is_stopped() => "was interrupted".to_owned(),
                        RecvTimeoutError::Timeout => {
                            format!("took longer than {} s", limit.as_secs())
                        }
                        RecvTimeoutError::Disconnected => "ended with QEMU".to_owned(),
                    };
                    let console = std::fs::read_to_string(&self.console).unwrap_or_default();
                    let last = lines.iter().map(String::as_str).rev().chain(console.lines().rev());
                    let last = last
                        .map(str::trim)
                        .find(|line| !line.is_empty())
                        .unwrap_or("it said nothing");
                    return Err(failed(format!("{doing} {what}: {last}")));
                }
            }
        }
    }
}

/// Parses `WEIR-DONE NUMBER STATUS`.
fn status_of(line: &str, number: u64) -> Option<i32> {
    let (found, status) = line.strip_prefix("WEIR-DONE ")?.split_once(' ')?;
    (found.parse() == Ok(number)).then(|| status.trim().parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_commands_own_end_is_its_end() {
        assert_eq!(status_of("WEIR-DONE 7 0", 7), Some(0));
        assert_eq!(status_of("WEIR-DONE 7 127", 7), Some(127));
        assert_eq!(status_of("WEIR-DONE 6 0", 7), None);
        assert_eq!(status_of("WEIR-DONE 7", 7), None);
        assert_eq!(status_of("frames 7 0", 7), None);
    }
}
