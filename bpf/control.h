/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Words that the owner shares with its programs. In Rust: crates/weir-capture/src/engines/bpf/control.rs. */
#ifndef WEIR_CONTROL_H
#define WEIR_CONTROL_H

/* Most generations of a program. Each counts in its own words (docs/decisions/0017-feeds-at-run-time.md). */
#define WEIR_GENERATIONS 8

/* `armed` while no reader is to be woken. */
#define WEIR_AWAKE (~0ull)

/*
 * [0] is shared by all CPUs. [1 + ring] belongs to that ring, and is written by the programs on the ring's CPU. The
 * number of a ring is: place of its feed * number of possible CPUs + CPU. The lines of the first place also have the
 * counts that are kept once for all feeds.
 */
struct weir_control {
	/* written by the owner */
	__u64 tai_offset_ns;	/* [0]: CLOCK_TAI - CLOCK_REALTIME */
	__u64 armed;		/* wake the owner at this many frames, and for each quarter of a ring */
	__u64 closed;		/* [0]: take no more frames (af_xdp) */
	__u64 unused[13];
	/* written by the programs: first place's lines */
	__u64 busy;		/* non-zero while a frame is being handled */
	__u64 offered;		/* frames that came to the hook (af_xdp) */
	__u64 offered_nested;	/* frames that came while another was being handled (af_xdp: always 0) */
	__u64 tags_unknown;	/* [0]: the driver cannot tell which VLAN tags it removed */
	__u64 in_parts;		/* frames in several parts, which a socket of this kernel does not take (af_xdp) */
	/* and every ring's line */
	__u64 rung;		/* the last value of `armed` for which the doorbell was rung */
	__u64 chosen;		/* frames that the feed chose */
	__u64 sampled;		/* of these, frames that sampling excluded */
	__u64 skip;		/* frames to exclude before the next one is kept */
	__u64 blocked;		/* of the frames that the feed chose, those that its block list excluded */
	__u64 unwanted;		/* first place's lines: frames that no feed's filter took (af_xdp) */
	__u64 unused2[5];
	/*
	 * first place's lines (bpf): frames that came to the hook, and frames that came while another was being
	 * handled, which are dropped; both by generation of the program
	 */
	__u64 offered_by[WEIR_GENERATIONS];
	__u64 nested_by[WEIR_GENERATIONS];
};

_Static_assert(sizeof(struct weir_control) == 384, "shared with Rust");

#endif
