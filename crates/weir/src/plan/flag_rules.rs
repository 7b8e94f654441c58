//! Refuses flags of `weir capture` that apply to none of a run's sources, because the user relies on their effect.

use anyhow::{Result, bail};
use weir_capture::af_xdp::Queues;
use weir_capture::engines::ENGINES;
use weir_capture::engines::auto::refuse_pattern;
use weir_capture::engines::declaration::Declaration;
use weir_capture::replay::Speed;

use super::engine_options;
use super::sources::{engine, target};
use crate::cli::{
    CaptureArgs, DirectionName, EngineName, FlowMonitorArgs, InputArgs, TcAttachName,
    TimestampName, XdpModeName,
};
use crate::flows::target::ExportTarget;
use crate::source_name::SourceName;

/// The sources to which a flag applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// Sources whose name does not determine the engine.
    Engine,
    /// Interfaces and devices, with any engine.
    Live,
    /// Sources that may vanish and come back.
    Followed,
    /// Sources whose rings belong to this process.
    Rings,
    /// Engines whose declarations list the flag.
    Engines,
    /// Sources whose frames have a direction.
    Directed,
    /// Consumers that merge rings.
    Merging,
    /// Exports of flows to collectors.
    Ipfix,
    /// Exports of flows into Parquet files.
    Parquet,
}

/// Refuses flags without effect in this run, and options that the engines refuse. Returns the given flags that only
/// some engines support.
pub(super) fn check(args: &CaptureArgs) -> Result<Vec<&'static str>> {
    let any = |is: fn(&SourceName) -> bool| args.input.sources.iter().any(is);
    let interfaces = any(SourceName::is_of_interfaces);
    let of_daemon = any(SourceName::is_of_daemon);
    let devices = any(|of| matches!(of, SourceName::Device { .. }) && !of.is_of_daemon());
    let files = any(|source| matches!(source, SourceName::File(_)));
    let mut of_engines = Vec::new();
    for (flag, what) in given(args) {
        let (applies, meant) = match what {
            For::Engine => (
                interfaces || args.input.sources.iter().any(|of| is_its_own(of, args)),
                "interfaces",
            ),
            For::Live => (interfaces || devices, "interfaces"),
            For::Engines => {
                of_engines.push(flag);
                heeded(flag, args, interfaces)?
            }
            For::Followed => {
                (interfaces || of_daemon, "interfaces and feeds of a daemon (host:eth0)")
            }
            For::Rings => (
                any(|source| !source.is_of_daemon()),
                "sources that this command captures itself; the rings of host: are the daemon's",
            ),
            For::Directed => (interfaces || files || of_daemon, "interfaces and capture files"),
            For::Merging => (
                args.print.print
                    || !args.write.is_empty()
                    || args.netdev.is_some()
                    || args.flows.is_some(),
                "--print and --write",
            ),
            For::Ipfix => (
                exports(args, |to| matches!(to, ExportTarget::Ipfix(_))),
                "collectors (--export ipfix://HOST)",
            ),
            For::Parquet => (
                exports(args, |to| matches!(to, ExportTarget::Parquet(_))),
                "Parquet files (--export parquet:DIRECTORY)",
            ),
        };
        if !applies {
            bail!("{flag} is for {meant}; this run has none, so leave it out");
        }
    }
    let options = engine_options(args);
    for source in &args.input.sources {
        if let Some(engine) = engine(source, args) {
            refuse_pattern(engine, &target(source))?;
            (engine.check)(&target(source), &options)?;
        }
    }
    Ok(of_engines)
}

/// Returns whether some export of flows has such a target.
fn exports(args: &CaptureArgs, is_such: fn(&ExportTarget) -> bool) -> bool {
    args.flows.iter().flat_map(|flows| &flows.export).any(is_such)
}

/// Returns whether `--engine` names the engine that this device has in any case.
fn is_its_own(source: &SourceName, args: &CaptureArgs) -> bool {
    matches!(source, SourceName::Device { engine, .. } if args.input.engine.0 == Some(engine))
}

