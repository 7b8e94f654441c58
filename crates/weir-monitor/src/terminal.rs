//! The live table in a terminal.
//!
//! [`run`] shows the latest view until the run is over or the user ends it. Keys change only the display, except those
//! that end the run.
//!
//! | module | contents |
//! |---|---|
//! | `state`, `keys` | the user's choices for the display, and the keys for them |
//! | `rows`, `search`, `sort` | which rows a pane has, in which order, and which one is selected |
//! | `draw`, `header`, `panes`, `grid`, `layout` | the screen |
//! | `ledger`, `detail`, `help`, `text`, `history`, `look` | texts, figures and colours |
//! | `screen` | set-up of the terminal, and its restoration in all cases |

mod detail;
mod draw;
mod grid;
mod header;
mod help;
mod history;
mod keys;
mod layout;
mod ledger;
mod look;
mod panes;
mod rows;
#[cfg(test)]
mod samples;
mod screen;
mod search;
mod sort;
mod state;
#[cfg(test)]
mod tests;
mod text;

use std::fs::File;
use std::io::{self, IsTerminal, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::Latest;
use screen::Screen;

pub use draw::draw;
pub use keys::Outcome;
pub use look::Look;
pub use state::State;

/// Without key presses, a new view is shown after at most this time.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Returns whether [`run`] can be used: standard output is a terminal that can move its cursor, and keys can be read.
#[must_use]
pub fn is_possible() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stdout().is_terminal() && !is_dumb && input().is_ok()
}

/// Shows the latest view on the terminal's alternate screen until the run is over ([`Latest::end`]), or the user
/// presses `q` or Ctrl-C. In the latter case it calls `stop` once and returns. Keys come from standard input, or from
/// `/dev/tty` if standard input is no terminal.
///
/// The terminal is restored on return, on error, and before the message of a panic of any thread. Nothing else may
/// write to it meanwhile.
///
/// # Errors
/// The terminal cannot be read, written, or set to raw mode; it has hung up; or another thread has panicked. In these
/// cases `stop` was not called, so the run continues.
pub fn run(latest: &Latest, stop: impl Fn()) -> io::Result<()> {
    let input = input()?;
    let mut screen = Screen::enter()?;
    let mut state = State::new(Look::of_environment());
    let mut view = latest.get();
    let mut newest = Arc::clone(&view);
    state.advance(&view);
    let mut is_changed = true;
    while !latest.is_over() {
        if screen.has_panicked() {
            return Err(io::Error::other("a thread has panicked"));
        }
        if newest.number != latest.get().number {
            newest = latest.get();
            state.remember(&newest);
        }
        if !state.is_paused() && view.number != newest.number {
            view = Arc::clone(&newest);
            state.advance(&view);
            is_changed = true;
        }
        if is_changed {
            state.resize(screen.terminal.size()?.height);
            screen.terminal.draw(|frame| draw(frame, &state, &view))?;
            is_changed = false;
        }
        wait(&input)?;
        while event::poll(Duration::ZERO)? {
            is_changed = true;
            let Event::Key(key) = event::read()? else { continue };
            match state.press(key, &view) {
                Outcome::Draw => {}
                Outcome::Redraw => screen.clear()?,
                Outcome::Quit => {
                    stop();
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Returns the descriptor from which crossterm reads keys.
fn input() -> io::Result<OwnedFd> {
    if stdin().is_terminal() {
        return stdin().as_fd().try_clone_to_owned();
    }
    Ok(File::open("/dev/tty")?.into())
}

/// Waits for a key, at most one tick. Fails if the terminal has hung up.
///
/// crossterm (0.29) must not read a terminal that has hung up: it would loop forever at full load
/// (`event/source/unix/mio.rs`: neither end of file nor an error ends its loop).
fn wait(input: &OwnedFd) -> io::Result<()> {
    let mut fds = [PollFd::new(input, PollFlags::IN)];
    match poll(&mut fds, Some(&TICK)) {
        // The signal may be SIGWINCH: the size of the terminal has changed.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal has hung up"));
    }
    Ok(())
}
