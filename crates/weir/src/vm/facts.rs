//! Collects facts about the daemon, its file and the machine, for the check of a guest.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::Result;
use thiserror::Error;
use toml::{Table, Value};
use weir_client::ClientError;
use weir_client::protocol::Guest;
use weir_plug::PlugError;
use weir_region::limits::REGION_MIB_DEFAULT;
use weir_vm::libvirt::SYSTEM_URI;

use super::domain;
use super::virsh::{DomainState, Virsh};
use crate::cli::CheckArgs;
use crate::daemon::NoDaemon;
use crate::error_words::words;
use crate::limits::COMMAND_LINE_BYTES_MAX;

/// The known facts about a guest.
pub struct Facts {
    /// The daemon's list of guests.
    pub daemon: Result<Vec<Guest>, NoList>,
    /// The daemon's file.
    pub file: Result<InFile, NoFile>,
    /// The machine, if the file has its domain or its QMP socket.
    pub machine: Option<Machine>,
}

/// Why the daemon's list of guests is not available. The texts are for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoList {
    /// No daemon listens.
    #[error("{0}")]
    NoDaemon(String),
    /// This user may not connect, or may not send this request.
    #[error("{0}")]
    Denied(String),
    /// Another program answers, such as a guest's broker, or the connection failed.
    #[error("{0}")]
    Other(String),
}

/// Why the daemon's file is not available. The texts are for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoFile {
    /// The file does not exist.
    #[error("{0}")]
    Missing(String),
    /// This user may not read the file.
    #[error("{0}")]
    Denied(String),
    /// The file is not TOML, or cannot be read.
    #[error("{0}")]
    Other(String),
}

/// Why the facts about a domain are not available. The texts are for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoDomain {
    /// libvirt's client is not installed.
    #[error("{0}")]
    NoClient(String),
    /// Another error, with the message of libvirt.
    #[error("{0}")]
    Other(String),
}

/// A guest in the daemon's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFile {
    /// Whether the guest has a section.
    pub is_named: bool,
    /// The domain and the libvirt URI, if libvirt runs the machine.
    pub libvirt: Option<(String, String)>,
    /// Path of the QMP socket.
    pub qmp: Option<String>,
    /// Whether the guest is reached over a vsock, and needs no port.
    pub is_by_vsock: bool,
    /// Size of the guest's region in MiB.
    pub region_mib: u64,
    /// Sources that the guest may open.
    pub sources: Vec<String>,
}

/// A virtual machine, as seen from this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// A domain of libvirt.
    Domain {
        /// The domain's name.
        name: String,
        /// The domain's state, the parts that the running domain lacks, and the parts that it will lack at its next
        /// start.
        found: Result<(DomainState, Lacks, Lacks), NoDomain>,
        /// The libvirt URI.
        uri: String,
    },
    /// A QEMU that was started by other means, found by the path of its monitor.
    Qemu {
        /// Path of the QMP socket.
        qmp: String,
        /// The process id of QEMU, and the parts that its command line lacks; `None` if no such process runs.
        found: Option<(u32, Lacks)>,
    },
}

/// Parts that a machine lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// The port org.weir.0, or the vsock device if the file names a vsock.
    pub channel: bool,
    /// Root ports with room for the region.
    pub ports: bool,
}

impl Facts {
    /// Collects the facts about a guest.
    pub fn gather(args: &CheckArgs) -> Facts {
        let daemon = super::host_daemon(args.socket.as_deref())
            .and_then(|connection| Ok(connection.guests()?))
            .map_err(no_list);
        let file = in_file(&args.config, &args.name);
        let machine = file.as_ref().ok().and_then(Machine::find);
        Facts { daemon, file, machine }
    }
}

