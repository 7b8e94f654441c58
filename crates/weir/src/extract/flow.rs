//! Parses the value of `--flow`: a line of `weir flows --json`, or a Community ID.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use weir_flow::community_id;
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;
use weir_store::extract::Flow;

/// Margin before the first and after the last frame of a record, because the record may come from another clock.
const MARGIN_NS: u64 = 1_000_000_000;
/// Results of the comparison with the wanted Community ID, by flow key and, for ICMP, type and code.
type Known = HashMap<(FlowKey, Option<(u8, u8)>), bool>;

/// The most results that are kept.
const KNOWN_MAX: usize = 1 << 20;

/// The needed fields of a record of `weir flows`. Source: docs/flows.md.
#[derive(Deserialize)]
struct Line {
    src_ip: IpAddr,
    dst_ip: IpAddr,
    #[serde(default)]
    src_port: u16,
    #[serde(default)]
    dst_port: u16,
    proto: u8,
    start: Option<String>,
    end: Option<String>,
}

/// Parses the text. Returns the flow, and the times of its record if the record has them.
pub fn parse(text: &str) -> Result<(Flow, Option<(u64, u64)>)> {
    if let Some(path) = text.strip_prefix('@') {
        let line = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => {
                anyhow!(
                    "--flow {text}: the file is no text; it holds no line of `weir flows --json`"
                )
            }
            _ => anyhow::Error::new(error).context(format!("--flow {text}")),
        })?;
        let mut lines = line.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default();
        if lines.next().is_some() {
            bail!("--flow {text}: the file has several lines; leave the one of the flow");
        }
        return parse(first);
    }
    if let Some(hash) = text.strip_prefix("1:") {
        if !is_hash(hash) {
            bail!("--flow {text}: a Community ID has 28 characters after 1:, and the last is =");
        }
        return Ok((by_community_id(text.to_owned()), None));
    }
    const WANTED: &str = "--flow: neither a line of `weir flows --json` nor a Community ID (1:...)";
    if !text.trim_start().starts_with('{') {
        bail!(WANTED);
    }
    let line: Line = serde_json::from_str(text).context(WANTED)?;
    let addresses = match (line.src_ip, line.dst_ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 { src, dst },
        (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6 { src, dst },
        _ => bail!("--flow: one address is of IPv4, the other of IPv6"),
    };
    let protocol = line.proto;
    let key = FlowKey { addresses, src_port: line.src_port, dst_port: line.dst_port, protocol };
    let time = |text: &String| {
        let time = chrono::DateTime::parse_from_rfc3339(text).ok()?;
        u64::try_from(time.timestamp_nanos_opt()?).ok()
    };
    let times = match (line.start.as_ref().and_then(time), line.end.as_ref().and_then(time)) {
        (Some(first), Some(last)) => {
            Some((first.saturating_sub(MARGIN_NS), last.saturating_add(MARGIN_NS)))
        }
        _ => None,
    };
    Ok((Flow::Key(key), times))
}

/// Returns whether this may be a Base64 text of a SHA-1 hash: 27 characters for 20 bytes, and padding.
fn is_hash(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    let digits = text.strip_suffix('=').unwrap_or_default();
    digits.len() == 27 && digits.bytes().all(is_digit)
}

fn by_community_id(wanted: String) -> Flow {
    let known: Mutex<Known> = Mutex::default();
    Flow::Test(Box::new(move |key, icmp| {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        *known.entry((*key, icmp)).or_insert_with(|| community_id(key, icmp) == wanted)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_weir_flows_names_a_flow_and_its_times() {
        let line = r#"{"event":"flow","start":"2026-11-26T09:27:19.5Z","end":"2026-11-26T09:27:21Z","src_ip":"10.0.0.1",
            "dst_ip":"10.0.0.2","src_port":1000,"dst_port":80,"proto":6,"packets":3,"community_id":"1:x"}"#;
        let (flow, times) = parse(line).unwrap();
        let Flow::Key(key) = flow else { panic!("no key") };
        assert_eq!((key.src_port, key.dst_port, key.protocol), (1000, 80, 6));
        let second = 1_000_000_000;
        let start = 1_795_685_239 * second + second / 2;
        assert_eq!(times, Some((start - second, start + second / 2 * 3 + second)));
        let id = community_id(&key, None);
        for cut in ["1:", "1:abc", &id[..id.len() - 1]] {
            let error = parse(cut).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("28 characters"), "{cut}: {error}");
        }
        let Flow::Test(test) = parse(&id).unwrap().0 else { panic!("no test") };
        assert!(test(&key, None) && test(&key.reversed(), None));
        assert!(!test(&FlowKey { src_port: 1001, ..key }, None));
        for bad in ["", "{}", "10.0.0.1", "@/no/such/file"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let trace = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&trace, [0xd4, 0xc3, 0xb2, 0xa1]).unwrap();
        let error = parse(&format!("@{}", trace.path().display())).err().expect("no line");
        assert!(error.to_string().ends_with("no line of `weir flows --json`"), "{error}");
    }
}
