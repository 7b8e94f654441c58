//! Flags of look-back recording: triggers, and the history that is saved.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use weir_store::recorder::look_back::Span;

use crate::units::{self, FrameRate};

/// Triggers, and the amounts of frames that are saved around them.
#[derive(Args, Clone, Debug, Default)]
pub struct LookBackArgs {
    /// With --write DIR/: record only frames from before and after a trigger. Half of each ring (--ring-size) is the
    /// history. Triggers: signal (SIGUSR2 to this process), 'filter:EXPR' (a frame that this filter accepts),
    /// rate:100kpps or rate:1Gbps (more than that in a tenth of a second); may be given several times. SIGUSR2, and
    /// with --control `weir trigger`, are always triggers
    #[arg(long, value_name = "TRIGGER")]
    pub on_trigger: Vec<TriggerName>,
    /// How much from before a trigger is saved: 30s, or 512MiB of all rings together [default: all that the rings have]
    #[arg(long, value_name = "TIME|SIZE", value_parser = span, requires = "on_trigger")]
    pub save_before: Option<Span>,
    /// How much from the last trigger on is saved: 10s, or 1GiB [default: 10s]
    #[arg(long, value_name = "TIME|SIZE", value_parser = span, requires = "on_trigger")]
    pub save_after: Option<Span>,
}

/// A trigger, as it is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerName {
    /// A signal or a command.
    Signal,
    /// A frame that this filter accepts.
    Filter(String),
    /// More than this many frames in a second.
    Frames(u64),
    /// More than this many bits in a second.
    Bits(u64),
}

impl FromStr for TriggerName {
    type Err = String;

    fn from_str(text: &str) -> Result<TriggerName, String> {
        const FORM: &str = "write signal, 'filter:EXPR', or rate:100kpps";
        match text.split_once(':') {
            None if text == "signal" => Ok(TriggerName::Signal),
            Some(("filter", filter)) if filter.trim().is_empty() => {
                Err(format!("every frame would be a trigger; {FORM}"))
            }
            Some(("filter", filter)) => Ok(TriggerName::Filter(filter.trim().to_owned())),
            Some(("rate", rate)) => match units::frame_rate(rate.trim())? {
                FrameRate::Pps(rate) => Ok(TriggerName::Frames(rate as u64)),
                FrameRate::Bps(rate) => Ok(TriggerName::Bits(rate as u64)),
                FrameRate::Max => Err(format!("max is never exceeded; {FORM}")),
            },
            _ => Err(format!("'{text}' is no trigger; {FORM}")),
        }
    }
}

impl fmt::Display for TriggerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TriggerName::Signal => f.write_str("signal"),
            TriggerName::Filter(filter) => write!(f, "filter:{filter}"),
            TriggerName::Frames(rate) => write!(f, "rate:{rate}pps"),
            TriggerName::Bits(rate) => write!(f, "rate:{rate}bps"),
        }
    }
}

/// Parses a time or a size. A number without a unit is refused, because it could be either.
fn span(text: &str) -> Result<Span, String> {
    if text.chars().all(|c| c.is_ascii_digit()) {
        return Err(format!("'{text}' lacks its unit: {text}s are seconds, {text}MiB are bytes"));
    }
    // `5m` means minutes, so only sizes end in these letters.
    let is_size = text.ends_with(['b', 'B', 'k', 'K', 'M', 'G']);
    match is_size {
        true => units::bytes(text).map(Span::Bytes),
        false => units::duration(text)
            .map(Span::Time)
            .map_err(|_| format!("'{text}' is no time and no size; write it like 30s or 512MiB")),
    }
}

/// `weir trigger`.
#[derive(Args, Debug)]
pub struct TriggerArgs {
    /// The socket that the capture was given as --control PATH
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn triggers_are_read_as_they_are_written() {
        for (text, expected) in [
            ("signal", TriggerName::Signal),
            ("filter: udp port 53", TriggerName::Filter("udp port 53".into())),
            ("filter:host fd00::1", TriggerName::Filter("host fd00::1".into())),
            ("rate:100kpps", TriggerName::Frames(100_000)),
            ("rate:1Gbps", TriggerName::Bits(1_000_000_000)),
        ] {
            let trigger: TriggerName = text.parse().unwrap();
            assert_eq!(trigger, expected);
            assert_eq!(trigger.to_string().parse::<TriggerName>(), Ok(trigger));
        }
        for text in ["", "udp", "filter:", "rate:", "rate:5", "rate:max", "signals", "signal:USR1"]
        {
            assert!(text.parse::<TriggerName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_span_is_a_time_or_a_size() {
        for (text, expected) in [
            ("30s", Span::Time(Duration::from_secs(30))),
            ("5m", Span::Time(Duration::from_secs(300))),
            ("250ms", Span::Time(Duration::from_millis(250))),
            ("0s", Span::Time(Duration::ZERO)),
            ("512MiB", Span::Bytes(512 << 20)),
            ("1GiB", Span::Bytes(1 << 30)),
            ("64M", Span::Bytes(64 << 20)),
        ] {
            assert_eq!(span(text), Ok(expected), "{text}");
        }
        for text in ["", "30", "s", "-1s", "5 apples"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
