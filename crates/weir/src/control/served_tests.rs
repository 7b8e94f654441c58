//! Changes of a running capture that some of its sources refuse.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_capture::{
    CaptureError, Feed, FeedControl, FeedHandle, FeedSlot, FilterLocation, Info, Pumped, Source,
    WakerSlot,
};
use weir_filter::insn::RET_K;
use weir_filter::{Insn, Program};
use weir_frame::pcapng::Interface;
use weir_probe::{Opener, SourceSpec};
use weir_ring::wake::Waker;
use weir_ring::{Clock, Ledger, Mapping, Ring, RingSpec, WriterKind, memory};

use super::*;
use crate::control::rpc::Ledgers;
use crate::source_name::Part;
use crate::sources::OpenSource;

/// The answers of a source to the changes that are requested, in order. It accepts all later changes.
type Answers = &'static [Answer];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Takes,
    Refuses,
    Ends,
}
use Answer::{Ends, Refuses, Takes};

/// The changes that sources accepted, in order: source and change.
type Taken = Arc<Mutex<Vec<(&'static str, String)>>>;

struct Fake {
    info: Info,
    control: Arc<FakeControl>,
}

struct FakeControl {
    name: &'static str,
    rings: Vec<Ring<Mapping>>,
    answers: Mutex<std::slice::Iter<'static, Answer>>,
    has_ended: AtomicBool,
    taken: Taken,
}

impl Source for Fake {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        Arc::clone(&self.control) as Arc<dyn FeedControl>
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        Ok(())
    }

    fn pump(&mut self, _: Duration) -> Result<Pumped, CaptureError> {
        std::thread::sleep(Duration::from_millis(1));
        let has_ended = self.control.has_ended.load(Ordering::Acquire);
        Ok(if has_ended { Pumped::Ended } else { Pumped::More })
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        Ok(())
    }
}

impl FeedControl for FakeControl {
    fn feeds(&self) -> Vec<FeedHandle> {
        vec![FeedHandle {
            slot: FeedSlot::first(),
            from: Vec::new(),
            rings: self.rings.clone(),
            location: FilterLocation::default(),
            pace: None,
        }]
    }

    fn add(&self, _: Feed) -> Result<FeedHandle, CaptureError> {
        unreachable!("nobody adds feeds")
    }

    fn remove(&self, _: FeedSlot) -> Result<Ledger, CaptureError> {
        unreachable!("nobody removes feeds")
    }

    fn replace_rings(&self, _: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        unreachable!("nobody replaces rings")
    }

    fn change(&self, _: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        match self.answers.lock().unwrap().next().unwrap_or(&Takes) {
            Refuses => return Err(CaptureError::Options("no room here".into())),
            Ends => self.has_ended.store(true, Ordering::Release),
            Takes => {}
        }
        let text = match change {
            Change::Filter(filter) => filter.map_or_else(String::new, |filter| filter.text.clone()),
            Change::Block { remove, add } => {
                let texts = |sign, entries: &[Entry]| {
                    entries.iter().map(|entry| format!("{sign}{entry}")).collect::<String>()
                };
                texts('-', &remove) + &texts('+', &add)
            }
        };
        self.taken.lock().unwrap().push((self.name, text));
        Ok(FilterLocation::default())
    }

    fn attach(&self, _: FeedSlot, _: Waker, _: usize) -> Result<WakerSlot, CaptureError> {
        Ok(WakerSlot::new(0))
    }

    fn detach(&self, _: FeedSlot, _: WakerSlot) {}

    fn ledger(&self, _: FeedSlot) -> Result<Ledger, CaptureError> {
        Ok(Ledger { offered: 7, captured: 7, ..Ledger::default() })
    }
}

/// A capture of these sources.
struct Capture {
    served: Served,
    taken: Taken,
}

