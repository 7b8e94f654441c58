//! The daemon's configuration file: the sources by name, and who may open them. Everything that the
//! file does not allow is denied.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use weir_filter::Program;
use weir_filter_compile::is_bytecode;
use weir_frame::record::CAPLEN_MAX;
use weir_plug::Who;

pub use crate::guests::config::{GuestConfig, check_guest_name};
use crate::{limits, names};

/// Default size of the rings of a feed, in MiB.
const RING_MIB: u64 = 64;

/// The configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The sources, by the names that clients use.
    #[serde(default)]
    pub sources: BTreeMap<String, SourceConfig>,
    /// The limits of each client.
    #[serde(default)]
    pub limits: ClientLimits,
    /// Virtual machines that may have feeds, by the names that sources use for them.
    #[serde(default)]
    pub guests: BTreeMap<String, GuestConfig>,
}

/// A source, and who may open it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// The source in the syntax of `weir capture`; default: the name itself.
    pub source: Option<String>,
    /// The engine that captures its frames, as for `--engine`; default: the best that works.
    pub engine: Option<String>,
    /// While the source is read, its frames do not reach the stack, as with `--consume`.
    #[serde(default)]
    pub consume: bool,
    /// A filter that applies to all clients, in addition to their own; default: all frames.
    pub filter: Option<String>,
    /// The CPUs of the threads that capture, as for `--cpus`; default: all.
    pub cpus: Option<String>,
    /// Most bytes that are kept of a frame, whatever a client asks for.
    #[serde(default = "whole")]
    pub snaplen: u32,
    /// Size of the rings of each feed in MiB, if set.
    pub ring_mib: Option<u64>,
    /// Whether the interface also receives frames that are not addressed to it (promiscuous mode).
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// Users that may open the source, by name or id.
    #[serde(default, deserialize_with = "names::users")]
    pub users: Vec<u32>,
    /// Groups whose members may open the source, by name or id.
    #[serde(default, deserialize_with = "names::groups")]
    pub groups: Vec<u32>,
    /// Guests that may open the source, by their names in `[guests]`.
    #[serde(default)]
    pub guests: Vec<String>,
    /// Whether everybody who can connect to the socket may open the source. Guests must always be named.
    #[serde(default)]
    pub everybody: bool,
}

/// The limits of each client: of all processes of a user together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientLimits {
    /// Most feeds that are open at a time.
    pub feeds: usize,
    /// Most MiB of rings at a time.
    pub memory_mib: u64,
    /// Most feeds that are opened or changed in a second.
    pub opens_per_second: u32,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            feeds: limits::CLIENT_FEEDS_MAX,
            memory_mib: limits::CLIENT_MEMORY_MIB_MAX,
            opens_per_second: limits::CLIENT_OPENS_PER_SECOND_MAX,
        }
    }
}

fn whole() -> u32 {
    CAPLEN_MAX
}

fn yes() -> bool {
    true
}

/// Errors of the configuration file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file does not exist.
    #[error(
        "{}: there is no such file. It says what is captured and who may read it: write `[sources.eth0]` and below it \
         `users = [1000]`, or begin with the example, /usr/share/doc/weir/examples/weir.toml (after `make install` \
         below /usr/local/share); or name another file: --config PATH", path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: it cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file cannot be parsed, or its contents are invalid.
    #[error("{}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The error, and its place in the file.
        what: String,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], with the place in the file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let (mut text, own) = (String::new(), || path.to_owned());
        File::open(path)
            .and_then(|file| file.take(limits::CONFIG_BYTES_MAX + 1).read_to_string(&mut text))
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => ConfigError::Missing { path: own() },
                _ => ConfigError::Read { path: own(), source },
            })?;
        if text.len() as u64 > limits::CONFIG_BYTES_MAX {
            let what = format!("it has more than {} bytes", limits::CONFIG_BYTES_MAX);
            return Err(ConfigError::Wrong { path: own(), what });
        }
        Config::parse(&text).map_err(|what| ConfigError::Wrong { path: own(), what })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// The error and its place, as a text.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        for (name, source) in &config.sources {
            source.check(name).map_err(|what| format!("sources.{name}: {what}"))?;
        }
        for (name, guest) in &config.guests {
            let checked = check_guest_name(name).and_then(|()| guest.check());
            checked.map_err(|what| format!("guests.{name}: {what}"))?;
        }
        GuestConfig::check_all(&config.guests)?;
        for (name, source) in &config.sources {
            for own in &source.guests {
                let Some(guest) = config.guests.get(own) else {
                    return Err(format!(
                        "sources.{name}: there is no guest '{own}'; write [guests.{own}] with its port and qmp"
                    ));
                };
                let room = guest.check_room(source.ring_mib());
                room.map_err(|what| format!("sources.{name}: guests.{own}: {what}"))?;
            }
        }
        let ClientLimits { feeds, memory_mib, opens_per_second } = config.limits;
        if feeds == 0 || memory_mib == 0 || opens_per_second == 0 {
            return Err("limits: each is 1 at least; to deny, leave out users and groups".into());
        }
        Ok(config)
    }
}