/// Classifies the error by its type. The text of the error is kept.
fn no_list(error: anyhow::Error) -> NoList {
    let text = words(&error);
    let refused = |error: &ClientError| matches!(error, ClientError::Plug(PlugError::Refused(_)));
    match error.downcast_ref::<NoDaemon>() {
        Some(NoDaemon::Absent { .. } | NoDaemon::Capture { .. }) => NoList::NoDaemon(text),
        Some(NoDaemon::Denied { .. }) => NoList::Denied(text),
        None if error.downcast_ref::<ClientError>().is_some_and(refused) => NoList::Denied(text),
        None => NoList::Other(text),
    }
}

fn in_file(path: &Path, name: &str) -> Result<InFile, NoFile> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => NoFile::Missing(format!("{shown}: there is no such file")),
        ErrorKind::PermissionDenied => NoFile::Denied(format!("{shown}: you may not read it")),
        _ => NoFile::Other(format!("{shown}: it cannot be read: {error}")),
    })?;
    let file: Table = text.parse().map_err(|error: toml::de::Error| {
        NoFile::Other(format!("{shown}: it is no TOML: {}", error.message()))
    })?;
    Ok(of_table(&file, name))
}

/// Reads a guest's settings without validation; the daemon validates them.
fn of_table(file: &Table, name: &str) -> InFile {
    let sources = file.get("sources").and_then(Value::as_table).into_iter().flatten();
    let lets_in = |source: &Value| {
        let guests = source.get("guests").and_then(Value::as_array).into_iter().flatten();
        guests.into_iter().any(|guest| guest.as_str() == Some(name))
    };
    let sources =
        sources.filter(|(_, source)| lets_in(source)).map(|(name, _)| name.clone()).collect();
    let guest = file.get("guests").and_then(|guests| guests.get(name));
    let word = |key: &str| guest?.get(key)?.as_str().map(str::to_owned);
    let uri = word("libvirt_uri").unwrap_or_else(|| SYSTEM_URI.to_owned());
    let region = guest.and_then(|guest| guest.get("region_mib")).and_then(Value::as_integer);
    InFile {
        is_named: guest.is_some(),
        libvirt: word("libvirt").map(|domain| (domain, uri)),
        qmp: word("qmp"),
        is_by_vsock: word("vsock").is_some(),
        region_mib: region.and_then(|mib| mib.try_into().ok()).unwrap_or(REGION_MIB_DEFAULT),
        sources,
    }
}

impl Machine {
    fn find(file: &InFile) -> Option<Machine> {
        if let Some((domain, uri)) = &file.libvirt {
            let virsh = Virsh { uri: uri.clone(), domain: domain.clone() };
            let found = of_domain(&virsh, file.region_mib).map_err(|error| {
                let text = words(&error);
                // An `io::Error` in the chain comes from starting virsh only.
                let is_missing =
                    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
                match is_missing.into_iter().any(|cause| cause.kind() == ErrorKind::NotFound) {
                    true => NoDomain::NoClient(text),
                    false => NoDomain::Other(text),
                }
            });
            return Some(Machine::Domain { name: domain.clone(), found, uri: uri.clone() });
        }
        let qmp = file.qmp.clone()?;
        let found = qemu_of(&qmp, file);
        Some(Machine::Qemu { qmp, found })
    }
}

fn of_domain(virsh: &Virsh, region_mib: u64) -> Result<(DomainState, Lacks, Lacks)> {
    let state = virsh.state()?;
    let lacks = |is_running| -> Result<Lacks> {
        let change = domain::change(&virsh.xml(is_running)?, region_mib)?;
        Ok(Lacks { channel: change.adds_channel, ports: change.adds_ports })
    };
    let next = lacks(false)?;
    Ok((state, if state.is_on() { lacks(true)? } else { next }, next))
}

/// Finds the QEMU whose monitor is at this path. Returns its process id, and the parts that its options lack.
fn qemu_of(qmp: &str, guest: &InFile) -> Option<(u32, Lacks)> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).find_map(|pid| {
        let mut bytes = Vec::new();
        let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
        file.take(COMMAND_LINE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let line = String::from_utf8_lossy(&bytes);
        let words: Vec<&str> = line.split('\0').collect();
        Some((pid, lacks_of(&words, qmp, guest)?))
    })
}

