//! Computes the numbers of queues, descriptors and mbufs of a port, and the memory that they take.

use super::device::Device;
use super::ffi::{Facts, PortSetup};
use crate::engines::af_xdp::Queues;
use crate::error::CaptureError;
use crate::memory::Memory;

/// Most and fewest descriptors of a queue. At 10 Gbit/s, 4,096 frames of 64 bytes take 275 us.
const DESCRIPTORS_MAX: u32 = 4096;
const DESCRIPTORS_MIN: u32 = 256;
/// Smallest space for frame bytes in an mbuf, in bytes. Source: DPDK's RTE_MBUF_DEFAULT_DATAROOM.
const ROOM_BYTES: u32 = 2048;
/// Largest space for frame bytes in an mbuf, in bytes: its lengths have 16 bits.
const ROOM_BYTES_MAX: u32 = 65_000;
/// Bytes of an mbuf, with its entry in the pool, in addition to the space for frame bytes.
const MBUF_BYTES: u32 = 384;
/// Most bytes of all mbufs of a source.
const MEMORY_MAX: u32 = 32 << 20;
/// Mbufs of a queue in addition to those in its descriptors: two bursts, and the contents of the pool's caches.
const SPARE: u32 = 512;
/// Most queues of a port: more than common machines have cores. DPDK's statistics of a virtual device cover only 16
/// queues.
const QUEUES_MAX: u32 = 64;
/// Fewest queues that are assumed for a virtual device whose arguments do not contain the number; `net_ring` has this
/// many.
const QUEUES_UNSAID: u32 = 16;

/// Returns the number of CPUs, at most [`QUEUES_MAX`].
fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    cores.min(QUEUES_MAX)
}

/// Returns the most memory of a source with these options, as far as it is known before DPDK runs.
#[must_use]
pub(crate) fn memory(device: &Device, queues: Queues) -> Memory {
    let queues = match queues {
        Queues::Range(_, last) => last.saturating_add(1),
        Queues::All if device.is_pci() => cores(),
        Queues::All => device.queues().unwrap_or(cores().max(QUEUES_UNSAID)),
    };
    let queues = queues.clamp(1, QUEUES_MAX);
    let least = queues * (DESCRIPTORS_MIN + SPARE) * (room_bytes(device, 0) + MBUF_BYTES);
    Memory { rings: queues.into(), buffer_bytes: MEMORY_MAX.max(least).into() }
}

/// Returns the space for frame bytes in an mbuf, in bytes. The driver needs at least `least`.
fn room_bytes(device: &Device, least: u32) -> u32 {
    ROOM_BYTES.max(least).max(device.frame_bytes().unwrap_or(0)).min(ROOM_BYTES_MAX)
}

/// Returns the number of queues to set up. A NIC spreads frames over all queues that are set up. A virtual device has a
/// fixed number of queues, each with frames of its own, so all must be set up.
pub(super) fn queues(device: &Device, facts: &Facts, wanted: Queues) -> Result<u32, CaptureError> {
    let have = facts.max_rx_queues.max(1);
    let wrong = |text: String| Err(CaptureError::Options(text));
    match wanted {
        Queues::All if facts.is_virtual && have <= QUEUES_MAX => Ok(have),
        Queues::All => Ok(have.min(cores())),
        Queues::Range(0, last) if last < have.min(QUEUES_MAX) => Ok(last + 1),
        Queues::Range(0, last) => wrong(format!(
            "--queues 0-{last}: dpdk:{device} can have {}, at most 0-{}",
            have,
            have.min(QUEUES_MAX) - 1
        )),
        Queues::Range(first, last) => wrong(format!(
            "--queues {first}-{last}: a DPDK port receives on all of its queues; say how many, from 0: \
             --queues 0-{last}"
        )),
    }
}

/// Returns settings with the most descriptors for which the memory of a source suffices.
pub(super) fn port_setup(device: &Device, facts: &Facts, queues: u32, stamps: bool) -> PortSetup {
    let room_bytes = room_bytes(device, facts.min_rx_bufsize);
    let each = MEMORY_MAX / (room_bytes + MBUF_BYTES) / queues;
    let filled = each.saturating_sub(SPARE).max(DESCRIPTORS_MIN);
    let descriptors = (1 << filled.ilog2()).min(DESCRIPTORS_MAX);
    let mbufs = queues * each.clamp(descriptors + SPARE, 2 * descriptors + SPARE);
    PortSetup {
        queues,
        descriptors,
        mbufs,
        room_bytes,
        stamps: u32::from(stamps && facts.can_stamp),
        scatter: u32::from(facts.can_scatter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_before_it_is_taken() {
        let device = |text| Device::new(text).unwrap();
        let told = |text, queues| memory(&device(text), queues);
        let bytes = u64::from(MEMORY_MAX);
        let few = Memory { rings: 2, buffer_bytes: bytes };
        assert_eq!(told("net_null0", Queues::Range(0, 1)), few);
        assert_eq!(told("net_af_packet0,iface=x,qpairs=2", Queues::All), few);
        let nic = told("3b:00.0", Queues::All);
        assert!(matches!(nic, Memory { rings, .. } if rings == u64::from(cores())), "{nic:?}");
        let many = Memory { rings: QUEUES_MAX.into(), buffer_bytes: 64 * 768 * (2048 + 384) };
        assert_eq!(told("net_null0", Queues::Range(0, 63)), many);
        assert_eq!(told("net_null0", Queues::Range(0, u32::MAX)), many);
    }

    #[test]
    fn queues_are_as_many_as_there_are() {
        let facts = |max_rx_queues, is_virtual| Facts {
            driver: "net_x".into(),
            device: "net_x0".into(),
            is_virtual,
            max_rx_queues,
            min_rx_bufsize: 0,
            can_stamp: false,
            can_scatter: false,
        };
        let device = Device::new("net_x0").unwrap();
        let of = |facts: &Facts, wanted| {
            queues(&device, facts, wanted).map_err(|error| error.to_string())
        };
        assert_eq!(of(&facts(5, true), Queues::All), Ok(5));
        let cores = std::thread::available_parallelism().unwrap().get() as u32;
        assert_eq!(of(&facts(1024, false), Queues::All), Ok(cores.min(QUEUES_MAX)));
        assert_eq!(of(&facts(4, false), Queues::Range(0, 2)), Ok(3));
        assert!(of(&facts(4, true), Queues::Range(0, 4)).unwrap_err().contains("at most 0-3"));
        assert!(of(&facts(4, true), Queues::Range(1, 2)).unwrap_err().contains("--queues 0-2"));
        // Every setup is within the memory limit of a source, except for the minimum that a queue needs.
        for queues in [1, 2, 3, 16] {
            let setup = port_setup(&device, &facts(16, true), queues, false);
            assert!(setup.mbufs * (setup.room_bytes + MBUF_BYTES) <= MEMORY_MAX, "{setup:?}");
            assert!(setup.descriptors.is_power_of_two() && setup.descriptors >= DESCRIPTORS_MIN);
        }
    }
}
