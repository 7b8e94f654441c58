//! `-F`: reads a filter from a file.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::error::ErrorKind;

use crate::error_words::without_number;
use crate::limits::FILTER_FILE_BYTES_MAX;

/// Returns the filter in a file, without its comments.
///
/// # Errors
/// The file cannot be read, is too long, or is not UTF-8 text.
pub fn read(path: &Path) -> Result<String, clap::Error> {
    let name = path.display();
    let file = File::open(path).map_err(|why| refusal(&name, &why))?;
    let mut bytes = Vec::new();
    let limited = file.take(FILTER_FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    limited.map_err(|why| refusal(&name, &why))?;
    if bytes.len() as u64 > FILTER_FILE_BYTES_MAX {
        return Err(refusal(&name, &format!("a filter has at most {FILTER_FILE_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| refusal(&name, &"it is no text"))?;
    Ok(without_comments(&text))
}

/// Removes comments and empty lines. Keeps the other line ends, which a program in tcpdump's decimal form needs.
/// Source: tcpdump.c, `read_infile`.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn refusal(name: &dyn Display, why: &dyn Display) -> clap::Error {
    let why = without_number(&why.to_string());
    clap::Error::raw(ErrorKind::ValueValidation, format!("--filter-file {name}: {why}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_filter_beside_that_of_a_file_is_joined_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filter");
        std::fs::write(&path, "udp\nor icmp\n").unwrap();
        let path = path.to_str().unwrap();
        for verb in ["capture", "flows"] {
            let words = ["weir", verb, "-r", "a", "-F", path, "--filter", "ip"];
            let refused = Cli::of(words).unwrap_err().to_string();
            assert!(refused.contains("--filter '(ip) and (udp or icmp)'"), "{refused}");
        }
    }

    #[test]
    fn comments_are_no_part_of_the_filter() {
        let text = "# web\ntcp port 80 # or\n\n  or tcp port 443\n";
        assert_eq!(without_comments(text), "tcp port 80\nor tcp port 443");
        assert_eq!(without_comments("#"), "");
    }

    #[test]
    fn a_file_that_is_missing_too_long_or_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filter");
        let refused = || read(&path).unwrap_err().to_string();
        assert!(refused().contains("No such file"), "{}", refused());
        std::fs::write(&path, vec![b' '; FILTER_FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(refused().contains("at most 1048576 bytes"), "{}", refused());
        std::fs::write(&path, [0xff]).unwrap();
        assert!(refused().contains("no text"), "{}", refused());
        std::fs::write(&path, "udp\n").unwrap();
        assert_eq!(read(&path).unwrap(), "udp");
    }
}
