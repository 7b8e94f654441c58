//! Interfaces by pattern: `any`, a name with `*` and `?`, or all interfaces of an owner.

use std::fmt;

use crate::kernel::netns::Owner;

/// Selects the interfaces of a source by their names or by their owner.
///
/// `any` is every interface including the loopback device, as with tcpdump. The ledger has a line for each
/// interface, so that unwanted interfaces are visible; a filter or a glob excludes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPattern {
    text: String,
    /// Whether `lo` is excluded, even if the text matches.
    but_loopback: bool,
    /// Kind and name of the [`Owner`] whose interfaces match, with any name.
    owner: Option<(&'static str, String)>,
}

/// The pattern that matches every name.
const ANY: &str = "any";
/// The loopback device, which has this name in each network namespace.
const LOOPBACK: &str = "lo";

impl LinkPattern {
    /// Parses a pattern; `None` if `text` is the name of one interface.
    #[must_use]
    pub fn parse(text: &str) -> Option<LinkPattern> {
        let is_pattern = text == ANY || text.contains(['*', '?']);
        is_pattern.then(|| LinkPattern { text: text.to_owned(), but_loopback: false, owner: None })
    }

    /// Creates a pattern for every interface whose owner, found by [`Setup::owner_finder`](crate::Setup::owner_finder),
    /// has this kind and name.
    #[must_use]
    pub fn of_owner(kind: &'static str, name: &str) -> LinkPattern {
        let text = format!("{kind}:{name}");
        LinkPattern { text, but_loopback: true, owner: Some((kind, name.to_owned())) }
    }

    /// Returns whether the pattern selects by owner, so that a matching name is not enough.
    #[must_use]
    pub fn goes_by_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns whether the pattern selects an interface with this owner whose name matches.
    #[must_use]
    pub fn is_of(&self, owner: Option<&Owner>) -> bool {
        let is_own = |(kind, name): &(&str, String)| {
            owner.is_some_and(|owner| owner.kind == *kind && owner.name == *name)
        };
        self.owner.as_ref().is_none_or(is_own)
    }

    /// Creates a pattern for every interface except the loopback device: the interfaces by which a container
    /// communicates with others.
    #[must_use]
    pub fn all_but_loopback() -> LinkPattern {
        LinkPattern { text: "*".to_owned(), but_loopback: true, owner: None }
    }

    /// Returns whether the pattern is [`all_but_loopback`](LinkPattern::all_but_loopback).
    #[must_use]
    pub fn is_all_but_loopback(&self) -> bool {
        self.but_loopback && self.owner.is_none()
    }

    /// Returns whether the name matches. A pattern that selects by owner matches every name except `lo`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        if self.but_loopback && name == LOOPBACK {
            return false;
        }
        self.text == ANY || self.owner.is_some() || glob(self.text.as_bytes(), name.as_bytes())
    }
}

impl fmt::Display for LinkPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns whether the name matches the pattern: `*` matches any number of bytes, including none, and `?` matches one.
/// Takes at most `pattern.len() * name.len()` steps, since it backtracks only to the last `*`.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The position after the last `*`, and the first byte of the name that this `*` does not match.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((behind, first)) = star else { return false };
                star = Some((behind, first + 1));
                (p, n) = (behind, first + 1);
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> bool {
        LinkPattern::parse(pattern).expect("a pattern").matches(name)
    }

    #[test]
    fn names_are_no_patterns() {
        for name in ["eth0", "anything", "", "br-any", "eth0.5"] {
            assert_eq!(LinkPattern::parse(name), None, "{name}");
        }
    }

    #[test]
    fn any_is_every_interface() {
        assert!(fits("any", "lo") && fits("any", "eth0"));
    }

    #[test]
    fn all_but_loopback_is_not_what_a_star_is() {
        let all = LinkPattern::all_but_loopback();
        assert!(all.matches("eth0") && all.matches("lo0") && !all.matches("lo"));
        assert_ne!(Some(all), LinkPattern::parse("*"));
    }

    #[test]
    fn one_that_goes_by_owner_takes_any_name() {
        let vm = LinkPattern::of_owner("vm", "web1");
        assert!(vm.matches("vnet0") && !vm.matches("lo") && !vm.is_all_but_loopback());
        assert_eq!(vm.to_string(), "vm:web1");
        let owner = |kind, name: &str| Owner { kind, name: name.into(), ..Owner::default() };
        assert!(vm.is_of(Some(&owner("vm", "web1"))));
        for other in [None, Some(owner("vm", "web10")), Some(owner("process", "web1"))] {
            assert!(!vm.is_of(other.as_ref()), "{other:?}");
            assert!(LinkPattern::all_but_loopback().is_of(other.as_ref()));
        }
    }

    #[test]
    fn a_star_stands_for_any_bytes_and_a_question_mark_for_one() {
        for (pattern, yes, no) in [
            ("vnet*", &["vnet", "vnet0", "vnet12"][..], &["vne", "xvnet0", "Vnet0"][..]),
            ("eth?", &["eth0", "eth*"], &["eth", "eth10"]),
            ("*", &["", "lo"], &[]),
            ("*.5", &["eth0.5", ".5"], &["eth0.51", "eth0x5"]),
            ("a*b*c", &["abc", "aXbYbc", "abbcc"], &["ab", "acb", "abcd"]),
            ("?*", &["a", "ab"], &[""]),
            ("**x", &["x", "yx"], &["xy"]),
        ] {
            yes.iter().for_each(|name| assert!(fits(pattern, name), "{pattern} {name}"));
            no.iter().for_each(|name| assert!(!fits(pattern, name), "{pattern} {name}"));
        }
    }

    #[test]
    fn a_pattern_made_to_be_slow_is_not() {
        let (pattern, name) = ("*a".repeat(20_000), "a".repeat(19_999));
        assert!(!fits(&pattern, &name));
    }

    /// The definition of a glob, by recursion.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, first) => first.is_none(),
            (Some((b'*', rest)), first) => {
                by_definition(rest, name)
                    || first.is_some_and(|(_, name)| by_definition(pattern, name))
            }
            (Some((_, _)), None) => false,
            (Some((&byte, rest)), Some((&first, name))) => {
                (byte == b'?' || byte == first) && by_definition(rest, name)
            }
        }
    }

    #[test]
    fn globs_are_what_their_definition_says() {
        let words = |letters: &[u8], most: usize| {
            let mut all = vec![Vec::new()];
            let mut from = 0;
            for _ in 0..most {
                let until = all.len();
                for i in from..until {
                    for &letter in letters {
                        let word = [&all[i][..], &[letter]].concat();
                        all.push(word);
                    }
                }
                from = until;
            }
            all
        };
        for pattern in words(b"ab*?", 4) {
            for name in words(b"ab", 4) {
                assert_eq!(glob(&pattern, &name), by_definition(&pattern, &name));
            }
        }
    }
}
