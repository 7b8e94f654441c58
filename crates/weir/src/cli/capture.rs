//! The command line of `weir capture`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Id, ValueEnum};

use super::attach::NetdevArgs;
use super::flows::FlowMonitorArgs;
use super::input::InputArgs;
use super::look_back::LookBackArgs;
use super::print::PrintArgs;
use super::rotate::RotateArgs;
use super::tcpdump_flags::TcpdumpFlags;
use super::words::refusal;
use crate::feeds::FeedName;
use crate::units;

/// The wait of a consumer that finds no frame, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LatencyName {
    /// It pauses as the null monitor does, and sleeps until it is woken
    Rest,
    /// It polls all the time, some microseconds apart
    Poll,
}

/// `weir capture`.
#[derive(Args, Debug)]
#[command(override_usage = "weir capture [OPTIONS] <SOURCE>... [FILTER]")]
pub struct CaptureArgs {
    /// List the interfaces here and end; with --json as one object
    #[arg(short = 'D', long)]
    pub list_interfaces: bool,
    #[command(flatten)]
    pub print: PrintArgs,
    /// Count frames beside --print and --write; without these two, counting is the default
    #[arg(long)]
    pub count: bool,
    /// Write a pcapng file in time order, whatever its name (- for standard output); the command ends when the file is
    /// on the disk. Each link type gets its own file: out.pcapng, out.raw-ip.pcapng. Into a directory (dumps/), each
    /// ring is recorded to its own files, at the disk's speed; `weir extract` puts the frames in order. Several
    /// directories, each with its own --write, are written to at the same time
    #[arg(short, long, value_name = "PATH")]
    pub write: Vec<PathBuf>,
    /// Permissions of new files, in octal, before the umask; a file that is there already keeps its own
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = units::file_mode, requires = "write")]
    pub file_mode: u32,
    #[command(flatten)]
    pub rotate: RotateArgs,
    /// Compress recorded files (--write DIR/) piece by piece, on idle CPUs: zstd, or zstd:LEVEL with 1 (fast, the
    /// default) to 19 (small). `weir extract` reads them, and `zstd -dc FILE | tshark -r -`; tshark by itself may stop
    /// early (4.0 does)
    #[arg(long, value_name = "zstd[:LEVEL]", value_parser = units::compression, requires = "write")]
    pub compress: Option<i32>,
    #[command(flatten)]
    pub look_back: LookBackArgs,
    #[command(flatten)]
    pub input: InputArgs,
    /// A feed: frames that a filter selects, with their own rings, such as 'web: tcp port 80' or 'dns: udp port 53,
    /// snaplen 128'; after further commas in, out or both, and sample N or flows N. May be given several times
    #[arg(long, value_name = "NAME: EXPR, ...")]
    pub feed: Vec<FeedName>,
    /// Also print the JSON object of --json each time this time has passed; frames that are in the rings then are
    /// `waiting`
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub json_every: Option<Duration>,
    /// Serve metrics for Prometheus here, at /metrics: 127.0.0.1:9100; with port 0, at a free port, which is told
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::address)]
    pub metrics: Option<SocketAddr>,
    /// Record the NIC queue of every frame
    #[arg(long)]
    pub record_queue: bool,
    /// Time frames from the stamps of `weir gen --stamp` to the consumer; hidden: for the bench
    #[arg(long, value_enum, value_name = "HOW", hide = true)]
    pub latency: Option<LatencyName>,
    #[command(flatten)]
    pub tcpdump: TcpdumpFlags,
    /// The interface that `weir attach` feeds.
    #[arg(skip)]
    pub netdev: Option<NetdevArgs>,
    /// The settings of `weir flows`.
    #[arg(skip)]
    pub flows: Option<FlowMonitorArgs>,
}

/// Refuses flags that have no effect together with -D.
///
/// # Errors
/// The first such flag, and the advice to leave it out.
pub(super) fn check_list(given: &ArgMatches) -> Result<(), clap::Error> {
    if !given.get_flag("list_interfaces") {
        return Ok(());
    }
    // -n is accepted: it changes no frame and no line of a capture either.
    let heeded = ["list_interfaces", "json", "numeric"];
    let is_typed = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let mut ids = given.ids().map(Id::as_str);
    // clap names a group of flags after their struct, with uppercase letters.
    match ids.find(|id| !id.contains(char::is_uppercase) && !heeded.contains(id) && is_typed(id)) {
        None => Ok(()),
        Some("sources") => Err(refusal("-D lists all interfaces here; leave the other words out")),
        Some(id) => {
            let command = CaptureArgs::augment_args(clap::Command::new("capture"));
            let flag = command.get_arguments().find(|flag| flag.get_id() == id);
            let name = flag.and_then(|flag| {
                let long = flag.get_long().map(|long| format!("--{long}"));
                long.or_else(|| flag.get_short().map(|short| format!("-{short}")))
            });
            let name = name.unwrap_or_else(|| "the other flags".to_owned());
            Err(refusal(&format!("-D lists interfaces and heeds only --json; leave {name} out")))
        }
    }
}

impl CaptureArgs {
    /// Returns a capture whose only consumer feeds an interface.
    pub fn into_netdev(input: &InputArgs, netdev: &NetdevArgs) -> CaptureArgs {
        CaptureArgs { netdev: Some(netdev.clone()), ..CaptureArgs::of(input) }
    }

    /// Returns a capture whose only consumer counts frames by flow.
    pub fn into_flows(input: &InputArgs, flows: &FlowMonitorArgs) -> CaptureArgs {
        CaptureArgs { flows: Some(flows.clone()), ..CaptureArgs::of(input) }
    }

    fn of(input: &InputArgs) -> CaptureArgs {
        CaptureArgs {
            list_interfaces: false,
            print: PrintArgs::default(),
            count: false,
            write: Vec::new(),
            file_mode: 0,
            rotate: RotateArgs::default(),
            compress: None,
            look_back: LookBackArgs::default(),
            input: input.clone(),
            feed: Vec::new(),
            json_every: None,
            metrics: None,
            record_queue: false,
            latency: None,
            tcpdump: TcpdumpFlags::default(),
            netdev: None,
            flows: None,
        }
    }

    /// Returns a note for users of tcpdump (-i or -n was given) if the frames go nowhere.
    pub fn print_note(&self) -> Option<&'static str> {
        let has_output = self.print.print
            || self.count
            || self.input.json
            || !self.write.is_empty()
            || self.netdev.is_some()
            || self.latency.is_some()
            || self.metrics.is_some()
            || self.json_every.is_some();
        (self.input.is_as_tcpdump && !has_output && !self.input.quiet).then_some(
            "frames are only counted; --print prints them as lines, and --write FILE keeps them",
        )
    }

    /// Returns the words to type instead of a given flag of tcpdump, if Weir does not have the flag.
    pub fn tcpdump_hint(&self) -> Option<String> {
        self.tcpdump.hint()
    }
}
