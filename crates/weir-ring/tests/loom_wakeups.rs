//! Every interleaving of a BPF program, its owner and consumers that sleep without a timer: letters Q to T of
//! `doorbell.rs`. No wake-up is lost.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p weir-ring --test loom_wakeups`
//!
//! The program is C (`ring_doorbell` in `bpf/bpf.bpf.c`), and its owner calls the kernel (`answer` in the engine's
//! `shared.rs`). So this file repeats the relevant parts of both. The wait for all programs (`synchronize_rcu`) is
//! modelled with no more than the kernel guarantees: each run of the program either ends before the wait ends, and its
//! stores are visible then, or it begins after the wait began, and sees stores that were made before the wait. A lock
//! that each run holds, and that the wait takes once, has exactly this property.
//!
//! For each step of the protocol there is a model without it, in which a wake-up must be lost.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use weir_ring::doorbell::{self, AWAKE};

/// The step that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Q: the wait for all programs.
    Wait,
    /// S: the owner looks at the rings before the wait instead of after it.
    LookBehindWait,
    /// T: the sleeper's look after the confirmation.
    LookBehindConfirmation,
}

/// The words that a program and its owner share, on a machine with one CPU.
struct Machine {
    /// Frames published.
    ordinal: AtomicU64,
    armed: AtomicU64,
    /// How often the program rang.
    doorbell: AtomicU64,
    /// Held by a run of the program.
    running: Mutex<()>,
}

impl Machine {
    fn armed_for(threshold: u64) -> Arc<Machine> {
        Arc::new(Machine {
            ordinal: AtomicU64::new(0),
            armed: AtomicU64::new(threshold),
            doorbell: AtomicU64::new(0),
            running: Mutex::new(()),
        })
    }

    /// The program, run once for each frame.
    fn capture(&self, frames: u64) {
        let mut rung = 0;
        for ordinal in 1..=frames {
            let run = self.running.lock().unwrap();
            self.ordinal.store(ordinal, Ordering::Release);
            let armed = self.armed.load(Ordering::Relaxed); // R: no fence before it
            if armed <= ordinal && armed != rung {
                rung = armed;
                self.doorbell.fetch_add(1, Ordering::Release);
            }
            drop(run);
        }
    }

    /// `synchronize_rcu`.
    fn wait_for_programs(&self) {
        drop(self.running.lock().unwrap());
    }

    fn published(&self) -> u64 {
        self.ordinal.load(Ordering::Acquire)
    }

    /// Arms the doorbell, waits until all programs see that (Q), and returns the number of published frames (S).
    fn arm_and_look(&self, threshold: u64, without: Without) -> u64 {
        self.armed.store(threshold, Ordering::Relaxed);
        let early = self.published();
        if without != Without::Wait {
            self.wait_for_programs();
        }
        if without == Without::LookBehindWait { early } else { self.published() }
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A consumer goes to sleep while frames come. `may_wake`: no wake-up was sent shortly before, so the owner's limit
/// (`RING_GAP`) allows one.
fn goes_to_sleep(may_wake: bool, without: Without) {
    explore(move || {
        let machine = Machine::armed_for(AWAKE);
        let page = AtomicU64::new(AWAKE);
        let program = Arc::clone(&machine);
        let running = thread::spawn(move || program.capture(2));
        doorbell::set_threshold(&page, 2);
        let is_ready = machine.published() >= 2;
        // The request and the confirmation go over a socket, so what happens before they are sent is visible on
        // receipt.
        let seen = machine.arm_and_look(2, without);
        let is_woken = may_wake && doorbell::is_due(&page, seen);
        let looks = without != Without::LookBehindConfirmation && machine.published() >= 2; // T
        running.join().unwrap();
        let is_rung = machine.doorbell.load(Ordering::Acquire) > 0;
        assert!(is_ready || is_woken || looks || is_rung, "asleep with two frames in the ring");
    });
}

/// A consumer sleeps after a confirmation, and another one has a lower threshold. When that threshold is reached, the
/// doorbell is armed for the higher one. Only the owner can then find that the sleeper is due.
fn sleeps_on(without: Without) {
    explore(move || {
        let (first, second) = (AtomicU64::new(2), AtomicU64::new(1));
        let machine = Machine::armed_for(1);
        let program = Arc::clone(&machine);
        let running = thread::spawn(move || program.capture(2));
        // The owner notices the doorbell either now or after the program has run.
        let mut is_woken = false;
        let mut is_armed_for_first = false;
        let mut answer = || {
            let seen = machine.published();
            is_woken |= doorbell::is_due(&first, seen);
            if doorbell::is_due(&second, seen) && !is_armed_for_first {
                is_armed_for_first = true;
                is_woken |= doorbell::is_due(&first, machine.arm_and_look(2, without));
            }
        };
        let heard = machine.doorbell.load(Ordering::Acquire);
        if heard > 0 {
            answer();
        }
        running.join().unwrap();
        if machine.doorbell.load(Ordering::Acquire) > heard {
            answer();
        }
        assert!(is_woken, "asleep with two frames in the ring");
    });
}

#[test]
fn who_goes_to_sleep_is_woken() {
    goes_to_sleep(true, Without::Nothing);
}

#[test]
fn who_goes_to_sleep_while_the_owner_is_quiet_looks_by_itself() {
    goes_to_sleep(false, Without::Nothing);
}

#[test]
fn who_sleeps_is_woken_though_the_doorbell_was_armed_for_another() {
    sleeps_on(Without::Nothing);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_the_wait_who_goes_to_sleep_sleeps_on() {
    goes_to_sleep(true, Without::Wait);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_its_last_look_who_goes_to_sleep_is_not_told_by_a_quiet_owner() {
    goes_to_sleep(false, Without::LookBehindConfirmation);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_the_wait_who_sleeps_misses_the_doorbell_that_was_armed_for_another() {
    sleeps_on(Without::Wait);
}

#[test]
#[should_panic(expected = "asleep with two frames")]
fn without_the_look_behind_the_wait_who_sleeps_misses_what_came_meanwhile() {
    sleeps_on(Without::LookBehindWait);
}
