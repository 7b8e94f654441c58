//! Work that is done in parallel, in threads: much of it only waits for the kernel.
//!
//! A system may refuse more threads (`ulimit -u`, the cgroup's `pids.max`). The work is then done one after the other.
//! A panic of a thread goes on in the caller.

use std::io;
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

/// Runs both, `first` in a thread; without a thread, `first` and then `second`.
pub(crate) fn both<A: Send, B>(first: impl Fn() -> A + Sync, second: impl FnOnce() -> B) -> (A, B) {
    scope(|scope| match spawn(scope, &first) {
        Ok(thread) => {
            let second = second();
            (join(thread), second)
        }
        Err(_) => (first(), second()),
    })
}

/// Calls `work` with each item, each in a thread, and returns the results in the order of the items.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let work = &work;
    scope(|scope| {
        let start = |item| (spawn(scope, move || work(item)), item);
        let started: Vec<_> = items.iter().map(start).collect();
        let end = |(thread, item): (io::Result<_>, _)| match thread {
            Ok(thread) => join(thread),
            Err(_) => work(item),
        };
        started.into_iter().map(end).collect()
    })
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    #[cfg(test)]
    if tests::REFUSED.get() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Builder::new().name("weir-parallel".into()).spawn_scoped(scope, work)
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    thread_local! {
        /// Makes this thread start no other.
        pub(super) static REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn all_is_done_once_and_in_order_with_threads_and_without() {
        for refused in [false, true] {
            REFUSED.set(refused);
            let calls = AtomicUsize::new(0);
            let work = |item: &usize| {
                calls.fetch_add(1, Ordering::Relaxed);
                item * 2
            };
            assert_eq!(each(&[3, 1, 2], work), [6, 2, 4]);
            assert_eq!(both(|| work(&4), || work(&5)), (8, 10));
            assert_eq!(calls.into_inner(), 5);
        }
        REFUSED.set(false);
    }

    #[test]
    fn the_work_is_done_at_the_same_time() {
        let meet = |arrived: &AtomicUsize| {
            arrived.fetch_add(1, Ordering::Relaxed);
            let begin = Instant::now();
            while arrived.load(Ordering::Relaxed) < 2 {
                assert!(begin.elapsed() < Duration::from_secs(20), "the other one has not begun");
                std::thread::yield_now();
            }
        };
        let arrived = AtomicUsize::new(0);
        both(|| meet(&arrived), || meet(&arrived));
        let arrived = AtomicUsize::new(0);
        each(&[(), ()], |()| meet(&arrived));
    }

    #[test]
    #[should_panic(expected = "of the thread")]
    fn a_panic_of_a_thread_goes_on() {
        both(|| panic!("of the thread"), || ());
    }
}
