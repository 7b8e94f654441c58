//! Parses feeds from the command line, and compiles them for a source.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use weir_capture::{Direction, Feed, Filter, Sampling};
use weir_client::limits::FEED_NAME_MAX;
use weir_client::protocol::is_feed_name;
use weir_filter::Program;
use weir_filter_compile::{Compiler, is_bytecode};
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_store::extract::Compile;

use crate::source_name::Part;

/// A feed as written on the command line: `NAME: FILTER, snaplen N, in, sample N` (or `flows N`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedName {
    name: String,
    filter: String,
    snaplen: Option<u32>,
    direction: Option<Direction>,
    sampling: Option<Sampling>,
}

impl FromStr for FeedName {
    type Err = String;

    fn from_str(text: &str) -> Result<FeedName, String> {
        const FORM: &str = "write 'NAME: FILTER', and behind it, with commas: snaplen BYTES; in, out or both; sample N \
                            or flows N";
        let (name, rest) = text.split_once(':').ok_or_else(|| format!("it has no name; {FORM}"))?;
        let name = name.trim();
        if !is_feed_name(name) {
            return Err(format!(
                "'{name}' is no name of a feed: up to {FEED_NAME_MAX} letters, digits, '-', '_' and '.'; {FORM}"
            ));
        }
        // A filter contains no commas.
        let mut parts = rest.split(',').map(str::trim);
        let filter = parts.next().unwrap_or_default().to_owned();
        let mut feed = FeedName {
            name: name.to_owned(),
            filter,
            snaplen: None,
            direction: None,
            sampling: None,
        };
        for part in parts {
            feed.take(part).map_err(|what| format!("{what}; {FORM}"))?;
        }
        Ok(feed)
    }
}

impl FeedName {
    fn take(&mut self, part: &str) -> Result<(), String> {
        let (word, value) = part.split_once(char::is_whitespace).unwrap_or((part, ""));
        let number = || match value.trim().parse::<u32>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("'{part}': a number above 0 is missing")),
        };
        let twice = match word {
            "snaplen" => self.snaplen.replace(number()?).is_some(),
            "sample" => self.sampling.replace(Sampling::OneIn(number()?)).is_some(),
            "flows" => {
                let one_in = NonZero::new(number()?).expect("it is above 0");
                self.sampling.replace(Sampling::FlowsOneIn(one_in)).is_some()
            }
            "in" | "out" | "both" if value.is_empty() => {
                let direction = match word {
                    "in" => Direction::In,
                    "out" => Direction::Out,
                    _ => Direction::Both,
                };
                self.direction.replace(direction).is_some()
            }
            _ => return Err(format!("'{part}' is nothing that a feed has")),
        };
        if twice { Err(format!("'{part}' is said twice")) } else { Ok(()) }
    }
}

/// A requested feed of a source.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Name of the feed; empty if it is the only feed.
    pub name: String,
    /// The part of the source.
    pub part: Part,
    /// Settings of the feed.
    pub feed: Feed,
    /// Index of the first feed with equal settings, whose rings it shares.
    pub shares: Option<usize>,
}

impl Asked {
    /// Returns the same feed, limited to a part of the source.
    pub fn of_part(mut self, part: Part) -> Asked {
        self.part = part;
        match part {
            Part::Whole => {}
            Part::Queue(queue) => self.feed.queue = Some(queue),
            Part::Shard(shard) => self.feed.shard = shard,
        }
        self
    }
}

/// Finds, for each feed of a source, the first earlier feed with equal settings, whose rings it shares.
pub fn share(asked: &mut [Asked]) {
    for number in 1..asked.len() {
        let (before, own) = asked.split_at_mut(number);
        own[0].shares = before.iter().position(|other| other.feed.is_like(&own[0].feed));
    }
}

/// The feeds to request from each source.
#[derive(Clone, Debug)]
pub struct FeedPlan {
    /// The named feeds. If there are none, there is one feed, with `filter`.
    pub named: Vec<FeedName>,
    /// The filter of the single feed without a name.
    pub filter: Option<String>,
    /// Default settings of all feeds.
    pub defaults: Feed,
}

impl FeedPlan {
    /// Returns whether any feed has a filter.
    pub fn are_filtered(&self) -> bool {
        self.filter.is_some() || self.named.iter().any(|feed| !feed.filter.is_empty())
    }

    /// Refuses two feeds with one name, and --filter together with named feeds.
    pub fn check(&self) -> Result<()> {
        if self.filter.is_some() && !self.named.is_empty() {
            anyhow::bail!(
                "--filter is for a run without --feed; give each feed its own: --feed 'NAME: FILTER'"
            );
        }
        for (at, feed) in self.named.iter().enumerate() {
            if self.named[..at].iter().any(|other| other.name == feed.name) {
                anyhow::bail!(
                    "--feed: two feeds are called '{}'; give each its own name",
                    feed.name
                );
            }
        }
        Ok(())
    }
}

/// Compiles feeds for any link type. Compiled filters are cached.
pub struct FeedCompiler<'a> {
    plan: &'a FeedPlan,
    compiled: BTreeMap<(u16, String), Arc<Filter>>,
}

