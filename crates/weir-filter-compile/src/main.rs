//! The compiling child as a program of its own, for tests. In service, the child is the calling program, started again.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_filter_compile::child().unwrap_or_else(|| {
        eprintln!("weir-filter-compile: started by Weir's tests; give filters to weir itself");
        ExitCode::from(2)
    })
}
