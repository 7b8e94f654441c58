//! What each flag of `weir capture` is for. One that none of a run's sources heeds is refused: whoever
//! gave it counts on it.

use anyhow::{Result, bail};
use clap::ValueEnum;
use weir_capture::af_xdp::Queues;
use weir_capture::replay::Speed;

use crate::cli::{
    CaptureArgs, DirectionName, EngineName, HookName, TcAttachName, TimestampName, XdpModeName,
};
use crate::ports;
use crate::source_name::SourceName;

/// What a flag is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// Sources that do not say how their frames are taken.
    Engine,
    /// Interfaces and ports, whatever takes their frames.
    Live,
    /// Interfaces and ports whose frames one of these engines takes; the first is the one to advise.
    Engines(&'static [EngineName]),
    /// Capture files.
    Files,
    /// Sources whose frames have a direction.
    Directed,
    /// Consumers that merge rings.
    Merging,
}

/// Refuses flags that mean nothing in this run.
pub fn check(args: &CaptureArgs) -> Result<()> {
    let any = |is: fn(&SourceName) -> bool| args.sources.iter().any(is);
    let interfaces = any(|source| matches!(source, SourceName::Interface { .. }));
    let ports = any(|source| matches!(source, SourceName::Dpdk(_)));
    let files = any(|source| matches!(source, SourceName::File(_)));
    for (flag, what) in given(args) {
        let (applies, meant) = match what {
            For::Engine => (interfaces || ports && args.engine == DPDK, "interfaces"),
            For::Live => (interfaces || ports, "interfaces"),
            For::Engines(engines) => {
                let chosen = if args.engine == EngineName::Auto { BPF } else { args.engine };
                let heeded = interfaces && engines.contains(&chosen);
                if interfaces && !heeded && !(ports && engines.contains(&DPDK)) {
                    let names: Vec<_> = engines.iter().map(|&engine| name(engine)).collect();
                    bail!(
                        "{flag} is for --engine {}, not for {}; take that, or leave {flag} out",
                        names.join(" and "),
                        name(chosen)
                    );
                }
                (interfaces || ports && engines.contains(&DPDK), "interfaces")
            }
            For::Files => (files, "capture files (file:PATH)"),
            For::Directed => (interfaces || files, "interfaces and capture files"),
            For::Merging => (args.print || args.write.is_some(), "--print and --write"),
        };
        if !applies {
            bail!("{flag} is for {meant}; this run has none, so leave it out");
        }
    }
    ports::check(args)?;
    if args.engine == EngineName::AfXdp {
        if args.timestamp == TimestampName::Nic && !ports {
            bail!("--timestamp nic is for --engine dpdk, not for af_xdp; take hook or copy");
        }
        if !args.consume {
            bail!(
                "--engine af_xdp takes frames away from the stack: say so with --consume, or watch with \
                 --engine bpf"
            );
        }
        if args.hook == Some(HookName::Tc) {
            bail!("--engine af_xdp takes frames at XDP; leave out --hook tc");
        }
    }
    Ok(())
}

/// Whether something was asked for that `auto` finds in the bpf engine only.
pub fn only_bpf_will_do(args: &CaptureArgs) -> bool {
    given(args).any(|(_, what)| matches!(what, For::Engines(engines) if engines.contains(&BPF)))
}

/// An engine as it is typed.
fn name(engine: EngineName) -> String {
    let value = engine.to_possible_value();
    value.map(|value| value.get_name().to_owned()).unwrap_or_default()
}

const BPF: EngineName = EngineName::Bpf;
const AF_XDP: EngineName = EngineName::AfXdp;
const DPDK: EngineName = EngineName::Dpdk;

