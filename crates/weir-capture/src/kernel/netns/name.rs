//! Names of network namespaces, and their owners.

use std::cmp::Ordering;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::CaptureError;

/// Prefix of a name of `ip netns`, of a process id, or of a path.
const PREFIX: &str = "netns:";

/// Finds the network namespace of a name.
pub type Locate = fn(&str) -> Result<Located, CaptureError>;

/// The name of a network namespace. It is looked up at each opening, so a container that was restarted is
/// found again.
#[derive(Clone)]
pub struct NetnsName {
    prefix: &'static str,
    name: String,
    locate: Locate,
}

/// A network namespace that was found by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The file that represents it: `/run/netns/NAME`, `/proc/PID/ns/net`.
    pub path: PathBuf,
    /// Its owner.
    pub owner: Owner,
}

/// Owner of the frames of a network namespace, or of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// `container`, `pod`, `vm`, `process` or `netns`.
    pub kind: &'static str,
    /// Its name. For a process: its command name. For a container without a known name: the beginning of
    /// its id.
    pub name: String,
    /// The id of a container, or of a pod.
    pub id: Option<String>,
    /// The image of a container.
    pub image: Option<String>,
    /// A process in the network namespace, or the process of the VM.
    pub pid: Option<u32>,
    /// The inode of the network namespace, as in `lsns`; 0 until it is opened.
    pub netns: u64,
}

impl NetnsName {
    /// Names the namespace that has this name in `ip netns`. If there is none and `name` is a number: the namespace of
    /// the process with this id. A name that begins with a slash is the path of the namespace's file:
    /// `/proc/PID/ns/net`.
    #[must_use]
    pub fn named(name: &str) -> NetnsName {
        NetnsName::located(PREFIX, name, locate_named)
    }

    /// Names a namespace that `locate` finds. Users write `prefix`, with its colon, before the name; prefix and name
    /// together identify the namespace.
    #[must_use]
    pub fn located(prefix: &'static str, name: &str, locate: Locate) -> NetnsName {
        NetnsName { prefix, name: name.to_owned(), locate }
    }

    /// Returns the prefix, with its colon: `netns:`, `docker:`.
    #[must_use]
    pub fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// Returns the name without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the namespace may be located by a process; false for a name that only `ip netns` can have.
    #[must_use]
    pub fn may_be_of_process(&self) -> bool {
        self.prefix != PREFIX || is_pid(&self.name) || self.name.starts_with('/')
    }

    /// Looks the name up.
    ///
    /// # Errors
    /// [`CaptureError::NoNetns`], [`CaptureError::NoOwner`]; [`CaptureError::Options`] for a namespace that
    /// Weir does not capture.
    pub fn locate(&self) -> Result<Located, CaptureError> {
        (self.locate)(&self.name)
    }

    fn key(&self) -> (&str, &str) {
        (self.prefix, &self.name)
    }
}

/// As [`NetnsName::named`].
impl From<&str> for NetnsName {
    fn from(name: &str) -> NetnsName {
        NetnsName::named(name)
    }
}

impl From<&String> for NetnsName {
    fn from(name: &String) -> NetnsName {
        NetnsName::named(name)
    }
}

/// The form that users write before a slash: `netns:blue`, `docker:web`.
impl fmt::Display for NetnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.prefix, self.name)
    }
}

impl fmt::Debug for NetnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for NetnsName {
    fn eq(&self, other: &NetnsName) -> bool {
        self.key() == other.key()
    }
}

impl Eq for NetnsName {}

impl PartialOrd for NetnsName {
    fn partial_cmp(&self, other: &NetnsName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NetnsName {
    fn cmp(&self, other: &NetnsName) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// One line for an interface description: `container web (3f2a91c0d7e4), image nginx:1`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == "vm" {
            write!(f, "VM {} (qemu", self.name)?;
            self.pid.iter().try_for_each(|pid| write!(f, ", {pid}"))?;
            return f.write_str(")");
        }
        write!(f, "{} {}", self.kind, self.name)?;
        match (&self.id, self.pid) {
            (Some(id), _) if id.starts_with(&self.name) => {}
            // 12 digits, as in `docker ps`.
            (Some(id), _) => write!(f, " ({})", id.get(..12).unwrap_or(id))?,
            (None, Some(pid)) => write!(f, " ({pid})")?,
            (None, None) => {}
        }
        self.image.iter().try_for_each(|image| write!(f, ", image {image}"))
    }
}

fn locate_named(name: &str) -> Result<Located, CaptureError> {
    if name.starts_with('/') {
        return locate_at(name);
    }
    let path = Path::new("/run/netns").join(name);
    if path.exists() {
        let owner = Owner { kind: "netns", name: name.to_owned(), ..Owner::default() };
        return Ok(Located { path, owner });
    }
    let missing = || CaptureError::NoNetns { netns: name.to_owned() };
    if !is_pid(name) {
        return Err(missing());
    }
    let pid: u32 = name.parse().map_err(|_| missing())?;
    of_process(pid).ok_or_else(|| CaptureError::NoOwner {
        owner: format!("{PREFIX}{name}"),
        why: "no such process, and no network namespace that `ip netns` knows by this name"
            .to_owned(),
    })
}

