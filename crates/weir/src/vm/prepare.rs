//! `weir vm prepare`: what a machine needs, as QEMU's options or as a libvirt domain's XML, and what the daemon's file
//! needs.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result};

use super::domain::{self, CHANNEL, Change, FOLDER, reserve_mib};
use super::virsh::Virsh;
use crate::EXIT_RAN;
use crate::cli::{MachineName, PrepareArgs};
use crate::out::plain;

/// Runs the command.
pub fn run(args: &PrepareArgs) -> Result<u8> {
    if !args.libvirt {
        print!("{}", of_qemu(args));
        return Ok(EXIT_RAN);
    }
    let name = args.domain.as_deref().unwrap_or(&args.name);
    let virsh = Virsh { uri: args.uri.clone(), domain: name.to_owned() };
    let change = domain::change(&virsh.xml(false)?, args.region_mib)
        .with_context(|| format!("{name}: its XML cannot be read"))?;
    if args.apply {
        apply(&virsh, &change)?;
    } else if change.added.is_empty() {
        println!("# The domain {name} has all that it needs.");
    } else {
        println!(
            "# Into the domain (`virsh edit {name}`, or --apply); it needs a restart for all but the channel:"
        );
        print!("{}", plain(&shown(&change, "")));
    }
    print!("\n{}\n{}", in_file(args), LABELS);
    Ok(EXIT_RAN)
}

/// Where a label of a security module stands in the way.
const LABELS: &str = "\
# AppArmor and SELinux: libvirt makes the port's socket itself and labels it. The memory has no path: the daemon hands
# QEMU descriptors of it. AppArmor does not judge files without a path. If SELinux refuses it (`ausearch -m avc -c
# qemu`), let it: `ausearch -m avc -c qemu --raw | audit2allow -M weir-vm`, then `semodule -i weir-vm.pp`.
";

/// The lines that are added.
fn shown(change: &Change, sign: &str) -> String {
    let mut text = String::new();
    for added in &change.added {
        let _ = writeln!(text, "# {}:", added.place);
        for line in added.text.lines().filter(|line| !line.trim().is_empty()) {
            let _ = writeln!(text, "{sign}{line}");
        }
    }
    text
}

fn apply(virsh: &Virsh, change: &Change) -> Result<()> {
    let name = &virsh.domain;
    if change.added.is_empty() {
        println!("# The domain {name} has all that it needs; nothing is changed.");
        return Ok(());
    }
    print!("{}", plain(&shown(change, "+")));
    let mut file = tempfile::NamedTempFile::new().context("a file for `virsh define`")?;
    file.write_all(change.xml.as_bytes()).context("a file for `virsh define`")?;
    virsh.run(&["define", &file.path().to_string_lossy()])?;
    println!("# The domain {name} is defined anew.");
    if !virsh.state()?.is_on() {
        return Ok(());
    }
    if change.adds_channel {
        let mut device =
            tempfile::NamedTempFile::new().context("a file for `virsh attach-device`")?;
        device.write_all(CHANNEL.as_bytes()).context("a file for `virsh attach-device`")?;
        let attached =
            virsh.run(&["attach-device", name, &device.path().to_string_lossy(), "--live"]);
        match attached {
            Ok(_) => println!("# The channel is plugged into the running domain, too."),
            Err(error) => println!(
                "# The channel cannot be plugged into the running domain ({}): it is there after a restart.",
                plain(&format!("{error:#}"))
            ),
        }
    }
    if change.adds_ports {
        println!(
            "# The root ports are there after a restart: `virsh shutdown {name}`, then `virsh start {name}`; a reboot \
             in the guest is not enough."
        );
    }
    Ok(())
}

/// The section of the daemon's file.
fn in_file(args: &PrepareArgs) -> String {
    let name = &args.name;
    let key = toml_key(name);
    let mut text = format!(
        "# Into the daemon's file (/etc/weir/weir.toml), then `systemctl reload weir`. Each source names the guests \
         that may\n# read it: below [sources.NAME] write guests = [{name:?}].\n[guests.{key}]\n"
    );
    if args.libvirt {
        let domain = args.domain.as_deref().unwrap_or(name);
        let _ = writeln!(text, "libvirt = {domain:?}");
        if args.uri != "qemu:///system" {
            let _ = writeln!(text, "libvirt_uri = {:?}", args.uri);
        }
    } else {
        let _ = writeln!(text, "port = \"{FOLDER}/{name}.port\"\nqmp = \"{FOLDER}/{name}.qmp\"");
    }
    let _ = writeln!(text, "region_mib = {}", args.region_mib);
    text
}

/// As it stands behind `[guests.`.
fn toml_key(name: &str) -> String {
    let is_bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare && !name.is_empty() { name.to_owned() } else { format!("{name:?}") }
}

fn of_qemu(args: &PrepareArgs) -> String {
    let name = &args.name;
    let mut text = format!(
        "# QEMU makes both sockets, in a folder that only it and root may write:\n\
         # install -d -m 711 -o QEMU-USER {FOLDER}\n\
         # Add to QEMU's options; the monitor is the daemon's alone:\n\
         -device virtio-serial \\\n\
         -chardev socket,id=weir,path={FOLDER}/{name}.port,server=on,wait=off \\\n\
         -device virtserialport,id=weir,chardev=weir,name=org.weir.0 \\\n\
         -qmp unix:{FOLDER}/{name}.qmp,server=on,wait=off"
    );
    if args.machine == Some(MachineName::Q35) {
        let ports = domain::ports(args.region_mib, None, 0);
        ports.iter().for_each(|port| _ = write!(text, " \\\n-device {port}"));
        let mib = reserve_mib(args.region_mib);
        let _ = write!(
            text,
            "\n# The first root port has room for the region wherever the firmware places it: {mib} MiB."
        );
    } else {
        text += "\n# A machine of type q35 needs two root ports, too: --machine q35.";
    }
    format!("{text}\n\n{}", in_file(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(machine: Option<MachineName>) -> PrepareArgs {
        let (name, uri) = ("web1".to_owned(), "qemu:///system".to_owned());
        let (libvirt, domain, apply, region_mib) = (false, None, false, 64);
        PrepareArgs { name, libvirt, domain, uri, machine, region_mib, apply }
    }

    #[test]
    fn a_q35_machine_gets_root_ports_with_twice_the_region() {
        assert!(!of_qemu(&args(None)).contains("-device pcie-root-port"));
        let text = of_qemu(&args(Some(MachineName::Q35)));
        assert!(text.contains("pref64-reserve=128M"), "{text}");
        assert!(text.contains("[guests.web1]\nport = \"/run/weir-guests/web1.port\""), "{text}");
    }

    #[test]
    fn the_file_of_a_libvirt_guest_names_its_domain() {
        let args = PrepareArgs {
            libvirt: true,
            name: "a b".into(),
            domain: Some("db".into()),
            uri: "qemu:///session".into(),
            ..args(None)
        };
        let text = in_file(&args);
        let wanted = "[guests.\"a b\"]\nlibvirt = \"db\"\nlibvirt_uri = \"qemu:///session\"\nregion_mib = 64\n";
        assert!(text.ends_with(wanted), "{text}");
    }
}
