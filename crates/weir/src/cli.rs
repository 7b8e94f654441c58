//! The command line: parsing, and checks of its form only.

mod attach;
mod block;
mod capture;
mod change;
mod choices;
mod demo;
mod doctor;
mod extcap;
mod extract;
mod filter_file;
mod flows;
mod generate;
mod guest;
mod hints;
mod index;
mod input;
mod lab;
mod look_back;
mod manual;
mod pages;
mod print;
mod related;
mod rotate;
mod run;
mod serve;
mod status;
mod tcpdump_flags;
mod vm;
mod words;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use weir_capture::engines::ENGINES;
use weir_capture::engines::declaration::{Declaration, Takes};

pub use attach::{AttachArgs, NetdevArgs, SuperFramesName};
pub use block::{BlockArgs, WhatName};
pub use capture::{CaptureArgs, LatencyName};
pub use change::FilterArgs;
pub use choices::{DirectionName, EngineName, HookName, TcAttachName, TimestampName, XdpModeName};
pub use demo::DemoArgs;
pub use doctor::DoctorArgs;
pub use extcap::ExtcapArgs;
pub use extract::{ExtractArgs, FormatName};
pub use flows::{FlowMonitorArgs, FlowsArgs, ShowArgs};
pub use generate::{AddressArgs, GenArgs};
pub use guest::GuestArgs;
pub use hints::{hint, replacement};
pub use index::IndexArgs;
pub use input::InputArgs;
pub use lab::{
    BenchArgs, ChurnArgs, ChurnSource, CopiersArgs, DiskArgs, LabArgs, LabCommand, RereadArgs,
    SimulateArgs, SoakArgs,
};
pub use look_back::{TriggerArgs, TriggerName};
pub use manual::{Example, examples, exit_statuses};
pub use pages::PagesArgs;
pub use related::related_pages;
pub use rotate::RotateArgs;
pub use run::RunArgs;
pub use serve::ServeArgs;
pub use status::StatusArgs;
pub use vm::{
    AttachGuestArgs, CheckArgs, DetachGuestArgs, ListArgs, MachineName, PrepareArgs, VmArgs,
    VmCommand,
};

/// Capture a link once, read it many times, count every frame.
#[derive(Parser, Debug)]
#[command(name = "weir", version = env!("WEIR_VERSION"), about, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the command line of this build. Its help names the engines that support a flag, and has examples.
pub fn command() -> clap::Command {
    with_examples(command_without_examples(), "")
}

/// Adds the examples of a verb, and of the verbs below it, to their help.
fn with_examples(command: clap::Command, verb: &str) -> clap::Command {
    let inner = |part: clap::Command| {
        let name = format!("{verb} {}", part.get_name());
        with_examples(part, name.trim_start())
    };
    let command = command.mut_subcommands(inner);
    let Some(examples) = manual::examples_in_help(verb) else { return command };
    let help = match command.get_after_help() {
        Some(help) => format!("{help}\n\n{examples}"),
        None => examples,
    };
    command.after_help(help)
}

/// Returns the command line for man pages, which have the examples in a separate section.
pub fn command_without_examples() -> clap::Command {
    let names_engines = |verb: clap::Command| verb.mut_args(with_engines);
    let cli = Cli::command().mut_subcommand("capture", names_engines);
    let cli = cli.mut_subcommand("flows", names_engines);
    cli.mut_subcommand("attach", names_engines)
}

fn with_engines(argument: clap::Arg) -> clap::Arg {
    let Some(help) = argument.get_help().map(ToString::to_string) else { return argument };
    if argument.is_positional() {
        // The first sentence lists the other sources. The devices follow them.
        let devices = examples_of_devices(&help);
        return argument.help(match help.split_once(". ") {
            Some((sources, rest)) => format!("{sources}{devices}. {rest}"),
            None => format!("{help}{devices}"),
        });
    }
    match argument.get_long().map(|long| engines_of(&format!("--{long}"))) {
        Some(more) if !more.is_empty() => argument.help(format!("{help}{more}")),
        _ => argument,
    }
}

/// Returns the names of the live engines that support a flag, for its help; empty if no engine declares the flag.
fn engines_of(flag: &str) -> String {
    let heeding = ENGINES.into_iter().filter(|engine| engine.is_live() && engine.heeds(flag));
    match &heeding.map(|engine| engine.name).collect::<Vec<_>>()[..] {
        [] => String::new(),
        [one] => format!(" ({one} engine)"),
        [some @ .., last] => format!(" ({} and {last} engines)", some.join(", ")),
    }
}

/// Returns examples of device names that `help` does not contain already.
fn examples_of_devices(help: &str) -> String {
    let example = |engine: &&Declaration| match engine.takes {
        Takes::Devices { example, .. } if !help.contains(example) => {
            Some(format!(", or {example}"))
        }
        _ => None,
    };
    ENGINES.iter().filter_map(example).collect()
}

/// Parses the command line of this process.
///
/// # Errors
/// The error of clap, or the requested help text as an error.
pub fn parse() -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches().map_err(without_wrong_tips)?;
    Cli::of_matches(&matches)
}

