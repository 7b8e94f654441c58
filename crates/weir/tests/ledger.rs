//! The ledger compared with the generator: at every hook, each frame is kept or counted as a named loss.

mod common;

use std::thread::sleep;
use std::time::Duration;

use common::{
    HOOKS, Run, bed, closes, dropped, folder, generate, number, path, patient, ready, seconds,
    settle, sh, tools, weir,
};
use weir_lab::generator::sizes::{IMIX, Sizes};
use weir_lab::generator::template::{DESTINATION_MAC, SOURCE_MAC, Template, number_of};
use weir_lab::testbed::volume;

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
            let sent = generate(&bed.tx, &format!("--size {size} --duration {duration}"));
            settle();
            let json = capture.stop().expect(0).json();
            println!(
                "{hook}, {size} B: sent {:.2} Mpps, delivered {:.2} Mpps, lapped {}, drops {}",
                sent["mpps"].as_f64().unwrap(),
                json["mpps"].as_f64().unwrap(),
                json["lapped"],
                dropped(&json)
            );
            assert!(number(&sent, "sent") > 1000, "next to nothing was sent: {sent}");
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
fn root_a_modest_count_is_captured_whole_by_every_way_in() {
    let test = "root_a_modest_count_is_captured_whole_by_every_way_in";
    let Some(_alone) = ready(test, &[]) else { return };
    // Few enough frames, at a low rate, for the emulated guest with the oldest kernel, in which this test runs as well.
    for args in HOOKS.into_iter().chain(["--engine bpf --hook tc --tc-attach clsact"]) {
        let bed = bed();
        let capture = Run::capture(&bed.rx, &format!("{args} --json"));
        let gen_json = generate(&bed.tx, "--frames 20k --rate 20kpps");
        settle();
        let json = capture.stop().expect(0).json();
        println!("{args}: {gen_json}\n{json}");
        // An emulated receiver may be too slow; the link then refuses some frames.
        let sent = number(&gen_json, "sent");
        assert_eq!(sent + number(&gen_json, "refused"), 20_000, "{args}: {gen_json}");
        assert!(sent > 1000, "{args}: {gen_json}");
        assert_eq!(number(&json, "offered"), sent, "{args}: {json}");
        assert_eq!(number(&json, "captured") + dropped(&json), sent, "{args}: {json}");
        closes(&json);
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
        // The 300,000 frames below are more than this ring holds.
        let hook = patient(hook);
        let args = format!("{hook} --ring-size 8MiB --write {name} --json --fail-on-loss");
        let mut capture = Run::capture(&bed.rx, &args);
        generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        // The writer overtakes the stopped reader.
        capture.signal(libc::SIGSTOP);
        let sent = 1000 + number(&generate(&bed.tx, "--frames 300k --rate 1Mpps"), "sent");
        capture.signal(libc::SIGCONT);
        let json = capture.stop().expect(1).json();
        closes(&json);
        assert_eq!(number(&json, "offered"), sent, "{hook}: {json}");
        assert!(number(&json, "lapped") + dropped(&json) > 0, "{hook}: {json}");
        // No frame is late: all came on one CPU and so into one ring, or the merge waited for the copiers.
        assert_eq!(number(&json, "late"), 0, "{hook}: {json}");
        let (_, frames) = tools::read(&file);
        // Every number is in the file at most once, and as many are missing as the ledger says.
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
fn root_a_small_ring_is_not_held_until_it_is_lapped() {
    let test = "root_a_small_ring_is_not_held_until_it_is_lapped";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "pressed.pcapng");
    // Two rings of 4 MiB. Nothing comes from `lo`, so every frame of the other interface would wait for the slack of
    // 10 s, but its ring is full after some 1.4 s. The merge stops waiting when the ring is half full, which leaves
    // 0.7 s to a reader that is not scheduled.
    sh(&bed.rx, "ip link set lo up");
    let args = "lo --engine af_packet --ring-size 4MiB --merge-slack 10s";
    let capture = Run::capture(&bed.rx, &format!("{args} --write {name} --json"));
    let sent = generate(&bed.tx, "--frames 6k --rate 2kpps --size 1518");
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "offered"), number(&sent, "sent"), "{json}");
    assert_eq!((number(&json, "lapped"), number(&json, "late")), (0, 0), "{json}");
    let (_, frames) = tools::read(&file);
    assert_eq!(frames.len() as u64, number(&sent, "sent") - dropped(&json), "{json}");
    assert!(frames.len() > 5000, "more than the ring holds: {json}");
}

#[test]
fn root_a_stopped_reader_holds_nobody_up_and_knows_what_it_missed() {
    let test = "root_a_stopped_reader_holds_nobody_up_and_knows_what_it_missed";
    let Some(_alone) = ready(test, &[]) else { return };
    for hook in HOOKS {
        // Other programs on this machine can only make a try fail, never succeed.
        let free = (0..3).any(|_| a_stopped_reader_holds_nobody_up(hook));
        assert!(free, "{hook}: the generator was held up, three times");
    }
}

