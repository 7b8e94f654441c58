//! The text after `host:`: a source of a daemon, and a part of it.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::ClientError;

/// Prefix of the name of a daemon's source, wherever a user names a source.
pub const PREFIX: &str = "host:";

/// Default path of the daemon's socket.
pub const SOCKET: &str = "/run/weir/weir.sock";

/// Environment variable with another path of the daemon's socket. An empty value is ignored.
pub const SOCKET_VARIABLE: &str = "WEIR_SOCKET";

/// Returns the path of the daemon's socket: `given`, else the value of [`SOCKET_VARIABLE`], else [`SOCKET`].
#[must_use]
pub fn socket_path(given: Option<&Path>) -> PathBuf {
    let told = || env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
    match given.filter(|given| !given.as_os_str().is_empty()) {
        Some(given) => given.to_owned(),
        None => told().map_or_else(|| SOCKET.into(), PathBuf::from),
    }
}

/// A source of a daemon, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The name of the source in the daemon.
    pub source: String,
    /// The part, such as `2/4` or `q2`. Only the daemon interprets it.
    pub part: Option<String>,
}

impl Address {
    /// Parses `eth0`, `eth0@2/4` or `eth0@q2`: a name without its prefix.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn parse(text: &str) -> Result<Address, ClientError> {
        let (source, part) = match text.split_once('@') {
            Some((source, part)) => (source, Some(part.to_owned())),
            None => (text, None),
        };
        let fits = |c: char| c.is_ascii_graphic() && c != '@';
        if source.is_empty() || !source.chars().all(fits) || part.as_deref() == Some("") {
            return Err(ClientError::Name(text.to_owned()));
        }
        Ok(Address { source: source.to_owned(), part })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.source)?;
        self.part.iter().try_for_each(|part| write!(f, "@{part}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_and_its_part_are_told_apart() {
        let of = |text: &str| Address::parse(text).unwrap();
        let address = |source: &str, part: Option<&str>| Address {
            source: source.into(),
            part: part.map(str::to_owned),
        };
        assert_eq!(of("eth0"), address("eth0", None));
        assert_eq!(of("eth0@2/4"), address("eth0", Some("2/4")));
        assert_eq!(of("eth0@q2").to_string(), "host:eth0@q2");
        for wrong in ["", "@2/4", "eth0@", "eth 0", "../a\n"] {
            let error = Address::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("host:SOURCE"), "{wrong}: {error}");
        }
    }
}
