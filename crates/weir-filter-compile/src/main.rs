//! The compiling child by itself. In service it is the asking program, started again.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_filter_compile::child().unwrap_or_else(|| {
        eprintln!("weir-filter-compile: started by Weir's tests; give filters to weir itself");
        ExitCode::from(2)
    })
}
