//! A prefilter in the kernel: frames that no feed wants do not come to user space.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Filters, Template};
use crate::feed::Feed;

/// A program that rejects frames that no feed's filter takes.
pub(crate) struct Sieve {
    template: Template,
    /// The program without filters. It takes every frame.
    plain: OwnedFd,
    /// The program with the feeds' filters, if the kernel accepted it.
    chosen: Option<OwnedFd>,
}

impl Sieve {
    /// Creates a prefilter. `plain`: the program of the template without filters.
    pub(crate) fn new(template: Template, plain: OwnedFd) -> Sieve {
        Sieve { template, plain, chosen: None }
    }

    /// Loads the program for these feeds, and lets `put` attach it. Returns true if it takes exactly the
    /// frames that the only feed wants. If it cannot be attached (a socket has little memory for programs),
    /// the program that takes every frame is attached instead; if that fails too, the old one stays.
    pub(crate) fn choose(
        &mut self,
        feeds: &[Feed],
        put: impl Fn(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let is_worth_it = feeds.iter().all(|feed| feed.filter.is_some());
        let filters = is_worth_it.then(|| Filters::of(self.template.target(), feeds)).flatten();
        let program = filters.and_then(|filters| self.template.with(&filters).ok());
        if let Some(program) = program.filter(|program| put(program.as_fd()).is_ok()) {
            self.chosen = Some(program);
            return Ok(feeds.len() == 1);
        }
        put(self.plain.as_fd())?;
        self.chosen = None;
        Ok(false)
    }

    /// Returns the program to attach.
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.chosen.as_ref().unwrap_or(&self.plain).as_fd()
    }
}
