//! Work that is done at the same time, in threads: most of it waits for the kernel.
//!
//! A system may refuse more threads (`ulimit -u`, the cgroup's `pids.max`). The work is then done one after the other.

use std::thread::{Builder, ScopedJoinHandle, scope};

/// Runs both, `first` in a thread.
pub(crate) fn both<A: Send, B>(first: impl Fn() -> A + Sync, second: impl FnOnce() -> B) -> (A, B) {
    scope(|scope| match Builder::new().spawn_scoped(scope, &first) {
        Ok(thread) => {
            let second = second();
            (join(thread), second)
        }
        Err(_) => (first(), second()),
    })
}

/// Calls `work` with each item, and returns the results in the order of the items.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let work = &work;
    scope(|scope| {
        let start = |item| (Builder::new().spawn_scoped(scope, move || work(item)), item);
        let started: Vec<_> = items.iter().map(start).collect();
        let end = |(thread, item): (Result<_, _>, _)| match thread {
            Ok(thread) => join(thread),
            Err(_) => work(item),
        };
        started.into_iter().map(end).collect()
    })
}

/// Waits for the end of a thread, and returns its result or continues its panic.
fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        assert_eq!(each(&[3, 1, 2], |item| item * 2), [6, 2, 4]);
        assert_eq!(both(|| "first", || "second"), ("first", "second"));
    }

    /// A barrier ends only if both sides run at the same time.
    #[test]
    fn the_work_is_done_at_the_same_time() {
        let barrier = std::sync::Barrier::new(2);
        both(|| barrier.wait().is_leader(), || barrier.wait().is_leader());
        each(&[(), ()], |()| barrier.wait().is_leader());
    }

    #[test]
    #[should_panic(expected = "of the thread")]
    fn a_panic_of_the_thread_goes_on() {
        both(|| panic!("of the thread"), || ());
    }
}
