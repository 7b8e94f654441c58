//! The flags that hands used to tcpdump type: each ends with the words that do it here.

use clap::Args;

/// Never filled: every value is refused.
#[derive(Args, Debug)]
#[allow(dead_code, reason = "clap refuses every value before there is anything to read")]
pub struct TcpdumpFlags {
    #[arg(short = 'i', value_name = "IFACE", hide = true, value_parser = interface)]
    interface: Option<String>,
    #[arg(short = 'c', value_name = "N", hide = true, value_parser = count)]
    count: Option<String>,
    #[arg(short = 'w', value_name = "PATH", hide = true, value_parser = write)]
    write_to: Option<String>,
    #[arg(short = 'r', value_name = "FILE", hide = true, value_parser = read)]
    read_from: Option<String>,
}

fn interface(name: &str) -> Result<String, String> {
    Err(format!("sources are named without a flag: weir capture {name}"))
}

fn count(frames: &str) -> Result<String, String> {
    Err(format!("a number of frames is --frames {frames}"))
}

fn write(path: &str) -> Result<String, String> {
    Err(format!("a file to write is --write {path}"))
}

fn read(path: &str) -> Result<String, String> {
    Err(format!("a capture file is a source: weir capture file:{path}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Cli;

    #[test]
    fn tcpdumps_flags_name_ours() {
        for (typed, meant) in [
            ("-i eth0", "weir capture eth0"),
            ("-ieth0 -w a.pcap", "weir capture eth0"),
            ("eth0 -c 5", "--frames 5"),
            ("eth0 -w a.pcap", "--write a.pcap"),
            ("eth0 -w -", "--write -"),
            ("-r a.pcap", "file:a.pcap"),
        ] {
            let words = ["weir", "capture"].into_iter().chain(typed.split(' '));
            let error = Cli::try_parse_from(words).expect_err(typed);
            assert!(error.to_string().contains(meant), "{typed}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
