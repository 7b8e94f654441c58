//! Hints for mistaken command lines, beyond the tips of clap.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use weir_capture::CaptureError;
use weir_capture::interface::InterfaceQuery;

use super::tcpdump_flags;
use crate::source_name::SourceName;

/// Names of other programs and of their commands, and what does the same here.
const COMMANDS_ELSEWHERE: [(&[&str], &str); 8] = [
    (
        &["tcpdump", "tshark", "print", "dump", "sniff"],
        "to print frames as tcpdump does: weir capture eth0 --print",
    ),
    (
        &["dumpcap", "netsniff-ng", "write", "record"],
        "to write frames to a file: weir capture eth0 --write out.pcapng",
    ),
    (&["read"], "to read a file: weir capture file:out.pcapng --print"),
    (
        &["tcpreplay", "replay", "send"],
        "to send the frames of a file: weir gen eth0 --file out.pcapng",
    ),
    (&["list", "interfaces", "devices"], "to list interfaces: weir capture -D"),
    (&["stats", "ls"], "to see what a daemon captures: weir status"),
    (&["completions", "completion", "man"], "to write man pages and completions: weir pages DIR"),
    (&["version"], "to see the version: weir --version"),
];

/// Flags of tcpdump and dumpcap that `weir capture` does not have, and what does the same.
const FLAGS_ELSEWHERE: [(&[&str], &str); 8] = [
    (
        &["-a", "--autostop"],
        "dumpcap's -a duration:60 is --duration 60s here, and -a packets:N is -c N",
    ),
    (
        &["-b", "--ring-buffer"],
        "dumpcap's -b filesize:KB is --rotate-size 100MiB here, -b duration:N is -G N, and -b files:N is -W N",
    ),
    (&["-f"], "a filter follows the source: weir capture eth0 'tcp port 80'"),
    (&["-#", "--number"], "to number the lines: --print | cat -n"),
    (&["-d"], "tcpdump -d EXPR shows the program of a filter"),
    (&["-I", "--monitor-mode"], "monitor mode is set by iw"),
    (&["-Z", "--relinquish-privileges"], "all capabilities are given up once everything is open"),
    (
        &["-y", "--linktype", "-L", "--list-data-link-types"],
        "an interface has one link type here, which the file names",
    ),
];

/// Returns what clap says about an error under this name; empty if it says nothing.
fn text_of(error: &clap::Error, kind: ContextKind) -> String {
    error.get(kind).map(ToString::to_string).unwrap_or_default()
}

/// Returns the hint for an unknown command: the name of a source, as in `weir eth0`, or a command of another program.
fn command_hint(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let ContextValue::String(word) = error.get(ContextKind::InvalidSubcommand)? else {
        return None;
    };
    if let Some((_, line)) = COMMANDS_ELSEWHERE.iter().find(|(words, _)| words.contains(&&**word)) {
        return Some(format!("there is no command {word}; {line}"));
    }
    if error.get(ContextKind::SuggestedSubcommand).is_none()
        && text_of(error, ContextKind::Usage).contains("weir <COMMAND>")
        && let Some(similar) = similar_command(word)
    {
        return Some(format!("there is no command {word}; a similar one is {similar}"));
    }
    let is_there = match word.parse().ok()? {
        // A mistyped command also looks like an interface name, so the interface must exist.
        SourceName::Interface { netns: None, iface, .. } => {
            let found = InterfaceQuery::new().ok()?.find(&iface);
            !matches!(found, Err(CaptureError::NoInterface { .. }))
        }
        _ => true,
    };
    is_there.then(|| format!("{word} is a source; capture it with: weir capture {word}"))
}

/// Returns the command that is most similar to `word`. In `weir help WORD` clap does not look for it.
fn similar_command(word: &str) -> Option<String> {
    let error = super::command().try_get_matches_from(["weir", word]).err()?;
    match error.get(ContextKind::SuggestedSubcommand)? {
        // clap puts the most similar last.
        ContextValue::Strings(all) => all.last().cloned(),
        ContextValue::String(one) => Some(one.clone()),
        _ => None,
    }
}

