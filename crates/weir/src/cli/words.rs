//! Words without a flag: sources, followed by the filter, as with tcpdump.

use clap::error::ErrorKind;
use weir_capture::CaptureError;
use weir_capture::interface::InterfaceQuery;

use crate::source_name::SourceName;
use crate::usage_hints;

/// A word of the command line, and the source that it names, if it can be a source.
#[derive(Clone, Debug)]
pub struct Word {
    text: String,
    source: Result<SourceName, String>,
}

impl Word {
    /// Accepts any word: whether a word belongs to the filter depends on the words before it.
    pub fn parse(text: &str) -> Result<Word, String> {
        Ok(Word { text: text.to_owned(), source: text.parse() })
    }

    /// Returns whether a filter may begin with this word. Source: pcap-filter(7).
    fn begins_filter(&self) -> bool {
        // Sources with a prefix such as vm:, docker: or file:. No address begins with such a prefix.
        let is_source = self.source.is_ok() && self.text.contains(':');
        let is_address = usage_hints::address_filter(self.text.trim()).is_some();
        is_address || !is_source && usage_hints::begins_filter(self.text.trim())
    }

    /// Returns whether this word names an existing interface of this network namespace.
    fn is_interface(&self) -> bool {
        let Ok(SourceName::Interface { netns: None, iface, .. }) = &self.source else {
            return false;
        };
        let found = InterfaceQuery::new().and_then(|query| query.find(iface));
        !matches!(found, Err(CaptureError::NoInterface { .. }))
    }
}

/// Separates the sources from the filter that follows them. The filter begins with the first word with which a filter
/// can begin. `sources` and `filter` already have the values of flags.
///
/// # Errors
/// A word that is neither a source nor a filter, or may be both; a filter without a source; two filters.
pub fn settle(
    words: &[Word],
    sources: &mut Vec<SourceName>,
    filter: &mut Option<String>,
) -> Result<(), clap::Error> {
    for (at, word) in words.iter().enumerate() {
        // A script's variable with no filter in it: all frames, as with tcpdump.
        if word.text.trim().is_empty() && at + 1 == words.len() && !sources.is_empty() {
            return Ok(());
        }
        if word.begins_filter() {
            let rest = words[at..].iter().map(|word| word.text.trim());
            let rest = rest.collect::<Vec<_>>().join(" ");
            check_filter(word, &rest, sources, filter.as_deref())?;
            *filter = Some(rest);
            return Ok(());
        }
        match &word.source {
            Ok(source) => sources.push(source.clone()),
            Err(why) => {
                let text = format!("invalid value '{}' for '[SOURCE]...': {why}", word.text);
                return Err(refusal(&text));
            }
        }
    }
    Ok(())
}

fn check_filter(
    first: &Word,
    filter: &str,
    sources: &[SourceName],
    before: Option<&str>,
) -> Result<(), clap::Error> {
    let names: Vec<String> = sources.iter().map(SourceName::to_string).collect();
    let names = if names.is_empty() { "IFACE".to_owned() } else { names.join(" ") };
    let hint = |filter: &str| usage_hints::filter_hint_for(&names, filter);
    if let Some(address) = usage_hints::address_filter(&first.text) {
        // The filter language of tcpdump has no bare addresses.
        let rest = filter.strip_prefix(first.text.trim()).unwrap_or_default();
        let text =
            format!("'{}' alone is no filter; {}", first.text, hint(&format!("{address}{rest}")));
        return Err(refusal(&text));
    }
    if first.is_interface() {
        return Err(refusal(&format!(
            "'{0}' is an interface here and begins a filter, too: write -i {0} for the interface, or --filter \
             '{filter}' for the filter",
            first.text
        )));
    }
    if sources.is_empty() {
        let text = format!(
            "'{0}' is no source, but begins a filter; {1}; for an interface of that name: -i {0}",
            first.text,
            hint(filter)
        );
        return Err(refusal(&text));
    }
    match before {
        Some(before) => Err(refusal(&two_filters(before, filter, &names))),
        None => Ok(()),
    }
}

/// Returns the error text for a filter by a flag together with another filter in the words after the source. If the
/// first filter has no blanks, the user may have forgotten the quotes, so the text shows the quoted filter.
fn two_filters(by_flag: &str, words: &str, sources: &str) -> String {
    let mut text = usage_hints::two_filters(by_flag, "a flag", words, "the source");
    if !by_flag.contains(char::is_whitespace) {
        let whole = format!("{by_flag} {words}");
        text += &format!("; if it is one, quote it: weir capture {sources} --filter '{whole}'");
    }
    text
}

pub(super) fn refusal(text: &str) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};

    fn settled(line: &str) -> Result<(Vec<String>, Option<String>), String> {
        let words = ["weir", "capture"].into_iter().chain(line.split(' '));
        let Command::Capture(args) = Cli::of(words).map_err(|error| error.to_string())?.command
        else {
            unreachable!("the words say capture")
        };
        let sources = args.input.sources.iter().map(ToString::to_string).collect();
        Ok((sources, args.input.filter))
    }

    #[test]
    fn a_filter_may_stand_behind_its_sources_as_tcpdump_has_it() {
        for (line, sources, filter) in [
            ("eth0 tcp port 80", &["eth0"][..], Some("tcp port 80")),
            ("-i eth0 tcp port 80", &["eth0"], Some("tcp port 80")),
            (
                "-nni eth0 -c 5 host 10.0.0.1 and not arp",
                &["eth0"],
                Some("host 10.0.0.1 and not arp"),
            ),
            ("eth0 eth1 udp", &["eth0", "eth1"], Some("udp")),
            ("-r a.pcap icmp", &["file:a.pcap"], Some("icmp")),
            ("-r - ip6", &["file:-"], Some("ip6")),
            ("eth0 ether[0] & 1 != 0", &["eth0"], Some("ether[0] & 1 != 0")),
            ("eth0 !arp", &["eth0"], Some("!arp")),
            ("vm:web docker:db/eth0", &["vm:web", "docker:db/eth0"], None),
            ("eth0 --filter udp", &["eth0"], Some("udp")),
            ("eth0 isis", &["eth0"], Some("isis")),
            // As by "$FILTER" in a script, if it is empty.
            ("eth0 ", &["eth0"], None),
            ("-r a.pcap ", &["file:a.pcap"], None),
        ] {
            let expected =
                (sources.iter().map(ToString::to_string).collect(), filter.map(str::to_owned));
            assert_eq!(settled(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn what_is_unclear_is_asked_about() {
        for (line, answer) in [
            ("tcp port 80", "weir capture IFACE --filter 'tcp port 80'"),
            ("10.0.0.1", "weir capture IFACE --filter 'host 10.0.0.1'"),
            ("eth0 10.0.0.0/8 and udp", "weir capture eth0 --filter 'net 10.0.0.0/8 and udp'"),
            ("eth0 --filter tcp port 80", "weir capture eth0 --filter 'tcp port 80'"),
            ("eth0 --filter icmp tcp", "--filter '(icmp) and (tcp)'"),
            ("eth0 --filter icmp tcp", "two filters, 'icmp' by a flag and 'tcp' behind the source"),
            ("eth0 a/b", "'a/b'"),
        ] {
            let error = settled(line).unwrap_err();
            assert!(error.contains(answer), "{line}: {error}");
        }
    }
}