/// Locates a namespace by the path of its file. Reading /proc/PID/ns/net needs CAP_SYS_PTRACE, so for such
/// a path only the process is looked up.
fn locate_at(path: &str) -> Result<Located, CaptureError> {
    let missing =
        |why: &str| CaptureError::NoOwner { owner: format!("{PREFIX}{path}"), why: why.to_owned() };
    let pid = path.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/net"));
    if let Some(pid) = pid.filter(|pid| is_pid(pid)) {
        let located = pid.parse().ok().and_then(of_process);
        return located.ok_or_else(|| missing("no such process"));
    }
    if !Path::new(path).exists() {
        return Err(missing("no such file"));
    }
    let owner = Owner { kind: "netns", name: path.to_owned(), ..Owner::default() };
    Ok(Located { path: path.into(), owner })
}

/// Locates the namespace of a process; `None` if there is no such process.
fn of_process(pid: u32) -> Option<Located> {
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let name = command.trim_end().to_owned();
    let owner = Owner { kind: "process", name, pid: Some(pid), ..Owner::default() };
    Some(Located { path: netns_of_process(pid), owner })
}

/// Returns whether a name may be the id of a process.
fn is_pid(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the path of the file that represents the network namespace of a process.
#[must_use]
pub fn netns_of_process(pid: u32) -> PathBuf {
    format!("/proc/{pid}/ns/net").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_unless_a_namespace_has_that_name() {
        let own = std::process::id();
        let located = NetnsName::named(&own.to_string()).locate().unwrap();
        assert_eq!(located.path, netns_of_process(own));
        assert_eq!((located.owner.kind, located.owner.pid), ("process", Some(own)));
        // Linux has no process of this number: PID_MAX_LIMIT is 4,194,304.
        let error = NetnsName::named("4194305").locate().unwrap_err().to_string();
        assert!(error.starts_with("netns:4194305: no such process"), "{error}");
        for bad in ["weir-no-such", "99999999999999999999"] {
            let error = NetnsName::named(bad).locate();
            assert!(matches!(error, Err(CaptureError::NoNetns { .. })), "{error:?}");
        }
    }

    #[test]
    fn a_path_is_that_of_a_process_or_of_a_file() {
        let own = std::process::id();
        let path = format!("/proc/{own}/ns/net");
        let located = NetnsName::named(&path).locate().unwrap();
        assert_eq!(located, NetnsName::named(&own.to_string()).locate().unwrap());
        assert!(NetnsName::named(&path).may_be_of_process());
        let located = NetnsName::named("/proc/self/ns/net").locate().unwrap();
        assert_eq!((located.owner.kind, located.path), ("netns", "/proc/self/ns/net".into()));
        for (bad, why) in [
            ("/proc/4194305/ns/net", "no such process"),
            ("/proc/99999999999999999999/ns/net", "no such process"),
            ("/run/weir-no-such/net", "no such file"),
        ] {
            let error = NetnsName::named(bad).locate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("netns:{bad}: {why}")), "{error}");
        }
    }

    #[test]
    fn an_owner_is_one_line() {
        let owner = Owner {
            kind: "container",
            name: "web".into(),
            id: Some("3f2a91c0d7e4aaaaaaaa".into()),
            image: Some("nginx:1".into()),
            ..Owner::default()
        };
        assert_eq!(owner.to_string(), "container web (3f2a91c0d7e4), image nginx:1");
        let (name, pid) = ("sleep".to_owned(), Some(17));
        let owner = Owner { kind: "process", name, pid, ..Owner::default() };
        assert_eq!(owner.to_string(), "process sleep (17)");
        let owner = Owner { kind: "vm", name: "web1".into(), pid, ..Owner::default() };
        assert_eq!(owner.to_string(), "VM web1 (qemu, 17)");
        let (name, id) = ("3f2a91c0d7e4".into(), Some("3f2a91c0d7e4aaaa".into()));
        let owner = Owner { kind: "container", name, id, ..Owner::default() };
        assert_eq!(owner.to_string(), "container 3f2a91c0d7e4");
    }

    #[test]
    fn names_are_equal_by_their_text() {
        fn nobody(_: &str) -> Result<Located, CaptureError> {
            Err(CaptureError::Ended)
        }
        let docker = NetnsName::located("docker:", "web", nobody);
        assert_ne!(docker, NetnsName::named("web"));
        assert_eq!(docker, NetnsName::located("docker:", "web", nobody));
        assert_eq!(docker.to_string(), "docker:web");
    }
}
