//! Whoever gives a command carries effects out while it waits; the housekeeper, those that nobody waits for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};

use weir_capture::CaptureError;

use super::{Shared, SourceSpec, State};
use crate::core::{Command, Completion, Effect, Event, Note, Output, Reply, SourceId};
use crate::error::ProbeError;
use crate::wants::Wants;

impl Shared {
    /// Every step leaves the state whole, so what a panicking thread leaves is as good as any.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a command, and carries effects out until it is answered.
    pub(super) fn ask(
        self: &Arc<Self>,
        command: Command<Wants>,
        spec: Option<Arc<SourceSpec>>,
    ) -> Result<Reply, ProbeError> {
        let mut state = self.lock();
        let id = state.core.command(command);
        state.awaited.insert(id);
        state.take_outputs(spec);
        self.changed.notify_all();
        loop {
            if let Some(result) = state.replies.remove(&id) {
                return Ok(result?);
            }
            state = self.work_or_wait(state);
        }
    }

    pub(super) fn keep_house(self: &Arc<Self>) {
        let mut state = self.lock();
        while !state.is_over {
            state = self.work_or_wait(state);
        }
    }

    /// Carries one effect out; waits where there is none.
    fn work_or_wait<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        let Some((id, effect)) = state.work.pop_front() else {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let completion = catch_unwind(AssertUnwindSafe(|| self.carry_out(effect)));
        let mut state = self.lock();
        let completion = completion.unwrap_or_else(|panic| {
            // Without an answer its source would never end, and a stop would wait for ever.
            state.panic.get_or_insert(panic);
            Completion::Failed(CaptureError::Ended)
        });
        state.core.complete(id, completion);
        state.take_outputs(None);
        self.changed.notify_all();
        state
    }

    pub(super) fn note(&self, source: SourceId, note: Note<CaptureError>) {
        let mut state = self.lock();
        state.core.note(source, note);
        state.take_outputs(None);
        self.changed.notify_all();
    }
}

impl State {
    /// Takes what the core says. `spec` is of the source that a command opens.
    fn take_outputs(&mut self, mut spec: Option<Arc<SourceSpec>>) {
        while let Some(output) = self.core.output() {
            match output {
                Output::Effect(id, effect) => {
                    if let Effect::OpenSource(source, _) = &effect
                        && let Some(spec) = spec.take()
                    {
                        self.specs.insert(*source, spec);
                    }
                    self.work.push_back((id, effect));
                }
                Output::Reply(id, result) => {
                    if self.awaited.remove(&id) {
                        self.replies.insert(id, result);
                    }
                }
                Output::Joined(consumer, feed) => self.joined(consumer, feed),
                Output::Left(consumer, feed) => self.left(consumer, feed),
                Output::Event(event) => {
                    match &event {
                        Event::FeedClosed(_, feed, _) => self.registry.forget_feed(*feed),
                        Event::Closed(source) => {
                            self.specs.remove(source);
                            self.registry.closed(*source);
                        }
                        _ => {}
                    }
                    (self.listener)(event);
                }
            }
        }
    }
}
