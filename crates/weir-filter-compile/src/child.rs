//! The child: limits itself, gives up its rights, reads the text, compiles it, answers.

use std::env;
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, setrlimit};
use weir_filter::{Program, VerifyError};

use crate::TEXT_MAX;
use crate::answer::{CHILD_NAME, ERROR, OK};
use crate::libpcap::Dead;
use crate::limits::COMPILE_BYTES_MAX;
use crate::{position, sandbox};

/// Compiles a filter, if this process was started for that. `main` must call this first; if the result is an exit code,
/// `main` returns it. `None`: the process was started for something else.
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
            // The message is sent at once, because the search for the position may exceed the limit.
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
    let zero_ended = CString::new(text).map_err(|_| "it has a zero byte in it".to_owned())?;
    Program::new(handle.compile(&zero_ended)?).map_err(|fault| fault_text(&fault, text))
}

/// Returns the text for a fault of the program that libpcap made of this expression. The text of
/// [`VerifyError::Extension`] is for users who gave bytecode.
fn fault_text(fault: &VerifyError, text: &str) -> String {
    let VerifyError::Extension { what, .. } = fault else { return fault.to_string() };
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    match words.find_map(|word| Some((word, direction_of(word)?))) {
        Some((word, direction)) => {
            format!(
                "filters do not tell directions; leave '{word}' out, and add --direction {direction}"
            )
        }
        None => format!("it depends on {what}, which not every frame comes with"),
    }
}

/// Returns the value of `--direction` for a word of pcap-filter(7).
fn direction_of(word: &str) -> Option<&'static str> {
    match word {
        "inbound" => Some("in"),
        "outbound" => Some("out"),
        _ => None,
    }
}

fn limit(what: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(what, Rlimit { current: Some(most), maximum: Some(most) })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_in_an_expression_are_pointed_to_the_flag() {
        let fault = VerifyError::Extension { at: 0, what: "the packet's type" };
        for (text, way) in [("inbound", "--direction in"), ("udp and(outbound)", "--direction out")]
        {
            let told = fault_text(&fault, text);
            assert!(told.ends_with(way) && !told.contains("compiled"), "{told}");
        }
        assert!(fault_text(&fault, "ifindex 3").contains("the packet's type"));
        let empty = VerifyError::Empty;
        assert_eq!(fault_text(&empty, "inbound"), empty.to_string());
    }
}