impl<'a> FeedCompiler<'a> {
    pub fn new(plan: &'a FeedPlan) -> FeedCompiler<'a> {
        FeedCompiler { plan, compiled: BTreeMap::new() }
    }

    /// Returns the feeds for a source whose frames have this link type. The caller sets their interfaces.
    ///
    /// # Errors
    /// A filter does not compile.
    pub fn of(&mut self, link_type: u16) -> Result<Vec<Asked>> {
        let plan = self.plan;
        if plan.named.is_empty() {
            let filter = plan.filter.as_deref().unwrap_or_default();
            let feed = self.feed("", filter, link_type)?;
            let (name, part) = (String::new(), Part::Whole);
            return Ok(vec![Asked { name, part, feed, shares: None }]);
        }
        let mut all: Vec<Asked> = Vec::new();
        for asked in &plan.named {
            let mut feed = self.feed(&asked.name, &asked.filter, link_type)?;
            feed.snaplen = asked.snaplen.unwrap_or(feed.snaplen);
            feed.direction = asked.direction.unwrap_or(feed.direction);
            feed.sampling = asked.sampling.unwrap_or_default();
            let (name, part) = (asked.name.clone(), Part::Whole);
            all.push(Asked { name, part, feed, shares: None });
        }
        Ok(all)
    }

    fn feed(&mut self, name: &str, filter: &str, link_type: u16) -> Result<Feed> {
        Ok(Feed {
            name: name.to_owned(),
            filter: self.filter(filter, link_type)?,
            ..self.plan.defaults.clone()
        })
    }

    fn filter(&mut self, text: &str, link_type: u16) -> Result<Option<Arc<Filter>>> {
        let key = (link_type, text.to_owned());
        if let Some(filter) = self.compiled.get(&key) {
            return Ok(Some(Arc::clone(filter)));
        }
        let filter = compile(text, link_type)?;
        self.compiled.extend(filter.clone().map(|filter| (key, filter)));
        Ok(filter)
    }
}

/// Compiles a filter for frames of this link type. `text` may be bytecode, as `tcpdump -ddd` prints it. Returns `None`
/// for an empty text.
///
/// # Errors
/// The text is not a valid filter.
pub fn compile(text: &str, link_type: u16) -> Result<Option<Arc<Filter>>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let program = match is_bytecode(text) {
        true => Program::parse(text)?,
        false => Compiler::default().with_link_type(link_type).compile(text)?,
    };
    Ok(Some(Arc::new(Filter { text: text.to_owned(), link_type, program })))
}

/// Returns a function that compiles the filter for any link type. Compiles the filter for Ethernet at once, so that a
/// mistake is found before frames come.
pub fn compile_later(text: &str) -> Result<Compile> {
    let compile = |text: &str, link_type: u16| -> Result<Program> {
        Ok(match is_bytecode(text) {
            true => Program::parse(text)?,
            false => Compiler::default().with_link_type(link_type).compile(text)?,
        })
    };
    compile(text, LINKTYPE_ETHERNET)?;
    let text = text.to_owned();
    Ok(Box::new(move |link_type| compile(&text, link_type).map_err(|error| format!("{error:#}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_is_read_in_its_parts() {
        let plain = FeedName {
            name: "web".into(),
            filter: "tcp port 80".into(),
            snaplen: None,
            direction: None,
            sampling: None,
        };
        assert_eq!("web: tcp port 80".parse(), Ok(plain.clone()));
        let full = FeedName {
            snaplen: Some(128),
            direction: Some(Direction::In),
            sampling: Some(Sampling::OneIn(10)),
            ..plain
        };
        assert_eq!("web:tcp port 80, snaplen 128 ,in, sample 10".parse(), Ok(full));
        let flows: FeedName = "web: tcp, flows 7".parse().unwrap();
        assert_eq!(flows.sampling, Some(Sampling::FlowsOneIn(NonZero::new(7).unwrap())));
        assert_eq!("all:".parse::<FeedName>().unwrap().filter, "");
        // Colons of addresses are the filter's.
        assert_eq!("six: host 2001:db8::1".parse::<FeedName>().unwrap().filter, "host 2001:db8::1");
    }

    #[test]
    fn a_filter_may_be_what_tcpdump_makes_of_it() {
        let program = |text: &str| Some(compile(text, 1).unwrap()?.program.clone());
        let lines = ["4", "40 0 0 12", "21 0 1 2048", "6 0 0 262144", "6 0 0 0"];
        let ip = program(&lines.join("\n")).unwrap();
        assert_eq!(
            ip.insns().iter().map(|insn| insn.k).collect::<Vec<_>>(),
            [12, 2048, 262_144, 0]
        );
        assert_eq!(program(&lines.join(",")), Some(ip));
        assert_eq!(program(" \n"), None);
        for (text, words) in [
            ("1\n6 0 0", "tcpdump -ddd"),
            ("2\n6 0 0 1", "1 follow"),
            ("1\n5 0 0 7", "instruction 0"),
            ("10", "10 instructions"),
        ] {
            let error = format!("{:#}", compile(text, 1).unwrap_err());
            assert!(error.contains(words), "'{words}' is not in: {error}");
        }
    }

    #[test]
    fn what_is_no_feed_says_how_one_is_written() {
        for wrong in [
            "tcp port 80",
            ": tcp",
            "a b: tcp",
            "web: tcp, snaplen",
            "web: tcp, snaplen 0",
            "web: tcp, sample -1",
            "web: tcp, in, out",
            "web: tcp, in 5",
            "web: tcp, flows 2, sample 2",
            "web: tcp, fast",
        ] {
            let error = wrong.parse::<FeedName>().expect_err(wrong);
            assert!(error.contains("NAME: FILTER"), "{wrong}: {error}");
        }
    }
}
