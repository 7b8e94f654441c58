//! The object of bpf/flow_table.bpf.c: loaded once for each interface, around the same maps, and attached.

#[allow(missing_docs, unsafe_code, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/flow_table.skel.rs"));
}

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use rustix::rand::{GetRandomFlags, getrandom};
use weir_capture::bpf::{AttachedProgram, cpus};
use weir_capture::interface::{Interface, InterfaceQuery};
use weir_flow::Octets;
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::config::{Hook, KernelConfig};
use crate::error::KernelFlowError;
use crate::layout::{BUCKET_SLOTS, BUCKET_WORDS, COUNTS_WORDS, RECORD_WORDS, TAIL_WORDS};
use crate::mapped::Mapped;
use crate::ticks::Ticks;
use skel::{FlowTableSkelBuilder, OpenFlowTableSkel};

/// Words of the hash's key: WEIR_SECRET_WORDS.
const SECRET_WORDS: usize = 22;

/// The memory that the programs of all CPUs share with this process.
pub struct Memory {
    pub table: Mapped,
    pub records: Mapped,
    pub counts: Mapped,
    pub tails: Mapped,
    pub cpus: usize,
    pub buckets: usize,
}

/// Maps that the programs of several interfaces share.
struct Maps {
    table: OwnedFd,
    records: OwnedFd,
    counts: OwnedFd,
    tails: OwnedFd,
    fragments: OwnedFd,
}

/// Programs that count frames until this value is dropped.
#[derive(Default)]
pub struct Programs {
    /// Programs that are detached when they are dropped.
    _attached: Vec<AttachedProgram>,
}

/// Loads and attaches a program for each interface. `names` are looked up in the calling thread's network namespace. No
/// frame is counted before all programs are loaded.
pub fn attach(
    names: &[&str],
    config: &KernelConfig,
    ticks: &Ticks,
) -> Result<(Programs, Memory), KernelFlowError> {
    let query = InterfaceQuery::new()?;
    let mut interfaces = Vec::new();
    for name in names {
        let interface = query.find(name)?;
        if interface.link_type != LINKTYPE_ETHERNET {
            return Err(KernelFlowError::NotEthernet { iface: interface.name });
        }
        interfaces.push(Arc::new(interface));
    }
    let (programs, memory) = load(interfaces.len(), config, ticks)?;
    let mut attached = Vec::new();
    for (interface, program) in interfaces.iter().zip(&programs) {
        attach_one(interface, program, config, &mut attached)?;
    }
    Ok((Programs { _attached: attached }, memory))
}

/// Loads programs for `interfaces` interfaces without attaching them, and maps the memory that they write.
pub fn load(
    interfaces: usize,
    config: &KernelConfig,
    ticks: &Ticks,
) -> Result<(Vec<Arc<OwnedFd>>, Memory), KernelFlowError> {
    let mut loader = Loader::new(config, ticks)?;
    let programs =
        (0..interfaces).map(|number| loader.load(number as u32)).collect::<Result<_, _>>()?;
    Ok((programs, loader.memory()?))
}

fn attach_one(
    interface: &Arc<Interface>,
    program: &Arc<OwnedFd>,
    config: &KernelConfig,
    attached: &mut Vec<AttachedProgram>,
) -> Result<(), KernelFlowError> {
    if config.hook == Hook::Xdp {
        attached.push(AttachedProgram::at_xdp(interface, program)?);
        return Ok(());
    }
    for (sent, wanted) in
        [(false, config.direction.takes_in()), (true, config.direction.takes_out())]
    {
        if wanted {
            attached.push(AttachedProgram::at_tc(interface, program, sent, config.tc_attach)?);
        }
    }
    Ok(())
}

/// Loads the object once for each interface, with the same maps.
struct Loader<'a> {
    config: &'a KernelConfig,
    ticks: &'a Ticks,
    secret: [u64; SECRET_WORDS],
    cpus: u32,
    maps: Option<Maps>,
}

