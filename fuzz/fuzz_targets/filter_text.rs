//! Any text is a program as tcpdump -ddd prints it, or an error; a program's own text is the same program.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_filter::Program;

fuzz_target!(|text: &str| {
    if let Ok(program) = Program::parse(text) {
        assert_eq!(Program::parse(&program.to_string()), Ok(program));
    }
});