/// Returns whether the engine of some source supports the flag; if not, also the kind of sources that the flag is for.
fn heeded(flag: &str, args: &CaptureArgs, interfaces: bool) -> Result<(bool, &'static str)> {
    // Returns the engine that `auto` prefers.
    let best_for = |source: &SourceName| {
        let target = target(source);
        let mut live = ENGINES.into_iter().filter(|engine| engine.auto.is_some());
        live.find(|engine| engine.takes_target(&target))
    };
    let engines = args
        .input
        .sources
        .iter()
        .filter_map(|source| engine(source, args).or_else(|| best_for(source)));
    let live: Vec<&Declaration> =
        ENGINES.into_iter().filter(|engine| engine.is_live() && engine.heeds(flag)).collect();
    if engines.into_iter().any(|engine| engine.heeds(flag)) {
        return Ok((true, ""));
    }
    if live.is_empty() {
        return Ok((false, "capture files (file:PATH)"));
    }
    if live.iter().all(|engine| engine.is_of_daemon) {
        bail!("{flag} is for host: sources; name one, host:NAME, or leave it out");
    }
    let best = || args.input.sources.iter().find_map(best_for);
    if let Some(chosen) = args.input.engine.0.or_else(best).filter(|_| interfaces) {
        let names: Vec<_> = live.iter().map(|engine| engine.name).collect();
        bail!(
            "{flag} is for --engine {}, not for {}; choose such an engine, or leave {flag} out",
            names.join(" or "),
            chosen.name
        );
    }
    Ok((false, "interfaces"))
}