/// Stops a reader at full rate, until its ring has been overwritten several times. The ledger must be exact. Returns
/// whether the generator, in whose softirq the frames are written, kept its rate.
fn a_stopped_reader_holds_nobody_up(hook: &str) -> bool {
    let bed = bed();
    let mut stopped = Run::capture(&bed.rx, &format!("{hook} --json --ring-size 16MiB"));
    let before = generate(&bed.tx, &format!("--duration {}ms", volume(1000)));
    stopped.signal(libc::SIGSTOP);
    let during = generate(&bed.tx, &format!("--duration {}", seconds(2)));
    // On a busy machine or in a repeated run, this may be too few frames to fill the rings and the kernel's buffers, so
    // send the rest of 400,000.
    let rest = 400_000u64.saturating_sub(number(&during, "sent")).max(1);
    let rest = generate(&bed.tx, &format!("--frames {rest}"));
    stopped.signal(libc::SIGCONT);
    let after = generate(&bed.tx, &format!("--duration {}ms", volume(1000)));
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
    let sent: u64 = [&before, &during, &rest, &after].map(|sent| number(sent, "sent")).iter().sum();
    assert_eq!(number(&json, "offered"), sent, "{hook}: {json}");
    // This makes the lapped count exact: the frames that the writer counted minus those that were read.
    closes(&json);
    if hook.contains("bpf") {
        // The kernel continued to write: frames that the reader missed are lapped, not dropped.
        assert!(number(&json, "lapped") > 0, "{hook}: {json}");
        assert_eq!(dropped(&json), 0, "{hook}: {json}");
    } else {
        assert!(number(&json, "lapped") + dropped(&json) > 0, "{hook}: {json}");
    }
    assert!(number(&json, "delivered") > 0, "{hook}: {json}");
    // A generator that waited for the stopped reader would send almost nothing. The limit is one half because the rate
    // varies from second to second, above all on shared processors.
    rate(&during) > 0.5 * rate(&before).min(rate(&after))
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
    // Takes 5 s.
    let line = format!("--frames {} --rate 100kpps", volume(500_000));
    let sent = number(&generate(&bed.tx, &line), "sent");
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
    // More frames arrive while the last ones are counted.
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

#[test]
fn root_frames_of_many_threads_are_captured_to_the_frame() {
    let test = "root_frames_of_many_threads_are_captured_to_the_frame";
    let Some(_alone) = ready(test, &[]) else { return };
    let (bed, dir) = (bed(), folder());
    let (file, name) = path(&dir, "threads.pcapng");
    let capture = Run::capture(&bed.rx, &format!("--direction in --json --write {name}"));
    let sent = generate(&bed.tx, "--threads 2 --cpu 0-1 --flows multi --frames 30k --rate 100kpps");
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!((number(&sent, "attempted"), number(&sent, "threads")), (30_000, 2), "{sent}");
    assert_eq!(number(&json, "offered"), number(&sent, "sent"), "{json} {sent}");
    assert_eq!(number(&sent, "sent") + number(&sent, "refused"), 30_000, "{sent}");
    let (_, frames) = tools::read(&file);
    let numbers: Vec<_> = frames.iter().map(|frame| number_of(&frame.data).unwrap()).collect();
    let mut each = numbers.clone();
    each.sort_unstable();
    each.dedup();
    assert_eq!(each.len(), numbers.len(), "a number came twice");
    assert!(each.iter().all(|&number| number < 30_000));
    let tuples: std::collections::BTreeSet<_> = frames.iter().map(|f| &f.data[26..36]).collect();
    assert_eq!(tuples.len(), frames.len(), "a flow came twice");
    for args in
        ["--threads 2 --cpu 0", "--threads 0", "--file /x --cpu 0,1", "--threads 2 --file /x"]
    {
        let line = format!("gen {} {args}", bed.tx.iface);
        Run::start(&bed.tx, weir(&line)).end().expect(2);
    }
}

#[test]
fn root_a_mix_has_its_sizes_by_number_and_its_bytes_are_exact() {
    let test = "root_a_mix_has_its_sizes_by_number_and_its_bytes_are_exact";
    let Some(_alone) = ready(test, &[]) else { return };
    let imix = Sizes::mix(&IMIX).unwrap();
    for args in ["", "--af-packet", "--threads 2"] {
        let (bed, dir) = (bed(), folder());
        let (file, name) = path(&dir, "mix.pcapng");
        let capture = Run::capture(&bed.rx, &format!("--direction in --json --write {name}"));
        let line = format!("--size imix --frames 12005 --rate 100Mbps --flows 3 {args}");
        let sent = generate(&bed.tx, &line);
        settle();
        let json = capture.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&sent, "attempted"), 12_005, "{sent}");
        // On a busy machine some frames may be refused; then only the capture's count of bytes can be compared.
        let count = number(&sent, "sent");
        assert_eq!(number(&json, "offered"), count, "{sent} {json}");
        assert_eq!(number(&sent, "bytes"), number(&json, "bytes") + 4 * count, "{sent} {json}");
        if count == 12_005 {
            assert_eq!(number(&sent, "bytes"), imix.bytes(0, 12_005), "{sent}");
        }
        assert_eq!(sent["mix"].to_string(), "[[64,7],[594,4],[1518,1]]");
        // 34.8 Mbit at 100 Mbit/s take 0.348 s. The rate limiter may make up for some lost time; a busy machine may
        // take longer.
        assert!(sent["duration_s"].as_f64().unwrap() >= 0.29, "{sent}");
        let (_, frames) = tools::read(&file);
        assert_eq!(frames.len() as u64, count, "{args}");
        for frame in frames {
            let number = number_of(&frame.data).unwrap();
            let bytes = imix.of(number) as usize - 4;
            let expected = Template::new(bytes, 3, SOURCE_MAC, DESTINATION_MAC).frame(number);
            assert!(frame.data == expected, "{args}: frame {number}, {} B", frame.data.len());
        }
    }
    let bed = bed();
    for (args, word) in [("--size 64:1,1519:1", "1519"), ("--size 63:1,128:1", "63")] {
        let line = format!("gen {} {args}", bed.tx.iface);
        Run::start(&bed.tx, weir(&line)).end().refused(&["size", word]);
    }
}
