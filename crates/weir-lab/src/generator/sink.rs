//! The receiving end for tests and benches: an XDP program that counts generated frames exactly,
//! checks their numbers, and drops them.
//!
//! Attached to the receiving end of a veth, it also makes this end accept frames sent by XDP.

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use super::live::WireGeneratorSkelBuilder;
use crate::testbed::ifindex;
use crate::{Error, Result};

/// The attached program. Dropping this value detaches it.
#[derive(Debug)]
pub struct Sink {
    counts: MapHandle,
    _link: Link,
}

/// Counts of the sink, over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Generated frames.
    pub frames: u64,
    /// Bytes of the generated frames, without FCS.
    pub bytes: u64,
    /// Frames that were not generated. They are in none of the other counts.
    pub foreign: u64,
    /// Sum of the frame numbers, modulo 2^64.
    pub number_sum: u64,
    /// Lowest frame number; 0 if there was no frame.
    pub number_lowest: u64,
    /// Highest frame number; 0 if there was no frame.
    pub number_highest: u64,
    /// Frames whose number is not that of the previous frame on the same CPU plus one. The first frame on a CPU is not
    /// counted.
    pub jumps: u64,
    /// Number of 5-tuples, if requested.
    pub flows: u64,
    /// Frames with new 5-tuples for which the table had no space.
    pub flows_full: u64,
}

/// `struct sink_counts` of `bpf/wire_generator.bpf.c`: ten u64.
const COUNTS_BYTES: usize = 80;

impl Sink {
    /// Attaches the program to an interface of the calling thread's network namespace. `flows_max` is the number of
    /// 5-tuples that can be distinguished; with 0 they are not counted, which is faster.
    ///
    /// # Errors
    /// [`Error::NoInterface`], or [`Error::Bpf`] if capabilities are missing or another XDP program is attached.
    pub fn attach(iface: &str, flows_max: u32) -> Result<Sink> {
        let failed = |what| move |source| Error::Bpf { what, source };
        let ifindex = ifindex(iface)?;
        let mut storage = MaybeUninit::uninit();
        let builder = WireGeneratorSkelBuilder::default();
        let mut open = builder.open(&mut storage).map_err(failed("open the sink program"))?;
        open.progs.weir_gen.set_autoload(false);
        open.progs.weir_gen_addressed.set_autoload(false);
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the program has a .rodata");
        rodata.sink_with_flows = u32::from(flows_max > 0);
        open.maps
            .sink_flows
            .set_max_entries(flows_max.max(1))
            .map_err(failed("size the sink's flow table"))?;
        let skel = open.load().map_err(failed("load the sink program"))?;
        let counts = MapHandle::try_from(&skel.maps.sink_counts)
            .map_err(failed("keep the sink's counters"))?;
        let link = skel
            .progs
            .weir_sink
            .attach_xdp(ifindex.cast_signed())
            .map_err(failed("attach the sink program"))?;
        // The link and the map handle keep the program and its maps, so the skeleton can be
        // dropped.
        Ok(Sink { counts, _link: link })
    }

    /// Returns the counts so far. They are exact once traffic has stopped.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel refuses to read the map.
    pub fn counts(&self) -> Result<SinkCounts> {
        let failed = |source| Error::Bpf { what: "read the sink's counters", source };
        let cpus = self.counts.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        let mut total = SinkCounts::default();
        for cpu in cpus.unwrap_or_default() {
            assert!(cpu.len() >= COUNTS_BYTES, "the kernel gives whole values");
            add(&mut total, &cpu);
        }
        Ok(total)
    }
}

/// Adds one CPU's counts.
fn add(total: &mut SinkCounts, cpu: &[u8]) {
    let mut words = [0u64; COUNTS_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(cpu.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of 8"));
    }
    let [frames, bytes, foreign, sum, lowest, highest, jumps, flows, flows_full, _last] = words;
    if frames > 0 {
        let first = total.frames == 0;
        total.number_lowest = if first { lowest } else { total.number_lowest.min(lowest) };
        total.number_highest = total.number_highest.max(highest);
    }
    total.frames += frames;
    total.bytes += bytes;
    total.foreign += foreign;
    total.number_sum = total.number_sum.wrapping_add(sum);
    total.jumps += jumps;
    total.flows += flows;
    total.flows_full += flows_full;
}
