//! The terminal, as the live table needs it and as it was before.

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

/// A terminal in raw mode, on its alternate screen. Dropped, it is as it was before.
///
/// So it is, too, before a thread that panics says so: on the alternate screen nobody would read that.
pub struct Screen {
    /// For drawing. Never dropped: on a terminal that has hung up its `Drop` prints an error, which panics there.
    pub terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    has_panicked: Arc<AtomicBool>,
    hook: Arc<Hook>,
}

impl Screen {
    /// Takes the terminal of standard output.
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

    /// Forgets the contents of the screen, so that all of it is drawn. `Terminal::clear` would ask the terminal
    /// where its cursor is, and not every one answers.
    pub fn clear(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }

    /// Whether a thread of this process has panicked. The terminal is restored then.
    pub fn has_panicked(&self) -> bool {
        self.has_panicked.load(SeqCst)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if !self.has_panicked() {
            restore();
        }
        // Not allowed while this thread unwinds; the hook does no harm then.
        if !thread::panicking() {
            set_hook(Arc::clone(&self.hook));
        }
    }
}

fn set_hook(hook: Arc<Hook>) {
    panic::set_hook(Box::new(move |info| hook(info)));
}

/// Each step whether or not another one fails: there is nobody to tell.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}
