//! Assembles classic BPF, with labels that are placed later, and with jumps that are longer than a conditional jump can
//! be.

use crate::insn::*;

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// The longest conditional jump: its distance is one byte.
const JUMP_MAX: usize = u8::MAX as usize;

enum Item {
    Plain(Insn),
    Go(Label),
    /// The operand is X if `code` has the bit `X`, else `k`.
    Branch {
        code: u16,
        k: u32,
        yes: Way,
        no: Way,
    },
}

struct Way {
    to: Label,
    /// Whether the jump is longer than [`JUMP_MAX`], so that it goes through a `ja` after the branch.
    is_far: bool,
}

impl Item {
    fn insns(&self) -> usize {
        match self {
            Item::Plain(_) | Item::Go(_) => 1,
            Item::Branch { yes, no, .. } => 1 + usize::from(yes.is_far) + usize::from(no.is_far),
        }
    }
}

/// The code. All jumps go forward.
#[derive(Default)]
pub(super) struct Asm {
    items: Vec<Item>,
    /// For each label, the number of the item that it precedes.
    labels: Vec<Option<usize>>,
}

impl Asm {
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places the label here.
    pub(super) fn place(&mut self, label: Label) {
        let was = self.labels[label.0].replace(self.items.len());
        assert!(was.is_none(), "a label has one place");
    }

    pub(super) fn emit(&mut self, code: u16, k: u32) {
        self.items.push(Item::Plain(Insn::new(code, k)));
    }

    pub(super) fn go(&mut self, to: Label) {
        self.items.push(Item::Go(to));
    }

    pub(super) fn branch(&mut self, code: u16, k: u32, yes: Label, no: Label) {
        let way = |to| Way { to, is_far: false };
        self.items.push(Item::Branch { code, k, yes: way(yes), no: way(no) });
    }

    /// Returns the instructions.
    pub(super) fn finish(mut self) -> Vec<Insn> {
        let mut begins = self.begins();
        // A jump that becomes far can make other jumps longer, never shorter.
        while self.lengthen(&begins) {
            begins = self.begins();
        }
        let mut insns = Vec::with_capacity(*begins.last().expect("there is always an end"));
        for item in &self.items {
            match item {
                Item::Plain(insn) => insns.push(*insn),
                Item::Go(to) => {
                    let k = self.distance(&begins, *to, insns.len());
                    insns.push(Insn::new(JA, k as u32));
                }
                Item::Branch { code, k, yes, no } => {
                    self.finish_branch(&mut insns, &begins, Insn::new(*code, *k), [yes, no])
                }
            }
        }
        insns
    }

    fn finish_branch(
        &self,
        insns: &mut Vec<Insn>,
        begins: &[usize],
        branch: Insn,
        ways: [&Way; 2],
    ) {
        let at = insns.len();
        insns.push(branch);
        let skips = ways.map(|way| {
            if !way.is_far {
                return self.distance(begins, way.to, at) as u8;
            }
            let skip = insns.len() - at - 1;
            let k = self.distance(begins, way.to, insns.len());
            insns.push(Insn::new(JA, k as u32));
            skip as u8
        });
        [insns[at].jt, insns[at].jf] = skips;
    }

    /// Returns the number of the first instruction of each item. The last element is the number of all instructions.
    fn begins(&self) -> Vec<usize> {
        let mut begins = vec![0];
        begins.extend(self.items.iter().scan(0, |at, item| {
            *at += item.insns();
            Some(*at)
        }));
        begins
    }

    /// Returns the number of instructions between instruction `at` and the label.
    fn distance(&self, begins: &[usize], to: Label, at: usize) -> usize {
        let place = self.labels[to.0].expect("each label that is used has a place");
        begins[place].checked_sub(at + 1).expect("jumps go forward")
    }

    /// Marks conditional jumps that are too long; returns false if there are none.
    fn lengthen(&mut self, begins: &[usize]) -> bool {
        let mut found = Vec::new();
        for (number, item) in self.items.iter().enumerate() {
            let Item::Branch { yes, no, .. } = item else { continue };
            let is_far = |way: &Way| self.distance(begins, way.to, begins[number]) > JUMP_MAX;
            let far = [yes, no].map(|way| way.is_far || is_far(way));
            if far != [yes.is_far, no.is_far] {
                found.push((number, far));
            }
        }
        for &(number, far) in &found {
            let Item::Branch { yes, no, .. } = &mut self.items[number] else { continue };
            [yes.is_far, no.is_far] = far;
        }
        !found.is_empty()
    }
}
