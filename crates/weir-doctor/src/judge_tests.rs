//! Tests of the findings and the plan that follow from recorded facts.

use super::*;
use crate::facts::{Hooked, Irq, Switch};
use crate::plan::{Use, plan};
use crate::settings::Knob;

/// A virtual machine with two CPUs and Linux 6.18, as root.
fn root() -> Machine {
    Machine {
        kernel: "6.18.44".to_owned(),
        kernel_version: (6, 18),
        bpf_jit: Some(1),
        unprivileged_bpf_disabled: Some(2),
        capabilities: 0x1ff_ffff_ffff,
        tc_programs: Some(Ok(())),
        af_xdp: Some(true),
        memlock_bytes: Some(8 << 20),
        free_bytes: Some(6 << 30),
        ring_bytes_least: 8 << 20,
        cpus: vec![0, 1],
        clock_source: Some("tsc".to_owned()),
        libpcap: "libpcap version 1.10.3".to_owned(),
        ..Machine::default()
    }
}

fn switch(active: bool) -> Switch {
    Switch { available: true, requested: active, active }
}

/// One end of a veth pair on the machine [`root`], with GRO on.
fn veth() -> Nic {
    Nic {
        name: "eth1".to_owned(),
        index: 2,
        mtu: 1500,
        link_type: 1,
        driver: Some("veth".to_owned()),
        own_traffic: Some(Vec::new()),
        native_xdp: Some(true),
        zero_copy: Some(false),
        xdp_tags: Some(true),
        features: [
            ("rx-gro".to_owned(), switch(true)),
            ("rx-vlan-hw-parse".to_owned(), switch(true)),
        ]
        .into(),
        rx_queues: Some((1, 1)),
        ..Nic::default()
    }
}

fn found<'a>(findings: &'a [Finding], about: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.about == about).expect(about)
}

#[test]
fn all_is_well_for_root_on_a_new_kernel() {
    let findings = machine(&root());
    assert!(findings.iter().all(|finding| finding.grade != Grade::No), "{findings:#?}");
    let plan = plan(&veth(), &root(), Use::Passive);
    assert_eq!(
        plan.passive.as_deref(),
        Some("weir capture eth1 --engine bpf --hook tc --ring-size 128MiB")
    );
    // A veth has no zero-copy mode, so AF_XDP sockets have no advantage, and the plan has the bpf engine.
    assert!(plan.monitoring_port.unwrap().contains("--engine bpf --consume"));
    assert_eq!(plan.settings, []);
}

#[test]
fn a_nic_of_one_node_among_several_is_read_there() {
    let line = |node: u32, node_cpus: &[usize], cpus: &[usize]| {
        let nic = Nic { numa_node: Some(node), node_cpus: node_cpus.to_vec(), ..veth() };
        let plan = plan(&nic, &Machine { cpus: cpus.to_vec(), ..root() }, Use::Passive);
        plan.passive.expect("bpf works there")
    };
    assert!(line(1, &[2, 3], &[0, 1, 2, 3]).ends_with("MiB --cpus node:1"));
    // The node has: exactly the CPUs of the process; these and more; only some of them; none of them; no CPUs at all.
    for (node_cpus, cpus) in [
        (&[0, 1][..], &[0, 1][..]),
        (&[0, 1, 2, 3], &[0, 1]),
        (&[2, 3], &[1, 2]),
        (&[2, 3], &[0, 1]),
        (&[], &[0, 1]),
    ] {
        let line = line(0, node_cpus, cpus);
        assert!(!line.contains("--cpus"), "{line}: {node_cpus:?} of {cpus:?}");
    }
}

#[test]
fn what_this_machine_lives_by_is_never_to_be_consumed() {
    let own = Some(vec!["the default route by br0".to_owned(), "10.0.0.1 on br0".to_owned()]);
    // An interface of which it is unknown whether it carries this machine's traffic is treated as if it did.
    for own_traffic in [own, None] {
        let nic = Nic { own_traffic, ..veth() };
        for used in [Use::Passive, Use::MonitoringPort] {
            let plan = plan(&nic, &root(), used);
            assert_eq!(plan.monitoring_port, None, "{nic:?}");
            assert!(plan.passive.is_some_and(|line| !line.contains("--consume")));
        }
        assert_eq!(found(&super::nic(&nic, &root()), "own traffic").grade, Grade::Note);
    }
    assert_eq!(found(&super::nic(&veth(), &root()), "own traffic").grade, Grade::Ok);
}

#[test]
fn every_no_has_a_remedy() {
    let worst = Machine {
        kernel_version: (5, 10),
        preempt_rt: true,
        bpf_jit: Some(0),
        capabilities: 0,
        tc_programs: Some(Err("no".to_owned())),
        af_xdp: Some(false),
        memlock_bytes: Some(64 << 10),
        free_bytes: Some(1 << 20),
        clock_source: Some("hpet".to_owned()),
        ..root()
    };
    let taken = Nic { xdp_program: Some(7), ..veth() };
    let missing = Nic { refused: Some("eth1: no such interface".to_owned()), ..Nic::default() };
    let mut findings = machine(&worst);
    findings.extend(nic(&taken, &worst));
    findings.extend(nic(&missing, &worst));
    let bad: Vec<_> = findings.iter().filter(|finding| finding.grade == Grade::No).collect();
    assert_eq!(bad.len(), 14, "{bad:#?}");
    assert!(bad.iter().all(|finding| finding.remedy.is_some()), "{bad:#?}");
}

