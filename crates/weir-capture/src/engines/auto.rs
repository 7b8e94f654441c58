//! Selects the engine for a live interface, with the reason.

use crate::engines::declaration::{Declaration, Opening, Patterns, QueueUse, Takes, Target};
use crate::engines::options::EngineOptions;
use crate::engines::{ENGINES, netns};
use crate::error::{CaptureError, error_text};
use crate::kernel::interface::InterfaceQuery;
use crate::memory::Memory;
use crate::setup::Setup;
use crate::source::Source;

/// The engine for a target, and its options. By default, the best engine that works, with default options.
#[derive(Clone, Debug, Default)]
pub struct EngineRequest {
    /// The only engine to use; `None`: the best one that works.
    pub engine: Option<&'static Declaration>,
    /// Options for the engine.
    pub options: EngineOptions,
    /// The given flags that not every engine supports. `auto` selects only an engine that supports all of them.
    pub flags: Vec<&'static str>,
}

impl EngineRequest {
    /// Returns the engines that may open this target, best first.
    pub fn candidates(&self, target: &Target) -> impl Iterator<Item = &'static Declaration> {
        let mut all: Vec<&'static Declaration> = match self.engine {
            Some(engine) => vec![engine],
            None => ENGINES
                .into_iter()
                .filter(|engine| self.auto_may_take(engine) && engine.takes_target(target))
                .collect(),
        };
        if all.iter().any(|engine| is_default_of_patterns(engine, target)) {
            all.retain(|engine| is_default_of_patterns(engine, target));
        }
        all.into_iter()
    }

    fn auto_may_take(&self, engine: &Declaration) -> bool {
        // A flag that no engine for interfaces supports is meant for other sources of the run.
        let of_interfaces = |flag: &str| {
            ENGINES.iter().any(|other| other.takes == Takes::Interfaces && other.heeds(flag))
        };
        let heeds_all = self.flags.iter().all(|flag| engine.heeds(flag) || !of_interfaces(flag));
        engine.takes == Takes::Interfaces && engine.auto.is_some() && heeds_all
    }

    /// Returns the most memory that the target needs with any of the candidate engines.
    #[must_use]
    pub fn memory(&self, target: &Target) -> Memory {
        let all = self.candidates(target).map(|engine| (engine.memory)(target, &self.options));
        all.reduce(|one, other| Memory {
            rings: one.rings.max(other.rings),
            buffer_bytes: one.buffer_bytes.max(other.buffer_bytes),
        })
        .unwrap_or(Memory::ONE_RING)
    }

    /// Opens the target with the requested engine, or with the best one that works here; the source's
    /// [`Info`](crate::Info) contains the reason. The calling thread moves into the target's network namespace and
    /// stays there. Engines must report refusals of the kernel here and not in `start`: once rings are handed out,
    /// another engine cannot be used instead.
    ///
    /// # Errors
    /// The error of the requested engine, or that of the best engine if no other engine can replace it.
    pub fn open(&self, target: &Target, setup: &Setup) -> Result<Box<dyn Source>, CaptureError> {
        match target {
            Target::Pattern { netns: Some(netns), pattern } if pattern.is_all_but_loopback() => {
                netns::open_whole(netns, setup, |setup| self.open_here(target, setup))
            }
            Target::Interface { netns: Some(netns), .. }
            | Target::Pattern { netns: Some(netns), .. } => {
                netns::open(netns, setup, |setup| self.open_here(target, setup))
            }
            _ => self.open_here(target, setup),
        }
    }

    fn open_here(&self, target: &Target, setup: &Setup) -> Result<Box<dyn Source>, CaptureError> {
        if let Target::Interface { iface, .. } = target {
            check_queues(iface, setup)?;
        }
        let (mut setup, options) = (setup.clone(), &self.options);
        if let Target::Interface { iface, .. } = target {
            setup.find_owner(iface);
        }
        let open = |engine: &Declaration, why: String| {
            refuse_pattern(engine, target)?;
            (engine.check)(target, options)?;
            (engine.open)(Opening { target, setup: setup.clone(), options, why })
        };
        if let Some(engine) = self.engine {
            return open(engine, "asked for".to_owned());
        }
        let mut candidates = self.candidates(target).peekable();
        let mut first: Option<(CaptureError, String)> = None;
        while let Some(engine) = candidates.next() {
            let why = match &first {
                Some((_, refusal)) => refusal.clone(),
                None if is_default_of_patterns(engine, target) => {
                    "the default for several interfaces: one socket, nothing is attached to them"
                        .to_owned()
                }
                None if candidates.peek().is_none() => {
                    "the only engine with the flags that were given".to_owned()
                }
                None => engine.auto.unwrap_or_default().to_owned(),
            };
            match open(engine, why) {
                Err(refusal) if another_engine_helps(&refusal) && candidates.peek().is_some() => {
                    let why = format!("{} cannot be used: {}", engine.name, error_text(&refusal));
                    first.get_or_insert((refusal, why));
                }
                // If two engines lack privileges, report those that the better engine needs.
                Err(CaptureError::NoRights { .. }) if first.is_some() => break,
                opened => return opened,
            }
        }
        Err(first.map_or_else(
            || CaptureError::Options("no engine has what was asked for".to_owned()),
            |(refusal, _)| refusal,
        ))
    }
}

