//! Compares the engine `af_xdp` with DPDK's driver of the same name, and measures the cost of the XDP program of each.
//!
//! Both get their frames from an XDP program on the generator's CPU, which is the bottleneck here. DPDK's program only
//! redirects frames. Weir's program also stamps them; with `--timestamp copy` the copier does that instead. The kernel
//! measures the time of every run of the programs (`BPF_ENABLE_STATS`). These are separate runs, because measuring the
//! programs takes time, too.

use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::query::ProgInfoIter;

use super::bar::{Bar, Side};
use super::context::{Context, stopped};
use super::row::{Row, conclude, ratio_of};
use super::tool::{DPDK_AF_XDP, Tool};
use super::wire::{self, Traffic};
use crate::generator::Rate;
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

pub(super) const SECTION: &str = "af_xdp";
/// Section of the rows with the programs' run times.
pub(super) const PROGRAMS: &str = "af_xdp, programs";
const WEIR: &str = "weir af_xdp";
const WEIR_COPIER_STAMPS: &str = "weir af_xdp, copier stamps";
const SIZE: u32 = 64;

/// Measures the three tools in turn: first their rates, then the run times of their programs.
///
/// # Errors
/// Only if no testbed can be made. A tool that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let weir = &context.options.weir;
    let tools = [
        Tool::weir(weir, WEIR, "af_xdp", &["--consume"]),
        Tool::weir(weir, WEIR_COPIER_STAMPS, "af_xdp", &["--consume", "--timestamp", "copy"]),
        Tool::dpdk_af_xdp(),
    ];
    let mut rows = wire::in_turn(
        context,
        wire::Turns { section: SECTION, sizes: &[SIZE], rounds: context.rounds, tools: &tools },
        |bed, tool, size| {
            Ok((wire::one(context, bed, tool, at_full_rate(context, size))?, String::new()))
        },
    )?;
    conclude(&mut rows, DPDK_AF_XDP);
    rows.extend(programs(context, &tools)?);
    Ok(rows)
}

fn at_full_rate(context: &Context, size: u32) -> Traffic {
    Traffic { size, rate: Rate::Max, seconds: context.seconds, stamp: false }
}

/// Measures the nanoseconds per frame of each tool's XDP program.
fn programs(context: &Context, tools: &[Tool]) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let mut rows: Vec<Row> =
        tools.iter().map(|tool| Row::new(PROGRAMS, tool.name, "ns/frame").sized(SIZE)).collect();
    for round in 0..context.rounds {
        for (tool, row) in tools.iter().zip(&mut rows) {
            if stopped(context.stop) || row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            match ns_a_frame(context, &bed, tool) {
                Ok(ns) => row.add(round, ns, neighbours.done()),
                Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                Err(error) => return Err(error),
            }
        }
        context.say(&format!("{PROGRAMS}, round {}", round + 1));
    }
    conclude(&mut rows, DPDK_AF_XDP);
    Ok(rows)
}

fn ns_a_frame(context: &Context, bed: &Testbed, tool: &Tool) -> Result<f64> {
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let timed = enable_run_times()?;
    let before = RunTime::of_program_on(&bed.rx)?;
    wire::send(context, &bed.tx, at_full_rate(context, SIZE))?;
    let after = RunTime::of_program_on(&bed.rx)?;
    drop(timed);
    capturing.finish()?;
    let no_runs = || Error::Measure {
        what: tool.name.to_owned(),
        reason: "the kernel counted no run of its program".to_owned(),
    };
    after.since(before).ok_or_else(no_runs)
}

/// The kernel's timing of a program: `struct bpf_prog_info`, linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunTime {
    program: u32,
    runs: u64,
    ns: u64,
}

impl RunTime {
    /// Returns the run time of an interface's XDP program.
    fn of_program_on(end: &End) -> Result<RunTime> {
        let program = end.run(|| program_on(end.ifindex))??;
        let found = ProgInfoIter::default().find(|info| info.id == program);
        let found = found.filter(|_| program != 0).ok_or_else(|| Error::Measure {
            what: end.iface.clone(),
            reason: "has no program at XDP".to_owned(),
        })?;
        Ok(RunTime { program, runs: found.run_cnt, ns: found.run_time_ns })
    }

    /// Returns the mean nanoseconds per run since `before`. `None` if there was no run, or if `before` is of another
    /// program.
    fn since(self, before: RunTime) -> Option<f64> {
        let runs = self.runs.checked_sub(before.runs).filter(|runs| *runs > 0)?;
        let ns = self.ns.checked_sub(before.ns)?;
        (self.program == before.program).then_some(ns as f64 / runs as f64)
    }
}

/// Returns the id of the XDP program of an interface in the calling thread's namespace; 0 if there is none.
fn program_on(ifindex: u32) -> Result<u32> {
    let mut program = 0;
    // SAFETY: the kernel writes its answer to a live `u32` and keeps no pointer.
    let result =
        unsafe { libbpf_sys::bpf_xdp_query_id(ifindex.cast_signed(), 0, &raw mut program) };
    if result < 0 {
        let source = libbpf_rs::Error::from_raw_os_error(-result);
        return Err(Error::Bpf { what: "ask for the program of the receiving end", source });
    }
    Ok(program)
}

/// Makes the kernel time all BPF programs for as long as the descriptor is open.
fn enable_run_times() -> Result<OwnedFd> {
    // SAFETY: no pointers are passed. The result is a descriptor or a negative errno.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        let source = libbpf_rs::Error::from_raw_os_error(-fd);
        return Err(Error::Bpf { what: "have the kernel time programs", source });
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Describes how this part is measured.
pub(super) fn condition(_context: &Context) -> String {
    format!(
        "{SECTION}: as wire, {SIZE} B; {PROGRAMS}: the kernel's own timing of each run, a clock read included, in runs \
         of their own"
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let bar = |what: &str| {
        let found = ratio_of(rows, SECTION, what, Some(SIZE));
        Bar::new(format!("{SIZE} B: {what} / {DPDK_AF_XDP}"), found, Side::AtLeast, 1.0)
    };
    [WEIR, WEIR_COPIER_STAMPS].map(bar).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_run_is_of_the_runs_between_two_looks_at_the_same_program() {
        let look = |program, runs, ns| RunTime { program, runs, ns };
        assert_eq!(look(7, 30, 900).since(look(7, 10, 300)), Some(30.0));
        assert_eq!(look(7, 10, 300).since(look(7, 10, 300)), None, "no run");
        assert_eq!(look(8, 30, 900).since(look(7, 10, 300)), None, "another program");
    }
}