#[test]
fn without_rights_the_missing_ones_are_named_and_nothing_is_planned() {
    let nobody = Machine { capabilities: 0, tc_programs: None, ..root() };
    let findings = machine(&nobody);
    let bpf = found(&findings, "rights of bpf");
    assert_eq!(bpf.grade, Grade::No);
    assert!(bpf.meaning.contains("CAP_PERFMON"), "{}", bpf.meaning);
    assert!(bpf.remedy.as_ref().unwrap().starts_with("setcap "));
    assert_eq!(plan(&veth(), &nobody, Use::Passive).passive, None);
    // CAP_NET_RAW alone is enough for engine af_packet.
    let raw = Machine { capabilities: 1 << capability::NET_RAW, ..nobody };
    assert!(plan(&veth(), &raw, Use::Passive).passive.unwrap().contains("af_packet"));
}

#[test]
fn joined_frames_are_left_to_a_machine_that_uses_them_and_not_to_a_monitoring_port() {
    let of = |used| plan(&veth(), &root(), used).settings;
    assert_eq!(of(Use::Passive), []);
    let settings = of(Use::MonitoringPort);
    let commands: Vec<_> = settings.iter().map(|set| set.knob.command(&set.value)).collect();
    assert_eq!(commands, ["ethtool -K eth1 gro off"]);
    // If XDP cannot ask the driver for VLAN tags, the driver must leave them in the frames.
    let hides = Nic { xdp_tags: Some(false), ..veth() };
    let settings = plan(&hides, &root(), Use::MonitoringPort).settings;
    assert_eq!(settings[1].knob.command(&settings[1].value), "ethtool -K eth1 rxvlan off");
}

#[test]
fn queues_that_share_a_cpu_are_spread_and_rings_grow() {
    let irq = |number| Irq { number, name: format!("ice-rx-{number}"), cpus: "0".to_owned() };
    let nic = Nic {
        rx_ring: Some((512, 4096)),
        rx_queues: Some((2, 8)),
        irqs: vec![irq(40), irq(41)],
        zero_copy: Some(true),
        ..veth()
    };
    let plan = plan(&nic, &root(), Use::MonitoringPort);
    assert!(plan.monitoring_port.unwrap().contains("af_xdp"));
    let knobs: Vec<_> = plan.settings.iter().map(|set| (&set.knob, set.value.as_str())).collect();
    let path = "/proc/irq/41/smp_affinity_list".to_owned();
    assert!(knobs.contains(&(&Knob::File { path }, "1")), "{knobs:?}");
    assert!(knobs.contains(&(&Knob::RxRing { iface: "eth1".to_owned() }, "4096")), "{knobs:?}");
}

#[test]
fn whoever_else_is_on_a_hook_is_named_with_what_it_means() {
    let one = |hook, name: &str, link, priority| Hooked {
        hook,
        kind: "bpf".to_owned(),
        program: Some(42),
        name: name.to_owned(),
        link,
        priority,
    };
    let meaning = |hooked, xdp_program, kernel_version, about| {
        let nic = Nic { hooked: Some(hooked), xdp_program, ..veth() };
        let findings = super::nic(&nic, &Machine { kernel_version, ..root() });
        found(&findings, about).clone()
    };
    // `ip` detaches a program that was attached without a BPF link, but not one that a link holds.
    let held = meaning(vec![one("xdp", "theirs", Some(9), None)], Some(42), (6, 18), "xdp hook");
    assert!(held.meaning.contains("program 42 (theirs)"), "{held:?}");
    assert_eq!((held.grade, held.remedy.as_deref()), (Grade::No, Some("bpftool link detach id 9")));
    let loose = meaning(vec![one("xdp", "", None, None)], Some(42), (6, 18), "xdp hook");
    assert_eq!(loose.remedy.as_deref(), Some("ip link set eth1 xdp off"));
    let generic = meaning(vec![one("xdpgeneric", "", None, None)], Some(42), (6, 18), "xdp hook");
    assert_eq!(generic.remedy.as_deref(), Some("ip link set eth1 xdpgeneric off"));
    assert!(generic.meaning.contains("generic: program 42"), "{generic:?}");

    let tcx = meaning(vec![one("tcx egress", "theirs", Some(9), None)], None, (6, 18), "tcx hook");
    assert!(tcx.meaning.contains("egress: program 42 (theirs): Weir goes before"), "{tcx:?}");
    let ours =
        meaning(vec![one("tcx ingress", "weir_tc_in", None, None)], None, (6, 18), "tcx hook");
    assert_eq!(ours.grade, Grade::Ok);

    let filter = |priority, kernel| {
        let list = vec![
            Hooked {
                kind: "flower".to_owned(),
                program: None,
                ..one("clsact ingress", "", None, Some(1))
            },
            one("clsact ingress", "theirs", None, Some(priority)),
        ];
        let nic = Nic { hooked: Some(list), ..veth() };
        let findings = super::nic(&nic, &Machine { kernel_version: kernel, ..root() });
        let about = |finding: &&Finding| finding.about == "clsact filter";
        let [flower, theirs] = findings.iter().filter(about).collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!(theirs.remedy.as_deref(), Some("tc filter show dev eth1 ingress"));
        (flower.meaning.clone(), theirs.meaning.clone())
    };
    let (flower, theirs) = filter(2, (6, 18));
    assert!(
        flower.contains("flower filter of priority 1") && flower.contains("after tcx"),
        "{flower}"
    );
    assert!(
        theirs.contains("priority 2, program 42 (theirs)") && theirs.contains("after tcx"),
        "{theirs}"
    );
    // Without tcx, Weir's own filter gets priority 2 here, because a filter of another kind has priority 1.
    let (flower, theirs) = filter(3, (6, 1));
    assert!(flower.contains("comes before Weir"), "{flower}");
    assert!(theirs.contains("Weir goes before it"), "{theirs}");
    assert!(filter(2, (6, 1)).1.contains("comes before Weir"));
}

