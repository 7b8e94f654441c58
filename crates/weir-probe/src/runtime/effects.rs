//! Carries out the effects of the core.

use std::error::Error;
use std::io;
use std::sync::Arc;

use weir_capture::interface::InterfaceQuery;
use weir_capture::kernel::netns::ask_in;
use weir_capture::{CaptureError, Change, FilterLocation};
use weir_capture::{FeedControl, FeedSlot};

use super::Shared;
use super::source_thread::SourceThread;
use crate::core::{Completion, ConsumerId, Effect, FeedId, SourceId};
use crate::wants::Wants;

type Done = Completion<CaptureError>;

/// `ENODEV`. Source: asm-generic/errno-base.h.
const NO_DEVICE: i32 = 19;

impl Shared {
    /// Carries out an effect on the calling thread.
    pub(super) fn carry_out(self: &Arc<Self>, effect: Effect<Wants>) -> Done {
        let source = effect.source();
        let may_miss = matches!(effect, Effect::OpenSource(..) | Effect::StartSource(_));
        let done = match effect {
            Effect::OpenSource(source, feeds) => self.open(source, feeds),
            Effect::StartSource(source) => self.start(source),
            Effect::CloseSource(source) => self.close(source),
            Effect::AddFeed(source, feed, wants) => self.add(source, feed, wants),
            Effect::RemoveFeed(source, feed) => {
                self.of(source, feed).and_then(|(control, slot)| {
                    Ok(Completion::Ledgers(vec![(feed, control.remove(slot)?)]))
                })
            }
            Effect::ChangeFeed(source, feed, change) => self.change(source, feed, change),
            Effect::RenewFeed { source, old, new, .. } => self.renew(source, old, new),
            Effect::AttachWaker(source, feed, consumer) => self.attach(source, feed, consumer),
            Effect::DetachWaker(source, feed, consumer) => self.detach(source, feed, consumer),
            Effect::ReadLedger(source, feed) => {
                self.of(source, feed).and_then(|(control, slot)| {
                    Ok(Completion::Ledgers(vec![(feed, control.ledger(slot)?)]))
                })
            }
        };
        done.unwrap_or_else(|error| match may_miss && self.is_missing(source, &error) {
            true => Completion::Missing(error),
            false => Completion::Failed(error),
        })
    }

    /// Tells whether a source could not be opened or started because its interface is missing or down. The interface
    /// may have vanished at any step: then the kernel refuses the next step with `ENODEV` or another error.
    fn is_missing(&self, source: SourceId, error: &CaptureError) -> bool {
        if says_missing(error) {
            return true;
        }
        let spec = self.lock().specs.get(&source).cloned();
        let Some(link) = spec.filter(|spec| spec.follows).and_then(|spec| spec.link.clone()) else {
            return false;
        };
        let find = || match &link.iface {
            Some(iface) => InterfaceQuery::new()?.find(iface).map(drop),
            None => Ok(()),
        };
        let found = ask_in(link.netns.as_ref(), find).and_then(|found| found);
        has_no_device(error) || found.is_err_and(|error| says_missing(&error))
    }

    fn open(
        self: &Arc<Self>,
        source: SourceId,
        feeds: Vec<(FeedId, Wants)>,
    ) -> Result<Done, CaptureError> {
        let spec = self.lock().specs.get(&source).cloned().ok_or(CaptureError::Ended)?;
        let wanted = feeds.iter().map(|(_, wants)| wants.feed.clone()).collect();
        // The thread has only a weak reference, so that dropping the probe frees it, even if the thread still runs.
        let shared = Arc::downgrade(self);
        let note = move |note| _ = shared.upgrade().map(|shared| shared.note(source, note));
        let (thread, info, handles) = SourceThread::open(&spec, wanted, note)?;
        for (handle, (_, wants)) in handles.iter().zip(&feeds) {
            if let Err(error) = block(thread.control.as_ref(), handle.slot, wants) {
                let _ = thread.close(|_, _| ());
                return Err(error);
            }
        }
        let mut state = self.lock();
        state.registry.opened(source);
        for (handle, (feed, _)) in handles.into_iter().zip(feeds) {
            state.registry.add_feed(source, feed, handle);
        }
        state.infos.insert(source, info);
        state.threads.insert(source, thread);
        Ok(Completion::Done)
    }

    fn start(&self, source: SourceId) -> Result<Done, CaptureError> {
        // No other thread removes it: a source has only one effect under way.
        let thread = self.lock().threads.remove(&source).ok_or(CaptureError::Ended)?;
        let started = thread.start();
        let mut state = self.lock();
        let done = started.map(|info| {
            state.infos.insert(source, info);
            Completion::Done
        });
        state.threads.insert(source, thread);
        done
    }