/// Returns a hint for common usage errors.
pub fn hint(error: &clap::Error) -> Option<String> {
    let socket = || socket_hint(error).map(str::to_owned);
    let flags = || flag_hint(error).map(str::to_owned);
    command_hint(error).or_else(socket).or_else(|| elsewhere(error)).or_else(flags)
}

/// Returns the text of an error whose own text is misleading: clap names --print, but not the flags that need it.
pub fn replacement(error: &clap::Error) -> Option<&'static str> {
    let is_it = error.kind() == ErrorKind::MissingRequiredArgument
        && text_of(error, ContextKind::InvalidArg).contains("--print");
    is_it.then_some(
        "flags such as -v, -e and -X say how lines are printed: add --print; without it no lines are printed",
    )
}

pub(super) fn is_engine_xdp(error: &clap::Error) -> bool {
    let text = |kind| text_of(error, kind);
    error.kind() == ErrorKind::InvalidValue
        && text(ContextKind::InvalidArg).contains("--engine")
        && text(ContextKind::InvalidValue) == "xdp"
}

/// Returns the hint for a flag of tcpdump or dumpcap with another name here.
fn elsewhere(error: &clap::Error) -> Option<String> {
    let text = |kind| text_of(error, kind);
    let flag = text(ContextKind::InvalidArg);
    let is_it = error.kind() == ErrorKind::UnknownArgument
        && text(ContextKind::Usage).contains("weir capture");
    let (_, line) = FLAGS_ELSEWHERE.iter().find(|(flags, _)| flags.contains(&&*flag))?;
    is_it.then(|| format!("{line}; docs/from-tcpdump.md has the other flags"))
}

/// Returns the hint for users of tcpdump, which prints by default and has other letters for flags.
fn flag_hint(error: &clap::Error) -> Option<&'static str> {
    let text = |kind| text_of(error, kind);
    let flag = text(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument if text(ContextKind::Usage).contains("weir <COMMAND>") => {
            Some("a command comes first; to capture as tcpdump does: weir capture -i eth0")
        }
        ErrorKind::UnknownArgument if flag == "--version" => {
            Some("the version of all commands is shown by: weir --version")
        }
        ErrorKind::UnknownArgument
            if !flag.starts_with('-') && text(ContextKind::Usage).contains("weir serve") =>
        {
            Some("the daemon's file is given by --config FILE")
        }
        ErrorKind::UnknownArgument
            if flag == "--print" && text(ContextKind::Usage).contains("weir extract") =>
        {
            Some("to see frames as lines of text: weir extract DIR | weir capture file:- --print")
        }
        ErrorKind::UnknownArgument
            if (flag.len() == 2 || tcpdump_flags::LONG.contains(&flag.as_str()))
                && text(ContextKind::Usage).contains("weir capture") =>
        {
            Some("docs/from-tcpdump.md has the flags of tcpdump beside those of weir capture")
        }
        _ if is_engine_xdp(error) => Some(
            "AF_XDP sockets are --engine af_xdp, and an XDP program is --engine bpf --hook xdp",
        ),
        _ => None,
    }
}

