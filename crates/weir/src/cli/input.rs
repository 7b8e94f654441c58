//! Flags shared by `weir capture`, `weir attach` and `weir flows`: sources, engines, and limits of the run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use weir_capture::replay::Speed;
use weir_frame::record::CAPLEN_MAX;
use weir_probe::CpuList;

use super::choices::{
    DirectionName, EngineName, HookName, TcAttachName, TimestampName, XdpModeName,
};
use super::filter_file;
use super::words::{self, Word};
use crate::interfaces;
use crate::source_name::SourceName;
use crate::{units, usage_hints};

/// Sources, engines, and limits of the run.
#[derive(Args, Clone, Debug)]
pub struct InputArgs {
    /// Where frames come from: eth0, eth0@2/4 (the second of four shards of its flows), eth0@q2 (an RX queue),
    /// any or 'vnet*' (all with such names, as one source), netns:NAME/eth0 (as `ip netns` names it,
    /// or the number of a process there), netns:/proc/PID/ns/net/eth0 (the file of a network namespace),
    /// docker:NAME (all interfaces of a container but lo), docker:NAME/eth0, vm:NAME (the taps of a virtual machine),
    /// pod:NAMESPACE/NAME, pod:NAMESPACE/NAME/eth0,
    /// file:TRACE.pcapng, gen:size=64,flows=1000,
    /// host:eth0 (what `weir serve` captures; read as any user whom its file allows).
    /// The filter begins with the first word after them that can begin a filter, as with tcpdump: eth0 tcp port 80
    // The plan requires at least one, with a better message than clap's.
    #[arg(id = "sources", value_name = "SOURCE", value_parser = Word::parse)]
    pub(super) words: Vec<Word>,
    /// The sources among the words, and those given by -i and -r.
    #[arg(skip)]
    pub sources: Vec<SourceName>,
    /// A source, as tcpdump has it: -i eth0, or its number in the list of -D. May be given several times
    #[arg(short = 'i', long, value_name = "SOURCE")]
    pub(super) interface: Vec<SourceName>,
    /// Whether -i or -n was given. Users of tcpdump type these, and expect printed lines.
    #[arg(skip)]
    pub(super) is_as_tcpdump: bool,
    /// A capture file as the source, as tcpdump has it; - is standard input, as in file:-
    #[arg(short = 'r', long, value_name = "FILE")]
    pub(super) read: Vec<String>,
    /// Show addresses and ports as numbers, as without this flag, too
    #[arg(short = 'n', action = clap::ArgAction::Count, hide = true)]
    pub(super) numeric: u8,
    /// Capture only frames that match, in tcpdump's syntax: 'tcp port 80'. The filter runs in the kernel where
    /// possible
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Read the filter from this file; from # on, a line is a comment
    #[arg(short = 'F', long, value_name = "FILE")]
    pub(super) filter_file: Option<PathBuf>,
    /// Wait for interfaces that are missing or down, and capture them again each time they come back
    #[arg(long)]
    pub follow: bool,
    /// Create a socket here, by which `weir status`, `weir filter`, `weir block` and `weir trigger` reach this capture
    /// while it runs
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The socket of the daemon that host: sources are read from [default: $WEIR_SOCKET, else
    /// /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How frames are captured from an interface
    #[arg(long, value_enum, default_value = "auto")]
    pub engine: EngineName,
    /// Hook at which frames are captured
    #[arg(long, value_enum)]
    pub hook: Option<HookName>,
    /// How TC programs are attached; hidden: for tests of what kernels before 6.6 need
    #[arg(long, value_enum, default_value = "best", hide = true)]
    pub tc_attach: TcAttachName,
    /// RX queues to capture from: all, or 0-3
    #[arg(long, value_name = "QUEUES", default_value = "all", value_parser = units::queues)]
    pub queues: weir_capture::af_xdp::Queues,
    /// Threads that share each queue, each with its own ring
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copiers: u32,
    /// Mode of the AF_XDP sockets
    #[arg(long, value_enum, default_value = "best")]
    pub xdp_mode: XdpModeName,
    /// Time that a frame is stamped with; engines without a hook stamp when they copy, and engines without this flag
    /// at the hook
    #[arg(long, value_enum, default_value = "hook")]
    pub timestamp: TimestampName,
    /// Take frames away from the network stack, also those that no feed takes; for monitoring ports. With bpf, at XDP
    #[arg(long)]
    pub consume: bool,
    /// Allow --consume on an interface that has an address or carries the default route: this machine is then cut off
    /// there
    #[arg(long)]
    pub yes: bool,
    /// Most bytes kept of a frame; 0: all
    #[arg(short, long, value_name = "BYTES", default_value_t = CAPLEN_MAX, value_parser = units::snaplen)]
    pub snaplen: u32,
    /// The direction of the offered frames, as seen from this machine; for a file, the recorded direction
    #[arg(short = 'Q', long, value_enum, default_value = "both")]
    pub direction: DirectionName,
    /// Memory of each feed's rings, shared by its CPUs [default: 64MiB, more above 16 CPUs; 8MiB for one file
    /// alone; 256MiB for gen: alone at full speed]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    pub ring_size: Option<u64>,
    /// The same in units of 1024 bytes, as tcpdump has it; raised to 4 MiB for each CPU
    #[arg(
        short = 'B', long, value_name = "KIB", conflicts_with = "ring_size",
        value_parser = clap::value_parser!(u64).range(1..=u64::MAX >> 10)
    )]
    pub buffer_size: Option<u64>,
    /// Run the threads that capture on these CPUs, and allocate the rings near them: 0-3,8, or node:1 for the CPUs of
    /// a NUMA node [default: any]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Do not put interfaces into promiscuous mode
    #[arg(short = 'p', long)]
    pub no_promiscuous: bool,
    /// Allocate rings, and an engine's other memory, from reserved huge pages (sysctl vm.nr_hugepages); without this,
    /// rings are in huge pages if the kernel finds some
    #[arg(long)]
    pub hugepages: bool,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Stop after this many frames, those in the file if there is one; frames captured until the sources have stopped
    /// are "after limit" in the ledger, not lost
    #[arg(short = 'c', long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// How long a frame waits for older ones from other rings, unless its own ring is half full (--write, --print,
    /// weir attach)
    #[arg(long, value_name = "TIME", default_value = "8ms", value_parser = units::duration)]
    pub merge_slack: Duration,
    /// How fast a file is replayed: max, real, or a factor such as 2x
    #[arg(long, value_name = "SPEED", default_value = "max", value_parser = units::speed)]
    pub speed: Speed,
    /// Do not wait for slow readers when replaying a file
    #[arg(long)]
    pub no_wait: bool,
    /// Print one JSON object at the end, on standard output, or on standard error with --write -
    #[arg(long)]
    pub json: bool,
    /// Print only errors while it runs; SIGUSR1 prints the ledger meanwhile, with or without this
    #[arg(short, long)]
    pub quiet: bool,
    /// Exit with status 1 if any frame was lost
    #[arg(long)]
    pub fail_on_loss: bool,
}

