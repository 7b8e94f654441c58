//! `weir doctor`: its output, its changes, and `--undo`, which restores the previous state exactly.

mod common;

use std::fs;

use common::bpf::{CountingFilter, XdpPass, attached};
use common::{Ended, Run, bed, ready, sh, weir};
use serde_json::Value;
use weir_lab::Testbed;
use weir_lab::testbed::End;

fn doctor(end: &End, args: &str) -> Ended {
    Run::start(end, weir(&format!("doctor {args}"))).end()
}

fn features(end: &End) -> String {
    sh(end, &format!("ethtool -k {}", end.iface))
}

/// The number of `weir doctor`'s records about the end's network namespace.
fn records(end: &End) -> usize {
    use std::os::unix::fs::MetadataExt;
    let inode = fs::metadata(format!("/run/netns/{}", end.netns)).expect("a namespace").ino();
    let entries = fs::read_dir("/run/weir-doctor").into_iter().flatten().flatten();
    let prefix = format!("{inode}-");
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

fn finding<'a>(json: &'a Value, about: &str) -> &'a Value {
    let findings = json["interfaces"][0]["findings"].as_array().expect("findings");
    findings.iter().find(|one| one["about"] == about).unwrap_or_else(|| panic!("{about}: {json}"))
}

#[test]
fn root_what_is_applied_is_shown_and_undone_exactly() {
    let test = "root_what_is_applied_is_shown_and_undone_exactly";
    let Some(_alone) = ready(test, &["ethtool"]) else { return };
    let bed = bed();
    let before = features(&bed.rx);
    assert!(before.contains("generic-receive-offload: on"), "{before}");
    let plan = doctor(&bed.rx, "wrx0 --monitoring-port").expect(0).text();
    assert!(plan.contains("ethtool -K wrx0 gro off"), "{plan}");
    assert_eq!(features(&bed.rx), before, "looking changes nothing");
    let applied = doctor(&bed.rx, "wrx0 --monitoring-port --apply").expect(0).text();
    assert!(applied.contains("wrx0 gro: 1 -> 0"), "{applied}");
    let after = features(&bed.rx);
    assert!(after.contains("generic-receive-offload: off"), "{after}");
    let again = doctor(&bed.rx, "wrx0 --monitoring-port --apply").expect(0).text();
    assert!(again.contains("nothing to change"), "{again}");
    assert_eq!((features(&bed.rx), records(&bed.rx)), (after, 1));
    let undone = doctor(&bed.rx, "wrx0 --undo").expect(0).text();
    assert!(undone.contains("wrx0 gro: 0 -> 1"), "{undone}");
    assert_eq!((features(&bed.rx), records(&bed.rx)), (before, 0));
    let nothing = doctor(&bed.rx, "wrx0 --undo").expect(0).text();
    assert!(nothing.contains("nothing to take back"), "{nothing}");
}

#[test]
fn root_what_was_changed_by_hand_since_stays() {
    let test = "root_what_was_changed_by_hand_since_stays";
    let Some(_alone) = ready(test, &["ethtool"]) else { return };
    let bed = bed();
    doctor(&bed.rx, "wrx0 --monitoring-port --apply").expect(0);
    sh(&bed.rx, "ethtool -K wrx0 gro on");
    let by_hand = features(&bed.rx);
    let undone = doctor(&bed.rx, "wrx0 --undo").expect(0).text();
    assert!(undone.contains("wrx0 gro: 1 already"), "{undone}");
    assert_eq!((features(&bed.rx), records(&bed.rx)), (by_hand, 0));
}

#[test]
fn root_the_report_is_one_object_and_its_plan_runs() {
    let test = "root_the_report_is_one_object_and_its_plan_runs";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    // The interface is named from another namespace: a thread of `weir doctor` enters the interface's namespace.
    let source = format!("netns:{}/{}", bed.rx.netns, bed.rx.iface);
    let json = doctor(&bed.tx, &format!("{source} --json")).expect(0).json();
    assert_eq!(json["machine"]["tc_programs"]["loaded"], true, "{json}");
    let interface = &json["interfaces"][0];
    assert_eq!(interface["facts"]["driver"], "veth", "{json}");
    assert_eq!(finding(&json, "interface")["grade"], "ok");
    assert_eq!(attached(&bed.rx), [0; 3], "looking leaves nothing on the hooks");
    for (plan, engine) in [("passive", "bpf"), ("monitoring_port", "bpf")] {
        let line = interface["plan"][plan].as_str().expect("a command line");
        assert!(line.contains(&source), "{line}");
        let args = line.strip_prefix("weir ").expect("weir");
        let run = Run::start(&bed.tx, weir(&format!("{args} --duration 200ms --json")));
        assert_eq!(run.end().expect(0).json()["sources"][0]["engine"], engine, "{line}");
    }
}

