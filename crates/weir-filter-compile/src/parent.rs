//! The parent: starts the child, and reads its answer.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use weir_filter::Program;

use crate::TEXT_MAX;
use crate::answer::{CHILD_NAME, ERROR, OK};
use crate::limits::{ANSWER_BYTES_MAX, COMPILE_CPU_S_MAX, COMPILE_TIME_MAX};

/// Ethernet, as a pcapng link type.
const ETHERNET: u16 = 1;

/// Compiles filters: with this program as the child, for this link type, within these limits.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    link_type: u16,
    cpu_s: u64,
    wall: Duration,
}

/// The reason why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The text is longer than [`TEXT_MAX`].
    #[error("the filter is {bytes} bytes long, and at most {TEXT_MAX} are taken")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
    },
    /// libpcap refused the expression, or made a program with a fault.
    #[error("{}", refusal(.text, .message, *.place))]
    Refused {
        /// The expression.
        text: String,
        /// libpcap's message, or the fault of the program that it made.
        message: String,
        /// The byte range of the word that did not fit, if it is known.
        place: Option<(usize, usize)>,
    },
    /// Compiling took too long.
    #[error(
        "compiling the filter took more than {limit_s} s and was ended; give a simpler expression (networks instead of \
         many hosts), or ready bytecode (tcpdump -ddd)"
    )]
    TooSlow {
        /// The limit in seconds, of processor time or by the clock.
        limit_s: u64,
    },
    /// The compiler crashed.
    #[error("libpcap's compiler crashed on the filter ({status}); give a simpler expression")]
    Crashed {
        /// Exit status of the child.
        status: ExitStatus,
    },
    /// The child could not be started, or the communication with it failed.
    #[error("starting the filter compiler; is /proc mounted?")]
    Child(#[source] io::Error),
    /// The child's output is not an answer.
    #[error("the filter compiler gave no answer ({status})")]
    NoAnswer {
        /// Exit status of the child.
        status: ExitStatus,
    },
}

impl CompileError {
    /// Returns whether the filter names a host that is not known now. A name server may know it later, or may answer
    /// again.
    #[must_use]
    pub fn is_unknown_host(&self) -> bool {
        // libpcap returns no error code, only a message.
        matches!(self, CompileError::Refused { message, .. }
            if message.trim_start_matches(PARSING).starts_with("unknown host "))
    }
}

/// The beginning of some of libpcap's messages.
const PARSING: &str = "can't parse filter expression: ";

fn refusal(text: &str, message: &str, place: Option<(usize, usize)>) -> String {
    let message = message.trim_start_matches(PARSING);
    let shown: String = text.chars().take(200).collect();
    let place = place.and_then(|(from, to)| Some((text.get(..from)?, text.get(from..to)?)));
    let place = match place {
        None => String::new(),
        Some((_, "")) => " at its end: something is missing".to_owned(),
        Some((before, word)) => format!(" at '{word}', character {}", before.chars().count() + 1),
    };
    let manual = match message.contains("syntax error") {
        true => "; the syntax is described in pcap-filter(7)",
        false => "",
    };
    format!("filter '{shown}': {message}{place}{manual}")
}

/// Starts the running program as the child, for Ethernet, with 5 s of processor time and 15 s by the clock: a name
/// server may be slow.
impl Default for Compiler {
    fn default() -> Compiler {
        Compiler {
            program: "/proc/self/exe".into(),
            link_type: ETHERNET,
            cpu_s: COMPILE_CPU_S_MAX,
            wall: COMPILE_TIME_MAX,
        }
    }
}

impl Compiler {
    /// Sets another program for the child than the running one. It must call [`crate::child`].
    #[must_use]
    pub fn with_program(self, program: &Path) -> Compiler {
        Compiler { program: program.into(), ..self }
    }

    /// Sets another link type than Ethernet, as numbered in pcapng. (Linux cooked capture: 113, raw IP: 101.)
    #[must_use]
    pub fn with_link_type(self, link_type: u16) -> Compiler {
        Compiler { link_type, ..self }
    }

    /// Sets other limits: whole seconds of processor time, and time by the clock.
    #[must_use]
    pub fn with_limits(self, cpu_s: u64, wall: Duration) -> Compiler {
        Compiler { cpu_s, wall, ..self }
    }

    /// Compiles `text`, in the pcap filter language. The empty text takes every frame.
    ///
    /// Source: pcap-filter(7), pcap_compile(3PCAP).
    ///
    /// # Errors
    /// libpcap's message and the position of the error; or a limit that was exceeded.
    pub fn compile(&self, text: &str) -> Result<Program, CompileError> {
        if text.len() > TEXT_MAX {
            return Err(CompileError::TextTooLong { bytes: text.len() });
        }
        let mut child = Command::new(&self.program)
            .arg0(CHILD_NAME)
            .args([self.link_type.to_string(), self.cpu_s.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(CompileError::Child)?;
        let answer = self.ask(&mut child, text);
        // The child is ended in any case.
        let killed = child.kill();
        let status = child.wait().map_err(CompileError::Child)?;
        killed.map_err(CompileError::Child)?;
        match answer.map_err(CompileError::Child)? {
            Some(answer) => self.read(text, &answer, status),
            None => Err(CompileError::TooSlow { limit_s: self.wall.as_secs() }),
        }
    }

    /// Sends the text. Returns all that the child writes until it ends, or `None` if that takes too long.
    fn ask(&self, child: &mut Child, text: &str) -> io::Result<Option<Vec<u8>>> {
        let mut stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        let (send, receive) = mpsc::channel();
        // This thread ends with the child, which the caller kills.
        thread::Builder::new().name("weir-filter".into()).spawn(move || {
            let mut answer = Vec::new();
            let result = stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map(|_| answer);
            // Sending fails if nobody waits any more, because the child took too long.
            let _ = send.send(result);
        })?;
        // The text fits into the pipe, so this does not block. A child that has already ended may have written an
        // answer, which says more than the error of the pipe.
        match stdin.write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => drop(stdin),
        }
        receive.recv_timeout(self.wall).ok().transpose()
    }

    fn read(&self, text: &str, answer: &[u8], status: ExitStatus) -> Result<Program, CompileError> {
        let answer = std::str::from_utf8(answer).unwrap_or_default();
        if let Some(program) = answer.strip_prefix(OK)
            && let Ok(program) = Program::parse(program)
        {
            return Ok(program);
        }
        if let Some(error) = answer.strip_prefix(ERROR)
            && let Some((message, place)) = error.split_once('\n')
        {
            let place = place.trim_end().split_once(' ');
            let place = place.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
            return Err(CompileError::Refused {
                text: text.into(),
                message: message.into(),
                place,
            });
        }
        // The signal of the CPU limit is SIGXCPU, or SIGKILL if the soft and the hard limit are equal.
        const SIGXCPU: i32 = rustix::process::Signal::XCPU.as_raw();
        const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();
        Err(match status.signal() {
            Some(SIGXCPU | SIGKILL) => CompileError::TooSlow { limit_s: self.cpu_s },
            Some(_) => CompileError::Crashed { status },
            None => CompileError::NoAnswer { status },
        })
    }
}
