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
    pub(crate) fn new(template: Template, plain: BorrowedFd<'_>) -> io::Result<Sieve> {
        Ok(Sieve { template, plain: plain.try_clone_to_owned()?, chosen: None })
    }

    /// Makes the program for these feeds. True if it takes just what the only one of them wants.
    pub(crate) fn choose(&mut self, feeds: &[Feed]) -> bool {
        let is_worth_it = feeds.iter().all(|feed| feed.filter.is_some());
        let filters = is_worth_it.then(|| Filters::of(self.template.target(), feeds)).flatten();
        self.chosen = filters.and_then(|filters| self.template.with(&filters).ok());
        self.chosen.is_some() && feeds.len() == 1
    }

    /// The program to run.
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.chosen.as_ref().unwrap_or(&self.plain).as_fd()
    }
}
