//! Describes the programs that capture: how each is started, when it is ready, and how to parse its counts.

use std::env;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use super::child::{Child, Line, pinned};
use super::counted;
use super::counted::{Counted, WeirReport, weir_report};
use crate::testbed::End;
use crate::{Error, Result};

/// Size of the capture buffer, for tools that have an option for it.
pub(super) const BUFFER_MIB: u32 = 64;
/// Longest wait until a tool captures. Loading BPF programs takes tens of milliseconds, and dumpcap
/// needs a second.
const READY_LIMIT: Duration = Duration::from_secs(15);
/// Time that a tool still needs after it has reported that it captures.
pub(super) const SETTLE: Duration = Duration::from_millis(150);

/// A program that captures.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    program: String,
    args: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `weir capture`, with the engine that its report must name.
    Weir(&'static str),
    /// `weir flows`, with the engine that its report must name. Its counts are parsed from its text report, because its
    /// JSON has one line per flow.
    Flows(&'static str),
    Tcpdump,
    Dumpcap,
    NetsniffNg,
    Testpmd,
    Xdpdump,
}

/// Message of a Weir that was built without the requested engine.
pub(super) const NOT_BUILT: &str = "this build has no engine";
/// Placeholder for the interface in a tool's arguments.
const IFACE: &str = "IFACE";
/// Placeholder for the CPU in a tool's arguments.
const CPU: &str = "CPU";
/// The peer that all tools are compared with.
pub(super) const TCPDUMP: &str = "tcpdump";
/// The peer of the engine `af_xdp`.
pub(super) const DPDK_AF_XDP: &str = "DPDK af_xdp, rx only";

impl Tool {
    /// Returns `weir capture` with one of its live engines.
    pub(super) fn weir(
        weir: &Path,
        name: &'static str,
        engine: &'static str,
        args: &[&str],
    ) -> Tool {
        let ring = format!("{BUFFER_MIB}MiB");
        let mut all = vec!["capture", IFACE, "--json", "--ring-size", &ring, "--engine", engine];
        all.extend(args);
        Tool::new(name, &weir.to_string_lossy(), &all, Kind::Weir(engine))
    }

    /// Returns `weir flows` with one of its live engines.
    pub(super) fn weir_flows(
        weir: &Path,
        name: &'static str,
        engine: &'static str,
        args: &[&str],
    ) -> Tool {
        let ring = format!("{BUFFER_MIB}MiB");
        let mut all = vec!["flows", IFACE, "--ring-size", &ring, "--engine", engine];
        all.extend(args);
        Tool::new(name, &weir.to_string_lossy(), &all, Kind::Flows(engine))
    }

    /// Returns the live engines of `weir capture` that are in every build.
    pub(super) fn weirs(weir: &Path) -> Vec<Tool> {
        vec![
            Tool::weir(weir, "weir --consume", "bpf", &["--consume"]),
            Tool::weir(weir, "weir, passive tc", "bpf", &[]),
            Tool::weir(weir, "weir --hook xdp", "bpf", &["--hook", "xdp"]),
            Tool::weir(weir, "weir af_xdp", "af_xdp", &["--consume"]),
            Tool::weir(weir, "weir af_packet", "af_packet", &[]),
            Tool::weir(weir, "weir pcap", "pcap", &[]),
        ]
    }

    /// Returns `weir capture` on DPDK's driver for AF_XDP. It polls all the time, as testpmd does.
    fn weir_dpdk(weir: &Path) -> Tool {
        let tool = Tool::weir(weir, "weir dpdk:net_af_xdp", "dpdk", &["--consume"]);
        tool.with_source(&format!("dpdk:net_af_xdp0,iface={IFACE}"))
    }

    /// Returns all live engines of `weir capture`, built in or not.
    pub(super) fn every_weir(weir: &Path) -> Vec<Tool> {
        Tool::weirs(weir).into_iter().chain([Tool::weir_dpdk(weir)]).collect()
    }

    /// Returns all tools, installed or not.
    pub(super) fn all(weir: &Path) -> Vec<Tool> {
        Tool::every_weir(weir).into_iter().chain(Tool::peers()).collect()
    }

    /// Returns tcpdump, which writes frames to /dev/null.
    pub(super) fn tcpdump() -> Tool {
        let kib = (BUFFER_MIB * 1024).to_string();
        let args = ["-i", IFACE, "-w", "/dev/null", "-B", &kib];
        Tool::new(TCPDUMP, "tcpdump", &args, Kind::Tcpdump)
    }

    /// Returns tcpdump that prints a line for each frame.
    pub(super) fn tcpdump_lines() -> Tool {
        let kib = (BUFFER_MIB * 1024).to_string();
        Tool::new(TCPDUMP, "tcpdump", &["-i", IFACE, "-nn", "-B", &kib], Kind::Tcpdump)
    }

    /// Returns the tools that Weir is compared with, installed or not.
    pub(super) fn peers() -> Vec<Tool> {
        let (mib, mib_unit) = (BUFFER_MIB.to_string(), format!("{BUFFER_MIB}MiB"));
        let null = "/dev/null";
        vec![
            Tool::tcpdump(),
            Tool::new("dumpcap", "dumpcap", &["-i", IFACE, "-w", null, "-B", &mib], Kind::Dumpcap),
            Tool::new(
                "netsniff-ng",
                "netsniff-ng",
                &["--in", IFACE, "--out", null, "--silent", "--ring-size", &mib_unit],
                Kind::NetsniffNg,
            ),
            Tool::new(
                "xdpdump",
                "xdpdump",
                &["--load-xdp-program", "-i", IFACE, "-w", null],
                Kind::Xdpdump,
            ),
            Tool::dpdk_af_xdp(),
            Tool::testpmd("DPDK af_packet, rx only", "net_af_packet0,iface=IFACE"),
            Tool::testpmd("DPDK pcap, rx only", "net_pcap0,rx_iface=IFACE"),
        ]
    }

    /// Returns DPDK's own test program on its driver for AF_XDP.
    pub(super) fn dpdk_af_xdp() -> Tool {
        Tool::testpmd(DPDK_AF_XDP, "net_af_xdp0,iface=IFACE")
    }

    /// Returns DPDK's own test program on one of its drivers. It receives frames and frees them at once, without
    /// stamps. It polls all the time; both its threads share the one CPU that every tool has.
    fn testpmd(name: &'static str, device: &str) -> Tool {
        let prefix = format!("--file-prefix=weir{}", std::process::id());
        let device = format!("--vdev={device}");
        let args = [
            "--no-huge",
            "-m",
            "256",
            "--no-pci",
            "--no-telemetry",
            &prefix,
            "--lcores=0@CPU,1@CPU",
            &device,
            "--",
            "--forward-mode=rxonly",
            "--auto-start",
            "--stats-period=1",
            "--total-num-mbufs=16384",
        ];
        Tool::new(name, "dpdk-testpmd", &args, Kind::Testpmd)
    }

    fn new(name: &'static str, program: &str, args: &[&str], kind: Kind) -> Tool {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Tool { name, program: program.to_owned(), args, kind }
    }

    /// Returns whether the tool is Weir.
    pub(super) fn is_weir(&self) -> bool {
        matches!(self.kind, Kind::Weir(_) | Kind::Flows(_))
    }

    /// Returns the tool with more arguments.
    pub(super) fn with(&self, more: &[&str]) -> Tool {
        let mut tool = self.clone();
        tool.args.extend(more.iter().map(|&arg| arg.to_owned()));
        tool
    }

    /// Returns the tool with another name.
    pub(super) fn named(mut self, name: &'static str) -> Tool {
        self.name = name;
        self
    }

    /// Returns the tool with a file in place of `/dev/null`.
    pub(super) fn writing_to(&self, path: &str) -> Tool {
        let mut tool = self.clone();
        tool.args
            .iter_mut()
            .filter(|arg| *arg == "/dev/null")
            .for_each(|arg| *arg = path.to_owned());
        tool
    }

    /// Returns the tool with this source instead of the interface. Only for Weir.
    pub(super) fn with_source(mut self, source: &str) -> Tool {
        let at = self.args.iter().position(|arg| arg == IFACE);
        self.args[at.expect("its source is the interface")] = source.to_owned();
        self
    }

    /// Returns the tool on this interface.
    pub(super) fn on(mut self, iface: &str) -> Tool {
        self.args.iter_mut().filter(|arg| *arg == IFACE).for_each(|arg| iface.clone_into(arg));
        self
    }

    /// Returns the tool, started by another program with these arguments before the tool's command line.
    pub(super) fn behind(mut self, program: &Path, args: &[&str]) -> Tool {
        let own = std::mem::replace(&mut self.program, program.to_string_lossy().into_owned());
        let before = args.iter().map(|&arg| arg.to_owned()).chain([own]);
        self.args = before.chain(std::mem::take(&mut self.args)).collect();
        self
    }

    /// Returns the tool without `--ring-size`, for rings that another process creates. Only for Weir.
    pub(super) fn without_ring(mut self) -> Tool {
        let at = self.args.iter().position(|arg| arg == "--ring-size").expect("Weir has one");
        self.args.drain(at..at + 2);
        self
    }

    /// Returns the tool with rings of this size. Only for Weir.
    pub(super) fn with_ring(&self, size: &str) -> Tool {
        let mut tool = self.clone();
        let at = tool.args.iter().position(|arg| arg == "--ring-size");
        tool.args[at.expect("Weir has one") + 1] = size.to_owned();
        tool
    }

    /// Returns whether the tool attaches an XDP program. Only one can be attached to an interface.
    pub(super) fn is_xdp(&self) -> bool {
        self.args.iter().any(|arg| arg == "xdp" || arg == "--consume")
    }

    /// Returns whether a BPF program in the kernel does all the work before the consumer.
    pub(super) fn has_no_thread_of_its_own(&self) -> bool {
        self.kind == Kind::Weir("bpf")
    }

    /// Returns how long the tool may still read its buffer before it is told to end.
    pub(super) fn flush_time(&self) -> Duration {
        match self.kind {
            // These tools read the rest of their buffer when they end, or poll all the time.
            Kind::Weir(_) | Kind::Flows(_) | Kind::Testpmd => Duration::from_millis(300),
            // tcpdump gets the last frames, in a partly filled block, after its packet buffer timeout of one second.
            _ => Duration::from_millis(1200),
        }
    }

    /// Checks that the program is installed.
    ///
    /// # Errors
    /// [`Error::Measure`] that names the missing program.
    pub(super) fn installed(&self) -> Result<()> {
        if self.is_weir() || Path::new(&self.program).is_absolute() || on_path(&self.program) {
            return Ok(());
        }
        Err(Error::Measure { what: self.name.to_owned(), reason: "not installed".to_owned() })
    }

    /// Returns program and arguments for this interface and CPU.
    pub(super) fn command_line(&self, iface: &str, cpu: usize) -> Vec<String> {
        let own = |arg: &String| arg.replace(IFACE, iface).replace(CPU, &cpu.to_string());
        std::iter::once(self.program.clone()).chain(self.args.iter().map(own)).collect()
    }

    /// Starts the tool on the interface of `end`, bound to `cpu`, and waits until it captures.
    ///
    /// # Errors
    /// [`Error::Measure`] with the tool's message.
    pub(super) fn start(&self, end: &End, cpu: usize) -> Result<Capturing> {
        self.installed()?;
        let line = self.command_line(&end.iface, cpu);
        let mut child = Child::start(self.name, end, pinned(cpu, &line[0], &line[1..]))?;
        child.wait_for_line(READY_LIMIT, |line| self.kind.is_ready(line))?;
        sleep(SETTLE);
        if child.has_ended() {
            // The tool reported that it captures, but has ended since. `wait_for_line` returns an error with its last
            // message.
            child.wait_for_line(Duration::ZERO, |_| false)?;
        }
        Ok(Capturing { kind: self.kind, name: self.name, child })
    }
}

impl Kind {
    fn is_ready(self, line: &str) -> bool {
        match self {
            Kind::Weir(_) | Kind::Flows(_) => line.starts_with("weir: ") && line.contains(": "),
            Kind::Tcpdump => line.contains("listening on"),
            Kind::Dumpcap => line.starts_with("File: "),
            Kind::NetsniffNg => line.starts_with("Running!"),
            Kind::Testpmd => line.contains("Port statistics"),
            Kind::Xdpdump => line.contains("listening on"),
        }
    }

    /// Returns whether the report names the requested engine.
    fn answers(self, report: &WeirReport) -> bool {
        matches!(self, Kind::Weir(engine) if engine == report.engine)
    }

    fn counted(self, lines: &[Line]) -> Option<Counted> {
        match self {
            Kind::Weir(_) => {
                let report = weir_report(lines)?;
                self.answers(&report).then(|| report.counted())
            }
            Kind::Flows(engine) => counted::weir_flows(lines, engine),
            Kind::Tcpdump => counted::tcpdump(lines),
            Kind::Dumpcap => counted::dumpcap(lines),
            Kind::NetsniffNg => counted::netsniff_ng(lines),
            Kind::Testpmd => counted::testpmd(lines),
            Kind::Xdpdump => counted::xdpdump(lines),
        }
    }
}

/// A running tool.
pub(super) struct Capturing {
    kind: Kind,
    name: &'static str,
    pub(super) child: Child,
}

impl Capturing {
    /// Returns the time at which the tool reported that it captures.
    pub(super) fn ready_at(&self) -> Option<SystemTime> {
        let lines = self.child.lines();
        lines.iter().find(|line| self.kind.is_ready(&line.text)).map(|line| line.at)
    }

    /// Interrupts the tool as Ctrl-C does, and reads its counts.
    ///
    /// # Errors
    /// [`Error::Measure`] if the tool does not end, or its output has no counts.
    pub(super) fn finish(self) -> Result<Counted> {
        Ok(self.finish_with_lines()?.0)
    }

    /// Interrupts the tool, and returns its counts and all lines that it printed.
    ///
    /// # Errors
    /// As [`Capturing::finish`].
    pub(super) fn finish_with_lines(self) -> Result<(Counted, Vec<Line>)> {
        let (kind, name) = (self.kind, self.name);
        let lines = self.child.interrupt()?;
        let counted = kind.counted(&lines).ok_or_else(|| unreadable(kind, name, &lines))?;
        Ok((counted, lines))
    }

    /// Interrupts Weir, and reads its report.
    ///
    /// # Errors
    /// As [`Capturing::finish`].
    pub(super) fn finish_weir(self) -> Result<WeirReport> {
        let (kind, name) = (self.kind, self.name);
        let lines = self.child.interrupt()?;
        let report = weir_report(&lines).filter(|report| kind.answers(report));
        report.ok_or_else(|| unreadable(kind, name, &lines))
    }
}

fn unreadable(kind: Kind, name: &str, lines: &[Line]) -> Error {
    let reason = match (kind, weir_report(lines)) {
        (Kind::Weir(engine), Some(report)) => {
            format!("{NOT_BUILT} {engine}: {} answered", report.engine)
        }
        _ => {
            let last = lines.iter().rev().find(|line| !line.text.trim().is_empty());
            format!("no counts in its output: {}", last.map_or("", |line| line.text.trim()))
        }
    };
    Error::Measure { what: name.to_owned(), reason }
}

/// Returns whether a program is on the PATH.
pub(super) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::counted::tests::{drops, lines};

    #[test]
    fn weir_is_read_and_another_engine_is_not_taken_for_it() {
        let text = r#"{"source":"wrx0","engine":"bpf","hook":"tc","duration_s":1.0,"offered":10,
            "filtered":0,"captured":9,"bytes":600,"drops":{"reentry":1,"store":0},"lapped":2,
            "delivered":7,"mpps":1.0,"sources":[]}"#
            .replace('\n', " ");
        let counted = Kind::Weir("bpf").counted(&lines(&text)).unwrap();
        let lost = drops(&[("reentry", 1), ("store", 0), ("lapped", 2)]);
        assert_eq!(counted, Counted { kept: 7, drops: lost });
        assert_eq!(Kind::Weir("af_packet").counted(&lines(&text)), None);
        let error = unreadable(Kind::Weir("af_packet"), "weir af_packet", &lines(&text));
        assert!(error.to_string().contains("no engine af_packet: bpf answered"), "{error}");
    }

    #[test]
    fn programs_say_when_they_are_at_work() {
        for (kind, line) in [
            (Kind::Tcpdump, "tcpdump: listening on wrx0, link-type EN10MB (Ethernet)"),
            (Kind::Dumpcap, "File: /dev/null"),
            (Kind::NetsniffNg, "Running! Hang up with ^C!"),
            (Kind::Xdpdump, "listening on wrx0, ingress XDP program ID 5"),
        ] {
            assert!(kind.is_ready(line) && !kind.is_ready("warning: x"), "{kind:?}");
        }
    }

    #[test]
    fn a_ring_of_another_size_takes_the_place_of_the_first() {
        let tool = Tool::weir(Path::new("weir"), "weir", "bpf", &["--consume"]).with_ring("8MiB");
        let args = ["capture", IFACE, "--json", "--ring-size", "8MiB", "--engine", "bpf"];
        assert_eq!(tool.args, [&args[..], &["--consume"]].concat());
    }

    #[test]
    fn output_without_counts_gives_none() {
        let peers = [Kind::Tcpdump, Kind::Dumpcap, Kind::NetsniffNg, Kind::Testpmd, Kind::Xdpdump];
        for kind in peers.into_iter().chain([Kind::Weir("bpf"), Kind::Flows("bpf")]) {
            assert_eq!(kind.counted(&lines("x\n12 of them\n': 3\n")), None, "{kind:?}");
        }
    }
}
