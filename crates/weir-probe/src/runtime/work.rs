//! Carries out the effects that the core requests. A thread that waits for the reply to a command carries out effects
//! while it waits; the housekeeper's thread carries out effects at any time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};

use weir_capture::CaptureError;

use super::{Shared, SourceSpec, State};
use crate::core::{Command, Completion, Effect, Event, Note, Output, Reply, SourceId};
use crate::error::ProbeError;
use crate::limits::ENDED_SOURCES_MAX;
use crate::wants::Wants;

impl Shared {
    /// Locks the state. A poisoned lock is ignored: the state is consistent after every step, so also after a panic.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a command to the core, and carries out effects until its reply is there. `spec`: the source that the
    /// command opens, if it opens one.
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

    /// Carries out one effect; if there is none, waits until an effect or a reply has come.
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
            // Without a completion the source of this effect would never end, and `Probe::stop` would wait forever.
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
    /// Removes the `Info` of sources that have ended, except that of the `kept` sources that were opened last.
    fn forget_infos(&mut self, kept: usize) {
        let ended = self.infos.keys().filter(|source| !self.specs.contains_key(source));
        let ended: Vec<SourceId> = ended.copied().collect();
        for oldest in &ended[..ended.len().saturating_sub(kept)] {
            self.infos.remove(oldest);
        }
    }

    /// Takes the outputs of the core. `spec`: the source that the command opens, if it opens one.
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
                            self.forget_infos(ENDED_SOURCES_MAX);
                        }
                        _ => {}
                    }
                    (self.listener)(event);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Probe;
    use weir_capture::Setup;
    use weir_capture::generator::{GenSpec, MemGen};

    #[test]
    fn of_sources_that_have_ended_the_latest_are_known_and_those_that_are_there() {
        let (probe, _events) = Probe::new().unwrap();
        let open = || {
            let spec = SourceSpec::new("gen:", |feeds| {
                let setup =
                    Setup { feeds, ring_bytes: 4 << 20, promiscuous: false, ..Setup::default() };
                Ok(Box::new(MemGen::open(GenSpec::default(), setup, false)?))
            });
            probe.open(spec, vec![Wants::default()]).unwrap().0
        };
        let sources: Vec<SourceId> = (0..4).map(|_| open()).collect();
        sources[1..].iter().for_each(|&source| probe.close(source).unwrap());
        let known = || sources.iter().map(|&source| probe.info_of(source).is_some());
        assert!(known().all(|is_known| is_known));
        probe.shared.lock().forget_infos(2);
        assert_eq!(known().collect::<Vec<_>>(), [true, false, true, true]);
    }
}
