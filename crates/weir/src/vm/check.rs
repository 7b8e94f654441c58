//! `weir vm check`: finds faults that prevent a guest from reading feeds, and remedies.

use anyhow::Result;
use serde_json::json;
use weir_client::protocol::{Guest, GuestState};
use weir_doctor::judge::{Finding, Grade};

use super::domain::GROUP;
use super::facts::{Facts, InFile, Lacks, Machine, NoDomain, NoFile, NoList};
use super::list;
use crate::cli::CheckArgs;
use crate::doctor::show_all;
use crate::error_words::without_number;
use crate::units::counted;
use crate::{EXIT_LOSS, EXIT_RAN};

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<u8> {
    let file = args.config.display().to_string();
    let findings = judge(&args.name, &file, &Facts::gather(args));
    let is_well = findings.iter().all(|finding| finding.grade != Grade::No);
    if args.json {
        println!("{}", json!({ "guest": args.name, "ok": is_well, "findings": findings }));
    } else {
        show_all(&format!("guest {}", args.name), &findings);
    }
    Ok(if is_well { EXIT_RAN } else { EXIT_LOSS })
}

/// The collected findings.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, grade: Grade, about: &'static str, meaning: String, remedy: Option<String>) {
        self.0.push(Finding { about: about.into(), grade, meaning, remedy });
    }

    fn ok(&mut self, about: &'static str, meaning: impl Into<String>) {
        self.add(Grade::Ok, about, meaning.into(), None);
    }

    fn no(&mut self, about: &'static str, meaning: impl Into<String>, remedy: impl Into<String>) {
        self.add(Grade::No, about, meaning.into(), Some(remedy.into()));
    }
}

fn judge(name: &str, path: &str, facts: &Facts) -> Vec<Finding> {
    let mut all = Findings::default();
    let guest = of_daemon(&mut all, name, facts);
    match &facts.file {
        Err(why) => {
            let remedy = match why {
                NoFile::Missing(_) => {
                    format!(
                        "weir vm check {name} --config PATH    # if the daemon has another file: systemctl cat weir"
                    )
                }
                NoFile::Denied(_) => format!("sudo weir vm check {name}"),
                NoFile::Other(_) => {
                    format!(
                        "weir vm check {name} --config PATH    # if the daemon has another file"
                    )
                }
            };
            all.add(Grade::Note, "file", why.to_string(), Some(remedy));
            if let Some(guest) = guest {
                of_sources(&mut all, name, path, None, guest);
            }
        }
        Ok(file) if !file.is_named => {
            all.no(
                "file",
                format!("{path} has no [guests.{name}]"),
                format!("weir vm prepare {name}"),
            );
        }
        Ok(file) => of_file(&mut all, name, path, file, facts, guest),
    }
    if let Some(machine) = &facts.machine {
        of_machine(&mut all, name, machine);
    }
    let runs = match &facts.machine {
        Some(Machine::Domain { found, .. }) => {
            found.as_ref().is_ok_and(|(state, ..)| state.is_on())
        }
        Some(Machine::Qemu { found, .. }) => found.is_some(),
        // Only the daemon knows whether the guest runs.
        None => true,
    };
    if let Some(guest) = guest.filter(|_| runs) {
        let is_by_vsock = facts.file.as_ref().is_ok_and(|file| file.is_by_vsock);
        of_guest(&mut all, guest, is_by_vsock);
    }
    all.0
}

/// Adds findings about the daemon, and returns the daemon's state of the guest.
fn of_daemon<'a>(all: &mut Findings, name: &str, facts: &'a Facts) -> Option<&'a Guest> {
    let guests = match &facts.daemon {
        Err(why) => {
            let remedy = match why {
                NoList::NoDaemon(_) => "systemctl start weir".to_owned(),
                NoList::Denied(_) => format!("sudo weir vm check {name}"),
                NoList::Other(_) => "weir status; journalctl -u weir".to_owned(),
            };
            all.no("daemon", why.to_string(), remedy);
            return None;
        }
        Ok(guests) => guests,
    };
    let guest = guests.iter().find(|guest| guest.name == name);
    let is_in_file = facts.file.as_ref().is_ok_and(|file| file.is_named);
    match guest {
        Some(_) => all.ok("daemon", "it knows the guest"),
        None if is_in_file => {
            all.no(
                "daemon",
                "its file names the guest, and it has not read that yet",
                "systemctl reload weir",
            );
        }
        None => {
            let names: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            all.no(
                "daemon",
                format!("it has no such guest; its guests: {names}"),
                format!("weir vm prepare {name}"),
            );
        }
    }
    guest
}