/// Returns the parts that a command line lacks; `None` if it is not that of a QEMU with its monitor at this path.
fn lacks_of(words: &[&str], qmp: &str, guest: &InFile) -> Option<Lacks> {
    let program = words.first()?.rsplit('/').next()?;
    let monitor = format!("unix:{qmp}");
    let is_there = |word: &&str| word.split(',').any(|option| option == monitor);
    if !(program.contains("qemu") || program.contains("kvm")) || !words.iter().any(is_there) {
        return None;
    }
    let is_channel = |word: &&str| match guest.is_by_vsock {
        true => word.starts_with("vhost-user-vsock"),
        false => {
            word.starts_with("virtserialport,") && word.contains(&format!("name={}", domain::PORT))
        }
    };
    let value = |flags: [&str; 2]| {
        let at = words.iter().position(|word| flags.contains(&word.trim_start_matches('-')))?;
        words.get(at + 1)?.split(',').next()
    };
    let machine = value(["M", "machine"]).unwrap_or("pc").trim_start_matches("type=");
    let needs_ports = machine.contains("q35") || machine.starts_with("virt");
    let ports = words.iter().filter(|word| word.starts_with("pcie-root-port,")).copied();
    Some(Lacks {
        channel: !words.iter().any(is_channel),
        ports: needs_ports && !domain::has_room(ports, guest.region_mib),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_where_a_guest_is_and_what_lets_it_in() {
        let file: Table = "[sources.lan]\nguests = ['a', 'b']\n[sources.wan]\nusers = [0]\n\
                           [guests.a]\nlibvirt = 'A'\nregion_mib = 64\n[guests.b]\nqmp = '/q'\nport = '/p'"
            .parse()
            .unwrap();
        let a = of_table(&file, "a");
        assert_eq!(a.libvirt, Some(("A".to_owned(), "qemu:///system".to_owned())));
        assert_eq!((a.region_mib, &a.sources[..]), (64, &["lan".to_owned()][..]));
        let b = of_table(&file, "b");
        assert_eq!((b.qmp.as_deref(), b.region_mib, b.libvirt), (Some("/q"), 256, None));
        assert!(!of_table(&file, "c").is_named && of_table(&Table::new(), "a").sources.is_empty());
    }

    #[test]
    fn a_qemu_is_known_by_its_monitor_and_lacks_what_no_option_says() {
        let lacks = |line: &str| {
            let guest = InFile { region_mib: 256, ..InFile::default() };
            lacks_of(&line.split(' ').collect::<Vec<_>>(), "/q", &guest)
        };
        let all = "/usr/bin/qemu-system-x86_64 -qmp unix:/q,server=on -device virtserialport,chardev=c,name=org.weir.0";
        assert_eq!(lacks(all), Some(Lacks::default()));
        assert_eq!(lacks("qemu -qmp unix:/q"), Some(Lacks { channel: true, ports: false }));
        assert_eq!(lacks("qemu -qmp unix:/qq"), None);
        assert_eq!(lacks("sh -qmp unix:/q"), None);
        let vsock = |line: &str| {
            let guest = InFile { region_mib: 256, is_by_vsock: true, ..InFile::default() };
            lacks_of(&line.split(' ').collect::<Vec<_>>(), "/q", &guest)
        };
        let by_vsock = "qemu -qmp unix:/q -device vhost-user-vsock-pci,chardev=weir";
        assert_eq!(vsock(by_vsock), Some(Lacks::default()));
        assert_eq!(vsock(all), Some(Lacks { channel: true, ports: false }));
        let q35 = format!("{all} -M q35");
        assert_eq!(lacks(&q35), Some(Lacks { channel: false, ports: true }));
        let [region, words] = domain::ports(256, None, 0);
        assert_eq!(
            lacks(&format!("{q35} -device {region} -device {words}")),
            Some(Lacks::default())
        );
    }
}
