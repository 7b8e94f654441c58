//! The public interface of the table.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use weir_capture::kernel::rcu;
use weir_flow::{Counters, EndReason, FlowRecord, NotFlows};

use crate::clock::to_epoch_ns;
use crate::config::KernelConfig;
use crate::counters::KernelCounters;
use crate::error::KernelFlowError;
use crate::layout::{BUCKET_SLOTS, Bucket, COUNTS_WORDS, RECORD_WORDS, Slot, TAIL_WORDS, counts};
use crate::limits::{IDLE_LOOK_EVERY, IDLE_MARGIN};
use crate::programs::{Memory, Programs, attach};
use crate::records::drain;
use crate::reported::{New, Reported};
use crate::ticks::Ticks;

/// Flows of the frames of some interfaces, counted in the kernel until the table is dropped or
/// [finished](Self::finish).
pub struct KernelTable {
    config: KernelConfig,
    ticks: Ticks,
    /// `None`: the programs are detached, and none is running.
    programs: Option<Programs>,
    memory: Memory,
    reported: Reported,
    /// Time of the last search for idle flows.
    looked_ns: u64,
}

impl KernelTable {
    /// Counts the frames of an interface of the calling thread's network namespace from now on.
    ///
    /// # Errors
    /// [`KernelFlowError`]: a configuration outside the limits; no such interface, or one that is down or has no
    /// Ethernet header; another program at XDP; no rights (CAP_BPF, CAP_NET_ADMIN); no memory.
    pub fn open(iface: &str, config: KernelConfig) -> Result<KernelTable, KernelFlowError> {
        KernelTable::open_all(&[iface], config)
    }

    /// Counts the frames of several interfaces, which [`FlowRecord::interface`] numbers in the order of `ifaces`.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`KernelFlowError::Interfaces`] for none or too many.
    pub fn open_all(ifaces: &[&str], config: KernelConfig) -> Result<KernelTable, KernelFlowError> {
        config.check(ifaces.len())?;
        let ticks = Ticks::of(&config.flow);
        rcu::prepare();
        let (programs, memory) = attach(ifaces, &config, &ticks)?;
        Ok(KernelTable::of(config, ticks, programs, memory))
    }

    pub(crate) fn of(
        config: KernelConfig,
        ticks: Ticks,
        programs: Programs,
        memory: Memory,
    ) -> KernelTable {
        let reported = Reported::new(memory.slots());
        KernelTable { config, ticks, programs: Some(programs), memory, reported, looked_ns: 0 }
    }

    /// Returns the configuration of the table.
    #[must_use]
    pub fn config(&self) -> &KernelConfig {
        &self.config
    }

