//! Tests of `apply` and `undo` on a simulated panel, of which one knob may refuse to be written.

use std::collections::BTreeMap;

use super::*;

struct Fake {
    values: BTreeMap<String, String>,
    stuck: &'static str,
}

impl Panel for Fake {
    fn read(&self, knob: &Knob) -> io::Result<String> {
        self.values.get(&knob.to_string()).cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, knob: &Knob, value: &str) -> io::Result<()> {
        if knob.to_string() == self.stuck {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.values.insert(knob.to_string(), value.to_owned());
        Ok(())
    }
}

const ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn knob(path: &str) -> Knob {
    Knob::File { path: path.to_owned() }
}

fn three() -> Vec<Setting> {
    let set = |path| Setting { knob: knob(path), value: "1".to_owned(), why: String::new() };
    vec![set("a"), set("b"), set("c")]
}

fn fake(stuck: &'static str) -> Fake {
    let values = ["a", "b", "c"].map(|name| (name.to_owned(), format!("0{name}")));
    Fake { values: values.into(), stuck }
}

fn book() -> (tempfile::TempDir, Book) {
    let folder = tempfile::tempdir().unwrap();
    let book = Book::open(&folder.path().join("own")).unwrap();
    (folder, book)
}

#[test]
fn undo_gives_back_exactly_what_was_however_often_it_was_applied() {
    let ((_folder, book), mut fake) = (book(), fake(""));
    let before = fake.values.clone();
    let steps = apply(&mut fake, &book, "eth0", ADDRESS, &three()).unwrap();
    assert!(steps.iter().all(|(_, outcome)| matches!(outcome, Outcome::Changed(..))));
    let again = apply(&mut fake, &book, "eth0", ADDRESS, &three()).unwrap();
    assert!(again.iter().all(|(_, outcome)| matches!(outcome, Outcome::Already(_))));
    // A setting that was changed already gets another value: `undo` restores the value before the first change.
    let other = [Setting { knob: knob("a"), value: "2".to_owned(), why: String::new() }];
    apply(&mut fake, &book, "eth0", ADDRESS, &other).unwrap();
    assert_eq!(undo(&mut fake, &book, "eth0", ADDRESS).unwrap().len(), 3);
    assert_eq!(fake.values, before);
    assert!(undo(&mut fake, &book, "eth0", ADDRESS).unwrap().is_empty());
}

#[test]
fn a_half_failed_apply_says_so_and_undo_takes_back_the_other_half() {
    let ((_folder, book), mut fake) = (book(), fake("b"));
    let before = fake.values.clone();
    let steps = apply(&mut fake, &book, "eth0", ADDRESS, &three()).unwrap();
    assert!(
        matches!(steps[0].1, Outcome::Changed(..)) && matches!(steps[2].1, Outcome::Changed(..))
    );
    assert!(matches!(steps[1].1, Outcome::Failed(_)), "{steps:?}");
    assert_eq!(undo(&mut fake, &book, "eth0", ADDRESS).unwrap().len(), 2);
    assert_eq!(fake.values, before);
}

#[test]
fn an_undo_that_fails_is_still_written_down() {
    let ((_folder, book), mut fake) = (book(), fake(""));
    let before = fake.values.clone();
    apply(&mut fake, &book, "eth0", ADDRESS, &three()).unwrap();
    fake.stuck = "b";
    undo(&mut fake, &book, "eth0", ADDRESS).unwrap();
    assert_ne!(fake.values, before);
    fake.stuck = "";
    assert_eq!(undo(&mut fake, &book, "eth0", ADDRESS).unwrap().len(), 1);
    assert_eq!(fake.values, before);
}

#[test]
fn what_somebody_else_changed_since_is_left_alone() {
    let ((_folder, book), mut fake) = (book(), fake(""));
    apply(&mut fake, &book, "eth0", ADDRESS, &three()).unwrap();
    fake.values.insert("c".to_owned(), "theirs".to_owned());
    let steps = undo(&mut fake, &book, "eth0", ADDRESS).unwrap();
    assert!(steps.iter().any(|(_, outcome)| matches!(outcome, Outcome::Foreign(_))));
    assert_eq!(fake.values["c"], "theirs");
    assert_eq!(fake.values["a"], "0a");
}

#[test]
fn a_namesake_that_came_later_is_left_alone() {
    let ((_folder, book), mut fake) = (book(), fake(""));
    apply(&mut fake, &book, "eth0", ADDRESS, &three()).unwrap();
    let after = fake.values.clone();
    assert!(undo(&mut fake, &book, "eth0", [9; 6]).unwrap().is_empty());
    assert_eq!(fake.values, after);
}