#[test]
fn root_a_taken_xdp_hook_is_no_way_for_a_monitoring_port() {
    let test = "root_a_taken_xdp_hook_is_no_way_for_a_monitoring_port";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let _theirs = XdpPass::attach(&bed.rx);
    let json = doctor(&bed.rx, "wrx0 --json").expect(0).json();
    assert_eq!(finding(&json, "xdp hook")["grade"], "no", "{json}");
    let plan = &json["interfaces"][0]["plan"];
    assert_eq!(plan["passive"], plan["monitoring_port"], "{plan}");
    assert!(plan["passive"].as_str().expect("a line").contains("--hook tc"), "{plan}");
}

#[test]
fn root_others_on_the_hooks_are_named_and_so_is_another_capture() {
    let test = "root_others_on_the_hooks_are_named_and_so_is_another_capture";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let looks = || doctor(&bed.rx, "wrx0 --json").expect(0).json();
    let hooked =
        |json: &Value| json["interfaces"][0]["facts"]["hooked"].as_array().expect("a list").clone();
    assert_eq!(hooked(&looks()), Vec::<Value>::new());
    let xdp = XdpPass::attach(&bed.rx);
    let filter = CountingFilter::attach(&bed.rx, false);
    let json = looks();
    assert_eq!(hooked(&json).len(), 2, "{json}");
    for (about, name, remedy) in [
        ("xdp hook", "(test_xdp_pass)", "bpftool link detach id "),
        ("clsact filter", "test_filter", "tc filter show dev wrx0 ingress"),
    ] {
        let finding = finding(&json, about);
        assert!(finding["meaning"].as_str().expect("text").contains(name), "{finding}");
        assert!(finding["remedy"].as_str().expect("text").starts_with(remedy), "{finding}");
    }
    drop((xdp, filter));
    let capture = Run::capture(&bed.rx, "--engine bpf --json");
    let json = looks();
    let ours = |one: &&Value| one["name"].as_str().is_some_and(|name| name.starts_with("weir_"));
    // One program for each direction, at tcx or, on older kernels, as a clsact filter.
    assert_eq!(hooked(&json).iter().filter(ours).count(), 2, "{json}");
    capture.stop().expect(0);
}

#[test]
fn root_a_missing_or_sleeping_interface_is_named() {
    let Some(_alone) = ready("root_a_missing_or_sleeping_interface_is_named", &[]) else { return };
    let bed = Testbed::new().expect("a testbed");
    let json = doctor(&bed.rx, "eth9 --json").expect(2).json();
    let finding = finding(&json, "interface");
    assert_eq!(finding["grade"], "no", "{json}");
    assert!(finding["meaning"].as_str().expect("text").contains("eth9"), "{json}");
    doctor(&bed.rx, "eth9 --apply").refused(&["eth9", "ip -brief link"]);
    doctor(&bed.rx, "--apply").refused(&["name one"]);
    sh(&bed.rx, "ip link set wrx0 down");
    let text = doctor(&bed.rx, "wrx0").expect(2).text();
    assert!(text.contains("$ ip link set wrx0 up"), "{text}");
    // Without a named interface, some may be down, but at least one must be up.
    doctor(&bed.rx, "").expect(2);
    sh(&bed.rx, "ip link add type veth");
    sh(&bed.rx, "ip link set veth0 up");
    let text = doctor(&bed.rx, "").expect(0).text();
    assert!(text.contains("wrx0 is down") && text.contains("to watch it"), "{text}");
}

#[test]
fn root_without_rights_there_is_advice_and_no_change() {
    let Some(_alone) = ready("root_without_rights_there_is_advice_and_no_change", &["setpriv"])
    else {
        return;
    };
    let bed = bed();
    let before = features(&bed.rx);
    let nobody = |args: &str| {
        // Root without capabilities, because the user nobody may have no access to the binary's folder.
        let line =
            format!("setpriv --bounding-set=-all --inh-caps=-all {}", env!("CARGO_BIN_EXE_weir"));
        Run::start(&bed.rx, common::program(&format!("{line} doctor wrx0 {args}"))).end()
    };
    let text = nobody("").expect(2).text();
    assert!(text.contains("missing: CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW"), "{text}");
    assert!(text.contains("$ setcap "), "{text}");
    nobody("--monitoring-port --apply").refused(&["CAP_NET_ADMIN"]);
    assert_eq!((features(&bed.rx), records(&bed.rx)), (before, 0));
}