/// Returns true if the target is a pattern, and `auto` prefers this engine for patterns.
fn is_default_of_patterns(engine: &Declaration, target: &Target) -> bool {
    matches!(target, Target::Pattern { .. }) && engine.patterns == Patterns::First
}

/// Refuses a pattern if the engine captures only single interfaces.
///
/// # Errors
/// [`CaptureError::Options`], whose text lists the engines that support patterns.
pub fn refuse_pattern(engine: &Declaration, target: &Target) -> Result<(), CaptureError> {
    let Target::Pattern { pattern, .. } = target else { return Ok(()) };
    if engine.patterns != Patterns::None {
        return Ok(());
    }
    let of = |how| ENGINES.iter().filter(move |other| other.patterns == how);
    let able: Vec<&str> =
        of(Patterns::First).chain(of(Patterns::IfAsked)).map(|other| other.name).collect();
    Err(CaptureError::Options(format!(
        "{pattern}: --engine {} takes interfaces by name; for a pattern take --engine {}, or leave --engine out",
        engine.name,
        able.join(" or --engine ")
    )))
}

/// Returns true if this engine captures from one range of queues, so that feeds cannot select by queue.
#[must_use]
pub fn takes_one_range(engine: Option<&Declaration>) -> bool {
    engine.is_some_and(|engine| engine.queues == QueueUse::OneRange)
}

/// Refuses feeds of queues that the interface does not have: they would never get a frame.
fn check_queues(iface: &str, setup: &Setup) -> Result<(), CaptureError> {
    let Some(asked) = setup.feeds.iter().filter_map(|feed| feed.queue).max() else { return Ok(()) };
    match InterfaceQuery::new()?.rx_queues(iface) {
        Some(have) if asked >= have => {
            let have = match have {
                1 => "one RX queue, @q0".to_owned(),
                many => format!("{many} RX queues, @q0 to @q{}", many - 1),
            };
            Err(CaptureError::Options(format!("{iface}@q{asked}: {iface} has {have}")))
        }
        _ => Ok(()),
    }
}

/// Returns true if another engine may work although the kernel has refused this one. Errors about the interface or the
/// options would be the same for all engines.
fn another_engine_helps(refusal: &CaptureError) -> bool {
    use CaptureError::{Attach, Bpf, NoRights, RealTimeKernel};
    matches!(refusal, Attach { .. } | Bpf { .. } | NoRights { .. } | RealTimeKernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::interface::LinkPattern;

    fn interface() -> Target {
        Target::Interface { netns: None, iface: "lo".into() }
    }

    #[test]
    fn patterns_go_to_engines_that_take_them() {
        let pattern = LinkPattern::parse("any").unwrap();
        let target = Target::Pattern { netns: None, pattern };
        let names = |flags: &[&'static str]| {
            let (engine, options) = (None, EngineOptions::default());
            let request = EngineRequest { engine, options, flags: flags.to_vec() };
            request.candidates(&target).map(|engine| engine.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["af_packet"]);
        assert_eq!(names(&["--record-queue"]), ["bpf"], "which af_packet does not heed");
        for engine in ENGINES {
            let refused = refuse_pattern(engine, &target);
            assert_eq!(refused.is_ok(), engine.patterns != Patterns::None, "{engine:?}");
            if let Err(error) = refused {
                assert!(error.to_string().contains("--engine af_packet"), "{error}");
            }
        }
    }

    #[test]
    fn what_the_kernel_refuses_bpf_is_no_reason_to_refuse_the_run() {
        let iface = || "eth0".to_owned();
        let source = std::io::Error::from_raw_os_error(libc::ERANGE);
        assert!(another_engine_helps(&CaptureError::Attach {
            iface: iface(),
            hook: iface(),
            source
        }));
        assert!(another_engine_helps(&CaptureError::RealTimeKernel));
        assert!(!another_engine_helps(&CaptureError::InterfaceDown { iface: iface() }));
        assert!(!another_engine_helps(&CaptureError::Options("--snaplen 0".into())));
    }

    #[test]
    fn auto_takes_engines_that_heed_what_was_asked_for() {
        let names = |flags: &[&'static str]| {
            let (engine, options) = (None, EngineOptions::default());
            let request = EngineRequest { engine, options, flags: flags.to_vec() };
            request.candidates(&interface()).map(|engine| engine.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["bpf", "af_packet"]);
        assert_eq!(names(&["--hook"]), ["bpf"]);
        assert_eq!(names(&["--speed"]), ["bpf", "af_packet"], "for files of the same run");
    }

    #[test]
    fn memory_is_that_of_the_hungriest_candidate() {
        let target = interface();
        let (engine, options) = (None, EngineOptions::default());
        let request = EngineRequest { engine, options, flags: Vec::new() };
        let memory = request.memory(&target);
        assert_eq!(memory.buffer_bytes, Memory::BUFFERED.buffer_bytes);
        assert_eq!(memory.rings * (4 << 20), crate::engines::bpf::least_ring_bytes());
    }
}