/// Returns the hint for `--socket` with `weir filter`, which does not have that flag.
fn socket_hint(error: &clap::Error) -> Option<&'static str> {
    let text = |kind| text_of(error, kind);
    let is_socket_of_filter = error.kind() == ErrorKind::UnknownArgument
        && text(ContextKind::InvalidArg) == "--socket"
        && text(ContextKind::Usage).contains("weir filter");
    is_socket_of_filter.then_some(
        "weir filter asks a capture, not the daemon: give the path that the capture was given as --control",
    )
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, command};
    use super::*;

    #[test]
    fn weir_filter_with_the_socket_of_a_daemon_is_told_of_control() {
        let hint =
            |line: &str| socket_hint(&command().try_get_matches_from(line.split(' ')).unwrap_err());
        assert!(hint("weir filter udp --socket /s").is_some_and(|hint| hint.contains("--control")));
        assert!(hint("weir filter --socket /s udp").is_some());
        for other in ["weir filter udp", "weir filter udp --sockets /s", "weir gen lo --socket /s"]
        {
            assert_eq!(hint(other), None, "{other}");
        }
    }

    #[test]
    fn a_source_in_place_of_a_command_says_the_way_out() {
        let hint =
            |word| command_hint(&command().try_get_matches_from(["weir", word]).unwrap_err());
        for source in ["lo", "any", "file:a.pcap"] {
            let hint = hint(source).expect(source);
            assert!(hint.contains(&format!("weir capture {source}")), "{hint}");
        }
        assert_eq!((hint("captur"), hint("--no-such-flag")), (None, None));
    }

    #[test]
    fn help_of_a_mistyped_command_names_the_one_that_is_meant() {
        let hint = |line: &str| hint(&command().try_get_matches_from(line.split(' ')).unwrap_err());
        for (word, command) in [("captur", "capture"), ("extrac", "extract")] {
            let said = format!("there is no command {word}; a similar one is {command}");
            assert_eq!(hint(&format!("weir help {word}")), Some(said));
        }
        assert_eq!(hint("weir lab captur"), None, "that is no command of weir lab");
        // Here clap says it.
        assert_eq!(hint("weir captur"), None);
        assert_eq!(hint("weir help --no-such-flag"), None);
    }

    #[test]
    fn a_command_of_another_program_names_one_that_is_there() {
        for (words, line) in COMMANDS_ELSEWHERE {
            for word in words {
                let error = command().try_get_matches_from(["weir", word]).unwrap_err();
                assert_eq!(hint(&error), Some(format!("there is no command {word}; {line}")));
            }
            let (_, line) = line.split_once(": ").expect("a command line");
            let parsed = Cli::of(line.split(' '));
            let is_one = |error: &clap::Error| error.kind() == ErrorKind::DisplayVersion;
            assert!(parsed.as_ref().is_ok() || parsed.as_ref().is_err_and(is_one), "{line}");
        }
    }

    #[test]
    fn flags_as_in_tcpdump_say_the_way_out() {
        let hint = |line: &str| {
            hint(&command().try_get_matches_from(line.split(' ')).unwrap_err()).unwrap_or_default()
        };
        let error = command().try_get_matches_from(["weir", "capture", "lo", "-nnvv"]).unwrap_err();
        assert!(replacement(&error).is_some_and(|text| text.contains("add --print")));
        let other = command().try_get_matches_from(["weir", "capture", "lo", "-Z"]).unwrap_err();
        assert_eq!(replacement(&other), None);
        assert!(hint("weir capture lo -Z root").contains("docs/from-tcpdump.md"));
        for flag in ["--number", "--micro", "--snapshot-length=96", "--time-stamp-type"] {
            assert!(
                hint(&format!("weir capture lo {flag}")).contains("docs/from-tcpdump.md"),
                "{flag}"
            );
        }
        for (flags, line) in FLAGS_ELSEWHERE {
            for flag in flags {
                assert!(hint(&format!("weir capture lo {flag} 1")).contains(line), "{flag}");
            }
        }
        assert_eq!(hint("weir capture lo --no-such-flag"), "");
        assert!(hint("weir serve weir.toml").contains("--config FILE"));
        assert_eq!(hint("weir serve --confg"), "");
        assert!(hint("weir extract dumps --print").contains("| weir capture file:- --print"));
        assert!(hint("weir -i eth0").contains("weir capture -i eth0"));
        assert!(hint("weir -D").contains("a command comes first"));
        assert!(hint("weir capture lo --engine xdp").contains("--engine af_xdp"));
        assert_eq!(hint("weir capture lo --frames"), "");
        assert_eq!(hint("weir gen lo -Z"), "");
        assert!(hint("weir flows lo --version").contains("weir --version"));
    }
}