    /// Returns the number of flows that fit: `flows_max` for each possible CPU, rounded up to whole buckets.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.memory.slots() as u64
    }

    /// Returns the memory of the table in bytes: all of it in the kernel, and the most that this process uses.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let records = self.memory.records.words().len();
        let words = self.memory.table.words().len()
            + records
            + self.memory.cpus * (COUNTS_WORDS + TAIL_WORDS);
        words as u64 * 8 + self.capacity() * 24
    }

    /// Calls `ended` with the flows that have ended: those that programs recorded since the last call, and, once in
    /// [`IDLE_LOOK_EVERY`], those that are idle at `now_ns` ([`crate::now_ns`]). Call this function every 100 ms or
    /// so, and more often where many flows end: see [`KernelConfig::records_max`].
    pub fn poll(&mut self, now_ns: u64, ended: &mut impl FnMut(FlowRecord)) {
        let to_epoch_ns = to_epoch_ns();
        self.take_records(to_epoch_ns, ended);
        let is_time = now_ns.saturating_sub(self.looked_ns) >= IDLE_LOOK_EVERY.as_nanos() as u64;
        if self.config.flow.idle_timeout.is_none() || !is_time {
            return;
        }
        self.looked_ns = now_ns;
        let (now, ticks) = ((now_ns >> self.ticks.shift) as u16, self.ticks.idle);
        let ended_ns = self.ticks.idle_ns.saturating_add(IDLE_MARGIN.as_nanos() as u64);
        for number in 0..self.memory.buckets {
            let bucket = Bucket::of(self.memory.table.words(), number);
            let mut old = bucket.older_than(bucket.used(), now, ticks);
            while old != 0 {
                let at = old.trailing_zeros() as usize;
                old &= old - 1;
                let bucket = Bucket::of(self.memory.table.words(), number);
                if let Some(flow) = bucket.read(at)
                    && now_ns.saturating_sub(flow.last_ns) >= ended_ns
                {
                    let place = number * BUCKET_SLOTS + at;
                    self.report(place, &flow, EndReason::Idle, to_epoch_ns, ended);
                }
            }
        }
    }

    /// Returns the number of buckets of the table, for [`live_part`](Self::live_part).
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.memory.buckets
    }

    /// Returns the flows in the table, as records that would be written if the table were finished now. A flow whose
    /// frames came on several CPUs has a record for each of them: [`weir_flow::merge`] joins these.
    pub fn live(&self) -> impl Iterator<Item = FlowRecord> {
        self.live_part(0..self.memory.buckets)
    }

    /// Returns the flows in a range of buckets, like [`live`](Self::live).
    ///
    /// # Panics
    /// If the range goes beyond the [buckets](Self::buckets) of the table.
    pub fn live_part(&self, buckets: Range<usize>) -> impl Iterator<Item = FlowRecord> {
        assert!(buckets.end <= self.memory.buckets, "buckets that there are");
        let to_epoch_ns = to_epoch_ns();
        buckets.flat_map(move |number| {
            let bucket = Bucket::of(self.memory.table.words(), number);
            let used = bucket.used();
            (0..BUCKET_SLOTS).filter(move |at| used & 1 << at != 0).filter_map(move |at| {
                let flow = bucket.read(at)?;
                let new = self.reported.new_of(number * BUCKET_SLOTS + at, &flow)?;
                Some(record(&flow, new, EndReason::Forced, to_epoch_ns))
            })
        })
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> KernelCounters {
        let words = self.memory.counts.words();
        let sum = |word: usize| -> u64 {
            let of_cpu = |cpu: usize| words[cpu * COUNTS_WORDS + word].load(Relaxed);
            (0..self.memory.cpus).map(of_cpu).sum()
        };
        let not_flow = |reason: usize| sum(counts::NOT_FLOWS + reason);
        let reported = &self.reported;
        let began = sum(counts::BEGAN);
        let gone = sum(counts::HEAD) + sum(counts::LOST_RECORDS) + reported.flows;
        KernelCounters {
            table: Counters {
                frames: sum(counts::FRAMES),
                not_flows: NotFlows {
                    arp: not_flow(0),
                    other_protocol: not_flow(1),
                    cut_off: not_flow(2),
                    malformed: not_flow(3),
                    too_many_vlans: not_flow(4),
                    other_link_type: 0,
                },
                flows: if self.programs.is_some() { began.saturating_sub(gone) } else { 0 },
                began,
                evicted: sum(counts::EVICTED),
                fragments_attributed: sum(counts::FRAGMENTS_ATTRIBUTED),
                fragments_unattributed: sum(counts::FRAGMENTS_UNATTRIBUTED),
                ..Counters::default()
            },
            lost_records: sum(counts::LOST_RECORDS).saturating_sub(reported.found_records),
            lost_packets: sum(counts::LOST_PACKETS).saturating_sub(reported.found_packets),
            lost_bytes: sum(counts::LOST_BYTES).saturating_sub(reported.found_bytes),
        }
    }

    /// Detaches the programs, waits until none is running, and calls `ended` with all flows. From then on nothing is
    /// counted, and the table is empty; a second call does nothing.
    ///
    /// # Errors
    /// [`KernelFlowError::Capture`]: the process has no permitted way to wait for the programs. The flows are
    /// reported nevertheless, except for frames that programs were still counting.
    pub fn finish(&mut self, ended: &mut impl FnMut(FlowRecord)) -> Result<(), KernelFlowError> {
        let Some(programs) = self.programs.take() else { return Ok(()) };
        drop(programs);
        let waited = rcu::synchronize();
        let to_epoch_ns = to_epoch_ns();
        self.take_records(to_epoch_ns, ended);
        let now_ns = crate::now_ns();
        for number in 0..self.memory.buckets {
            for at in 0..BUCKET_SLOTS {
                let bucket = Bucket::of(self.memory.table.words(), number);
                if bucket.used() & 1 << at == 0 {
                    continue;
                }
                if let Some(flow) = bucket.read(at) {
                    let is_idle = now_ns.saturating_sub(flow.last_ns) >= self.ticks.idle_ns;
                    let reason = if is_idle { EndReason::Idle } else { EndReason::Forced };
                    let place = number * BUCKET_SLOTS + at;
                    self.report(place, &flow, reason, to_epoch_ns, ended);
                }
            }
        }
        Ok(waited?)
    }

    /// Reports the part of a flow in the table that was not reported yet.
    fn report(
        &mut self,
        place: usize,
        flow: &Slot,
        reason: EndReason,
        to_epoch_ns: u64,
        ended: &mut impl FnMut(FlowRecord),
    ) {
        // The record of the earlier flow may have been written since the rings were last read.
        if self.reported.is_of_earlier(place, flow) {
            self.take_records(to_epoch_ns, ended);
        }
        if let Some(new) = self.reported.new_of(place, flow) {
            self.reported.report(place, flow);
            ended(record(flow, new, reason, to_epoch_ns));
        }
    }

    /// Calls `ended` with the flows that programs have recorded.
    fn take_records(&mut self, to_epoch_ns: u64, ended: &mut impl FnMut(FlowRecord)) {
        let ring_records = u64::from(self.config.records_max);
        let Memory { records, counts, tails, cpus, .. } = &self.memory;
        let reported = &mut self.reported;
        debug_assert_eq!(records.words().len(), *cpus * ring_records as usize * RECORD_WORDS);
        for cpu in 0..*cpus {
            let words = (records.words(), counts.words(), tails.words());
            drain(cpu, ring_records, words.0, words.1, words.2, |flow, place, reason| {
                if let Some(new) = reported.take(place, &flow) {
                    ended(record(&flow, new, reason, to_epoch_ns));
                }
            });
        }
    }
}

/// Returns a record of the part of a flow that was not reported yet.
fn record(flow: &Slot, new: New, reason: EndReason, to_epoch_ns: u64) -> FlowRecord {
    let mut record = flow.record(reason, to_epoch_ns);
    (record.forward.packets, record.forward.bytes) = (new.packets, new.bytes);
    record
}
