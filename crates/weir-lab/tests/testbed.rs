//! Testbeds on this kernel: they are silent, can be entered by threads and commands, and leave
//! nothing behind.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_lab::testbed::{End, RX_IPV4, Testbed, in_netns, require_root};
use weir_lab::{Error, ethtool};

fn exists(netns: &str) -> bool {
    fs::exists(format!("/run/netns/{netns}")).unwrap()
}

fn frames_received(end: &End) -> u64 {
    end.run(|| {
        let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = text.lines().find(|line| line.trim_start().starts_with(&end.iface)).unwrap();
        line.split_whitespace().nth(2).unwrap().parse().unwrap()
    })
    .unwrap()
}

#[test]
fn root_the_pair_is_up_and_silent_and_leaves_nothing() {
    if !require_root("root_the_pair_is_up_and_silent_and_leaves_nothing") {
        return;
    }
    let bed = Testbed::builder().mtu(3000).queues(2).gro(true).build().unwrap();
    let names = [bed.tx.netns.clone(), bed.rx.netns.clone()];
    assert_ne!(bed.tx.mac, bed.rx.mac);
    for end in [&bed.tx, &bed.rx] {
        assert!(exists(&end.netns));
        end.run(|| {
            assert_eq!(ethtool::driver(&end.iface).unwrap(), "veth");
            assert_eq!(ethtool::mtu(&end.iface).unwrap(), 3000);
            let names = ethtool::stat_names(&end.iface).unwrap();
            assert_eq!(names.len(), ethtool::stats(&end.iface).unwrap().len());
            assert!(names.iter().any(|name| name == "tx_queue_1_xdp_xmit"), "{names:?}");
        })
        .unwrap();
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((frames_received(&bed.tx), frames_received(&bed.rx)), (0, 0));
    drop(bed);
    assert!(names.iter().all(|name| !exists(name)));
}

#[test]
fn root_a_panic_leaves_no_namespace() {
    if !require_root("root_a_panic_leaves_no_namespace") {
        return;
    }
    let names = std::sync::Mutex::new(Vec::new());
    let result = std::panic::catch_unwind(|| {
        let bed = Testbed::new().unwrap();
        names.lock().unwrap().extend([bed.tx.netns.clone(), bed.rx.netns.clone()]);
        bed.rx.run(|| panic!("on purpose")).unwrap()
    });
    assert!(result.is_err());
    let names = names.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    assert!(names.len() == 2 && names.iter().all(|name| !exists(name)));
}

#[test]
fn root_commands_run_inside_and_addresses_answer() {
    if !require_root("root_commands_run_inside_and_addresses_answer") {
        return;
    }
    let bed = Testbed::builder().addresses(true).build().unwrap();
    let mut list = Command::new("ip");
    list.args(["-o", "link", "show", "dev", &bed.tx.iface]).stdout(Stdio::null());
    let mut list = bed.tx.spawn(list).unwrap();
    assert!(list.wait_for(Duration::from_secs(5)));
    assert!(list.wait().unwrap().success());

    let socket = bed.rx.run(|| std::net::UdpSocket::bind((RX_IPV4, 9000)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    bed.tx
        .run(|| {
            let out = std::net::UdpSocket::bind(("0.0.0.0", 0)).unwrap();
            out.send_to(b"over the pair", (RX_IPV4, 9000)).unwrap();
        })
        .unwrap();
    let mut heard = [0; 64];
    let (bytes, _) = socket.recv_from(&mut heard).unwrap();
    assert_eq!(&heard[..bytes], b"over the pair");
}

#[test]
fn root_sweep_removes_only_what_the_dead_left() {
    if !require_root("root_sweep_removes_only_what_the_dead_left") {
        return;
    }
    let bed = Testbed::new().unwrap();
    // Process 1 is alive, but did not start at tick 999999999999.
    let orphan = "weir-1-999999999999-0-rx";
    let foreign = format!("weirlike-{}", std::process::id());
    for name in [orphan, &foreign] {
        assert!(Command::new("ip").args(["netns", "add", name]).status().unwrap().success());
    }
    // Another test process may sweep at the same time and remove the orphan first.
    Testbed::sweep();
    assert!(!exists(orphan));
    assert!(exists(&foreign) && exists(&bed.tx.netns) && exists(&bed.rx.netns));
    assert!(Command::new("ip").args(["netns", "delete", &foreign]).status().unwrap().success());
}

#[test]
fn a_missing_namespace_is_an_error_with_a_way_out() {
    let error = in_netns("weir-no-such-namespace", || ()).unwrap_err();
    assert!(matches!(error, Error::EnterNetns { .. }));
    assert!(error.to_string().contains("ip netns list"));
}

#[test]
fn root_more_pairs_join_a_testbed() {
    if !require_root("root_more_pairs_join_a_testbed") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let pairs = bed.add_pairs(1, 3).unwrap();
    let names: Vec<_> = pairs.iter().map(|pair| (&*pair.tx.iface, &*pair.rx.iface)).collect();
    assert_eq!(names, [("wtx1", "wrx1"), ("wtx2", "wrx2"), ("wtx3", "wrx3")]);
    for pair in &pairs {
        pair.wait_for_carrier().unwrap();
        assert_eq!(pair.rx.netns, bed.rx.netns);
    }
    assert_ne!(pairs[0].rx.ifindex, pairs[1].rx.ifindex);
    assert!(bed.add_pairs(3, 1).is_err());
}