    fn close(&self, source: SourceId) -> Result<Done, CaptureError> {
        let mut state = self.lock();
        let thread = state.threads.remove(&source).ok_or(CaptureError::Ended)?;
        let feeds = state.registry.feeds_of(source);
        drop(state);
        let ended_at = |feed, until: Option<Vec<u64>>| {
            let Some(until) = until else { return };
            let mut state = self.lock();
            for (reader, gone) in state.registry.ended_at(feed, &until) {
                state.let_go(reader, gone);
            }
        };
        let control = Arc::clone(&thread.control);
        let ((ledgers, error), panic) = thread.close(|info, stopped| {
            self.lock().infos.extend(info.map(|info| (source, info)));
            let mut error = stopped.err();
            let mut ledgers = Vec::new();
            for (feed, slot) in feeds {
                self.tell_interfaces(source, feed, control.interfaces(slot));
                ended_at(feed, control.ends(slot));
                match control.ledger(slot) {
                    Ok(ledger) => ledgers.push((feed, ledger)),
                    Err(unread) => error = error.take().or(Some(unread)),
                }
            }
            (ledgers, error)
        });
        if panic.is_some() {
            self.lock().panic = panic;
        }
        Ok(Completion::Closed(ledgers, error))
    }

    fn add(&self, source: SourceId, feed: FeedId, wants: Wants) -> Result<Done, CaptureError> {
        let control = self.control(source)?;
        let handle = self.near(source, || control.add(wants.feed.clone()))?;
        if let Err(error) = block(control.as_ref(), handle.slot, &wants) {
            control.remove(handle.slot)?;
            return Err(error);
        }
        self.lock().registry.add_feed(source, feed, handle);
        Ok(Completion::Done)
    }

    fn change(&self, source: SourceId, id: FeedId, change: Change) -> Result<Done, CaptureError> {
        let (control, slot) = self.of(source, id)?;
        let location: FilterLocation = control.change(slot, change)?;
        self.lock().registry.set_location(id, location);
        Ok(Completion::Done)
    }

    fn renew(&self, source: SourceId, old: FeedId, new: FeedId) -> Result<Done, CaptureError> {
        let (control, slot) = self.of(source, old)?;
        let (handle, ledger) = self.near(source, || control.replace_rings(slot))?;
        self.lock().registry.add_feed(source, new, handle);
        Ok(Completion::Ledgers(vec![(old, ledger)]))
    }

    fn attach(
        &self,
        source: SourceId,
        id: FeedId,
        consumer: ConsumerId,
    ) -> Result<Done, CaptureError> {
        let (control, slot) = self.of(source, id)?;
        let (waker, attaching) = self.lock().registry.attach(consumer, id)?;
        let attached = control.attach(slot, waker, attaching.first_line);
        let mut state = self.lock();
        match attached {
            Ok(slot) => {
                state.registry.attached(consumer, id, attaching, slot);
                Ok(Completion::Done)
            }
            Err(error) => {
                state.registry.not_attached(consumer, &attaching);
                Err(error)
            }
        }
    }

    fn detach(
        &self,
        source: SourceId,
        id: FeedId,
        consumer: ConsumerId,
    ) -> Result<Done, CaptureError> {
        let (control, slot) = self.of(source, id)?;
        let waker = self.lock().registry.waker_of(consumer, id);
        if let Some(waker) = waker {
            control.detach(slot, waker);
        }
        self.lock().registry.forget_waker(consumer, id);
        Ok(Completion::Done)
    }

    /// Creates rings on the CPUs of the source's threads, so that the memory is on their NUMA node.
    fn near<T: Send>(
        &self,
        source: SourceId,
        make: impl FnOnce() -> Result<T, CaptureError> + Send,
    ) -> Result<T, CaptureError> {
        let cpus = self.lock().specs.get(&source).and_then(|spec| spec.cpus.clone());
        let Some(cpus) = cpus else { return make() };
        let failed = CaptureError::os(format!("starting on the CPUs {cpus}"));
        cpus.run(make).map_err(failed)?
    }

    fn control(&self, source: SourceId) -> Result<Arc<dyn FeedControl>, CaptureError> {
        let state = self.lock();
        Ok(Arc::clone(&state.threads.get(&source).ok_or(CaptureError::Ended)?.control))
    }

    fn of(
        &self,
        source: SourceId,
        id: FeedId,
    ) -> Result<(Arc<dyn FeedControl>, FeedSlot), CaptureError> {
        let control = self.control(source)?;
        let slot = self.lock().registry.feed(id).ok_or(CaptureError::Ended)?.slot;
        Ok((control, slot))
    }
}

fn says_missing(error: &CaptureError) -> bool {
    use CaptureError::{
        DaemonBusy, DaemonRefuses, InterfaceDown, NoDaemon, NoInterface, NoNetns, NoOwner, Vanished,
    };
    matches!(
        error,
        NoInterface { .. }
            | NoNetns { .. }
            | NoOwner { .. }
            | InterfaceDown { .. }
            | Vanished { .. }
            | NoDaemon { .. }
            | DaemonRefuses { .. }
            | DaemonBusy { .. }
    )
}

/// Tells whether the kernel's error `ENODEV` is among the causes of this error.
fn has_no_device(error: &CaptureError) -> bool {
    let mut below: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = below {
        let os = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if os == Some(NO_DEVICE) {
            return true;
        }
        below = error.source();
    }
    false
}

/// Sets the block list of a new feed.
fn block(control: &dyn FeedControl, slot: FeedSlot, wants: &Wants) -> Result<(), CaptureError> {
    if wants.blocked.is_empty() {
        return Ok(());
    }
    let add = wants.blocked.iter().copied().collect();
    control.change(slot, Change::Block { remove: Vec::new(), add }).map(drop)
}
