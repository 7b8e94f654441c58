//! System settings that Weir can change and restore.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use weir_capture::interface::InterfaceQuery;

/// The sysctl that turns on the JIT compiler for BPF programs.
pub const BPF_JIT_ENABLE: &str = "/proc/sys/net/core/bpf_jit_enable";

/// A system setting, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// A feature of an interface, as in `ethtool -k`. The value is 0 or 1.
    Feature {
        /// The interface.
        #[serde(rename = "interface", alias = "iface")]
        iface: String,
        /// The kernel's name of the feature.
        name: String,
    },
    /// Number of descriptors in the RX ring of an interface.
    RxRing {
        /// The interface.
        #[serde(rename = "interface", alias = "iface")]
        iface: String,
    },
    /// Key of the RSS hash, which distributes an interface's frames over its queues: `6d:5a:...`.
    RssKey {
        /// The interface.
        #[serde(rename = "interface", alias = "iface")]
        iface: String,
    },
    /// A file under /proc: a sysctl, or the CPUs of an interrupt. Only the files that Weir sets are accepted
    /// ([`is_known_file`]).
    File {
        /// Path of the file.
        path: String,
    },
}

/// A setting and its new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The setting.
    pub knob: Knob,
    /// The new value.
    pub value: String,
    /// Why a capture benefits from the new value.
    pub why: String,
}

/// Reads and changes settings: those of the system, or those of a fake in tests.
pub trait Panel {
    /// Reads the current value of a setting.
    ///
    /// # Errors
    /// The kernel's error.
    fn read(&self, knob: &Knob) -> io::Result<String>;
    /// Changes the value of a setting.
    ///
    /// # Errors
    /// The kernel's error.
    fn write(&mut self, knob: &Knob, value: &str) -> io::Result<()>;
}

/// The system, in the calling thread's network namespace.
#[derive(Debug)]
pub struct System {
    /// Reads and changes settings of interfaces in that namespace.
    pub query: InterfaceQuery,
}

impl Panel for System {
    fn read(&self, knob: &Knob) -> io::Result<String> {
        Ok(match knob {
            // Return the requested value, because `write` can restore only this one. The kernel derives the active
            // value.
            Knob::Feature { iface, name } => {
                let features = self.query.features(iface)?;
                let found = features.iter().find(|feature| feature.name == *name);
                u32::from(found.ok_or(io::ErrorKind::NotFound)?.requested).to_string()
            }
            Knob::RxRing { iface } => self.query.rx_ring(iface)?.now.to_string(),
            Knob::RssKey { iface } => hex(&self.query.rss(iface)?.key),
            Knob::File { path } => fs::read_to_string(known(path)?)?.trim().to_owned(),
        })
    }

    fn write(&mut self, knob: &Knob, value: &str) -> io::Result<()> {
        let number =
            || value.parse::<u32>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        match knob {
            Knob::Feature { iface, name } => self.query.set_feature(iface, name, number()? != 0),
            Knob::RxRing { iface } => self.query.set_rx_ring(iface, number()?),
            Knob::RssKey { iface } => {
                let key = unhex(value).ok_or(io::ErrorKind::InvalidData)?;
                self.query.set_rss_key(iface, &key)
            }
            // Do not create the file: if the kernel has no such file, there is nothing to set.
            Knob::File { path } => {
                File::options().write(true).open(known(path)?)?.write_all(value.as_bytes())
            }
        }
    }
}

/// Returns whether Weir ever sets this file. Records of changes contain paths, and somebody else may have written a
/// record. So no other file is read or written.
#[must_use]
pub fn is_known_file(path: &str) -> bool {
    if path == BPF_JIT_ENABLE {
        return true;
    }
    let irq =
        path.strip_prefix("/proc/irq/").and_then(|rest| rest.strip_suffix("/smp_affinity_list"));
    irq.is_some_and(|irq| !irq.is_empty() && irq.bytes().all(|byte| byte.is_ascii_digit()))
}

fn known(path: &str) -> io::Result<&str> {
    if is_known_file(path) {
        return Ok(path);
    }
    let text = format!("{path} is no file that Weir sets: the record is not Weir's");
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// Returns the path of the file that lists the CPUs which may handle an interrupt.
#[must_use]
pub fn irq_cpus_file(irq: u32) -> String {
    format!("/proc/irq/{irq}/smp_affinity_list")
}

/// Formats bytes as `ethtool -x` shows a key: `6d:5a`.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(":")
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    text.split(':').map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

/// Returns the short name of a feature for `ethtool -K`; without one, the kernel's name, which `ethtool -K` accepts,
/// too.
fn short(name: &str) -> &str {
    match name {
        "rx-vlan-hw-parse" => "rxvlan",
        "rx-gro" => "gro",
        "rx-lro" => "lro",
        other => other,
    }
}

impl Knob {
    /// Returns the shell command that sets this value.
    #[must_use]
    pub fn command(&self, value: &str) -> String {
        match self {
            Knob::Feature { iface, name } => {
                format!(
                    "ethtool -K {iface} {} {}",
                    short(name),
                    if value == "0" { "off" } else { "on" }
                )
            }
            Knob::RxRing { iface } => format!("ethtool -G {iface} rx {value}"),
            Knob::RssKey { iface } => format!("ethtool -X {iface} hkey {value}"),
            Knob::File { path } => format!("echo {value} > {path}"),
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knob::Feature { iface, name } => write!(f, "{iface} {}", short(name)),
            Knob::RxRing { iface } => write!(f, "{iface} rx ring"),
            Knob::RssKey { iface } => write!(f, "{iface} rss key"),
            Knob::File { path } => f.write_str(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_weir_sets_are_read_or_written() {
        for path in [BPF_JIT_ENABLE.to_owned(), irq_cpus_file(0), irq_cpus_file(4711)] {
            assert!(is_known_file(&path), "{path}");
        }
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, b"precious").unwrap();
        let victim_path = victim.to_str().unwrap();
        let through = format!("/proc/irq/../..{victim_path}");
        let mut system = System { query: InterfaceQuery::new().unwrap() };
        for path in [
            victim_path,
            &through,
            "/proc/irq/1/../../../etc/passwd",
            "/proc/irq//smp_affinity_list",
            "/proc/irq/1/2/smp_affinity_list",
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/net/core/bpf_jit_enable/../../../kernel/core_pattern",
            "",
        ] {
            let knob = Knob::File { path: path.to_owned() };
            for result in [system.read(&knob).map(drop), system.write(&knob, "|/bin/evil")] {
                let error = result.expect_err(path);
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{path}: {error}");
            }
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_key_is_written_as_it_is_read() {
        for key in [&[0x6d, 0x5a, 0x00][..], &[0xff]] {
            assert_eq!(unhex(&hex(key)).as_deref(), Some(key));
        }
        assert_eq!(hex(&[0x6d, 0x0a]), "6d:0a");
        for bad in ["", "6d:", "xx", "6d5a", "100"] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