/// Removes tips of clap that lead astray: to pass an unknown flag as a value, which would be taken for an interface of
/// that name, and another engine in place of xdp, for which [`hint`] has a better one.
fn without_wrong_tips(mut error: clap::Error) -> clap::Error {
    if hints::is_engine_xdp(&error) {
        error.remove(ContextKind::SuggestedValue);
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested)
    {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

impl Cli {
    /// Parses `words`, of which the first is the program name.
    pub fn of<T: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = T>,
    ) -> Result<Cli, clap::Error> {
        Cli::of_matches(&Cli::command().try_get_matches_from(words)?)
    }

    fn of_matches(matches: &ArgMatches) -> Result<Cli, clap::Error> {
        if let Some(("capture", given)) = matches.subcommand() {
            capture::check_list(given)?;
        }
        Cli::from_arg_matches(matches)?.settled()
    }

    /// Completes arguments whose meaning depends on other arguments.
    fn settled(mut self) -> Result<Cli, clap::Error> {
        match &mut self.command {
            Command::Capture(args) => args.input.settle()?,
            Command::Flows(args) => args.input.settle()?,
            Command::Attach(args) => args.input.settle()?,
            Command::Extract(args) => args.settle()?,
            _ => {}
        }
        Ok(self)
    }
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Capture frames: count them, print them, or write them to a pcapng file
    Capture(Box<CaptureArgs>),
    /// Capture for others: a daemon whose feeds processes and containers read as host:NAME
    Serve(ServeArgs),
    /// In a virtual machine: offer what the daemon of its host captures, as host:NAME
    Guest(GuestArgs),
    /// Show what a daemon captures, for whom, and what became of the frames
    Status(StatusArgs),
    /// Give virtual machines of this host feeds: prepare and check one, list them, detach one before it migrates
    Vm(VmArgs),
    /// Run a tool that captures by libpcap, unchanged, on feeds of a daemon: host:NAME
    Run(RunArgs),
    /// Extract recorded frames in order of time, selected by time, filter or flow
    Extract(ExtractArgs),
    /// Rebuild indexes of recorded files, and complete the files that a killed recorder left
    Index(IndexArgs),
    /// Count frames by flow: who talks to whom, how much, and since when
    Flows(Box<FlowsArgs>),
    /// Feed an interface, for tools that read interfaces only: tcpdump, Suricata
    Attach(Box<AttachArgs>),
    /// Change the filter of a running capture, which was started with --control
    Filter(FilterArgs),
    /// Trigger a running capture (started with --on-trigger and --control): it records the frames of just before
    Trigger(TriggerArgs),
    /// Exclude frames from a feed while it runs, by address, prefix, flow or alert; the traffic goes on
    Block(BlockArgs),
    /// Send numbered frames out of an interface and report exactly how many were sent
    Gen(GenArgs),
    /// Capture live traffic between two namespaces of this machine (where these cannot be made: replay a trace)
    Demo(DemoArgs),
    /// Check what Weir can do on this machine, what prevents the rest, and how to capture
    Doctor(DoctorArgs),
    /// Check and measure Weir on this machine
    Lab(LabArgs),
    /// Answer Wireshark, which runs this to list and capture the daemon's sources (docs/wireshark.md)
    #[command(hide = true)]
    Extcap(ExtcapArgs),
    /// Write man pages and shell completions
    Pages(PagesArgs),
}

#[cfg(test)]
mod manners_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_each_kind_of_source_once() {
        let mut cli = command();
        for verb in ["capture", "flows", "attach"] {
            let verb = cli.find_subcommand_mut(verb).expect(verb);
            let sources = verb.get_arguments().find(|argument| argument.get_id() == "sources");
            let help = sources.and_then(|sources| sources.get_help()).expect("help").to_string();
            for source in ["host:", "dpdk:", "file:", "gen:"] {
                assert_eq!(help.matches(source).count(), 1, "{source}: {help}");
            }
            // The help of flags names no devices.
            let flags = verb.get_arguments().filter(|argument| !argument.is_positional());
            let helps = flags.filter_map(|flag| flag.get_help()).map(ToString::to_string);
            assert!(helps.into_iter().all(|help| !help.contains("dpdk:")));
        }
    }

    #[test]
    fn help_lists_every_part_of_the_bench() {
        let why = "nothing".parse::<weir_lab::bench::Section>().unwrap_err();
        let (_, names) = why.split_once("there are ").expect("a list");
        let mut cli = command();
        let bench = cli.find_subcommand_mut("lab").and_then(|lab| lab.find_subcommand_mut("bench"));
        let only = bench.expect("a command").get_arguments().find(|flag| flag.get_id() == "only");
        let help = only.and_then(|flag| flag.get_help()).expect("help").to_string();
        let (_, listed) = help.split_once(": ").expect("a list");
        let listed = listed.replace(" or ", ", ");
        let listed: Vec<&str> = listed.split(", ").map(str::trim).collect();
        assert_eq!(listed, names.split(", ").collect::<Vec<_>>());
    }
}
