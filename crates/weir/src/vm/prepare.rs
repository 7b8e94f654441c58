//! `weir vm prepare`: prints the requirements of a machine, as QEMU's options or as a libvirt domain's XML, and the
//! section for the daemon's file.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result};
use weir_vm::libvirt::SYSTEM_URI;

use super::domain::{self, CHANNEL, Change, FOLDER, GROUP, PORT, reserve_mib};
use super::virsh::Virsh;
use crate::EXIT_RAN;
use crate::cli::{MachineName, PrepareArgs};
use crate::error_words::words;
use crate::out::plain;

/// Runs the command.
pub fn run(args: &PrepareArgs) -> Result<u8> {
    if !args.libvirt {
        print!("{}", of_qemu(args));
        return Ok(EXIT_RAN);
    }
    let name = args.domain.as_deref().unwrap_or(&args.name);
    let virsh = Virsh { uri: args.uri.clone(), domain: name.to_owned() };
    let xml = virsh.xml(false).with_context(|| {
        format!(
            "domain {name} at {uri}: its XML cannot be had; does libvirtd run (`systemctl start libvirtd`), and does \
             `virsh --connect {uri} list --all` show the domain? Another one: --domain, another libvirt: --uri",
            uri = args.uri
        )
    })?;
    let change = domain::change(&xml, args.region_mib)
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

/// Notes about the labels of security modules.
const LABELS: &str = "\
# AppArmor and SELinux: libvirt makes the port's socket itself and labels it. The memory has no path: the daemon hands
# QEMU descriptors of it. AppArmor does not judge files without a path. If SELinux refuses it (`ausearch -m avc -c
# qemu`), let it: `ausearch -m avc -c qemu --raw | audit2allow -M weir-vm`, then `semodule -i weir-vm.pp`.
";

/// Returns the added lines, as text for people.
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
                plain(&words(&error))
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

/// Returns the section for the daemon's file.
fn in_file(args: &PrepareArgs) -> String {
    let name = &args.name;
    let mut text = format!(
        "# Into the daemon's file (/etc/weir/weir.toml), then `systemctl reload weir`. Each source names the guests \
         that may\n# read it: below [sources.NAME] write guests = [{name:?}].\n[guests.{}]\n",
        toml_key(name)
    );
    if args.libvirt {
        let domain = args.domain.as_deref().unwrap_or(name);
        let _ = writeln!(text, "libvirt = {domain:?}");
        if args.uri != SYSTEM_URI {
            let _ = writeln!(text, "libvirt_uri = {:?}", args.uri);
        }
    } else {
        let channel = if args.vsock { "vsock" } else { "port" };
        let _ = writeln!(
            text,
            "{channel} = \"{folder}/{channel}\"\nqmp = \"{folder}/qmp\"",
            folder = folder_of(name)
        );
    }
    let _ = writeln!(text, "region_mib = {}", args.region_mib);
    text
}

/// Returns the name as a TOML key, for `[guests.NAME]`.
fn toml_key(name: &str) -> String {
    let is_bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare && !name.is_empty() { name.to_owned() } else { format!("{name:?}") }
}

/// Returns the directory of the guest's sockets.
fn folder_of(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// Returns the commands that create the directory. Its group is not that of the daemon's clients (weir), because these
/// could otherwise control QEMU.
fn folder(args: &PrepareArgs) -> String {
    let folder = folder_of(&args.name);
    // With a vsock, the daemon creates its own socket in the directory, so its group may write.
    let mode = if args.vsock { "2770" } else { "2750" };
    let mut text = format!(
        "# QEMU makes its sockets in a folder of this guest, which belongs to QEMU's user and to the daemon's group \
         {GROUP}.\n# Add nobody to that group: whoever may write to the monitor controls QEMU. Start QEMU with umask \
         007, so that the\n# group may write. /run is empty after a boot: systemd makes the folder. Into \
         /etc/tmpfiles.d/weir-guests.conf, with\n# the user that QEMU runs as; then `systemd-tmpfiles --create`:\n\
         d {FOLDER} 0755 root root -\n\
         d {folder} {mode} QEMU-USER {GROUP} -\n\
         # The same by hand:\n\
         #     install -d -m 0755 {FOLDER}\n\
         #     install -d -m {mode} -o QEMU-USER -g {GROUP} {folder}\n"
    );
    if args.vsock {
        text += "# The daemon listens there, too. Its unit may not, until `systemctl edit weir` says:\n\
                 #     [Service]\n";
        let _ = writeln!(text, "#     ReadWritePaths={FOLDER}");
    }
    text
}

fn of_qemu(args: &PrepareArgs) -> String {
    let at = folder_of(&args.name);
    let mut text = folder(args);
    if args.vsock {
        let _ = write!(
            text,
            "# Before QEMU, as QEMU's user, for as long as the machine runs; the guest-cid is a number from 3 on that \
             no other\n# machine has:\n\
             umask 007\n\
             vhost-device-vsock --vm guest-cid=3,socket={at}/vhost,uds-path={at}/vsock &\n\
             # Add to QEMU's options. The machine's memory is shared with vhost-device-vsock: 4G is its size, as -m \
             has it, and\n# memory-backend goes to its -machine. The monitor is the daemon's alone:\n\
             -m 4G -object memory-backend-memfd,id=weir-ram,size=4G,share=on \\\n\
             -machine {},memory-backend=weir-ram \\\n\
             -chardev socket,id=weir,path={at}/vhost \\\n\
             -device vhost-user-vsock-pci,chardev=weir",
            args.machine.qemu_name()
        );
    } else {
        let _ = write!(
            text,
            "# Add to QEMU's options; the monitor is the daemon's alone:\n\
             -device virtio-serial \\\n\
             -chardev socket,id=weir,path={at}/port,server=on,wait=off \\\n\
             -device virtserialport,id=weir,chardev=weir,name={PORT}"
        );
    }
    let _ = write!(text, " \\\n-qmp unix:{at}/qmp,server=on,wait=off");
    if args.machine == MachineName::Q35 {
        let ports = domain::ports(args.region_mib, None, 0);
        ports.iter().for_each(|port| _ = write!(text, " \\\n-device {port}"));
        let mib = reserve_mib(args.region_mib);
        let _ = write!(
            text,
            "\n# For a machine of type q35; an older one (QEMU's own default): --machine pc. The first root port has \
             room for\n# the region wherever the firmware places it: {mib} MiB."
        );
    } else {
        text += "\n# For a machine of type pc; q35 needs two root ports, too: --machine q35.";
    }
    let then = match args.vsock {
        true => "# In the guest: weir guest --vsock\n",
        false => "# In the guest: weir guest\n",
    };
    format!("{text}\n\n{}\n{then}", in_file(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(machine: MachineName) -> PrepareArgs {
        let (name, uri) = ("web1".to_owned(), SYSTEM_URI.to_owned());
        let (libvirt, domain, apply, region_mib, vsock) = (false, None, false, 64, false);
        PrepareArgs { name, libvirt, domain, uri, machine, region_mib, apply, vsock }
    }

    #[test]
    fn a_q35_machine_gets_root_ports_with_twice_the_region() {
        assert!(!of_qemu(&args(MachineName::Pc)).contains("-device pcie-root-port"));
        let text = of_qemu(&args(MachineName::Q35));
        assert!(text.contains("pref64-reserve=128M"), "{text}");
        assert!(text.contains("d /run/weir-guests/web1 2750 QEMU-USER weir-guests -\n"), "{text}");
        assert!(text.contains("[guests.web1]\nport = \"/run/weir-guests/web1/port\""), "{text}");
    }

    #[test]
    fn a_machine_with_a_vsock_shares_its_memory_and_has_no_port() {
        let text = of_qemu(&PrepareArgs { vsock: true, ..args(MachineName::Q35) });
        for words in [
            "-machine q35,memory-backend=weir-ram",
            "uds-path=/run/weir-guests/web1/vsock &",
            "-qmp unix:/run/weir-guests/web1/qmp",
            "[guests.web1]\nvsock = \"/run/weir-guests/web1/vsock\"\nqmp",
            "d /run/weir-guests 0755 root root -",
            "d /run/weir-guests/web1 2770 QEMU-USER weir-guests -",
            "as QEMU's user",
            "pcie-root-port",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("virtserialport"), "{text}");
    }

    #[test]
    fn the_file_of_a_libvirt_guest_names_its_domain() {
        let args = PrepareArgs {
            libvirt: true,
            name: "a.b".into(),
            domain: Some("db".into()),
            uri: "qemu:///session".into(),
            ..args(MachineName::Q35)
        };
        let text = in_file(&args);
        let wanted = "[guests.\"a.b\"]\nlibvirt = \"db\"\nlibvirt_uri = \"qemu:///session\"\nregion_mib = 64\n";
        assert!(text.ends_with(wanted), "{text}");
    }
}