/// The flags that were given. A flag that says what would be so without it changes nothing and is not
/// looked at.
fn given(args: &CaptureArgs) -> impl Iterator<Item = (&'static str, For)> {
    let default_slack = args.merge_slack == CaptureArgs::MERGE_SLACK;
    let flags = [
        ("--engine", For::Engine, args.engine != EngineName::Auto),
        ("--no-promiscuous", For::Live, args.no_promiscuous),
        ("--hook", For::Engines(&[BPF, AF_XDP]), args.hook.is_some()),
        ("--consume", For::Engines(&[BPF, AF_XDP, DPDK]), args.consume),
        ("--record-queue", For::Engines(&[BPF, AF_XDP, DPDK]), args.record_queue),
        ("--tc-attach", For::Engines(&[BPF]), args.tc_attach != TcAttachName::Best),
        ("--queues", For::Engines(&[AF_XDP, DPDK]), args.queues != Queues::All),
        ("--copiers", For::Engines(&[AF_XDP]), args.copiers != 1),
        ("--xdp-mode", For::Engines(&[AF_XDP]), args.xdp_mode != XdpModeName::Best),
        ("--timestamp", For::Engines(&[AF_XDP, DPDK]), args.timestamp != TimestampName::Hook),
        ("--hugepages", For::Engines(&[DPDK]), args.hugepages),
        ("--speed", For::Files, args.speed != Speed::Top),
        ("--no-wait", For::Files, args.no_wait),
        ("--direction", For::Directed, args.direction != DirectionName::Both),
        ("--merge-slack", For::Merging, !default_slack),
    ];
    flags.into_iter().filter(|(.., given)| *given).map(|(flag, what, _)| (flag, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn checked(line: &str) -> Result<(), String> {
        let words = ["weir", "capture"].into_iter().chain(line.split(' '));
        let Command::Capture(args) = Cli::try_parse_from(words).expect(line).command else {
            unreachable!("the words say capture")
        };
        check(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_that_nothing_heeds_is_refused_and_says_what_it_is_for() {
        for (flag, deaf, heeding, meant) in [
            ("--engine bpf", "gen: file:a", "eth0", "interfaces"),
            ("--no-promiscuous", "gen: file:a", "eth0", "interfaces"),
            ("--hook tc", "gen: file:a", "eth0", "interfaces"),
            ("--consume", "gen: file:a", "eth0", "interfaces"),
            ("--record-queue", "gen: file:a", "eth0", "interfaces"),
            (
                "--record-queue",
                "--engine af_packet eth0",
                "eth0",
                "bpf and af_xdp and dpdk, not for af_packet",
            ),
            ("--consume", "--engine pcap eth0", "eth0", "bpf and af_xdp and dpdk, not for pcap"),
            ("--copiers 2", "eth0", "eth0 --engine af_xdp --consume", "af_xdp, not for bpf"),
            (
                "--queues 0-3",
                "eth0",
                "eth0 --engine af_xdp --consume",
                "af_xdp and dpdk, not for bpf",
            ),
            ("--timestamp copy", "eth0", "eth0 --engine af_xdp --consume", "af_xdp and dpdk, not"),
            ("--speed 2x", "gen: eth0", "file:a", "capture files"),
            ("--no-wait", "gen: eth0", "file:a", "capture files"),
            ("--direction in", "gen:", "file:a", "capture files"),
            ("--direction out", "gen:", "eth0", "interfaces"),
            ("--merge-slack 1ms", "eth0", "--print eth0", "--print"),
        ] {
            let name = flag.split(' ').next().unwrap();
            let refusal = checked(&format!("{deaf} {flag}")).expect_err(flag);
            assert!(refusal.starts_with(name) && refusal.contains(meant), "{refusal}");
            assert_eq!(checked(&format!("{heeding} {flag}")), Ok(()));
            // One source that heeds it is enough.
            if deaf.contains("gen:") {
                assert_eq!(checked(&format!("{deaf} {heeding} {flag}")), Ok(()));
            }
        }
    }

    #[test]
    fn frames_are_taken_away_only_when_that_is_said() {
        assert!(checked("eth0 --engine af_xdp").unwrap_err().contains("--consume"));
        assert!(checked("eth0 --engine af_xdp --consume --hook tc").unwrap_err().contains("XDP"));
        assert_eq!(checked("eth0 --engine af_xdp --consume --hook xdp"), Ok(()));
    }

    #[test]
    fn ports_name_their_engine() {
        assert!(checked("dpdk:net_null0 --engine bpf").unwrap_err().contains("interfaces"));
        assert!(
            checked("eth0 --engine dpdk").unwrap_err().contains("dpdk:net_af_packet0,iface=eth0")
        );
        assert!(checked("dpdk:net_null0 --copiers 2").unwrap_err().contains("leave it out"));
        let xdp = "dpdk:net_af_xdp0,iface=eth0";
        if cfg!(feature = "dpdk") {
            assert_eq!(checked("dpdk:net_null0 --engine dpdk --queues 0-1 --hugepages"), Ok(()));
            assert!(checked(xdp).unwrap_err().contains("--consume"));
            assert_eq!(checked(&format!("{xdp} --consume")), Ok(()));
        } else {
            assert!(checked(xdp).unwrap_err().contains("--features dpdk"));
        }
    }

    #[test]
    fn defaults_that_are_said_aloud_are_no_offence() {
        assert_eq!(checked("gen: --engine auto --direction both --merge-slack 8ms"), Ok(()));
        assert_eq!(checked("eth0 --speed max"), Ok(()));
    }
}