impl InputArgs {
    /// Default time over which frames are merged.
    pub const MERGE_SLACK: Duration = Duration::from_millis(8);

    /// Separates the sources from the filter.
    ///
    /// # Errors
    /// As [`words::settle`]; a filter file that cannot be read.
    pub(super) fn settle(&mut self) -> Result<(), clap::Error> {
        let by_number = |named: SourceName| match interfaces::of_number(&named) {
            Some(name) => name.parse().map_err(|why: String| words::refusal(&why)),
            None => Ok(named),
        };
        self.is_as_tcpdump = self.numeric > 0 || !self.interface.is_empty();
        let named = std::mem::take(&mut self.interface).into_iter();
        self.sources = named.map(by_number).collect::<Result<_, _>>()?;
        self.sources.extend(self.read.iter().map(|path| SourceName::File(PathBuf::from(path))));
        if let Some(path) = self.filter_file.take() {
            let of_file = filter_file::read(&path)?;
            if let Some(filter) = &self.filter {
                let text = usage_hints::two_filters_by_flags(filter, &of_file);
                return Err(words::refusal(&text));
            }
            self.filter = Some(of_file);
        }
        words::settle(&self.words, &mut self.sources, &mut self.filter)?;
        // clap refuses --buffer-size together with --ring-size.
        if let Some(kib) = self.buffer_size {
            // Sizes that are usual with tcpdump are less than the rings of a few CPUs need.
            self.ring_size = Some((kib << 10).max(weir_capture::bpf::least_ring_bytes()));
        }
        self.words.clear();
        Ok(())
    }
}
