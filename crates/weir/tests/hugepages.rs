//! Rings in reserved huge pages: `--hugepages`.

mod common;

use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{LIMIT, Run, bed, closes, generate, number, ready, settle, weir};
use weir_lab::testbed::{HugePages, skip};

/// Pages of 2 MiB for a ring of 8 MiB and its index.
const RING_PAGES: u64 = 5;
/// Pages for an AF_XDP socket: 8,192 chunks of 2 KiB.
const SOCKET_PAGES: u64 = 8;

#[test]
fn root_rings_take_reserved_pages_give_them_back_and_say_how_many_are_missing() {
    const TEST: &str = "root_rings_take_reserved_pages_give_them_back_and_say_how_many_are_missing";
    let Some(_alone) = ready(TEST, &[]) else { return };
    let reserved = match HugePages::reserve(RING_PAGES + SOCKET_PAGES) {
        Ok(reserved) => reserved,
        Err(reason) => return skip(TEST, reason),
    };
    let free = reserved.free();
    let bed = bed();
    for (args, pages) in [
        ("--engine af_packet", RING_PAGES),
        ("--engine pcap", RING_PAGES),
        ("--engine af_xdp --consume", RING_PAGES + SOCKET_PAGES),
    ] {
        let run = Run::capture(&bed.rx, &format!("--json --hugepages --ring-size 8MiB {args}"));
        assert_eq!(free - reserved.free(), pages, "{args}");
        let sent = generate(&bed.tx, "--frames 1000 --rate 100kpps");
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "delivered"), number(&sent, "sent"), "{args}");
        // The kernel frees the pages of a socket a little later, in a workqueue.
        let begin = Instant::now();
        while reserved.free() < free {
            assert!(begin.elapsed() < LIMIT, "{args}: pages were not given back");
            sleep(Duration::from_millis(5));
        }
    }
    let run = |args: &str| Run::start(&bed.rx, weir(&format!("capture {args}"))).end();
    run("gen:frames=1000 --hugepages --ring-size 8MiB").expect(0);
    let missing = ["--hugepages", "the rings take 33 huge pages", "are free", "vm.nr_hugepages="];
    run("gen:frames=1000 --hugepages --ring-size 64MiB").refused(&missing);
    run(&format!("{} --hugepages", bed.rx.iface)).refused(&["af_packet", "not for bpf"]);
}
