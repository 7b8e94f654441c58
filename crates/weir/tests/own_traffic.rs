//! `--consume` on an interface that carries this machine's own traffic.

mod common;

use common::{Run, bed, number, ready, sh, weir};
use weir_lab::Testbed;
use weir_lab::testbed::{End, RX_IPV4};

fn consume(end: &End, more: &str) -> Run {
    Run::start(
        end,
        weir(&format!("capture {} --consume --duration 100ms --json {more}", end.iface)),
    )
}

fn doctor(end: &End) -> serde_json::Value {
    Run::start(end, weir(&format!("doctor {} --json", end.iface))).end().expect(0).json()
}

#[test]
fn root_an_interface_with_an_address_is_consumed_only_by_request() {
    let test = "root_an_interface_with_an_address_is_consumed_only_by_request";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = Testbed::builder().addresses(true).build().expect("a testbed");
    for engine in ["", "--engine af_xdp"] {
        consume(&bed.rx, engine).end().refused(&[RX_IPV4, "cuts this machine off", "--yes"]);
        consume(&bed.rx, &format!("{engine} --yes")).end().expect(0);
    }
    // Also from another namespace; the message names the user's own SSH connection.
    let source = format!("netns:{}/{}", bed.rx.netns, bed.rx.iface);
    let mut command = weir(&format!("capture {source} --consume --duration 100ms"));
    command.env("SSH_CONNECTION", format!("192.0.2.1 50000 {RX_IPV4} 22"));
    Run::start(&bed.tx, command).end().refused(&[&source, RX_IPV4, "SSH"]);
    // A passive capture takes no frames away, so it is not refused.
    let watch = format!("capture {} --duration 100ms", bed.rx.iface);
    Run::start(&bed.rx, weir(&watch)).end().expect(0);
    Run::start(&bed.rx, weir(&format!("{watch} --yes"))).end().refused(&["--consume"]);
    let json = doctor(&bed.rx);
    let interface = &json["interfaces"][0];
    assert!(interface["plan"]["monitoring_port"].is_null(), "{json}");
    assert!(interface["plan"]["passive"].is_string(), "{json}");
    assert!(interface["facts"]["own_traffic"][0].as_str().is_some_and(|own| own.contains(RX_IPV4)));
}

#[test]
fn root_a_default_route_or_an_address_above_is_this_machines_too() {
    let test = "root_a_default_route_or_an_address_above_is_this_machines_too";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    consume(&bed.rx, "").end().expect(0);
    let refused = |set: &[&str], word: &str, unset: &[&str]| {
        set.iter().for_each(|line| drop(sh(&bed.rx, line)));
        consume(&bed.rx, "").end().refused(&[word, "--yes"]);
        let json = doctor(&bed.rx);
        assert!(json["interfaces"][0]["plan"]["monitoring_port"].is_null(), "{set:?}: {json}");
        unset.iter().for_each(|line| drop(sh(&bed.rx, line)));
        consume(&bed.rx, "").end().expect(0);
    };
    refused(&["ip route add default dev wrx0"], "default route", &["ip route del default"]);
    refused(
        &[
            "ip link add link wrx0 name wmac0 type macvlan mode bridge",
            "ip addr add 10.9.0.1/24 dev wmac0",
            "ip link set wmac0 up",
        ],
        "10.9.0.1 (wmac0)",
        &["ip link del wmac0"],
    );
    refused(
        &[
            "ip link add wbr0 type bridge",
            "ip link set wrx0 master wbr0",
            "ip addr add 10.9.0.2/24 dev wbr0",
            "ip link set wbr0 up",
        ],
        "10.9.0.2 (wbr0)",
        &["ip link set wrx0 nomaster", "ip link del wbr0"],
    );
    // An address at the other end of the link is not this machine's. An address of another interface does not count.
    sh(&bed.tx, "ip addr add 10.9.0.3/24 dev wtx0");
    sh(&bed.rx, "ip link set lo up");
    let json = consume(&bed.rx, "").end().expect(0).json();
    assert_eq!(number(&json, "offered"), number(&json, "delivered"), "{json}");
    assert_eq!(doctor(&bed.rx)["interfaces"][0]["facts"]["own_traffic"], serde_json::json!([]));
}

#[test]
fn root_an_interface_that_comes_back_with_an_address_is_not_consumed() {
    let test = "root_an_interface_that_comes_back_with_an_address_is_not_consumed";
    let Some(_alone) = ready(test, &[]) else { return };
    for (more, code) in [("", 2), ("--yes", 0)] {
        let bed = bed();
        sh(&bed.rx, "ip link add wrx1 type veth peer name wtx1 && ip link set wtx1 up");
        sh(&bed.rx, "ip link set wrx1 up");
        let line = format!("capture wrx1 --consume --follow {more}");
        let mut run = Run::capture_by(&bed.rx, weir(&line));
        sh(&bed.rx, "ip link delete wrx1");
        run.wait_for("that it is gone", |run| run.stderr().contains("wrx1: vanished; waiting"));
        sh(&bed.rx, "ip link add wrx1 type veth peer name wtx1 && ip link set wtx1 up");
        sh(&bed.rx, "ip addr add 10.9.0.9/24 dev wrx1 && ip link set wrx1 up");
        if code == 2 {
            run.end().refused(&["wrx1", "10.9.0.9", "cuts this machine off", "--yes"]);
        } else {
            run.wait_for("that it is back", |run| run.stderr().contains("wrx1: there; captured"));
            run.stop().expect(0);
        }
    }
}
