//! Replacements for `println!` and similar macros, which panic if the reader of the output has left. Such a panic would
//! end a capture while its file is incomplete.
//!
//! A reader that leaves is not an error. Any other failure of standard output is kept until the end, because the
//! command must not succeed if, for example, a full disk has refused its report.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::readiness::{PIECE_BYTES, has_room};

/// The first failure of standard output.
static REFUSED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Keeps the error of a write to standard output, unless it is a broken pipe or an earlier one is kept.
pub fn printed(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        REFUSED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Flushes standard output.
///
/// # Errors
/// The first failure since the start, except a broken pipe.
pub fn finish() -> Result<()> {
    printed(io::stdout().flush());
    let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner).take();
    refused.map_or(Ok(()), Err).context(
        "standard output: what should stand there could not be written; free space, or send it elsewhere",
    )
}

/// Escapes control characters, except line ends and tabs. Names of interfaces and files are chosen by others, and
/// could contain escape sequences for the terminal.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => plain.push(c),
            c if c.is_control() => plain.extend(c.escape_default()),
            c => plain.push(c),
        }
    }
    plain
}

/// Prints text on standard error, escaped as by [`plain`] and unbuffered.
///
/// If a full pipe does not take the text within a second, the text is discarded. After that, text is discarded unless
/// the pipe takes it at once.
pub fn talk(text: &str) {
    clear_status();
    send(&plain(text));
}

/// Flushes standard output, and keeps a failure for [`finish`].
pub fn flush() {
    printed(io::stdout().flush());
}

/// Shows a status line at the bottom of a terminal. The line replaces the last one; the next message replaces the line.
///
/// The line is cut to the current width of the terminal: if it wrapped, only its last row would be replaced.
pub fn show_status(line: &str) {
    let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
    send(&format!("\r{}\x1b[K", cut(&plain(line), columns.into())));
    HAS_STATUS.store(true, Ordering::Release);
}

/// Cuts a line to one character less than `columns`, because the cursor needs a column. If `columns` is 0, the width is
/// unknown.
fn cut(line: &str, columns: usize) -> &str {
    let limit = if columns == 0 { usize::MAX } else { columns - 1 };
    line.char_indices().nth(limit).map_or(line, |(end, _)| &line[..end])
}

/// Clears the line that [`show_status`] has shown.
pub fn clear_status() {
    if HAS_STATUS.swap(false, Ordering::AcqRel) {
        send("\r\x1b[K");
    }
}

/// Begins a new line after the `^C` that a terminal shows for Ctrl-C. Otherwise, the next message would follow it on
/// the same line. A status line is replaced anyway.
pub fn end_line_of_ctrl_c() {
    let is_free = || has_room(&io::stderr(), Duration::ZERO).unwrap_or(false);
    if io::stderr().is_terminal() && !HAS_STATUS.load(Ordering::Acquire) && is_free() {
        send("\n");
    }
}

/// The terminal has a status line at its bottom.
static HAS_STATUS: AtomicBool = AtomicBool::new(false);

fn send(text: &str) {
    static STALLED: AtomicBool = AtomicBool::new(false);
    for piece in text.as_bytes().chunks(PIECE_BYTES) {
        let stalled = STALLED.load(Ordering::Relaxed);
        let limit = if stalled { Duration::ZERO } else { Duration::from_secs(1) };
        if !has_room(&io::stderr(), limit).unwrap_or(true) {
            STALLED.store(true, Ordering::Relaxed);
            return;
        }
        let _ = io::stderr().write_all(piece);
    }
}

/// Prints like the standard macro, but keeps failures for [`finish`].
macro_rules! print {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        $crate::out::printed(::std::write!(::std::io::stdout(), $($text)*));
    }};
}

/// Prints like the standard macro, but keeps failures for [`finish`].
macro_rules! println {
    () => { print!("\n") };
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        $crate::out::printed(::std::writeln!(::std::io::stdout(), $($text)*));
    }};
}

/// Prints like the standard macro, but discards output that nobody takes.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::out::talk(&::std::format!($($text)*)) };
}

/// Prints like the standard macro, but discards output that nobody takes.
macro_rules! eprintln {
    ($($text:tt)*) => { eprint!("{}\n", ::std::format_args!($($text)*)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_by_a_name() {
        let name = "eth\x1b]0;mine\x07\u{9b}2J\r\u{7f}é";
        assert_eq!(plain(name), r"eth\u{1b}]0;mine\u{7}\u{9b}2J\r\u{7f}é");
        assert_eq!(plain("a line\n\tand another\n"), "a line\n\tand another\n");
    }

    #[test]
    fn a_status_line_leaves_the_last_column_free() {
        for (columns, shown) in
            [(0, "aé€d"), (1, ""), (3, "aé"), (4, "aé€"), (5, "aé€d"), (80, "aé€d")]
        {
            assert_eq!(cut("aé€d", columns), shown, "{columns}");
        }
    }
}