fn capture(sources: &[(&'static str, Answers)]) -> Capture {
    let (journal, taken) = (Arc::new(Journal::default()), Taken::default());
    let probe = Probe::with_listener({
        let journal = Arc::clone(&journal);
        move |event| journal.note(event)
    });
    let probe = Arc::new(probe.unwrap());
    let mut subscriptions = Subscriptions::default();
    for (number, &(name, answers)) in sources.iter().enumerate() {
        let taken = Arc::clone(&taken);
        let open: Opener = Arc::new(move |_| {
            let spec = RingSpec {
                data_blocks: 4,
                interfaces: vec![Interface::default()],
                cpu: None,
                clock: Clock::Foreign,
                writer: WriterKind::User,
            };
            let rings = vec![memory::create_memfd("served-test", &spec)?];
            let (answers, has_ended) = (Mutex::new(answers.iter()), AtomicBool::new(false));
            let taken = Arc::clone(&taken);
            let control = Arc::new(FakeControl { name, rings, answers, has_ended, taken });
            Ok(Box::new(Fake { info: Info::default(), control }))
        });
        let spec = SourceSpec { name: name.into(), open, link: None, follows: false, cpus: None };
        let (id, own) = probe.open(spec, vec![Feed::default().into()]).unwrap();
        subscriptions.sources.push(OpenSource {
            id,
            name: name.into(),
            link_type: 1,
            is_of_daemon: false,
            refusals: Arc::default(),
        });
        subscriptions.feeds.push(Subscribed {
            source: number,
            subscription: own[0],
            output: number,
            name: String::new(),
            part: Part::Whole,
            takes: Feed::default(),
            changes: 0,
            shares: None,
        });
        probe.start(id).unwrap();
    }
    let subscriptions = Arc::new(subscriptions);
    let so_far = SoFar::new(Arc::clone(&probe), Arc::clone(&journal), Arc::clone(&subscriptions));
    let served = Served::new(probe, journal, subscriptions, Arc::new(so_far), None);
    Capture { served, taken }
}

impl Capture {
    /// Sets a filter like `set_filter`, but without its compiler, which is another process.
    fn filter(&self, text: &str) -> Result<usize, String> {
        let program = Program::new(vec![Insn::new(RET_K, 1)]).unwrap();
        let filter = Arc::new(Filter { text: text.into(), link_type: 1, program });
        let own = self.served.named("").unwrap();
        let change = |_| FeedChange::Filter(Some(Arc::clone(&filter)));
        let made = self.served.change_all(&mut self.served.state(), &own, change);
        made.map(|made| made.len()).map_err(|error| error_text(error.as_ref()))
    }

    fn block(&self, add: &[&str], remove: &[&str]) -> Result<Value, String> {
        let own = |texts: &[&str]| texts.iter().map(|&text| text.into()).collect();
        let method = Block { add: own(add), remove: own(remove), ..Block::default() };
        let answer = self.served.carry_out(Method::Block(method));
        answer.map_err(|error| error_text(error.as_ref()))
    }

    /// Changes that the sources accepted since the last call.
    fn taken(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut self.taken.lock().unwrap())
    }

    fn filters(&self) -> Vec<(Option<String>, u64)> {
        let in_force = self.served.in_force().into_iter();
        in_force.map(|now| (now.filter.map(|filter| filter.text.clone()), now.changes)).collect()
    }
}

fn text(what: &str) -> Option<String> {
    Some(what.to_owned())
}

#[test]
fn a_list_that_one_source_refuses_is_every_sources_old_one() {
    let capture = capture(&[("a", &[]), ("b", &[Takes, Refuses])]);
    let before = json!({ "feeds": 2, "blocked": ["10.0.0.1", "10.0.0.2"] });
    let mut answer = before.clone();
    answer["changed"] = json!(2);
    assert_eq!(capture.block(&["10.0.0.1", "10.0.0.2"], &[]), Ok(answer));
    capture.taken();
    // An entry that was there and is added again, or was not there and is removed, need not be
    // undone.
    let (add, remove) = (["10.0.0.2", "10.0.0.3"], ["10.0.0.1", "10.0.0.9"]);
    let error = capture.block(&add, &remove).unwrap_err();
    for words in ["b refuses", "nothing has changed at any of the 2 sources", "no room here"] {
        assert!(error.contains(words), "{error}");
    }
    let change = "-10.0.0.1+10.0.0.3".to_owned();
    assert_eq!(capture.taken(), [("a", change), ("a", "-10.0.0.3+10.0.0.1".to_owned())]);
    assert_eq!(capture.block(&[], &[]), Ok(before));
}

#[test]
fn a_filter_that_one_source_refuses_is_every_sources_old_one() {
    let capture = capture(&[("a", &[]), ("b", &[]), ("c", &[Takes, Refuses])]);
    assert_eq!(capture.filter("ip"), Ok(3));
    let error = capture.filter("ip6").unwrap_err();
    assert!(error.contains("c refuses") && error.contains("any of the 3 sources"), "{error}");
    let took = capture.taken();
    let took: Vec<(&str, &str)> = took[3..].iter().map(|(at, text)| (*at, text.as_str())).collect();
    assert_eq!(took, [("a", "ip6"), ("b", "ip6"), ("b", "ip"), ("a", "ip")]);
    // For a moment, a and b used the other filter: that change and its reversal are counted.
    assert_eq!(capture.filters(), [(text("ip"), 3), (text("ip"), 3), (text("ip"), 1)]);
}

#[test]
fn what_cannot_be_taken_back_is_said_and_shown_where_it_is() {
    let capture = capture(&[("a", &[Takes, Takes, Refuses]), ("b", &[Takes, Refuses])]);
    capture.block(&["10.0.0.1"], &[]).unwrap();
    let error = capture.block(&["10.0.0.2"], &["10.0.0.1"]).unwrap_err();
    assert!(error.contains("b refuses") && error.contains("taken back from a (no room"), "{error}");
    let sources = json!([
        { "source": "a", "blocked": ["10.0.0.2"] },
        { "source": "b", "blocked": ["10.0.0.1"] },
    ]);
    let shown = json!({ "feeds": 2, "blocked": [], "sources": sources });
    assert_eq!(capture.block(&[], &[]), Ok(shown));
    // Requested again, the change is made at all sources.
    // (a has it already; b adds one entry and removes one.)
    let healed = json!({ "feeds": 2, "blocked": ["10.0.0.2"], "changed": 2 });
    assert_eq!(capture.block(&["10.0.0.2"], &["10.0.0.1"]), Ok(healed));
}

#[test]
fn a_filter_that_cannot_be_taken_back_is_in_force_where_it_is() {
    let capture = capture(&[("a", &[Takes, Refuses]), ("b", &[Refuses])]);
    let error = capture.filter("ip6").unwrap_err();
    assert!(error.contains("taken back from a"), "{error}");
    assert_eq!(capture.filters(), [(text("ip6"), 1), (None, 0)]);
}

/// Waits until `is_so` is true.
fn within_10_s(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "the end was not noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_source_that_has_ended_stands_in_nobodys_way() {
    let capture = capture(&[("file:a", &[Ends]), ("b", &[])]);
    capture.block(&["10.0.0.1"], &[]).unwrap();
    // The thread of the source ends a moment later.
    within_10_s(|| capture.filter("ip").unwrap() == 1);
    let answer = json!({ "feeds": 1, "blocked": ["10.0.0.1", "10.0.0.2"], "changed": 1 });
    assert_eq!(capture.block(&["10.0.0.2"], &[]), Ok(answer));
}

#[test]
fn where_all_have_ended_nothing_is_changed() {
    let capture = capture(&[("file:a", &[Ends])]);
    capture.block(&["10.0.0.1"], &[]).unwrap();
    within_10_s(|| capture.filter("ip").is_err());
    let refused = capture.filter("ip").unwrap_err();
    assert!(refused.contains("has ended"), "{refused}");
}

#[test]
fn the_ledgers_of_all_feeds_are_told_while_they_run_and_afterwards() {
    let capture = capture(&[("one", &[]), ("two", &[Ends])]);
    let begin = Instant::now();
    let told = |has_ended: bool| loop {
        let told = capture.served.carry_out(Method::Ledgers(Ledgers {})).unwrap();
        let [one, two] = [&told["feeds"][0], &told["feeds"][1]];
        if one["offered"] == 7 && two["offered"] == 7 && two["ended"] == has_ended {
            assert_eq!((&one["source"], &one["ended"]), (&json!("one"), &json!(false)));
            assert!(two["drops"].is_object() && two["captured"] == 7, "{told}");
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{told}");
        std::thread::sleep(Duration::from_millis(1));
    };
    told(false);
    let _ = capture.filter("tcp");
    told(true);
}
