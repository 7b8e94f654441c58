//! Flags of tcpdump that Weir does not have, and flags that Weir will have. Flags for Weir's usual behaviour are
//! ignored; for the others, the error shows what to type instead. Flags with the same meaning are short forms in
//! `capture.rs`.

use clap::Args;

/// Long flags of tcpdump and dumpcap. If one of them is unknown here, the hint names the page that compares the flags.
///
/// Source: tcpdump(1), dumpcap(1).
pub const LONG: [&str; 27] = [
    "--autostop",
    "--buffer-size",
    "--capture-comment",
    "--compress-type",
    "--count",
    "--debug",
    "--lengths",
    "--linktype",
    "--list-data-link-types",
    "--list-remote-interfaces",
    "--list-time-stamp-types",
    "--log-level",
    "--micro",
    "--monitor-mode",
    "--no-optimize",
    "--no-promiscuous-mode",
    "--number",
    "--packet-buffered",
    "--print-sampling",
    "--relinquish-privileges",
    "--ring-buffer",
    "--skip",
    "--snapshot-length",
    "--temp-dir",
    "--time-stamp-precision",
    "--time-stamp-type",
    "--update-interval",
];

/// Source: tcpdump(1).
#[derive(Args, Debug, Default)]
pub struct TcpdumpFlags {
    #[arg(short = 'z', value_name = "COMMAND", hide = true)]
    command: Option<String>,
    /// Accepted: captured frames are always written once no more come.
    #[arg(short = 'l', hide = true)]
    _by_line: bool,
    /// The same of a file.
    #[arg(short = 'U', hide = true)]
    _by_packet: bool,
    /// Frames come to the consumer some milliseconds after they were captured.
    #[arg(long = "immediate-mode", hide = true)]
    _at_once: bool,
}

impl TcpdumpFlags {
    /// Returns the words to type instead of a given flag that Weir does not have.
    pub fn hint(&self) -> Option<String> {
        self.command.as_ref().map(|command| {
            format!(
                "-z: no command is run on complete files, but a file that is complete is closed: inotifywait -m \
                 -e close_write --format %w%f DIR | xargs -n 1 {command}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{CaptureArgs, Cli, Command, DirectionName};

    fn parsed(typed: &str) -> CaptureArgs {
        let words = ["weir", "capture"].into_iter().chain(typed.split(' '));
        match Cli::of(words).unwrap_or_else(|error| panic!("{typed}: {error}")).command {
            Command::Capture(args) => *args,
            _ => unreachable!("the words say capture"),
        }
    }

    #[test]
    fn tcpdumps_flags_name_ours() {
        let hint = parsed("eth0 -w a -C 1 -z gzip").tcpdump_hint().expect("-z");
        assert!(hint.contains("xargs -n 1 gzip"), "{hint}");
    }

    #[test]
    fn a_list_of_interfaces_refuses_what_it_does_not_heed() {
        let said = |typed: &str| {
            let words = ["weir", "capture"].into_iter().chain(typed.split(' '));
            Cli::of(words).map(drop).map_err(|error| error.to_string())
        };
        for (typed, leave_out) in [
            ("-D -c 5", "leave --frames out"),
            ("-D --engine auto", "leave --engine out"),
            ("-D -i lo", "leave --interface out"),
            ("-D -w a", "leave --write out"),
            ("-D eth0", "other words out"),
        ] {
            let said = said(typed).unwrap_err();
            assert!(said.contains(leave_out), "{typed}: {said}");
        }
        assert_eq!((said("-D"), said("-nD --json")), (Ok(()), Ok(())));
    }

    #[test]
    fn what_means_the_same_is_taken() {
        let args = parsed("eth0 -c 5 -s 128 -w a.pcap -p -nn -l -U -S --immediate-mode");
        assert_eq!(args.tcpdump_hint(), None);
        assert_eq!(
            (args.input.frames, args.input.snaplen, args.input.no_promiscuous),
            (Some(5), 128, true)
        );
        assert_eq!(args.write, [std::path::Path::new("a.pcap")]);
        let least = weir_capture::bpf::least_ring_bytes();
        assert_eq!(parsed("eth0 -B 4").input.ring_size, Some(least));
        let larger = (least >> 10) + 1024;
        let args = parsed(&format!("-i eth0 -i eth1 -B {larger} -Q out udp"));
        let names: Vec<_> = args.input.sources.iter().map(ToString::to_string).collect();
        assert_eq!(
            (&names[..], args.input.ring_size),
            (&["eth0", "eth1"].map(Into::into)[..], Some(larger << 10))
        );
        assert_eq!(
            (args.input.filter.as_deref(), args.input.direction),
            (Some("udp"), DirectionName::Out)
        );
        assert_eq!(parsed("eth0 -Q inout").input.direction, DirectionName::Both);
        let args = parsed("eth0 -w a.pcap -C 10 -G 60 -W 3");
        assert_eq!(args.tcpdump_hint(), None);
        assert_eq!(args.rotate.size(), Some(10_000_000));
        assert_eq!(args.rotate.rotate_time, Some(std::time::Duration::from_secs(60)));
        assert_eq!(args.rotate.rotate_files, Some(3));
    }
}