fn of_file(
    all: &mut Findings,
    name: &str,
    path: &str,
    file: &InFile,
    facts: &Facts,
    guest: Option<&Guest>,
) {
    match guest {
        Some(guest) => of_sources(all, name, path, Some(&file.sources), guest),
        // A file that cannot be read was already reported.
        None if file.sources.is_empty() => no_source(all, name, path),
        None => all.ok("sources", format!("of the file: {}", file.sources.join(", "))),
    }
    if facts.daemon.is_ok() && guest.is_some_and(|guest| guest.region_mib != file.region_mib) {
        let meaning = "the daemon has another size of its region than its file".to_owned();
        all.add(Grade::Note, "file", meaning, Some("systemctl reload weir".to_owned()));
    }
}

fn no_source(all: &mut Findings, name: &str, path: &str) {
    all.no(
        "sources",
        "no source lets the guest in",
        format!("write guests = [{name:?}] below a [sources.NAME] of {path}, then: systemctl reload weir"),
    );
}

/// Compares the sources in the file, if it can be read, with those that the daemon has in force.
fn of_sources(all: &mut Findings, name: &str, path: &str, file: Option<&[String]>, guest: &Guest) {
    let differ = |these: &[String], those: &[String]| {
        these.iter().filter(|one| !those.contains(one)).cloned().collect::<Vec<_>>().join(", ")
    };
    let in_force = &guest.sources[..];
    let file = file.unwrap_or(in_force);
    let (unread, withdrawn) = (differ(file, in_force), differ(in_force, file));
    if !unread.is_empty() {
        let meaning = format!(
            "the file lets the guest read {unread}, and the daemon has not read that yet, or refuses the file"
        );
        all.no("sources", meaning, "systemctl reload weir; journalctl -u weir -n 5");
    } else if !withdrawn.is_empty() {
        let meaning = format!(
            "the guest may still read {withdrawn}, which the file does not let it any more"
        );
        all.add(Grade::Note, "sources", meaning, Some("systemctl reload weir".to_owned()));
    } else if in_force.is_empty() {
        no_source(all, name, path);
    } else {
        all.ok("sources", in_force.join(", "));
    }
}

fn of_machine(all: &mut Findings, name: &str, machine: &Machine) {
    match machine {
        Machine::Domain { name: domain, found: Err(why), uri } => {
            let remedy = match why {
                NoDomain::NoClient(_) => "apt-get install libvirt-clients".to_owned(),
                NoDomain::Other(_) => format!("virsh --connect {uri} list --all"),
            };
            all.no("machine", format!("domain {domain} at {uri}: {why}"), remedy);
        }
        Machine::Domain { name: domain, found: Ok((state, now, next)), .. } => {
            let prepare = match domain == name {
                true => format!("weir vm prepare {name} --libvirt --apply"),
                false => format!("weir vm prepare {name} --libvirt --domain {domain} --apply"),
            };
            match state.is_on() {
                true => all.ok("machine", format!("domain {domain} runs")),
                false => all.no("machine", format!("domain {domain} is off"), format!("virsh start {domain}")),
            }
            let restart = format!("virsh shutdown {domain}, then: virsh start {domain}");
            let help = |lacks_next| if lacks_next { prepare.clone() } else { restart.clone() };
            parts(all, *now, [help(next.channel), help(next.ports)]);
        }
        Machine::Qemu { qmp, found: None } => all.no(
            "machine",
            format!("no QEMU with a monitor at {qmp} runs, or this user may not look at it"),
            format!("start it with -qmp unix:{qmp},server=on,wait=off; `weir vm prepare {name}` prints all options"),
        ),
        Machine::Qemu { found: Some((pid, lacks)), .. } => {
            all.ok("machine", format!("QEMU, process {pid}"));
            let prepare = |more: &str| format!("start it with the options of: weir vm prepare {name}{more}");
            parts(all, *lacks, [prepare(""), prepare(" --machine q35")]);
        }
    }
}

fn parts(all: &mut Findings, lacks: Lacks, [channel, ports]: [String; 2]) {
    match lacks.channel {
        true => all.no(
            "channel",
            "the machine has no port org.weir.0, or no vsock where the file says vsock",
            channel,
        ),
        false => all.ok("channel", "the machine has its port, or its vsock"),
    }
    match lacks.ports {
        true => all.no(
            "slots",
            "a machine of this type needs two free root ports, one with room for twice the region",
            ports,
        ),
        false => all.ok("slots", "devices can be plugged in"),
    }
}

/// The end of Rust's text for EACCES, in errors of the daemon's own system calls.
const KERNEL_DENIES: &str = "(os error 13)";
/// The text of strerror(3) for EACCES, in errors of QEMU or libvirt.
const QEMU_DENIES: &str = "Permission denied";

