//! The command line of `weir extract`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::words::refusal;
use crate::units;
use crate::usage_hints;

/// `weir extract`.
#[derive(Args, Debug)]
#[command(override_usage = "weir extract [OPTIONS] <DIR>... [FILTER]")]
pub struct ExtractArgs {
    /// Directories with recorded files (weir capture --write DIR/), or single files. The first word after them that is
    /// no path and that can begin a filter begins the filter, as with weir capture: dumps/ tcp port 80
    #[arg(required = true, value_name = "DIR")]
    pub paths: Vec<PathBuf>,
    /// Frames from this time on: 2026-11-26T09:27:19Z, '2026-11-26 09:27' and 09:27:19 (local time), 1795685239.5
    /// (seconds since 1970), -5m (five minutes ago), -2d (two days ago), now
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// Frames before this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<String>,
    /// Frames that this filter takes, in the pcap filter language
    #[arg(short, long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Frames of a flow, both directions: a line of `weir flows --json`, which has its times, too; @FILE; or a
    /// Community ID (1:...)
    #[arg(long, value_name = "RECORD")]
    pub flow: Option<String>,
    /// Write to this file (- for standard output, the default where that is no terminal)
    #[arg(short, long, value_name = "PATH")]
    pub write: Option<PathBuf>,
    /// Format of the output
    #[arg(long, value_name = "FORMAT", default_value = "pcapng")]
    pub format: FormatName,
    /// Permissions of new files, in octal, before the umask; a file that is there already keeps its own
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = units::file_mode)]
    pub file_mode: u32,
    /// End after this many frames
    #[arg(short = 'c', long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// Threads that read and filter [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Print on standard error what was read and what was not
    #[arg(long)]
    pub stats: bool,
    /// The same as one JSON object
    #[arg(long)]
    pub json: bool,
}

impl ExtractArgs {
    /// Separates directories and files from the filter that follows them.
    ///
    /// # Errors
    /// A word that may be a path or a filter, a filter without a directory, or two filters.
    pub(super) fn settle(&mut self) -> Result<(), clap::Error> {
        let text = |path: &PathBuf| path.to_string_lossy().trim().to_owned();
        let begins = |(at, path): (usize, &PathBuf)| match path.exists() {
            // An existing file is a path. If it has the name of a filter word, and is not the first word, it is
            // ambiguous, and is refused below.
            true => at > 0 && usage_hints::is_filter_word(&text(path)),
            // A word that is not a file and does not look like a filter is the path of a missing file.
            false => {
                let text = text(path);
                !text.starts_with(['/', '.', '~']) && usage_hints::begins_filter(&text)
            }
        };
        let Some(at) = self.paths.iter().enumerate().position(begins) else { return Ok(()) };
        let filter = self.paths[at..].iter().map(text).collect::<Vec<_>>().join(" ");
        let first = &self.paths[at];
        if first.exists() {
            let word = first.display();
            return Err(refusal(&format!(
                "'{word}' is a path here and begins a filter, too: write ./{word} for the path, or --filter \
                 '{filter}' for the filter"
            )));
        }
        let paths: Vec<String> = self.paths[..at].iter().map(text).collect();
        if paths.is_empty() {
            return Err(refusal(&format!(
                "'{filter}' is a filter, and no directory stands before it: weir extract DIR '{filter}'"
            )));
        }
        if let Some(address) = usage_hints::address_filter(&text(first)) {
            return Err(refusal(&format!(
                "'{}' alone is no filter; weir extract {} '{address}'",
                first.display(),
                paths.join(" ")
            )));
        }
        if let Some(by_flag) = &self.filter {
            return Err(refusal(&usage_hints::two_filters(
                by_flag,
                "--filter",
                &filter,
                "the directories",
            )));
        }
        self.filter = Some(filter);
        self.paths.truncate(at);
        Ok(())
    }
}

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatName {
    /// All that is known of each frame
    Pcapng,
    /// For tools that read no pcapng: one link type, nanoseconds
    Pcap,
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};

    fn settled(words: &[&str]) -> Result<(usize, Option<String>), String> {
        let words = ["weir", "extract"].iter().chain(words);
        match Cli::of(words).map_err(|error| error.to_string())?.command {
            Command::Extract(args) => Ok((args.paths.len(), args.filter)),
            _ => unreachable!("the words say extract"),
        }
    }

    #[test]
    fn a_filter_may_stand_behind_the_directories() {
        let tcp = Some("tcp port 80".to_owned());
        for (words, expected) in [
            (&["dumps/", "tcp port 80"][..], (1, tcp.clone())),
            (&["/a", "/b", "tcp", "port", "80"], (2, tcp.clone())),
            (&["dumps", "-f", "tcp port 80"], (1, tcp)),
            (&["dumps", "more"], (2, None)),
            (&["/data/old dumps", "../old dumps"], (2, None)),
        ] {
            assert_eq!(settled(words), Ok(expected), "{words:?}");
        }
    }

    #[test]
    fn what_is_unclear_is_asked_about() {
        for (words, answer) in [
            (&["tcp port 80"][..], "weir extract DIR 'tcp port 80'"),
            (&["a", "10.0.0.1"], "weir extract a 'host 10.0.0.1'"),
            (&["a", "udp", "--filter", "icmp"], "--filter '(icmp) and (udp)'"),
        ] {
            let error = settled(words).unwrap_err();
            assert!(error.contains(answer), "{words:?}: {error}");
        }
    }
}
