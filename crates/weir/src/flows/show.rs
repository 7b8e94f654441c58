//! Displays of running flows: the live table and the web page.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_monitor::page::Page;
use weir_monitor::{Latest, Maker, terminal};

use super::watch::Watch;
use crate::cli::ShowArgs;

/// The longest single wait for the first view.
const LOOK: Duration = Duration::from_millis(200);

/// The running displays. Dropping it ends them, and restores the terminal.
pub struct Show {
    /// Dropped before the other fields, which tells the displays that the run is over.
    maker: Option<Maker>,
    _page: Option<Page>,
    screen: Option<JoinHandle<io::Result<()>>>,
}

impl Show {
    /// Starts the requested displays, and returns them with the run's channel to them; `None` without displays.
    /// `is_screens`: the live table may be shown, because the run prints nothing on standard output and lasts long
    /// enough.
    pub fn start(
        args: &ShowArgs,
        is_screens: bool,
        stop: &Arc<AtomicBool>,
    ) -> Result<Option<(Show, Watch)>> {
        let has_screen = is_screens && !args.plain && terminal::is_possible();
        if !has_screen && args.http.is_none() {
            return Ok(None);
        }
        let latest = Latest::default();
        let page = match args.http {
            Some(address) => {
                let page = Page::serve(address, latest.clone())?;
                eprintln!("weir: http://{}/", page.address());
                Some(page)
            }
            None => None,
        };
        let (maker, reporter) = Maker::start(latest.clone()).context("starting a thread")?;
        let watch = Watch::new(maker.sources(), reporter, has_screen);
        let screen = if has_screen {
            Some(screen(latest, Arc::clone(stop)).context("starting a thread")?)
        } else {
            None
        };
        Ok(Some((Show { maker: Some(maker), _page: page, screen }, watch)))
    }
}

/// Starts a thread that shows the live table once there is a view. Until then, the terminal stays unchanged for errors
/// of opening sources.
fn screen(latest: Latest, stop: Arc<AtomicBool>) -> io::Result<JoinHandle<io::Result<()>>> {
    let main = thread::current();
    let quit = move || {
        stop.store(true, Ordering::Release);
        main.unpark();
    };
    thread::Builder::new().name("weir-screen".into()).spawn(move || {
        while latest.wait(0, LOOK).is_some_and(|view| view.number == 0) {}
        if latest.is_over() {
            return Ok(());
        }
        terminal::run(&latest, quit)
    })
}

impl Drop for Show {
    fn drop(&mut self) {
        self.maker = None;
        // If the thread has panicked, the panic was already reported.
        if let Some(Ok(Err(error))) = self.screen.take().map(JoinHandle::join) {
            eprintln!("weir: the live table cannot be drawn: {error}; --plain goes without it");
        }
    }
}
