//! Adds veth pairs between the two namespaces of a testbed.

use std::io::Write;

use super::{End, Testbed, command};
use crate::{Error, Result};

/// An additional pair between the namespaces of a [`Testbed`]. It is removed with the namespaces.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The sending end, `wtxN`.
    pub tx: End,
    /// The receiving end, `wrxN`.
    pub rx: End,
}

impl Testbed {
    /// Creates pairs with numbers from `first` on, all at once, and brings them up. The testbed's own pair has number
    /// 0. The new pairs may not have a carrier yet; see [`Pair::wait_for_carrier`].
    ///
    /// # Errors
    /// `ip` fails, for instance because a pair with that number exists. Pairs with lower numbers exist then.
    pub fn add_pairs(&self, first: u32, count: u32) -> Result<Vec<Pair>> {
        let numbers = first..first + count;
        let (mut links, mut ups) = (String::new(), String::new());
        for n in numbers.clone() {
            links += &format!(
                "link add name wtx{n} type veth peer name wrx{n} netns {}\n",
                self.rx.netns
            );
            links += &format!("link set wtx{n} up\n");
            ups += &format!("link set wrx{n} up\n");
        }
        batch(&self.tx, &links)?;
        batch(&self.rx, &ups)?;
        let pair = |n| {
            let (tx, rx) = (format!("wtx{n}"), format!("wrx{n}"));
            let mut pair = Pair {
                tx: End::not_yet_created(self.tx.netns.clone(), &tx),
                rx: End::not_yet_created(self.rx.netns.clone(), &rx),
            };
            pair.tx.learn()?;
            pair.rx.learn()?;
            Ok(pair)
        };
        numbers.map(pair).collect()
    }
}

impl Pair {
    /// Waits until both ends have a carrier.
    ///
    /// # Errors
    /// [`Error::Timeout`] if an end has none after five seconds.
    pub fn wait_for_carrier(&self) -> Result<()> {
        self.tx.wait_for_carrier()?;
        self.rx.wait_for_carrier()
    }
}

/// Runs many `ip` commands in one process: hundreds of pairs would otherwise take seconds.
fn batch(end: &End, commands: &str) -> Result<()> {
    let unwritten = |source| Error::Spawn { command: "ip -batch".to_owned(), source };
    let mut file = tempfile::NamedTempFile::new().map_err(unwritten)?;
    file.write_all(commands.as_bytes()).map_err(unwritten)?;
    let path = file.path().to_string_lossy();
    command::ip(&["-n", &end.netns, "-batch", &path])
}
