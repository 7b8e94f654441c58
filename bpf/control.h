/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Words between the owner and its programs; crates/weir-capture/src/engines/bpf/control.rs in Rust. */
#ifndef WEIR_CONTROL_H
#define WEIR_CONTROL_H

/* Programs that count in words of their own at a time (docs/decisions/0017-feeds-at-run-time.md). */
#define WEIR_GENERATIONS 8

/*
 * [0] is shared by all CPUs. [1 + ring] is of that ring, and written by the programs on its CPU; a ring's
 * number is its feed's, times the CPUs that there may be, plus its CPU's. The first feed's lines also have what is
 * counted once for all feeds.
 */
struct weir_control {
	/* written by the owner */
	__u64 tai_offset_ns;	/* [0]: CLOCK_TAI - CLOCK_REALTIME */
	__u64 armed;		/* wake the owner at this many frames; all ones: do not */
	__u64 closed;		/* [0]: take no more frames (af_xdp) */
	__u64 unused[13];
	/* written by the programs: first feed's lines */
	__u64 busy;		/* a frame is under way */
	__u64 offered;		/* frames that came to the hook */
	__u64 offered_nested;	/* and those that came while another was under way: dropped */
	__u64 tags_unknown;	/* [0]: the driver cannot say which VLAN tags it took off */
	__u64 in_parts;		/* frames that the kernel would not have taken into a socket (af_xdp) */
	/* and every ring's line */
	__u64 rung;		/* the last `armed` that was answered */
	__u64 chosen;		/* frames that the feed chose */
	__u64 sampled;		/* and that sampling left out */
	__u64 skip;		/* frames to leave out before the next that is kept */
	__u64 blocked;		/* frames that the feed chose, and its block list left out */
	__u64 unwanted;		/* first feed's lines: frames that no feed's filter took (af_xdp) */
	__u64 unused2[5];
	/* first feed's lines (bpf): the same as `offered` and `offered_nested`, by generation of the program */
	__u64 offered_by[WEIR_GENERATIONS];
	__u64 nested_by[WEIR_GENERATIONS];
};

_Static_assert(sizeof(struct weir_control) == 384, "shared with Rust");

#endif
