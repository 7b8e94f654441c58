//! The time of a table, and the sweep over its lines that ends flows.

use super::FlowTable;
use crate::lines::{Line, oldest_ages};
use crate::record::{EndReason, FlowRecord};
use crate::slots::{FIRST, LAST, LINE_SLOTS, set_tick, used};
use crate::ticks::{Moved, OVER_TICKS};

/// Ticks in which the sweep visits all lines once.
const ROUND_TICKS: u64 = 8;
/// After this many ticks the age of a slot, which is one byte, could have wrapped; but then everything in the table
/// is older than any time-out.
const JUMP_TICKS: u64 = 128;

impl FlowTable {
    #[inline(always)]
    pub(super) fn go_to(&mut self, ts_ns: u64, ended: &mut impl FnMut(FlowRecord)) {
        match self.time.go_to(ts_ns) {
            Moved::On => {}
            Moved::SteppedAhead => self.counters.clock_steps_ahead += 1,
            Moved::SteppedBack => self.counters.clock_steps_back += 1,
        }
        if self.time.elapsed_ns >= self.tick_at_ns {
            self.pass_ticks(ended);
        }
    }

    #[inline(never)]
    fn pass_ticks(&mut self, ended: &mut impl FnMut(FlowRecord)) {
        let ticks = [&mut self.idle, &mut self.active, &mut self.sweep];
        let [idle, active, sweep] = ticks.map(|ticks| ticks.go_to(self.time.elapsed_ns));
        self.tick_at_ns = self.idle.next_ns().min(self.active.next_ns()).min(self.sweep.next_ns());
        if idle >= JUMP_TICKS && self.config.idle_timeout.is_some() {
            return self.end_all(EndReason::Idle, ended);
        }
        if active >= JUMP_TICKS {
            return self.end_all(EndReason::Active, ended);
        }
        let lines = self.slots.index.len();
        let step = (lines as u64).div_ceil(ROUND_TICKS) * sweep.min(ROUND_TICKS);
        for _ in 0..step.min(lines as u64) {
            let line = self.hand;
            self.hand = if line + 1 == lines { 0 } else { line + 1 };
            self.sweep_line(line, ended);
        }
    }

    fn sweep_line(&mut self, line: usize, ended: &mut impl FnMut(FlowRecord)) {
        let Line([_, _, _, _, last @ .., first_low, first_high]) = self.slots.index[line];
        let oldest = oldest_ages(&Line([0, 0, 0, 0, last[0], last[1], 0, 0]), self.idle.byte()).0;
        let longest =
            oldest_ages(&Line([0, 0, 0, 0, first_low, first_high, 0, 0]), self.active.byte()).0;
        if oldest < OVER_TICKS && longest < OVER_TICKS {
            return;
        }
        for at in 0..LINE_SLOTS {
            if used(&self.slots.index[line]) & 1 << at == 0 {
                // A free slot gets the current ticks, so that it does not make the line look old.
                let (idle, active) = (self.idle.byte(), self.active.byte());
                set_tick(&mut self.slots.index[line], LAST, at, idle);
                set_tick(&mut self.slots.index[line], FIRST, at, active);
            } else if let Some(reason) = self.over(&self.slots.index[line], at) {
                self.end(line, at, reason, ended);
            }
        }
    }

    pub(super) fn end_all(&mut self, reason: EndReason, ended: &mut impl FnMut(FlowRecord)) {
        for line in 0..self.slots.index.len() {
            let mut mask = used(&self.slots.index[line]);
            while mask != 0 {
                self.end(line, mask.trailing_zeros() as usize, reason, ended);
                mask &= mask - 1;
            }
        }
    }
}