impl SourceConfig {
    fn check(&self, name: &str) -> Result<(), String> {
        let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '@' | '/');
        if name.is_empty() || !name.chars().all(fits) {
            return Err(
                "a name has letters, digits and signs, but no blank, no '@' and no '/'; say \
                        what is captured with source = \"...\""
                    .into(),
            );
        }
        if !(1..=CAPLEN_MAX).contains(&self.snaplen) {
            return Err(format!("snaplen is 1 to {CAPLEN_MAX}, not {}", self.snaplen));
        }
        // A ring can have 4 MiB to 8 GiB.
        if let Some(mib) = self.ring_mib.filter(|mib| !(4..=8 << 10).contains(mib)) {
            return Err(format!("ring_mib is 4 to 8192, not {mib}"));
        }
        Ok(())
    }

    /// Tells whether a feed that was opened under the previous configuration `old` may stay open: only the lists of
    /// clients may differ.
    #[must_use]
    pub fn keeps(&self, old: &SourceConfig) -> bool {
        let (users, groups, everybody) = (old.users.clone(), old.groups.clone(), old.everybody);
        let guests = old.guests.clone();
        *old == SourceConfig { users, groups, guests, everybody, ..self.clone() }
    }

    /// Returns the filters of the client and of the file combined, as a text for display. Two programs
    /// ([`Program::both`]) decide which frames are selected, because joined text could have any meaning.
    #[must_use]
    pub fn written_filter(&self, of_client: &str) -> String {
        joined(self.own_filter(), of_client.trim())
    }

    /// Returns the same text in short form: for bytecode only its length, and nothing for a program that accepts all
    /// frames.
    #[must_use]
    pub fn shown_filter(&self, of_client: &str) -> String {
        let own = self.own_filter().map(shown).filter(|own| !own.is_empty());
        joined(own.as_deref(), &shown(of_client.trim()))
    }

    /// Returns the filter of the file, if it has one.
    #[must_use]
    pub fn own_filter(&self) -> Option<&str> {
        self.filter.as_deref().map(str::trim).filter(|own| !own.is_empty())
    }

    /// Returns the size of the rings of each feed in MiB: the value in the file, else enough for a ring on each CPU.
    #[must_use]
    pub fn ring_mib(&self) -> u64 {
        self.ring_mib.unwrap_or_else(|| RING_MIB.max(least_bpf_mib()))
    }

    /// Returns the source in the syntax of `weir capture`.
    #[must_use]
    pub fn text<'a>(&'a self, name: &'a str) -> &'a str {
        self.source.as_deref().unwrap_or(name)
    }

    /// Tells whether the file lets nobody open the source.
    #[must_use]
    pub fn allows_nobody(&self) -> bool {
        let lists = self.users.is_empty() && self.groups.is_empty() && self.guests.is_empty();
        lists && !self.everybody
    }

    /// Tells whether this client may open the source.
    #[must_use]
    pub fn allows(&self, who: &Who) -> bool {
        match who {
            Who::Process(who) => {
                let is_in = |group: &u32| *group == who.gid || who.groups.contains(group);
                self.everybody || self.users.contains(&who.uid) || self.groups.iter().any(is_in)
            }
            Who::Guest(name) => self.guests.iter().any(|guest| **guest == **name),
        }
    }
}

fn joined(own: Option<&str>, client: &str) -> String {
    match own {
        None => client.to_owned(),
        Some(own) if client.is_empty() => own.to_owned(),
        Some(own) => format!("({own}) and ({client})"),
    }
}

/// Returns a filter in short form. Tools that compile filters themselves send bytecode, which takes many lines.
fn shown(text: &str) -> String {
    if text.is_empty() || !is_bytecode(text) {
        return text.to_owned();
    }
    match Program::parse(text) {
        Ok(program) if program.takes_all() => String::new(),
        Ok(program) => match program.insns().len() {
            1 => "bytecode, 1 instruction".to_owned(),
            many => format!("bytecode, {many} instructions"),
        },
        Err(_) => "bytecode".to_owned(),
    }
}

