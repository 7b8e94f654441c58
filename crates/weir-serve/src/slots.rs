//! Sources by name. A source is open while it is read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_probe::{Probe, ProbeError, SourceId, SourceSpec, SubscriptionId, Wants};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sources by name. Opening and closing a source takes some time, and delays only requests for the same source.
#[derive(Default)]
pub struct Slots(Mutex<BTreeMap<String, Slot>>);

type Slot = Arc<Mutex<Option<Open>>>;

struct Open {
    source: SourceId,
    subscriptions: usize,
}

/// A subscription, which must be [closed](Slots::close).
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub source: SourceId,
    pub subscription: SubscriptionId,
    /// Whether the source was opened for this subscription, and must be started once a consumer is attached.
    pub is_first: bool,
}

impl Slots {
    fn slot(&self, name: &str) -> Slot {
        let mut all = lock(&self.0);
        Arc::clone(all.entry(name.to_owned()).or_default())
    }

    /// Returns the id of the source with this name, if it is open.
    pub fn source(&self, name: &str) -> Option<SourceId> {
        lock(&self.slot(name)).as_ref().map(|open| open.source)
    }

    /// Subscribes to the source with this name, which is opened if necessary. `attach` attaches the subscription's
    /// first consumer. Then the source is started.
    ///
    /// # Errors
    /// The error of the engine or of `attach`; nothing has changed then.
    pub fn open<T, E: From<ProbeError>>(
        &self,
        name: &str,
        probe: &Probe,
        spec: impl FnOnce() -> SourceSpec,
        wants: Wants,
        attach: impl FnOnce(Claim) -> Result<T, E>,
    ) -> Result<(Claim, T), E> {
        let slot = self.slot(name);
        let mut slot = lock(&slot);
        let claim = match Slots::subscribe(&mut slot, probe, wants.clone())? {
            Some(claim) => claim,
            None => {
                let (source, own) = probe.open(spec(), vec![wants])?;
                *slot = Some(Open { source, subscriptions: 1 });
                Claim { source, subscription: own[0], is_first: true }
            }
        };
        let attached = attach(claim).and_then(|attached| {
            if claim.is_first {
                probe.start(claim.source)?;
            }
            Ok(attached)
        });
        match attached {
            Ok(attached) => Ok((claim, attached)),
            Err(error) => {
                Slots::leave(&mut slot, probe, claim);
                Err(error)
            }
        }
    }

    /// Subscribes to the source if it is open; else returns `None`.
    fn subscribe(
        slot: &mut Option<Open>,
        probe: &Probe,
        wants: Wants,
    ) -> Result<Option<Claim>, ProbeError> {
        let Some(open) = slot else { return Ok(None) };
        match probe.subscribe(open.source, wants) {
            Ok(subscription) => {
                open.subscriptions += 1;
                Ok(Some(Claim { source: open.source, subscription, is_first: false }))
            }
            // The source has ended in the meantime.
            Err(ProbeError::Unknown | ProbeError::Ended) => {
                *slot = None;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a subscription. The source is closed together with its last subscription.
    pub fn close(&self, name: &str, probe: &Probe, claim: Claim) {
        Slots::leave(&mut lock(&self.slot(name)), probe, claim);
    }

    fn leave(slot: &mut Option<Open>, probe: &Probe, claim: Claim) {
        // The source may have ended, and may have been opened again.
        let own = slot.as_mut().filter(|open| open.source == claim.source);
        // Without `own`, or after an error of the calls below, this source has ended in the meantime.
        let Some(open) = own else { return };
        open.subscriptions -= 1;
        if open.subscriptions == 0 {
            let _ = probe.close(claim.source);
            *slot = None;
        } else {
            let _ = probe.unsubscribe(claim.subscription);
        }
    }
}
