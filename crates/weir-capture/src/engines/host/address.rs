//! What stands behind `host:`: a source of the daemon, and which part of it.

use std::path::{Path, PathBuf};

use weir_client::{Connection, SOCKET};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::engines::declaration::Target;
use crate::error::CaptureError;

/// A source of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The daemon's name for it.
    pub source: String,
    /// `2/4`, `q2`: the daemon knows what that is.
    pub part: Option<String>,
}

impl Address {
    /// That of a target `eth0` or `eth0@2/4`.
    pub(super) fn of(target: &Target) -> Result<Address, CaptureError> {
        let text = target.text();
        let (source, part) = match text.split_once('@') {
            Some((source, part)) => (source, Some(part.to_owned())),
            None => (text, None),
        };
        let fits = |c: char| c.is_ascii_graphic() && c != '@';
        if source.is_empty() || !source.chars().all(fits) || part.as_deref() == Some("") {
            return Err(CaptureError::Options(format!(
                "'host:{text}': write host:SOURCE, host:SOURCE@2/4 or host:SOURCE@q2, with a source of the \
                 daemon's file"
            )));
        }
        Ok(Address { source: source.to_owned(), part })
    }

    /// The link type that the daemon at the usual place tells; Ethernet, if it is elsewhere or tells nothing.
    pub(super) fn link_type(&self) -> u16 {
        let told = Connection::open(Path::new(SOCKET)).and_then(|connection| connection.sources());
        let sources = told.unwrap_or_default();
        let own = sources.iter().find(|source| source.source == self.source);
        own.map_or(LINKTYPE_ETHERNET, |own| own.link_type)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host:{}", self.source)?;
        self.part.iter().try_for_each(|part| write!(f, "@{part}"))
    }
}

/// Where the daemon listens: as given, or at the usual place.
pub(super) fn socket(given: Option<&Path>) -> PathBuf {
    given.map_or_else(|| PathBuf::from(SOCKET), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_and_its_part_are_told_apart() {
        let of = |text: &str| Address::of(&Target::Text(text.into()));
        let address = |source: &str, part: Option<&str>| Address {
            source: source.into(),
            part: part.map(str::to_owned),
        };
        assert_eq!(of("eth0").unwrap(), address("eth0", None));
        assert_eq!(of("eth0@2/4").unwrap(), address("eth0", Some("2/4")));
        assert_eq!(of("eth0@q2").unwrap().to_string(), "host:eth0@q2");
        for wrong in ["", "@2/4", "eth0@", "eth 0", "../a\n"] {
            assert!(of(wrong).unwrap_err().to_string().contains("host:SOURCE"), "{wrong}");
        }
    }
}
