//! Recorded files as an interface of Wireshark: runs `weir extract` into the FIFO.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::{answers, one_line, release_reader};
use crate::cli::{ExtcapArgs, ExtractArgs, FormatName};
use crate::{EXIT_RAN, extract, feeds, signals};

/// Environment variable with the default directories of the dialog, separated by colons.
const STORES: &str = "WEIR_STORES";
/// The value of `--from` without a time limit. Wireshark may leave out an empty field, so the value is not empty.
const ALL: &str = "all";
const OWNER_ONLY: u32 = 0o600;

/// Answers a query about the interface, or extracts frames.
pub(super) fn run(args: &ExtcapArgs) -> Result<u8> {
    if args.capture {
        return capture(args);
    }
    let asks_more = args.dlts || args.config || args.reload_option.is_some();
    if args.dlts {
        // Only for Wireshark's list: each interface in the output has its own link type.
        print!("{}", answers::link_types(weir_frame::pcapng::LINKTYPE_ETHERNET));
    }
    if args.config {
        let stores = std::env::var(STORES).unwrap_or_default();
        print!("{}", answers::stored_options(&stores, &args.from));
    }
    if let Some(filter) = args.filter.as_deref().filter(|text| !asks_more && !text.is_empty())
        && let Err(error) = feeds::compile_later(filter)
    {
        println!("{}", one_line(&error));
    }
    Ok(EXIT_RAN)
}

fn capture(args: &ExtcapArgs) -> Result<u8> {
    let stop = signals::stop_flag()?;
    let stores = std::env::var_os(STORES);
    let result = extract_args(args, stores.as_deref())
        .and_then(|args| extract::run_until(&args, Arc::clone(&stop)));
    if let (Err(_), Some(fifo)) = (&result, &args.fifo) {
        release_reader(fifo, stop);
    }
    if result?.frames == 0 {
        eprintln!(
            "weir: no frame was found; look at the times (From, To), the filter and the flow"
        );
    }
    Ok(EXIT_RAN)
}

/// Returns the corresponding arguments of `weir extract`.
fn extract_args(args: &ExtcapArgs, stores: Option<&OsStr>) -> Result<ExtractArgs> {
    let typed = args.dirs.as_deref().filter(|dirs| !dirs.is_empty());
    let dirs = typed.or(stores).unwrap_or_default();
    let paths: Vec<PathBuf> =
        std::env::split_paths(dirs).filter(|path| !path.as_os_str().is_empty()).collect();
    if paths.is_empty() {
        bail!(
            "no directory to read; name one in the options (the gear beside the interface), or set {STORES} before \
             Wireshark is started"
        );
    }
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let time = |text: &str| given(text.trim()).filter(|text| text != ALL);
    Ok(ExtractArgs {
        paths,
        from: time(&args.from),
        to: time(&args.to),
        filter: args.filter.as_deref().and_then(given),
        flow: given(args.flow.trim()),
        write: Some(args.fifo.clone().context("--fifo is missing")?),
        format: FormatName::Pcapng,
        file_mode: OWNER_ONLY,
        frames: None,
        threads: None,
        stats: false,
        json: false,
    })
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(line: &str, stores: Option<&str>) -> Result<ExtractArgs, String> {
        let words = "weir extcap --capture --fifo /f --extcap-interface weir-stored";
        let words = words.split(' ').chain(line.split_whitespace());
        let Command::Extcap(args) = Cli::of(words).expect(line).command else {
            unreachable!("the words say extcap")
        };
        extract_args(&args, stores.map(OsStr::new)).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_of_the_dialog_are_flags_of_extract() {
        let line = "--dirs /a:/b/ --from 09:00 --to -1m --flow 1:x --extcap-capture-filter udp";
        let found = args(line, Some("/c")).unwrap();
        assert_eq!(found.paths, [PathBuf::from("/a"), PathBuf::from("/b/")]);
        assert_eq!((found.from.as_deref(), found.to.as_deref()), (Some("09:00"), Some("-1m")));
        assert_eq!((found.flow.as_deref(), found.filter.as_deref()), (Some("1:x"), Some("udp")));
        assert_eq!(found.write.as_deref(), Some("/f".as_ref()));
    }

    #[test]
    fn fields_that_are_left_alone_or_empty_have_defaults() {
        let found = args("", Some("/c:/d")).unwrap();
        assert_eq!(found.paths, [PathBuf::from("/c"), PathBuf::from("/d")]);
        assert_eq!((found.from.as_deref(), found.to), (Some("-5m"), None));
        assert_eq!((found.flow, found.filter), (None, None));
        for all in ["--from all", "--from= --dirs= --to= --flow= --extcap-capture-filter="] {
            let found = args(all, Some("/c")).unwrap();
            assert_eq!((found.paths.len(), found.from, found.to), (1, None, None), "{all}");
            assert_eq!((found.flow, found.filter), (None, None), "{all}");
        }
        for none in [None, Some(""), Some(":")] {
            assert!(args("", none).unwrap_err().contains("WEIR_STORES"), "{none:?}");
        }
    }
}