impl<'a> Loader<'a> {
    fn new(config: &'a KernelConfig, ticks: &'a Ticks) -> Result<Loader<'a>, KernelFlowError> {
        let mut bytes = [0; SECRET_WORDS * 8];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|error| KernelFlowError::os("getting random numbers")(error.into()))?;
        assert_eq!(filled, bytes.len(), "up to 256 bytes come at once: getrandom(2)");
        let mut secret = [0; SECRET_WORDS];
        for (word, bytes) in secret.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("8 of them"));
        }
        Ok(Loader { config, ticks, secret, cpus: cpus::entries()?, maps: None })
    }

    fn buckets(&self) -> u64 {
        u64::from(self.cpus) * 2 * u64::from(self.config.half_buckets())
    }

    fn records(&self) -> u64 {
        u64::from(self.cpus) * u64::from(self.config.records_max)
    }

    fn bytes(&self) -> u64 {
        let words = self.buckets() * BUCKET_WORDS as u64
            + self.records() * RECORD_WORDS as u64
            + u64::from(self.cpus) * (COUNTS_WORDS + TAIL_WORDS) as u64;
        words * 8
    }

    fn refused(&self, source: libbpf_rs::Error) -> KernelFlowError {
        // libbpf-rs does not expose the error number, but its message contains it. (os error 1) is EPERM: no rights.
        // EACCES would be a rejection by the verifier.
        if format!("{source:#}").contains("(os error 1)") {
            return KernelFlowError::NoRights;
        }
        KernelFlowError::Load { bytes: self.bytes(), cpus: self.cpus, source }
    }

    /// Loads the program for the interface that has the number `interface` in records.
    fn load(&mut self, interface: u32) -> Result<Arc<OwnedFd>, KernelFlowError> {
        weir_capture::bpf::quiet_libbpf();
        let mut storage = MaybeUninit::uninit();
        let mut open = FlowTableSkelBuilder::default()
            .open(&mut storage)
            .map_err(|source| self.refused(source))?;
        self.set_up(&mut open, interface).map_err(|source| self.refused(source))?;
        let skel = open.load().map_err(|source| self.refused(source))?;
        let own = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(KernelFlowError::os("keeping a descriptor"))
        };
        if self.maps.is_none() {
            self.maps = Some(Maps {
                table: own(skel.maps.flow_table.as_fd())?,
                records: own(skel.maps.flow_records.as_fd())?,
                counts: own(skel.maps.flow_counts.as_fd())?,
                tails: own(skel.maps.flow_tails.as_fd())?,
                fragments: own(skel.maps.flow_fragments.as_fd())?,
            });
        }
        let program = match self.config.hook {
            Hook::Tc => own(skel.progs.weir_flow_at_tc.as_fd()),
            Hook::Xdp => own(skel.progs.weir_flow_at_xdp.as_fd()),
        };
        program.map(Arc::new)
    }

    fn set_up(
        &self,
        open: &mut OpenFlowTableSkel<'_>,
        interface: u32,
    ) -> Result<(), libbpf_rs::Error> {
        let (config, ticks) = (self.config, self.ticks);
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        rodata.half_buckets = config.half_buckets();
        rodata.ring_records = config.records_max;
        rodata.idle_ns = ticks.idle_ns;
        rodata.active_ns = ticks.active_ns;
        rodata.look_ns = ticks.look_ns;
        rodata.tick_shift = ticks.shift;
        rodata.idle_ticks = ticks.idle;
        rodata.active_ticks = ticks.active;
        rodata.interface = interface;
        rodata.by_interface = u32::from(config.flow.by_interface);
        rodata.by_vlan = u32::from(config.flow.by_vlan);
        rodata.wire_bytes = u32::from(config.flow.octets == Octets::Wire);
        rodata.consume = u32::from(config.consume);
        rodata.secret = self.secret;
        open.progs.weir_flow_at_tc.set_autoload(config.hook == Hook::Tc);
        open.progs.weir_flow_at_xdp.set_autoload(config.hook == Hook::Xdp);
        let too_many = || libbpf_rs::Error::from(io::Error::from_raw_os_error(7)); // E2BIG
        let entries = |count: u64| u32::try_from(count).map_err(|_| too_many());
        let maps = &mut open.maps;
        match &self.maps {
            None => {
                maps.flow_table.set_max_entries(entries(self.buckets())?)?;
                maps.flow_records.set_max_entries(entries(self.records())?)?;
                maps.flow_counts.set_max_entries(self.cpus)?;
                maps.flow_tails.set_max_entries(self.cpus)?;
            }
            Some(shared) => {
                maps.flow_table.reuse_fd(shared.table.as_fd())?;
                maps.flow_records.reuse_fd(shared.records.as_fd())?;
                maps.flow_counts.reuse_fd(shared.counts.as_fd())?;
                maps.flow_tails.reuse_fd(shared.tails.as_fd())?;
                maps.flow_fragments.reuse_fd(shared.fragments.as_fd())?;
            }
        }
        Ok(())
    }

    /// Maps the memory of loaded programs. The maps of the table, the records and the counts are frozen: from then on,
    /// only the programs write them. User space writes the tails. The map of fragments is not mapped here.
    fn memory(&self) -> Result<Memory, KernelFlowError> {
        let maps = self.maps.as_ref().expect("a program was loaded");
        let (cpus, buckets) = (self.cpus as usize, self.buckets() as usize);
        let failed = || KernelFlowError::os("mapping the flow table");
        let read_only = |map: &OwnedFd, words: usize| {
            freeze(map.as_fd())
                .and_then(|()| Mapped::new(map.as_fd(), words, false))
                .map_err(failed())
        };
        Ok(Memory {
            table: read_only(&maps.table, buckets * BUCKET_WORDS)?,
            records: read_only(&maps.records, self.records() as usize * RECORD_WORDS)?,
            counts: read_only(&maps.counts, cpus * COUNTS_WORDS)?,
            tails: Mapped::new(maps.tails.as_fd(), cpus * TAIL_WORDS, true).map_err(failed())?,
            cpus,
            buckets,
        })
    }
}

#[allow(unsafe_code)]
fn freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, and nothing else is passed.
    match unsafe { libbpf_sys::bpf_map_freeze(map.as_raw_fd()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

impl Memory {
    /// Returns the number of flows that fit in all tables together.
    pub fn slots(&self) -> usize {
        self.buckets * BUCKET_SLOTS
    }
}