fn of_guest(all: &mut Findings, guest: &Guest, is_by_vsock: bool) {
    let name = &guest.name;
    let raw_reason = guest.reason.as_deref().unwrap_or_default();
    let reason = &*without_number(raw_reason);
    let state = list::state(guest.state);
    let version =
        guest.qemu.as_ref().map(|version| format!(" of QEMU {version}")).unwrap_or_default();
    match guest.state {
        GuestState::Detached => {
            all.no("monitor", "the guest is detached, and opens no feed", format!("weir vm attach {name}"));
        }
        // Access to the sockets was denied: QEMU creates them for its own user.
        _ if raw_reason.contains(KERNEL_DENIES) => all.no(
            "monitor",
            reason,
            format!(
                "their folder and both sockets are the group {GROUP}'s, and QEMU is started with umask 007: the first \
                 lines of `weir vm prepare {name}`. Until then: chgrp {GROUP} FOLDER SOCKET; chmod g+rx FOLDER; \
                 chmod g+w SOCKET. Is the daemon in the group? systemctl show -p SupplementaryGroups weir"
            ),
        ),
        // Security modules that label files refuse with this message.
        _ if reason.contains(QEMU_DENIES) => all.no(
            "monitor",
            reason,
            "journalctl -k --grep 'apparmor=.DENIED'; ausearch -m avc -c qemu: a security module may forbid it; \
             `weir vm prepare` says what to do",
        ),
        GuestState::Absent => all.no(
            "monitor",
            if reason.is_empty() { "the daemon does not reach the machine" } else { reason },
            format!("weir status; journalctl -u weir --grep {name}"),
        ),
        GuestState::Leaving => {
            let meaning = format!("the guest has not released its devices yet: is it paused? {reason}");
            all.add(Grade::Note, "monitor", meaning, None);
        }
        _ if !reason.is_empty() => {
            all.add(Grade::Note, "monitor", reason.to_owned(), None);
        }
        _ => all.ok("monitor", format!("the daemon has the monitor{version}; {state}")),
    }
    if guest.state == GuestState::Absent {
        return;
    }
    match guest.has_session {
        true => all.ok("broker", "`weir guest` in the guest has a session"),
        false => all.no(
            "broker",
            "no `weir guest` in the guest has a session",
            match is_by_vsock {
                // If the daemon cannot listen, its log has the reason.
                true => format!("journalctl -u weir --grep 'guest {name}'; in the guest, as root: weir guest --vsock"),
                false => "in the guest: systemctl enable --now weir-guest, or as root: weir guest".to_owned(),
            },
        ),
    }
    let memory = format!(
        "{}, {} of {} MiB used",
        counted(guest.feeds as u64, "feed"),
        guest.used_mib,
        guest.region_mib
    );
    all.ok("feeds", memory);
}

#[cfg(test)]
mod tests {
    use super::super::virsh::DomainState;
    use super::*;

    fn well() -> Facts {
        let guest = Guest {
            name: "web1".into(),
            state: GuestState::Ready,
            reason: None,
            qemu: Some("7.2.22".into()),
            has_session: true,
            sources: vec!["lan".into()],
            feeds: 0,
            region_mib: 256,
            used_mib: 0,
        };
        let file = InFile {
            is_named: true,
            libvirt: Some(("web1".into(), "qemu:///system".into())),
            region_mib: 256,
            sources: vec!["lan".into()],
            ..InFile::default()
        };
        let found = Ok((DomainState::On, Lacks::default(), Lacks::default()));
        let machine = Some(domain_with(found));
        Facts { daemon: Ok(vec![guest]), file: Ok(file), machine }
    }

    fn domain_with(found: Result<(DomainState, Lacks, Lacks), NoDomain>) -> Machine {
        Machine::Domain { name: "web1".into(), found, uri: "qemu:///system".into() }
    }

    /// The faults, each with a remedy.
    fn wrong(facts: &Facts) -> Vec<(String, String)> {
        let no = judge("web1", "/f", facts).into_iter().filter(|one| one.grade == Grade::No);
        no.map(|one| (one.about.into_owned(), one.remedy.expect("a remedy"))).collect()
    }

    fn is_one(facts: &Facts, about: &str, remedy: &str) {
        let wrong = wrong(facts);
        assert!(
            wrong.len() == 1 && wrong[0].0 == about && wrong[0].1.contains(remedy),
            "{wrong:?}"
        );
    }

    #[test]
    fn nothing_is_wrong_where_all_is_well() {
        assert_eq!(wrong(&well()), []);
    }

