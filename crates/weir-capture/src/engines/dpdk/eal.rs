//! DPDK's environment abstraction layer (EAL), which a process can start only once.

use std::ffi::CString;
use std::sync::Mutex;

use super::device::Device;
use super::ffi;
use crate::error::CaptureError;

/// The kind of memory with which DPDK was started in this process, or the reason why it could not be started; `None`
/// before the first attempt.
static STARTED: Mutex<Option<Result<Memory, String>>> = Mutex::new(None);

/// The kind of DPDK's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// Ordinary pages, which are enough for virtual devices.
    Ordinary,
    /// Huge pages, which NICs need for DMA.
    Huge,
}

/// Most ordinary memory of all sources together. Pages that are never used take no memory.
const ORDINARY_MIB: u32 = 512;

/// Starts DPDK unless it already runs.
///
/// # Errors
/// [`CaptureError::Library`] with DPDK's messages. A later call returns the same error.
pub(super) fn start(memory: Memory) -> Result<(), CaptureError> {
    let mut started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let outcome = started.get_or_insert_with(|| {
        let args = args(memory, &allowed_cpus());
        ffi::init(&args).map(|()| memory).map_err(|error| because(&error))
    });
    match outcome {
        Ok(running) if *running == memory => Ok(()),
        Ok(_) => Err(CaptureError::Options("--hugepages is for all of a run's ports".into())),
        Err(said) => {
            let what = "starting DPDK".to_owned();
            let advice = match memory {
                Memory::Huge => "are huge pages free (`weir doctor`), and is this run as root?",
                Memory::Ordinary => "docs/dpdk.md says what it needs",
            };
            Err(CaptureError::Library {
                library: "DPDK",
                what,
                said: said.clone(),
                advice: advice.to_owned(),
            })
        }
    }
}

/// Returns DPDK's messages about a failure, in one line; without messages, the text of the error. Messages are
/// preferred, because many drivers return -1 for any error, which would be read as EPERM.
pub(super) fn because(error: &std::io::Error) -> String {
    let said = ffi::said();
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { error.to_string() } else { lines.join("; ") }
}

/// Returns the error for a device that DPDK could not open, with a remedy.
pub(super) fn refused(device: &Device, error: &std::io::Error) -> CaptureError {
    let said = because(error);
    let advice = if said.contains("ermission") || said.contains("not permitted") {
        "run as root"
    } else if device.is_pci() {
        "is it bound to vfio-pci, and is there an IOMMU? docs/dpdk.md has the steps; most NICs need \
         --hugepages"
    } else {
        "is the driver's package (librte-net-...) installed, are its arguments right, and does it need \
         root? docs/dpdk.md has examples"
    };
    CaptureError::Library {
        library: "DPDK",
        what: format!("dpdk:{device}"),
        said,
        advice: advice.into(),
    }
}

fn args(memory: Memory, cpus: &[usize]) -> Vec<CString> {
    let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
    // One lcore, which is not used, on all CPUs. Otherwise DPDK would bind this thread to one CPU.
    let lcores = format!("--lcores=0@({})", cpus.join(","));
    let size = ORDINARY_MIB.to_string();
    let mut args = vec![
        "weir",
        lcores.as_str(),
        // Probe no PCI device at the start: there is none with this address. Sources probe their devices later.
        "--allow=ffff:ff:1f.7",
        // Allow several processes with DPDK at a time, and leave no files in /run.
        "--no-shconf",
        "--no-telemetry",
        "--log-level=error",
    ];
    match memory {
        Memory::Ordinary => args.extend(["--no-huge", "-m", size.as_str(), "--iova-mode=va"]),
        Memory::Huge => args.push("--huge-unlink"),
    }
    args.into_iter().map(|arg| CString::new(arg).expect("no zeroes in our arguments")).collect()
}

/// Returns the CPUs that this process may use.
fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let cpus: Vec<usize> = set.map_or_else(
        |_| Vec::new(),
        |set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
    );
    if cpus.is_empty() { vec![0] } else { cpus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_starts_dpdk_keeps_its_cpus() {
        let args = args(Memory::Ordinary, &[0, 2, 3]);
        assert!(args.iter().any(|arg| arg.to_str() == Ok("--lcores=0@(0,2,3)")), "{args:?}");
        let before = allowed_cpus();
        start(Memory::Ordinary).expect("DPDK starts without huge pages");
        assert_eq!(allowed_cpus(), before);
    }

    #[test]
    fn huge_pages_cannot_be_had_later() {
        start(Memory::Ordinary).expect("DPDK starts without huge pages");
        start(Memory::Ordinary).expect("once more is nothing");
        assert!(start(Memory::Huge).unwrap_err().to_string().contains("--hugepages"));
    }
}
