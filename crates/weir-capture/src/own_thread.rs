//! Work in a thread that is made for it and ends with it: what the work changes of its thread, such as the network
//! namespace, the CPUs or the capabilities, changes for no other code.

use std::io;
use std::thread::{Builder, scope};

/// Runs `work` in a thread of this name, waits for it and returns its result. A panic goes on in the caller.
///
/// # Errors
/// If no thread can be started (`ulimit -u`, the cgroup's `pids.max`).
pub fn in_own_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    scope(|scope| {
        let thread = Builder::new().name(name.to_owned()).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_has_a_thread_of_that_name() {
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(in_own_thread("weir-test", name).unwrap().as_deref(), Some("weir-test"));
    }

    #[test]
    #[should_panic(expected = "of the work")]
    fn a_panic_of_the_work_goes_on() {
        in_own_thread("weir-test", || panic!("of the work")).unwrap();
    }
}