    #[test]
    fn each_fault_has_its_remedy() {
        let with = |change: &dyn Fn(&mut Facts)| {
            let mut facts = well();
            change(&mut facts);
            facts
        };
        let guest = |change: &dyn Fn(&mut Guest)| {
            with(&|facts| change(&mut facts.daemon.as_mut().unwrap()[0]))
        };
        let domain = |found: Result<(DomainState, Lacks, Lacks), NoDomain>| {
            with(&|facts| {
                facts.machine = Some(domain_with(found.clone()));
            })
        };
        is_one(
            &with(&|facts| facts.daemon = Err(NoList::NoDaemon("none".into()))),
            "daemon",
            "start weir",
        );
        is_one(
            &with(&|facts| facts.daemon = Err(NoList::Denied("no daemon answers".into()))),
            "daemon",
            "sudo",
        );
        is_one(&with(&|facts| facts.daemon = Ok(Vec::new())), "daemon", "reload");
        is_one(
            &with(&|facts| {
                facts.file.as_mut().unwrap().sources.clear();
                facts.daemon.as_mut().unwrap()[0].sources.clear();
            }),
            "sources",
            "guests = [\"web1\"]",
        );
        // A right of the file that the daemon has not read; and one that the file is not there for.
        is_one(&guest(&|guest| guest.sources.clear()), "sources", "reload weir");
        let unknown = with(&|facts| {
            facts.file = Err(NoFile::Missing("/f: there is no such file".into()));
            facts.machine = None;
            facts.daemon.as_mut().unwrap()[0].sources.clear();
        });
        is_one(&unknown, "sources", "guests = [\"web1\"]");
        is_one(&guest(&|guest| guest.has_session = false), "broker", "weir guest");
        let by_vsock = with(&|facts| {
            facts.file.as_mut().unwrap().is_by_vsock = true;
            facts.daemon.as_mut().unwrap()[0].has_session = false;
        });
        is_one(&by_vsock, "broker", "weir guest --vsock");
        let denied = "/q: no QEMU answers there: Permission denied (os error 13)";
        is_one(
            &guest(&|guest| guest.reason = Some(denied.into())),
            "monitor",
            "chgrp weir-guests FOLDER SOCKET",
        );
        let mut told = Findings::default();
        let facts = guest(&|guest| guest.reason = Some(denied.into()));
        of_guest(&mut told, &facts.daemon.unwrap()[0], false);
        let told = serde_json::to_string(&told.0).unwrap();
        assert!(told.contains("Permission denied") && !told.contains("os error"), "{told}");
        is_one(
            &guest(&|guest| guest.state = GuestState::Detached),
            "monitor",
            "weir vm attach web1",
        );
        is_one(
            &guest(&|guest| guest.reason = Some("Permission denied".into())),
            "monitor",
            "ausearch",
        );
        is_one(&guest(&|guest| guest.state = GuestState::Absent), "monitor", "journalctl");
        // Also where only the daemon can say that there is no machine.
        let blind = with(&|facts| {
            facts.machine = None;
            if let Ok(guests) = &mut facts.daemon {
                guests[0].state = GuestState::Absent;
            }
        });
        is_one(&blind, "monitor", "journalctl");
        let (channel, none) = (Lacks { channel: true, ports: false }, Lacks::default());
        is_one(&domain(Err(NoDomain::Other("?".into()))), "machine", "list --all");
        is_one(&domain(Err(NoDomain::NoClient("?".into()))), "machine", "libvirt-clients");
        is_one(&domain(Ok((DomainState::Off, none, none))), "machine", "virsh start web1");
        is_one(&domain(Ok((DomainState::On, channel, channel))), "channel", "--libvirt --apply");
        is_one(&domain(Ok((DomainState::On, channel, none))), "channel", "virsh shutdown");
        let ports = Lacks { channel: false, ports: true };
        is_one(&domain(Ok((DomainState::On, ports, ports))), "slots", "--libvirt --apply");
        let qemu =
            |found| with(&|facts| facts.machine = Some(Machine::Qemu { qmp: "/q".into(), found }));
        is_one(&qemu(None), "machine", "unix:/q");
        is_one(&qemu(Some((7, channel))), "channel", "weir vm prepare web1");
        is_one(&qemu(Some((7, ports))), "slots", "--machine q35");
        let unknown = with(&|facts| {
            facts.daemon = Ok(Vec::new());
            facts.file = Ok(InFile::default());
            facts.machine = None;
        });
        assert!(wrong(&unknown).iter().all(|(_, remedy)| remedy == "weir vm prepare web1"));
    }
}
