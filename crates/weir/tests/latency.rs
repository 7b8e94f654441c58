//! `weir capture --latency`: the delay from the generator's stamp to the consumer.

mod common;

use std::thread::sleep;
use std::time::Duration;

use common::{HOOKS, Run, bed, closes, generate, number, ready, settle, weir};
use serde_json::Value;

const FRAMES: u64 = 5_000;

fn delays(json: &Value) -> [f64; 5] {
    ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"]
        .map(|name| json["latency"][name].as_f64().expect("a number of microseconds"))
}

#[test]
fn root_every_stamped_frame_is_timed_and_no_other_is() {
    let Some(_alone) = ready("root_every_stamped_frame_is_timed_and_no_other_is", &[]) else {
        return;
    };
    let mut cases: Vec<String> =
        HOOKS.iter().map(|hook| format!("{hook} --latency rest")).collect();
    cases.push(format!("{} --latency poll", HOOKS[0]));
    for case in cases {
        let bed = bed();
        let run = Run::capture(&bed.rx, &format!("{case} --json"));
        let stamped = number(&generate(&bed.tx, "--frames 5000 --rate 50kpps --stamp"), "sent");
        let plain = number(&generate(&bed.tx, "--frames 100 --rate 50kpps"), "sent");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        let (timed, others) = (&json["latency"]["frames"], &json["latency"]["unstamped"]);
        println!("{case}: {}", json["latency"]);
        if number(&json, "lapped") + common::dropped(&json) == 0 {
            assert_eq!((timed.as_u64(), others.as_u64()), (Some(stamped), Some(plain)), "{case}");
        }
        assert!(stamped >= FRAMES / 2, "{case}: the link took {stamped} frames only");
        assert_eq!(json["latency"]["early"], 0, "{case}: stamped and read by one clock");
        let delays = delays(&json);
        assert!(delays[0] > 0.0 && delays.is_sorted(), "{case}: {delays:?}");
        // With a wrong clock the delays would be off by years, or by the TAI offset of 37 s.
        assert!(delays[4] < 30e6, "{case}: {delays:?}");
    }
}

#[test]
fn root_a_stopped_consumer_shows_in_every_delay() {
    let Some(_alone) = ready("root_a_stopped_consumer_shows_in_every_delay", &[]) else { return };
    let bed = bed();
    // The kernel writes into the ring even while this process is stopped.
    let mut run = Run::capture(&bed.rx, &format!("{} --latency rest --json", HOOKS[0]));
    run.signal(libc::SIGSTOP);
    let sent = number(&generate(&bed.tx, "--frames 1000 --stamp"), "sent");
    sleep(Duration::from_millis(300));
    run.signal(libc::SIGCONT);
    settle();
    let json = run.stop().expect(0).json();
    assert_eq!(json["latency"]["frames"], sent);
    // At least half of the frames waited for the whole sleep. The histogram has three significant digits.
    let median = delays(&json)[0];
    assert!(median > 299_000.0, "{median} us");
}

#[test]
fn delays_are_timed_beside_other_consumers() {
    let mut command =
        weir("capture gen:size=64 --latency rest --write /dev/null --frames 5 --json");
    let output = command.output().expect("the binary runs");
    let says = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{says}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    closes(&json);
    let names: Vec<_> = json["consumers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["write", "latency"]);
    assert_eq!(json["delivered"], 5, "the file's");
    assert_eq!(json["latency"]["frames"], 0, "without --stamp");
}