#[test]
fn a_hash_that_parts_connections_gets_a_symmetric_key() {
    let nic = Nic {
        rx_queues: Some((4, 8)),
        rss_symmetric: Some(false),
        rss_key_bytes: Some(5),
        ..veth()
    };
    let command = "ethtool -X eth1 hkey 6d:5a:6d:5a:6d";
    let findings = super::nic(&nic, &root());
    let rss = found(&findings, "rss");
    assert_eq!(rss.remedy.as_deref(), Some(command));
    assert!(rss.meaning.contains("xfrm symmetric-xor"), "{}", rss.meaning);
    let key = |nic: &Nic, used| {
        let settings = plan(nic, &root(), used).settings;
        let key = settings.iter().find(|set| matches!(set.knob, Knob::RssKey { .. }));
        key.map(|set| set.knob.command(&set.value))
    };
    assert_eq!(key(&nic, Use::MonitoringPort).as_deref(), Some(command));
    assert_eq!(key(&nic, Use::Passive), None, "a hash is this machine's own affair there");
    let one_queue = Nic { rx_queues: Some((1, 8)), ..nic.clone() };
    let symmetric = Nic { rss_symmetric: Some(true), ..nic.clone() };
    let no_key = Nic { rss_key_bytes: None, ..nic };
    for other in [&one_queue, &symmetric, &no_key] {
        assert_eq!(key(other, Use::MonitoringPort), None);
    }
    let findings = super::nic(&no_key, &root());
    let rss = found(&findings, "rss");
    assert_eq!(rss.remedy.as_deref(), Some("ethtool -X eth1 xfrm symmetric-xor"));
    let findings = super::nic(&no_key, &Machine { kernel_version: (6, 1), ..root() });
    assert_eq!(found(&findings, "rss").remedy, None);
}

#[test]
fn commands_go_into_the_namespace_and_name_the_queues_that_there_are() {
    let nic = Nic { netns: Some("blue".to_owned()), rx_queues: Some((1, 4)), ..veth() };
    // For a veth, more queues are not suggested: they would change nothing.
    assert_eq!(found(&super::nic(&nic, &root()), "queues").remedy, None);
    let nic = Nic { driver: Some("igb".to_owned()), ..nic };
    let findings = super::nic(&nic, &root());
    let remedy = |about| found(&findings, about).remedy.clone().unwrap();
    assert_eq!(remedy("gro"), "ip netns exec blue ethtool -K eth1 gro off");
    assert_eq!(remedy("queues"), "ip netns exec blue ethtool -L eth1 rx 2");
    let of_process = Nic { netns: Some("4711".to_owned()), ..nic.clone() };
    assert_eq!(of_process.command("ip link"), "nsenter -n -t 4711 ip link");
    let pairs = Nic { netns: None, queues_combined: true, ..nic };
    let findings = super::nic(&pairs, &root());
    let queues = found(&findings, "queues");
    assert_eq!(queues.remedy.as_deref(), Some("ethtool -L eth1 combined 2"));
}

#[test]
fn rings_never_ask_for_most_of_the_memory() {
    for (cpus, free_mib, ring_mib) in
        [(1, 512, 64), (1, 24 << 10, 64), (2, 24 << 10, 128), (16, 4096, 128), (64, 1 << 20, 1024)]
    {
        let cpus = (0..cpus).collect();
        let facts = Machine { free_bytes: Some(free_mib << 20), cpus, ..root() };
        assert_eq!(plan(&veth(), &facts, Use::Passive).ring_bytes, ring_mib << 20);
    }
}
