//! `weir doctor`: reports what Weir can do on this machine, and applies or undoes settings of interfaces.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::json;
use weir_capture::in_own_thread;
use weir_capture::interface::InterfaceQuery;
use weir_capture::kernel::netns::{NetnsName, enter_netns};
use weir_doctor::apply::{self, ApplyError, Outcome, Step};
use weir_doctor::facts::{Machine, Nic, capability};
use weir_doctor::judge::{self, Finding, Grade};
use weir_doctor::plan::{Plan, Use, plan};
use weir_doctor::record::{Book, FOLDER};
use weir_doctor::settings::System;
use weir_doctor::{machine, nic};

use crate::cli::DoctorArgs;
use crate::error_words::without_number;
use crate::out::plain;
use crate::source_name::{Part, SourceName};
use crate::{EXIT_FAILED, EXIT_RAN};

/// An interface and its findings.
struct Examined {
    /// Its name as it was given, with its network namespace.
    name: String,
    nic: Nic,
    findings: Vec<Finding>,
    plan: Plan,
    steps: Option<Vec<Step>>,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<u8> {
    let places = places(args)?;
    if (args.apply || args.undo) && places.is_empty() {
        bail!("--apply and --undo change settings of interfaces that are named; name one");
    }
    let machine = machine::collect();
    if args.apply || args.undo {
        check_rights(&machine)?;
    }
    let (mut examined, mut failed) = (Vec::new(), None);
    for place in &places {
        // The thread may enter another network namespace.
        let one = in_own_thread("weir-doctor", || examine(place, &machine, args));
        match one.context("starting a thread").and_then(|one| one) {
            Ok(one) => examined.push(one),
            Err(error) if examined.is_empty() => return Err(error),
            // With --apply, settings of those before it may have been changed, which is shown first.
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let findings = judge::machine(&machine);
    if args.json {
        println!("{}", object(&machine, &findings, &examined, args));
    } else {
        show_all("this machine", &findings);
        examined.iter().for_each(|one| show(one, args));
    }
    if let Some(error) = failed {
        return Err(error);
    }
    // One of the default engines must work: bpf, or else af_packet.
    let able = machine.can_bpf() || machine.lacks("af_packet").is_empty();
    let is_ready = |one: &Examined| one.plan.passive.is_some();
    // If no interface was named, it is enough that one can be captured.
    let ready = if args.ifaces.is_empty() {
        examined.is_empty() || examined.iter().any(is_ready)
    } else {
        examined.iter().all(is_ready)
    };
    Ok(if able && ready && examined.iter().all(done) { EXIT_RAN } else { EXIT_FAILED })
}

fn done(one: &Examined) -> bool {
    let steps = one.steps.iter().flatten();
    steps.into_iter().all(|(_, outcome)| !matches!(outcome, Outcome::Failed(_)))
}

/// An interface to examine.
struct Place {
    /// The name as it was given.
    name: String,
    netns: Option<NetnsName>,
    iface: String,
}

/// Returns the interfaces to examine.
fn places(args: &DoctorArgs) -> Result<Vec<Place>> {
    if args.ifaces.is_empty() && !args.apply && !args.undo {
        let names = nic::names().context("listing interfaces")?;
        let here = |name: String| Place { iface: name.clone(), name, netns: None };
        return Ok(names.into_iter().map(here).collect());
    }
    let place = |source: &SourceName| match source {
        // The printed commands can name network namespaces only as `ip netns` does.
        SourceName::Interface { netns: Some(netns), iface, .. } if netns.prefix() != "netns:" => {
            bail!("{source}: look at it as netns:PID/{iface}, by a process of the container or pod")
        }
        SourceName::Interface { netns, iface, part: Part::Whole } => {
            Ok(Place { name: source.to_string(), netns: netns.clone(), iface: iface.clone() })
        }
        other => bail!(
            "{other} is not the name of an interface; name one, as `ip -brief link` lists them"
        ),
    };
    args.ifaces.iter().map(place).collect()
}

fn check_rights(machine: &Machine) -> Result<()> {
    if !machine.has(capability::NET_ADMIN) {
        bail!(ApplyError::NoRights { needs: "CAP_NET_ADMIN" });
    }
    Ok(())
}

fn examine(place: &Place, machine: &Machine, args: &DoctorArgs) -> Result<Examined> {
    let Place { name, netns, iface } = place;
    if let Some(netns) = netns {
        enter_netns(netns)?;
    }
    let used = if args.monitoring_port { Use::MonitoringPort } else { Use::Passive };
    let look = || -> Result<_> {
        let nic = nic::collect(iface, netns.as_ref().map(NetnsName::name), machine)?;
        let plan = plan(&nic, machine, used);
        Ok((nic, plan))
    };
    let (mut nic, mut plan) = look()?;
    let mut steps = None;
    if args.apply || args.undo {
        let mut system = System { query: InterfaceQuery::new()? };
        let address = system.query.address(iface);
        let address = address.with_context(|| match &nic.refused {
            Some(why) => why.clone(),
            None => format!("{iface}: asking for its address"),
        })?;
        let book = Book::open(Path::new(FOLDER)).map_err(ApplyError::Record)?;
        steps = Some(if args.apply {
            apply::apply(&mut system, &book, iface, address, &plan.settings)?
        } else {
            apply::undo(&mut system, &book, iface, address)?
        });
        // The report shows the state after the change.
        (nic, plan) = look()?;
    }
    let findings = judge::nic(&nic, machine);
    Ok(Examined { name: name.clone(), nic, findings, plan, steps })
}

/// Prints findings as text for people.
pub fn show_all(title: &str, findings: &[Finding]) {
    println!("{}", plain(title));
    for finding in findings {
        let grade = match finding.grade {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::No => "NO",
        };
        println!("  {grade:<4} {:<20} {}", finding.about, plain(&finding.meaning));
        if let Some(remedy) = &finding.remedy {
            println!("{:28}$ {}", "", plain(remedy));
        }
    }
}

fn show(one: &Examined, args: &DoctorArgs) {
    println!();
    show_all(&one.name, &one.findings);
    let Plan { passive, monitoring_port, cores, settings, .. } = &one.plan;
    if let Some(line) = passive {
        println!("\n  to watch it         $ {}", plain(line));
    }
    if let Some(line) = monitoring_port {
        println!("  a monitoring port   $ {}", plain(line));
    }
    if passive.is_some() {
        let cores: Vec<_> = cores.iter().map(ToString::to_string).collect();
        println!("  CPUs near it        {}", cores.join(","));
    }
    if let Some(steps) = &one.steps {
        println!();
        if steps.is_empty() {
            println!("  {}", nothing_done(args.apply, &one.findings));
        }
        for (knob, outcome) in steps {
            println!("  {}", plain(&format!("{knob}: {}", said(outcome))));
        }
    }
    if !settings.is_empty() {
        println!("\n  --apply does this, and --undo takes it back:");
    }
    for setting in settings {
        // Escaped before it is padded, so that columns are aligned.
        let command = plain(&one.nic.command(&setting.knob.command(&setting.value)));
        println!("    {command:<40} # {}", plain(&setting.why));
    }
}

/// Returns the line for an `--apply` or `--undo` without changes. `--apply` does not run all commands that are printed
/// after findings: some interrupt the link or affect other programs.
fn nothing_done(is_apply: bool, findings: &[Finding]) -> &'static str {
    match (is_apply, findings.iter().any(|finding| finding.remedy.is_some())) {
        (false, _) => "nothing to take back",
        (true, false) => "nothing to change",
        (true, true) => "--apply has nothing to change; run the commands after $ yourself",
    }
}

fn said(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Changed(before, after) => format!("{before} -> {after}"),
        Outcome::Already(now) => format!("{now} already"),
        Outcome::Foreign(now) => format!("{now}: changed by somebody else since, left alone"),
        Outcome::Failed(error) => without_number(&format!("FAILED: {error}")),
    }
}

fn object(
    machine: &Machine,
    findings: &[Finding],
    examined: &[Examined],
    args: &DoctorArgs,
) -> serde_json::Value {
    let step = |(knob, outcome): &Step| {
        let failed = matches!(outcome, Outcome::Failed(_));
        json!({ "knob": knob, "said": said(outcome), "failed": failed })
    };
    let interface = |one: &Examined| {
        let steps = one.steps.as_ref().map(|steps| steps.iter().map(step).collect::<Vec<_>>());
        let Examined { name, nic, findings, plan, .. } = one;
        json!({ "name": name, "facts": nic, "findings": findings, "plan": plan, "changes": steps })
    };
    let interfaces: Vec<_> = examined.iter().map(interface).collect();
    json!({
        "machine": machine,
        "findings": findings,
        "monitoring_port": args.monitoring_port,
        "interfaces": interfaces,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn interfaces_of_two_namespaces_have_the_names_that_were_given() {
        let names = ["netns:A/lo", "netns:B/lo", "eth0"];
        let words = ["weir", "doctor"].into_iter().chain(names);
        let Command::Doctor(args) = Cli::of(words).unwrap().command else { unreachable!() };
        let places = places(&args).unwrap();
        assert!(places.iter().map(|place| place.name.as_str()).eq(names));
        let machine = Machine::default();
        let examined: Vec<Examined> = places
            .into_iter()
            .map(|Place { name, iface, .. }| {
                let nic = Nic { name: iface, ..Nic::default() };
                let plan = plan(&nic, &machine, Use::Passive);
                Examined { name, nic, findings: Vec::new(), plan, steps: None }
            })
            .collect();
        let json = object(&machine, &[], &examined, &args);
        let told = |at: usize| json["interfaces"][at]["name"].as_str().unwrap().to_owned();
        assert_eq!([told(0), told(1), told(2)], names);
    }

    #[test]
    fn nothing_to_change_is_not_said_beside_a_command_that_changes_something() {
        let finding = |remedy: Option<&str>| Finding {
            about: "queues".into(),
            grade: Grade::Note,
            meaning: String::new(),
            remedy: remedy.map(str::to_owned),
        };
        let told = |remedy| nothing_done(true, &[finding(None), finding(remedy)]);
        assert_eq!(told(None), "nothing to change");
        assert!(told(Some("ethtool -L eth0 combined 2")).contains("yourself"));
        assert_eq!(nothing_done(false, &[finding(Some("x"))]), "nothing to take back");
    }
}
