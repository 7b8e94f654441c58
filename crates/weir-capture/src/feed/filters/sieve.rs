//! Before user space chooses for each feed: what none of them wants does not get there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Filters, Template};
use crate::feed::Feed;

/// A program that leaves out what no feed's filter takes.
pub(crate) struct Sieve {
    template: Template,
    /// It takes everything.
    plain: OwnedFd,
    /// It takes what the feeds want, if the kernel can tell.
    chosen: Option<OwnedFd>,
}

impl Sieve {
    /// `plain`: the program of the template as it is without filters.
    pub(crate) fn new(template: Template, plain: OwnedFd) -> Sieve {
        Sieve { template, plain, chosen: None }
    }

    /// Makes the program for these feeds and has `put` put it where it runs. True if it takes just what the only one of
    /// them wants. If it is not taken there (a socket has little memory for programs), the one that takes everything is
    /// put there; if that is refused as well, the old one stays.
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

    /// The program to run.
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.chosen.as_ref().unwrap_or(&self.plain).as_fd()
    }
}
