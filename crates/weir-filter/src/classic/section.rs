//! Translates a whole program, for frames with a tag beside their bytes or for those without.

use super::asm::{Asm, Label};
use super::load::{self, Spare};
use super::{ClassicError, Code};
use crate::flow_graph::{A, OFFSET_MAX, Then, To};
use crate::frame::TAG_BYTES;
use crate::insn::*;

/// The place of the outer tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    /// The tag is in the bytes, or there is none.
    Inside,
    Beside,
}

/// A section under construction, after the finished ones.
pub(super) struct Section<'a> {
    code: &'a Code<'a>,
    asm: Asm,
    tag: Tag,
    spare: Spare,
    /// One label for each instruction.
    labels: Vec<Label>,
    take: Label,
    reject: Label,
}

impl<'a> Section<'a> {
    pub(super) fn new(code: &'a Code<'a>, mut asm: Asm) -> Section<'a> {
        let spare = Spare { word: code.spare_word(), is_lacking: false };
        // `emit` replaces this label before it is used.
        let nowhere = asm.label();
        let (labels, take, reject) = (Vec::new(), nowhere, nowhere);
        Section { code, asm, tag: Tag::Inside, spare, labels, take, reject }
    }

    /// Returns the code, or an error if a spare word was needed and there is none.
    pub(super) fn finish(self) -> Result<Vec<Insn>, ClassicError> {
        if self.spare.is_lacking { Err(ClassicError::NoWord) } else { Ok(self.asm.finish()) }
    }

    /// Emits both sections, and the test that selects one of them.
    pub(super) fn branch_by_tag(&mut self) {
        let (inside, beside) = (self.asm.label(), self.asm.label());
        self.asm.emit(LD_B_ABS, VLAN_TAG_PRESENT);
        self.asm.branch(JMP | JEQ, 0, inside, beside);
        self.asm.place(inside);
        self.emit();
        self.asm.place(beside);
        self.tag = Tag::Beside;
        if self.code.graph.begins_as_zero & A != 0 {
            self.asm.emit(LD_IMM, 0);
        }
        self.emit();
    }

    /// Emits the section. It relies on A and X being 0, as far as the program reads them first.
    pub(super) fn emit(&mut self) {
        let code = self.code;
        self.labels = code.program.insns().iter().map(|_| self.asm.label()).collect();
        (self.take, self.reject) = (self.asm.label(), self.asm.label());
        let last = if code.graph.takes() { To::Take } else { To::Reject };
        for (number, step) in code.graph.steps.iter().enumerate() {
            let behind = code.graph.steps.get(number + 1).map_or(last, |next| To::Insn(next.at));
            let insn = code.program.insns()[step.at];
            self.asm.place(self.labels[step.at]);
            self.insn(step.at, insn);
            match step.then {
                Then::To(to) if to == behind => {}
                Then::To(to) => self.asm.go(self.label(to)),
                Then::If(yes, no) => {
                    self.asm.branch(insn.code, insn.k, self.label(yes), self.label(no));
                }
                Then::End => unreachable!("verdicts are not asked for"),
            }
        }
        self.asm.place(self.take);
        if code.graph.takes() {
            self.asm.emit(RET_K, code.taken);
        }
        self.asm.place(self.reject);
        self.asm.emit(RET_K, 0);
    }

    fn label(&self, to: To) -> Label {
        match to {
            To::Insn(at) => self.labels[at],
            To::Take => self.take,
            To::Reject => self.reject,
        }
    }

    fn insn(&mut self, at: usize, insn: Insn) {
        let by_x = insn.code & X != 0;
        match insn.code {
            RET_A => {
                let taken = self.asm.label();
                self.asm.branch(JMP | JEQ, 0, self.reject, taken);
                self.asm.place(taken);
            }
            LD_LEN => self.length(),
            LDX_LEN if self.tag == Tag::Beside => self.make_x(|section| section.length()),
            _ if insn.is_conditional_jump() => {}
            _ if insn.load().is_some_and(|load| load.indirect) => self.indirect(at, insn),
            _ if insn.load().is_some() => self.absolute(insn),
            _ if insn.code & 7 == ALU && by_x && is_shift(insn) && self.code.most_of_x[at] > 31 => {
                self.shift(insn);
            }
            _ => self.asm.emit(insn.code, insn.k),
        }
    }

    /// A ← the length on the wire.
    fn length(&mut self) {
        self.asm.emit(LD_LEN, 0);
        if self.tag == Tag::Beside {
            self.asm.emit(ALU | ADD, TAG_BYTES as u32);
        }
    }

    /// X ← the value that `make` computes in A. A is unchanged.
    fn make_x(&mut self, make: impl FnOnce(&mut Self)) {
        let word = self.spare.word();
        self.asm.emit(ST, word);
        make(self);
        self.asm.emit(TAX, 0);
        self.asm.emit(LD_MEM, word);
    }

    fn absolute(&mut self, insn: Insn) {
        let found = insn.load().expect("asked before");
        let size = u32::from(found.size);
        let place = match self.tag {
            Tag::Inside => Some(insn.k),
            Tag::Beside => load::place(insn.k, size),
        };
        match place {
            Some(place) => self.asm.emit(insn.code, place),
            None if found.header_length => self.make_x(|section| {
                section.of_tag(insn.k, size);
                section.asm.emit(ALU | AND, 0xf);
                section.asm.emit(ALU | LSH, 2);
            }),
            None => self.of_tag(insn.k, size),
        }
    }

    fn of_tag(&mut self, offset: u32, size: u32) {
        load::at(&mut self.asm, offset, size, &mut self.spare);
    }

    fn indirect(&mut self, at: usize, insn: Insn) {
        let found = insn.load().expect("asked before");
        let most_of_x = self.code.most_of_x[at];
        let limit = OFFSET_MAX - insn.k;
        if most_of_x > limit {
            let inside = self.asm.label();
            self.asm.emit(TXA, 0);
            self.asm.branch(JMP | JGT, limit, self.reject, inside);
            self.asm.place(inside);
        }
        if self.tag == Tag::Inside {
            return self.asm.emit(insn.code, insn.k);
        }
        let what = (insn.code, insn.k, u32::from(found.size));
        load::at_x(&mut self.asm, what, most_of_x, &mut self.spare);
    }

    /// Emits a shift by X, which may be 32 or more.
    fn shift(&mut self, insn: Insn) {
        let word = self.spare.word();
        let (zero, few, done) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.emit(ST, word);
        self.asm.emit(TXA, 0);
        self.asm.branch(JMP | JGT, 31, zero, few);
        self.asm.place(few);
        self.asm.emit(LD_MEM, word);
        self.asm.emit(insn.code, 0);
        self.asm.go(done);
        self.asm.place(zero);
        self.asm.emit(LD_IMM, 0);
        self.asm.place(done);
    }
}

fn is_shift(insn: Insn) -> bool {
    matches!(insn.code & 0xf0, LSH | RSH)
}
