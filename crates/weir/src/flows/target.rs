//! Parses the targets of `--export`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;
use weir_export::ipfix;

/// A requested export of flow records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportTarget {
    /// An IPFIX collector.
    Ipfix(ipfix::target::Target),
    /// A directory of Parquet files.
    Parquet(PathBuf),
    /// A file of JSON lines.
    Json(PathBuf),
}

/// Why a text is not an export target.
#[derive(Debug, Error)]
pub enum TargetError {
    #[error(transparent)]
    Ipfix(#[from] ipfix::target::TargetError),
    #[error("{0} has no path behind it: {0}/var/lib/weir/flows")]
    NoPath(&'static str),
    #[error(
        "not an export: ipfix://HOST[:PORT], ipfix+tcp://HOST[:PORT], parquet:DIRECTORY or json:FILE"
    )]
    Unknown,
}

impl FromStr for ExportTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<ExportTarget, TargetError> {
        let path = |kind: &'static str| {
            let path = text.strip_prefix(kind)?;
            Some(if path.is_empty() { Err(TargetError::NoPath(kind)) } else { Ok(path.into()) })
        };
        if let Some(path) = path("parquet:") {
            return Ok(ExportTarget::Parquet(path?));
        }
        if let Some(path) = path("json:") {
            return Ok(ExportTarget::Json(path?));
        }
        if text.starts_with("ipfix") {
            return Ok(ExportTarget::Ipfix(text.parse()?));
        }
        Err(TargetError::Unknown)
    }
}

impl fmt::Display for ExportTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportTarget::Ipfix(target) => target.fmt(f),
            ExportTarget::Parquet(path) => write!(f, "parquet:{}", path.display()),
            ExportTarget::Json(path) => write!(f, "json:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_told_apart_by_how_they_begin() {
        let parse = |text: &str| text.parse::<ExportTarget>();
        for text in ["parquet:/var/flows", "json:flows.json", "ipfix://collector:4739"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for (text, said) in [
            ("parquet:", "parquet: has no path"),
            ("json:", "json: has no path"),
            ("netflow://a", "ipfix://HOST"),
            ("", "not an export"),
            ("ipfix:/a", "ipfix"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
