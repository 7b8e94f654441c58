//! Flags of tcpdump, and flags that Weir will have. Those with the same meaning here are short forms in `capture.rs`;
//! those that ask for what Weir does anyway are ignored; the others are answered with what to type instead.

use clap::{ArgAction, Args};

/// Source: tcpdump(1).
#[derive(Args, Debug, Default)]
pub struct TcpdumpFlags {
    #[arg(short = 'D', long = "list-interfaces", hide = true)]
    list: bool,
    #[arg(short = 'x', action = ArgAction::Count, hide = true)]
    hex: u8,
    #[arg(short = 'A', hide = true)]
    ascii: bool,
    #[arg(short = 'Q', value_name = "WAY", hide = true)]
    way: Option<String>,
    #[arg(short = 'B', value_name = "KIB", hide = true)]
    buffer: Option<String>,
    #[arg(short = 'F', value_name = "FILE", hide = true)]
    filter_file: Option<String>,
    #[arg(short = 'z', value_name = "COMMAND", hide = true)]
    command: Option<String>,
    /// What was captured is let out whenever no more comes.
    #[arg(short = 'l', hide = true)]
    _by_line: bool,
    /// The same of a file.
    #[arg(short = 'U', hide = true)]
    _by_packet: bool,
}

impl TcpdumpFlags {
    /// What to type instead of the first that is not ours.
    pub fn hint(&self) -> Option<String> {
        let bytes = |flag: &str| {
            format!(
                "{flag}: bytes are shown by --print -X; or by tcpdump: --write - | tcpdump -r - {flag}"
            )
        };
        let hints = [
            self.list.then(|| "-D: interfaces are listed by: weir doctor".to_owned()),
            (self.hex > 0).then(|| bytes("-x")),
            self.ascii.then(|| bytes("-A")),
            self.way.as_ref().map(|way| {
                let ours = if way == "inout" { "both" } else { way };
                format!("-Q: the direction is --direction {ours}")
            }),
            self.buffer.as_ref().map(|kib| {
                format!("-B: the memory for what waits is --ring-size {kib}KiB, and 64MiB without it")
            }),
            self.filter_file.as_ref().map(|path| {
                format!("-F: a filter goes behind --filter: --filter \"$(cat {path})\"")
            }),
            self.command.as_ref().map(|command| {
                format!(
                    "-z: no command is run on complete files, but a file that is complete is closed: inotifywait -m \
                     -e close_write --format %w%f DIR | xargs -n 1 {command}"
                )
            }),
        ];
        hints.into_iter().flatten().next()
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{CaptureArgs, Cli, Command};

    fn parsed(typed: &str) -> CaptureArgs {
        let words = ["weir", "capture"].into_iter().chain(typed.split(' '));
        match Cli::of(words).unwrap_or_else(|error| panic!("{typed}: {error}")).command {
            Command::Capture(args) => *args,
            _ => unreachable!("the words say capture"),
        }
    }

    #[test]
    fn tcpdumps_flags_name_ours() {
        for (typed, meant) in [
            ("-D", "weir doctor"),
            ("eth0 -x", "--print -X"),
            ("eth0 -A", "tcpdump -r - -A"),
            ("eth0 -Q inout", "--direction both"),
            ("eth0 -B 4096", "--ring-size 4096KiB"),
            ("eth0 -F f", "--filter \"$(cat f)\""),
            ("eth0 -w a -C 1 -z gzip", "xargs -n 1 gzip"),
        ] {
            let hint = parsed(typed).tcpdump_hint().expect(typed);
            assert!(hint.contains(meant), "{typed}: {hint}");
        }
    }

    #[test]
    fn what_means_the_same_is_taken() {
        let args = parsed("eth0 -c 5 -s 128 -w a.pcap -p -nn -l -U");
        assert_eq!(args.tcpdump_hint(), None);
        assert_eq!(
            (args.input.frames, args.input.snaplen, args.input.no_promiscuous),
            (Some(5), 128, true)
        );
        assert_eq!(args.write, [std::path::Path::new("a.pcap")]);
        let args = parsed("eth0 -w a.pcap -C 10 -G 60 -W 3");
        assert_eq!(args.tcpdump_hint(), None);
        assert_eq!(args.rotate.size(), Some(10_000_000));
        assert_eq!(args.rotate.rotate_time, Some(std::time::Duration::from_secs(60)));
        assert_eq!(args.rotate.rotate_files, Some(3));
    }
}