/// Returns the fewest MiB with which the engine `bpf` works: it has a ring for each possible CPU.
pub(crate) fn least_bpf_mib() -> u64 {
    weir_capture::bpf::least_ring_bytes().div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_plug::Credentials;

    #[test]
    fn what_is_not_allowed_is_denied() {
        let text = r#"
            [sources.eth0]
            snaplen = 128
            users = [1000, "root"]
            groups = [50]
            [sources.roots]
            groups = ["root"]
            [sources.taps]
            source = "vnet*"
            everybody = true
            [sources.nobody]
            [limits]
            feeds = 2
        "#;
        let config = Config::parse(text).unwrap();
        let who = |uid, gid, groups: &[u32]| {
            Who::Process(Credentials { pid: 1, uid, gid, groups: groups.into() })
        };
        let may = |name: &str, uid, gid| config.sources[name].allows(&who(uid, gid, &[]));
        assert!(
            may("eth0", 1000, 7) && may("eth0", 7, 50) && may("eth0", 0, 7) && may("taps", 7, 7)
        );
        assert!(!may("eth0", 7, 0) && !may("nobody", 0, 0) && !may("nobody", 1000, 50));
        let of_nobody = config.sources.iter().filter(|(_, source)| source.allows_nobody());
        assert!(of_nobody.map(|(name, _)| name).eq(["nobody"]));
        assert!(may("roots", 7, 0) && config.sources["roots"].allows(&who(7, 7, &[3, 0])));
        assert!(!config.sources["roots"].allows(&who(0, 7, &[3])));
        assert_eq!(
            (config.limits.feeds, config.limits.memory_mib),
            (2, limits::CLIENT_MEMORY_MIB_MAX)
        );
        assert!(config.sources["taps"].ring_mib() >= RING_MIB.max(least_bpf_mib()));
    }

    #[test]
    fn bytecode_is_shown_by_its_length_and_a_program_that_takes_all_is_no_filter() {
        let ipv4 = "4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0";
        let shown = |own: &str, client: &str| {
            let filter = Some(own.to_owned());
            SourceConfig { filter, ..SourceConfig::default() }.shown_filter(client)
        };
        for (own, client, text) in [
            ("", ipv4, "bytecode, 4 instructions"),
            ("udp", ipv4, "(udp) and (bytecode, 4 instructions)"),
            ("", "1\n6 0 0 262144", ""),
            ("udp", "1,6 0 0 65535", "udp"),
            ("", "1\n6 0 0 0", "bytecode, 1 instruction"),
            (ipv4, " tcp ", "(bytecode, 4 instructions) and (tcp)"),
            ("1,6 0 0 1", "tcp", "tcp"),
            ("", "", ""),
        ] {
            assert_eq!(shown(own, client), text, "'{own}' and '{client}'");
        }
        // The text in files is complete.
        assert_eq!(SourceConfig::default().written_filter(ipv4), ipv4);
    }

    #[test]
    fn wrong_files_say_what_and_where() {
        for (text, words) in [
            ("[sources.eth0]\nuser = [1]", ["line 2", "unknown field `user`"]),
            ("[sources.eth0]\nusers = [\"no body\"]", ["line 2", "no user 'no body'"]),
            ("[sources.eth0]\ngroups = [\"no body\"]", ["line 2", "no group 'no body'"]),
            ("[sources.eth0]\nusers = [-1]", ["line 2", "0 to 4294967294"]),
            ("[sources.eth0]\nusers = [true]", ["line 2", "a name or an id"]),
            ("[sources.eth0]\nusers = \"root\"", ["line 2", "write users = [\"root\"]"]),
            ("[sources.eth0]\ngroups = 50", ["line 2", "write groups = [50]"]),
            ("[sources.eth0]\nsnaplen = 0", ["sources.eth0", "snaplen is 1 to"]),
            ("[sources.eth0]\nring_mib = 3", ["sources.eth0", "ring_mib is 4 to"]),
            ("[sources.\"a/b\"]", ["sources.a/b", "source ="]),
            ("[limits]\nfeeds = 0", ["limits", "1 at least"]),
            ("[guests.a]\nport = \"/a\"", ["guests.a", "and qmp"]),
            ("[guests.a]\nlibvirt = \"a\"\nqmp = \"/a\"", ["guests.a", "or libvirt"]),
            ("[guests.a]\nlibvirt = \"--all\"", ["guests.a", "no '-'"]),
            (
                "[guests.a]\nport = \"/a\"\nqmp = \"/b\"\nlibvirt_uri = \"x\"",
                ["guests.a", "libvirt_uri"],
            ),
            ("[guests.a]\nfolder = \"/dev/shm\"", ["line 2", "unknown field `folder`"]),
            ("[sources.eth0", ["line 1", ""]),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
