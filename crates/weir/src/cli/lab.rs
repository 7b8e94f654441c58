//! The command line of `weir lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::units;

/// `weir lab`.
#[derive(Args, Debug)]
pub struct LabArgs {
    /// The check.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The lab's verbs.
#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// Load the BPF programs of bpf, af_xdp and gen, to see whether this kernel's verifier accepts them; attach none
    LoadBpf,
    /// Measure every live engine beside other tools, TCP under capture, the ring, and idle costs
    Bench(BenchArgs),
    /// Measure what a disk and these CPUs hold, each alone and together, and compute what links would take
    Disk(DiskArgs),
    /// Copy frames off a synthetic RX ring that is never empty, with threads that share it
    Copiers(CopiersArgs),
    /// Compare every live engine's ledger with the generator's count, at full rate
    Soak(SoakArgs),
    /// Add and remove feeds, attach and detach consumers, while a source runs at full rate
    Churn(ChurnArgs),
    /// Open a feed of a daemon, time its first frame, and read rings without new frames again and again
    Reread(RereadArgs),
    /// Simulate a probe from random numbers, and check after each event that every frame is accounted for
    Simulate(SimulateArgs),
}

/// `weir lab bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Two rounds of one second: to test that it works, not for figures
    #[arg(long)]
    pub quick: bool,
    /// All frame sizes from 64 to 1518 bytes
    #[arg(long)]
    pub full: bool,
    /// Rounds of every measurement [default: 5, with --full 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Length of every measurement [default: 2s, with --full 1.5s]
    #[arg(long = "duration", alias = "seconds", value_name = "TIME", value_parser = units::duration)]
    pub seconds: Option<Duration>,
    /// Length of a trial in the search for the highest rate without loss [default: 2s]; RFC 2544 has 60s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub trial: Option<Duration>,
    /// How often that rate is searched [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub searches: Option<u32>,
    /// Another build of weir, to compare with this one in every row of wire
    #[arg(long, value_name = "PROGRAM")]
    pub before: Option<PathBuf>,
    /// A folder with a root file system that has Suricata 7, to measure it (/ if it is installed)
    #[arg(long, value_name = "DIR")]
    pub suricata: Option<PathBuf>,
    /// A folder with a kernel to boot in virtual machines, vmlinuz and lib/modules, to measure what they read
    #[arg(long, value_name = "DIR")]
    pub guest_kernel: Option<PathBuf>,
    /// A directory on a disk, to record into [default: that of this program]
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Number of single frames sent to a sleeping consumer [default: 50]; 10,000 take 18 minutes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub singles: Option<u64>,
    /// Measure one part only: wire, before, zero-loss, latency, iperf3, memory, command, files, af_xdp,
    /// copiers, churn, filter, idle, wake-ups, print, serve, guests, tools, suricata, flows, recorder, to-disk,
    /// store or any
    #[arg(long, value_name = "NAME")]
    pub only: Option<weir_lab::bench::Section>,
    /// Write everything, round by round, to a JSON file (- for standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write the tables as Markdown: `make figures` puts them into docs/figures.md
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// `weir lab disk`.
#[derive(Args, Debug)]
pub struct DiskArgs {
    /// An existing directory on the disk; what is written there is deleted again
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Rounds of every measurement
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Length of every measurement, 100ms to 60s
    #[arg(long = "duration", alias = "seconds", value_name = "TIME", default_value = "2s")]
    #[arg(value_parser = units::measured_time)]
    pub seconds: Duration,
    /// Bytes of a write to the disk alone, multiples of 4KiB up to 64MiB
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        default_value = "64KiB,256KiB,1MiB,4MiB"
    )]
    #[arg(value_parser = units::write_size)]
    pub block_sizes: Vec<u64>,
    /// A folder with a kernel to boot in a virtual machine, vmlinuz and lib/modules: the same is measured there, on a
    /// virtio-blk disk whose file is in DIR
    #[arg(long, value_name = "DIR")]
    pub guest_kernel: Option<PathBuf>,
    /// Also compute the rate of a link that this many such drives could record
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub drives: Vec<u32>,
    /// Write everything, round by round, to a JSON file (- for standard output, instead of the tables)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `weir lab copiers`.
#[derive(Args, Debug)]
pub struct CopiersArgs {
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub copiers: u32,
    /// Bytes of a frame on the wire, with its FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(64..=1796))]
    pub size: u32,
    /// How long
    #[arg(long = "duration", alias = "seconds", value_name = "TIME", default_value = "1s")]
    #[arg(value_parser = units::duration)]
    pub seconds: Duration,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `weir lab churn`.
#[derive(Args, Debug)]
pub struct ChurnArgs {
    /// Where the frames come from; bpf needs root
    #[arg(long, value_enum, default_value = "gen")]
    pub source: ChurnSource,
    /// How many feeds to add and remove
    #[arg(long, value_name = "N", default_value = "1000", value_parser = units::count)]
    pub feeds: u64,
    /// How many consumers to attach and detach
    #[arg(long, value_name = "N", default_value = "1000", value_parser = units::count)]
    pub consumers: u64,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `weir lab reread`.
#[derive(Args, Debug)]
pub struct RereadArgs {
    /// The daemon's source
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// How long to read; 0 times the first frame only
    #[arg(long = "duration", alias = "seconds", value_name = "TIME", default_value = "2s")]
    #[arg(value_parser = units::duration)]
    pub seconds: Duration,
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// The interfaces that `weir lab churn` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChurnSource {
    /// Frames made in memory
    Gen,
    /// A veth pair under the generator's load, watched at TC
    Bpf,
}

/// `weir lab simulate`.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// The run of this number
    #[arg(long, value_name = "N", required_unless_present = "seeds", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Simulate N runs, with the seeds from 0 on
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub seeds: Option<u64>,
    /// How many events a run has; another number makes another run
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub events: u64,
    /// Leave out of a run that fails what it fails without, and print the rest
    #[arg(long)]
    pub shrink: bool,
}

/// `weir lab soak`.
#[derive(Args, Debug)]
pub struct SoakArgs {
    /// How long each engine runs at each frame size
    #[arg(long = "duration", alias = "seconds", value_name = "TIME", default_value = "30s")]
    #[arg(value_parser = units::duration)]
    pub seconds: Duration,
}