/// Returns the flags that were given. A flag with its default value changes nothing, and is left out.
fn given(args: &CaptureArgs) -> impl Iterator<Item = (&'static str, For)> {
    let default_slack = args.input.merge_slack == InputArgs::MERGE_SLACK;
    let of_flows =
        |is_given: fn(&FlowMonitorArgs) -> bool| args.flows.as_ref().is_some_and(is_given);
    let flags = [
        ("--engine", For::Engine, args.input.engine != EngineName::AUTO),
        ("--follow", For::Followed, args.input.follow),
        ("--no-promiscuous", For::Live, args.input.no_promiscuous),
        ("--ring-size", For::Rings, args.input.ring_size.is_some()),
        ("--cpus", For::Rings, args.input.cpus.is_some()),
        ("--socket", For::Engines, args.input.socket.is_some()),
        ("--hook", For::Engines, args.input.hook.is_some()),
        ("--consume", For::Engines, args.input.consume),
        ("--record-queue", For::Engines, args.record_queue),
        ("--tc-attach", For::Engines, args.input.tc_attach != TcAttachName::Best),
        ("--queues", For::Engines, args.input.queues != Queues::All),
        ("--copiers", For::Engines, args.input.copiers != 1),
        ("--xdp-mode", For::Engines, args.input.xdp_mode != XdpModeName::Best),
        ("--timestamp", For::Engines, args.input.timestamp != TimestampName::Hook),
        ("--timestamp nic", For::Engines, args.input.timestamp == TimestampName::Nic),
        ("--hugepages", For::Engines, args.input.hugepages),
        ("--speed", For::Engines, args.input.speed != Speed::Top),
        ("--no-wait", For::Engines, args.input.no_wait),
        ("--direction", For::Directed, args.input.direction != DirectionName::Both),
        ("--merge-slack", For::Merging, !default_slack),
        (
            "--observation-domain",
            For::Ipfix,
            of_flows(|flows| flows.observation_domain != FlowMonitorArgs::OBSERVATION_DOMAIN),
        ),
        (
            "--parquet-every",
            For::Parquet,
            of_flows(|flows| flows.parquet_every != FlowMonitorArgs::PARQUET_EVERY),
        ),
    ];
    flags.into_iter().filter(|(.., given)| *given).map(|(flag, what, _)| (flag, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn checked(line: &str) -> Result<(), String> {
        let words = ["weir", "capture"].into_iter().chain(line.split(' '));
        let Command::Capture(args) = Cli::of(words).expect(line).command else {
            unreachable!("the words say capture")
        };
        check(&args).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_that_nothing_heeds_is_refused_and_says_what_it_is_for() {
        let (af_packet, af_xdp) = ("--engine af_packet eth0", "eth0 --engine af_xdp --consume");
        for (flag, deaf, heeding, meant) in [
            ("--engine bpf", "gen: file:a", "eth0", "interfaces"),
            ("--no-promiscuous", "gen: file:a", "eth0", "interfaces"),
            ("--hook tc", "gen: file:a", "eth0", "interfaces"),
            ("--consume", "gen: file:a", "eth0", "interfaces"),
            ("--record-queue", "gen: file:a", "eth0", "interfaces"),
            ("--record-queue", af_packet, "eth0", "bpf or af_xdp or dpdk, not for af_packet"),
            ("--consume", "--engine pcap eth0", "eth0", "bpf or af_xdp or dpdk, not for pcap"),
            ("--copiers 2", "eth0", af_xdp, "af_xdp, not for bpf"),
            ("--queues 0-3", "eth0", af_xdp, "af_xdp or dpdk, not for bpf"),
            ("--timestamp copy", "eth0", af_xdp, "af_xdp or dpdk, not"),
            ("--hugepages", "eth0", "gen:", "af_packet or pcap or dpdk, not for bpf"),
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
    fn settings_of_exports_need_such_an_export() {
        let checked = |line: &str| {
            let words = ["weir", "flows", "eth0"].into_iter().chain(line.split(' '));
            let Command::Flows(args) = Cli::of(words).expect(line).command else {
                unreachable!("the words say flows")
            };
            let args = CaptureArgs::into_flows(&args.input, &args.flows);
            check(&args).map(drop).map_err(|error| error.to_string())
        };
        for (flag, other, such) in [
            ("--observation-domain 7", "parquet:/d", "ipfix://127.0.0.1"),
            ("--parquet-every 1m", "json:/f", "parquet:/d"),
        ] {
            for line in [flag.to_owned(), format!("{flag} --export {other}")] {
                let refused = checked(&line).unwrap_err();
                assert!(refused.starts_with(flag.split(' ').next().unwrap()), "{refused}");
            }
            assert_eq!(checked(&format!("{flag} --export {other} --export {such}")), Ok(()));
        }
        assert_eq!(checked("--observation-domain 1 --parquet-every 300s"), Ok(()));
    }

    #[test]
    fn the_daemons_socket_is_for_its_sources() {
        for line in ["file:a --socket /s", "eth0 --socket /s", "gen: --engine auto --socket /s"] {
            assert_eq!(
                checked(line).unwrap_err(),
                "--socket is for host: sources; name one, host:NAME, or leave it out"
            );
        }
        assert_eq!(checked("host:eth0 --socket /s"), Ok(()));
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
    fn patterns_go_by_what_their_engine_heeds() {
        assert_eq!(checked("any --direction in --no-promiscuous"), Ok(()));
        assert_eq!(checked("vnet* --engine af_packet"), Ok(()));
        assert!(checked("any --engine pcap").unwrap_err().contains("--engine af_packet"));
        assert!(checked("any --engine af_packet --hook tc").unwrap_err().contains("--engine bpf"));
        assert_eq!(checked("any --hook tc"), Ok(()), "bpf heeds it");
        let xdp = checked("any --engine bpf --hook xdp").unwrap_err();
        assert!(xdp.contains("name the interface"), "{xdp}");
    }

    #[test]
    fn defaults_that_are_said_aloud_are_no_offence() {
        assert_eq!(checked("gen: --engine auto --direction both --merge-slack 8ms"), Ok(()));
        assert_eq!(checked("eth0 --speed max"), Ok(()));
    }
}
