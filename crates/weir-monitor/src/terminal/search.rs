//! Searches for rows by text.

use std::net::IpAddr;

use weir_export::Origin;
use weir_flow::FlowRecord;

use super::text;

/// The most characters of a search.
pub const SEARCH_LETTERS: usize = 100;

/// Words that must all occur in the text of a row; case is ignored.
///
/// `!udp`: this word must not occur. `=80`: the word must be a whole address, port or name, not a part of one. `!=80`:
/// both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    text: String,
    words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    text: String,
    is_unwanted: bool,
    is_whole: bool,
}

impl Query {
    /// Parses the typed text. Text beyond [`SEARCH_LETTERS`] characters is cut off.
    pub fn new(text: &str) -> Query {
        let text: String = text.chars().take(SEARCH_LETTERS).collect();
        let word = |word: &str| {
            let (is_unwanted, word) = after('!', word);
            let (is_whole, word) = after('=', word);
            Word { text: word.to_lowercase(), is_unwanted, is_whole }
        };
        // A word that is only `!` is still being typed, and is ignored.
        let words =
            text.split_whitespace().map(word).filter(|word| !word.text.is_empty()).collect();
        Query { text, words }
    }

    /// Returns the search as it was typed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the search is empty, so that everything matches.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns whether text in lower case matches all words.
    pub fn matches(&self, text: &str) -> bool {
        let is_in = |word: &Word| match word.is_whole {
            true => text.split(' ').any(|part| part == word.text),
            false => text.contains(&word.text),
        };
        self.words.iter().all(|word| is_in(word) != word.is_unwanted)
    }
}

/// Returns whether the word begins with this character, and the rest of the word.
fn after(mark: char, word: &str) -> (bool, &str) {
    word.strip_prefix(mark).map_or((false, word), |rest| (true, rest))
}

/// Returns the text of a flow in lower case: addresses with ports, addresses, ports, protocol, interface with VLAN,
/// owner.
pub fn of_flow(record: &FlowRecord, origin: Option<&Origin>) -> String {
    let key = &record.key;
    let [source, destination] = text::ends(key);
    let [from, to] = text::addresses(key);
    let (protocol, from_port, to_port) = (text::protocol(key.protocol), key.src_port, key.dst_port);
    let mut all = format!("{source} {destination} {from} {to} {from_port} {to_port} {protocol}");
    if let Some(Origin { interface, owner }) = origin {
        all += &format!(" {interface}");
        if let Some(vlan) = record.vlan {
            all += &format!(".{vlan}");
        }
        if let Some(owner) = owner {
            all += &format!(" {} {} {}", owner.kind, owner.name, owner.id.as_deref().unwrap_or(""));
        }
    }
    all.to_lowercase()
}

/// Returns the text of an address.
pub fn of_address(address: IpAddr) -> String {
    address.to_string()
}

/// Returns the text of a protocol: its name and its number.
pub fn of_protocol(number: u8) -> String {
    format!("{} {number}", text::protocol(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::samples::{flow, origins};

    #[test]
    fn all_words_must_match_and_none_of_the_unwanted() {
        let record = flow(1).record;
        let all = of_flow(&record, origins().first());
        let ends = "10.0.0.1:40001 192.0.2.1:443 10.0.0.1 192.0.2.1 40001 443";
        assert_eq!(all, format!("{ends} tcp eth0 container web 5f3a"));
        let found =
            ["", " ", "tcp 443", "ETH0", "web 10.0.0.1:", "!udp", "!udp tcp", "!", ":443 !"];
        for found in found.into_iter().chain(["=10.0.0.1", "=443 =TCP", "!=44", "44", "!=", "="]) {
            assert!(Query::new(found).matches(&all), "{found}");
        }
        for not_found in ["udp", "tcp 444", "!tcp", "443 !web", "=44", "=10.0.0", "!=443"] {
            assert!(!Query::new(not_found).matches(&all), "{not_found}");
        }
        let tagged = FlowRecord { vlan: Some(7), ..record };
        assert!(of_flow(&tagged, origins().first()).contains(" eth0.7 "));
        assert!(Query::new("tcp").matches(&of_flow(&record, None)));
    }

    #[test]
    fn a_search_is_bounded() {
        assert_eq!(Query::new(&"ä".repeat(1000)).text().chars().count(), SEARCH_LETTERS);
    }
}
