//! Sets up the terminal for the live table, and restores it.

use std::io::{self, Stdout, stdout};
use std::mem::ManuallyDrop;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

type Hook = Box<dyn Fn(&panic::PanicHookInfo<'_>) + Sync + Send>;

/// A terminal in raw mode, on its alternate screen. Dropping this value restores the terminal.
///
/// A panic restores it before its message is printed, which would be lost on the alternate screen.
pub struct Screen {
    /// The terminal for drawing. Never dropped: if the terminal has hung up, its `Drop` prints an error, and that
    /// panics.
    pub terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    has_panicked: Arc<AtomicBool>,
    hook: Arc<Hook>,
}

impl Screen {
    /// Sets up the terminal that is standard output.
    pub fn enter() -> io::Result<Screen> {
        let has_panicked = Arc::new(AtomicBool::new(false));
        let hook = Arc::new(panic::take_hook());
        let (mark, old) = (Arc::clone(&has_panicked), Arc::clone(&hook));
        panic::set_hook(Box::new(move |info| {
            if !mark.swap(true, SeqCst) {
                restore();
            }
            old(info);
        }));
        let terminal = Terminal::new(CrosstermBackend::new(stdout())).and_then(|terminal| {
            enable_raw_mode()?;
            execute!(stdout(), EnterAlternateScreen)?;
            Ok(terminal)
        });
        match terminal {
            Ok(terminal) => {
                Ok(Screen { terminal: ManuallyDrop::new(terminal), has_panicked, hook })
            }
            Err(error) => {
                restore();
                set_hook(hook);
                Err(error)
            }
        }
    }

    /// Forgets the contents of the screen, so that the next drawing is complete. `Terminal::clear` would ask the
    /// terminal for the place of its cursor, and some terminals do not answer.
    pub fn clear(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }

    /// Returns whether a thread of this process has panicked. The terminal is restored in that case.
    pub fn has_panicked(&self) -> bool {
        self.has_panicked.load(SeqCst)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if !self.has_panicked() {
            restore();
        }
        // A thread that unwinds cannot set the former hook. Our hook then stays, which does no harm.
        if !thread::panicking() {
            set_hook(Arc::clone(&self.hook));
        }
    }
}

fn set_hook(hook: Arc<Hook>) {
    panic::set_hook(Box::new(move |info| hook(info)));
}

/// Restores the terminal. Every step is tried, even if another one fails, because errors could not be shown.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}
