//! Settings of the system that can be changed and taken back.

use std::fmt;
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};
use weir_capture::iface::Asker;

/// What is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// A feature of an interface, by the kernel's name: 0 or 1.
    Feature {
        /// The interface.
        iface: String,
        /// The name.
        name: String,
    },
    /// Slots of an interface's RX ring.
    RxRing {
        /// The interface.
        iface: String,
    },
    /// A file below /proc: a sysctl, or the CPUs of an interrupt.
    File {
        /// The file.
        path: String,
    },
}

/// A knob and what it shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// What is set.
    pub knob: Knob,
    /// To what.
    pub value: String,
    /// Why, for capture.
    pub why: String,
}

/// Where knobs are read and turned: the system, or a test's stand-in.
pub trait Panel {
    /// What it is now.
    ///
    /// # Errors
    /// What the kernel says.
    fn read(&self, knob: &Knob) -> io::Result<String>;
    /// Turns it.
    ///
    /// # Errors
    /// What the kernel says.
    fn write(&mut self, knob: &Knob, value: &str) -> io::Result<()>;
}

/// The system, in the calling thread's network namespace.
#[derive(Debug)]
pub struct System {
    /// Asks about interfaces there.
    pub asker: Asker,
}

impl Panel for System {
    fn read(&self, knob: &Knob) -> io::Result<String> {
        Ok(match knob {
            // What was asked for, not what came of it: that follows from it.
            Knob::Feature { iface, name } => {
                let features = self.asker.features(iface)?;
                let found = features.iter().find(|feature| feature.name == *name);
                u32::from(found.ok_or(io::ErrorKind::NotFound)?.requested).to_string()
            }
            Knob::RxRing { iface } => self.asker.rx_ring(iface)?.now.to_string(),
            Knob::File { path } => fs::read_to_string(path)?.trim().to_owned(),
        })
    }

    fn write(&mut self, knob: &Knob, value: &str) -> io::Result<()> {
        let number =
            || value.parse::<u32>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        match knob {
            Knob::Feature { iface, name } => self.asker.set_feature(iface, name, number()? != 0),
            Knob::RxRing { iface } => self.asker.set_rx_ring(iface, number()?),
            Knob::File { path } => fs::write(path, value),
        }
    }
}

/// The names that `ethtool -K` has for some of the kernel's names; it takes the kernel's, too.
fn short(name: &str) -> &str {
    match name {
        "rx-vlan-hw-parse" => "rxvlan",
        "rx-gro" => "gro",
        "rx-lro" => "lro",
        other => other,
    }
}

impl Knob {
    /// The command that does the same.
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
            Knob::File { path } => format!("echo {value} > {path}"),
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knob::Feature { iface, name } => write!(f, "{iface} {}", short(name)),
            Knob::RxRing { iface } => write!(f, "{iface} rx ring"),
            Knob::File { path } => f.write_str(path),
        }
    }
}
