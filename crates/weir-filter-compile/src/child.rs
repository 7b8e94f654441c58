//! The child: gives up its rights, limits itself, reads the text, compiles, answers.

use std::env;
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, setrlimit};
use weir_filter::Program;

use crate::TEXT_MAX;
use crate::answer::{CHILD_NAME, ERROR, OK};
use crate::libpcap::Dead;
use crate::limits::COMPILE_BYTES_MAX;
use crate::{position, sandbox};

/// Work of a program that was started to compile a filter: to be called first in `main`, which then
/// returns this. `None`: it was started for something else.
#[must_use]
pub fn child() -> Option<ExitCode> {
    let mut args = env::args();
    if args.next().as_deref() != Some(CHILD_NAME) {
        return None;
    }
    let (link_type, cpu_s) = (args.next()?.parse().ok()?, args.next()?.parse().ok()?);
    Some(match compile(link_type, cpu_s) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    })
}

fn compile(link_type: u16, cpu_s: u64) -> io::Result<()> {
    limit(Resource::Cpu, cpu_s)?;
    limit(Resource::As, COMPILE_BYTES_MAX)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Fsize, 0)?;
    sandbox::enter()?;
    let mut text = String::new();
    io::stdin().take(TEXT_MAX as u64 + 1).read_to_string(&mut text)?;
    let handle = Dead::new(link_type).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut out = io::stdout().lock();
    match compiled(&handle, &text) {
        Ok(program) => write!(out, "{OK}{program}")?,
        Err(message) => {
            // At once: the search for the place may hit the limit.
            writeln!(out, "{ERROR}{}", message.replace('\n', " "))?;
            out.flush()?;
            if message.contains("syntax error")
                && let Some((from, to)) = position::of_syntax_error(&handle, &text)
            {
                writeln!(out, "{from} {to}")?;
            }
        }
    }
    out.flush()
}

fn compiled(handle: &Dead, text: &str) -> Result<Program, String> {
    let text = CString::new(text).map_err(|_| "it has a zero byte in it".to_owned())?;
    Program::new(handle.compile(&text)?).map_err(|error| error.to_string())
}

fn limit(what: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(what, Rlimit { current: Some(most), maximum: Some(most) })?)
}
