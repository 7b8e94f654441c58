//! The ledger against the generator: every frame is kept or named, at every hook, to the frame.

mod common;

use std::thread::sleep;
use std::time::Duration;

use common::{
    HOOKS, Run, bed, closes, dropped, folder, generate, number, path, ready, seconds, settle,
    tools, weir,
};
use weir_lab::generator::template::number_of;

#[test]
fn root_every_frame_sent_at_full_rate_is_captured_or_named() {
    let Some(_alone) = ready("root_every_frame_sent_at_full_rate_is_captured_or_named", &[]) else {
        return;
    };
    for hook in HOOKS {
        for size in [64, 1518] {
            let bed = bed();
            let capture = Run::capture(&bed.rx, &format!("{hook} --json"));
            let duration = seconds(if size == 64 { 2 } else { 1 });
            let sent = generate(&bed.tx, &format!("--size {size} --duration {duration}s"));
            settle();
            let json = capture.stop().expect(0).json();
            println!(
                "{hook}, {size} B: sent {:.2} Mpps, delivered {:.2} Mpps, lapped {}, drops {}",
                sent["mpps"].as_f64().unwrap(),
                json["mpps"].as_f64().unwrap(),
                json["lapped"],
                dropped(&json)
            );
            assert!(number(&sent, "sent") > 100_000, "slow beyond any excuse: {sent}");
            assert_eq!(number(&json, "offered"), number(&sent, "sent"), "{hook} {size}: {json}");
            assert_eq!(
                number(&json, "bytes"),
                number(&json, "captured") * (size - 4),
                "{hook} {size}: {json}"
            );
            closes(&json);
        }
    }
}

#[test]
fn root_overload_in_a_small_ring_is_lapped_and_counted_to_the_frame() {
    let test = "root_overload_in_a_small_ring_is_lapped_and_counted_to_the_frame";
    let Some(_alone) = ready(test, &[]) else { return };
    for hook in HOOKS {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "lapped.pcapng");
        // One frame in a thousand would fill this ring; a file takes what it can.
        let args = format!("{hook} --ring-size 8MiB --write {name} --json --fail-on-loss");
        let mut capture = Run::capture(&bed.rx, &args);
        generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        // The writer goes on over the stopped reader's head.
        capture.signal(libc::SIGSTOP);
        let sent = 1000 + number(&generate(&bed.tx, "--frames 300k --rate 1Mpps"), "sent");
        capture.signal(libc::SIGCONT);
        let json = capture.stop().expect(1).json();
        closes(&json);
        assert_eq!(number(&json, "offered"), sent, "{hook}: {json}");
        assert!(number(&json, "lapped") + dropped(&json) > 0, "{hook}: {json}");
        // A ring per CPU, and all frames came on one: nothing can be late.
        assert_eq!(number(&json, "late"), 0, "{hook}: {json}");
        let (_, frames) = tools::read(&file);
        // Every number at most once, and just as many missing as the ledger says.
        assert_eq!(frames.len() as u64, number(&json, "delivered"), "{hook}: {json}");
        let mut last = None;
        for frame in &frames[1000..] {
            let number = number_of(&frame.data).expect("a generated frame, whole");
            assert!(last < Some(number), "{hook}: {number} after {last:?}: {json}");
            last = Some(number);
        }
        assert_eq!(
            sent - frames.len() as u64,
            number(&json, "lapped") + dropped(&json),
            "{hook}: {json}"
        );
    }
}

#[test]
fn root_a_stopped_reader_holds_nobody_up_and_knows_what_it_missed() {
    let test = "root_a_stopped_reader_holds_nobody_up_and_knows_what_it_missed";
    let Some(_alone) = ready(test, &[]) else { return };
    for hook in HOOKS {
        let bed = bed();
        let mut stopped = Run::capture(&bed.rx, &format!("{hook} --json --ring-size 16MiB"));
        let before = generate(&bed.tx, "--duration 300ms");
        stopped.signal(libc::SIGSTOP);
        let during = generate(&bed.tx, "--duration 3s");
        stopped.signal(libc::SIGCONT);
        let after = generate(&bed.tx, "--duration 300ms");
        settle();
        let json = stopped.stop().expect(0).json();
        let rate = |sent: &serde_json::Value| sent["mpps"].as_f64().expect("a rate");
        println!(
            "{hook}: {:.2} Mpps before, {:.2} while stopped, {:.2} after; lapped {}",
            rate(&before),
            rate(&during),
            rate(&after),
            json["lapped"]
        );
        assert!(rate(&during) > 0.5 * rate(&before), "{hook}: the generator was held up");
        let sent: u64 = [&before, &during, &after].map(|sent| number(sent, "sent")).iter().sum();
        assert_eq!(number(&json, "offered"), sent, "{hook}: {json}");
        closes(&json);
        if hook.contains("bpf") {
            // The kernel went on writing: what the reader missed is lapped, not dropped.
            assert!(number(&json, "lapped") > 0, "{hook}: {json}");
            assert_eq!(dropped(&json), 0, "{hook}: {json}");
        } else {
            assert!(number(&json, "lapped") + dropped(&json) > 0, "{hook}: {json}");
        }
        assert!(number(&json, "delivered") > 0, "{hook}: {json}");
    }
}

#[test]
fn root_two_captures_of_one_link_do_not_know_of_each_other() {
    let test = "root_two_captures_of_one_link_do_not_know_of_each_other";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let good = Run::capture(&bed.rx, "--engine bpf --hook tc --json");
    let mut bad = Run::capture(&bed.rx, "--engine bpf --hook tc --json --ring-size 8MiB");
    let xdp = Run::capture(&bed.rx, "--engine bpf --hook xdp --json");
    bad.signal(libc::SIGSTOP);
    let sent = number(&generate(&bed.tx, "--frames 200k --rate 100kpps"), "sent");
    settle();
    bad.signal(libc::SIGCONT);
    for (name, run) in [("good", good), ("bad", bad), ("xdp", xdp)] {
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "offered"), sent, "{name}: {json}");
        let lapped = number(&json, "lapped");
        assert!((lapped > 0) == (name == "bad"), "{name}: {json}");
    }
}

#[test]
fn root_frames_that_the_consumer_does_not_want_are_nobodys_loss() {
    let test = "root_frames_that_the_consumer_does_not_want_are_nobodys_loss";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    // Frames go on coming while the last ones are counted.
    let capture = Run::capture(&bed.rx, "--json --frames 10k --fail-on-loss");
    let generator = Run::start(
        &bed.tx,
        weir(&format!("gen {} --json --rate 200kpps --duration 2s", bed.tx.iface)),
    );
    let json = capture.end().expect(0).json();
    sleep(Duration::from_millis(10));
    drop(generator);
    closes(&json);
    assert_eq!(number(&json, "delivered"), 10_000, "{json}");
}
