/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Words between the owner and its programs; crates/weir-capture/src/bpf/control.rs in Rust. */
#ifndef WEIR_CONTROL_H
#define WEIR_CONTROL_H

struct weir_control {
	/* written by the owner */
	__u64 tai_offset_ns;	/* [0]: CLOCK_TAI - CLOCK_REALTIME */
	__u64 armed;		/* [1 + cpu]: wake the owner at this many frames; all ones: do not */
	__u64 closed;		/* [0]: take no more frames (af_xdp) */
	__u64 unused[13];
	/* written by the programs on this CPU */
	__u64 rung;		/* the last `armed` that was answered */
	__u64 offered;		/* frames that came to the hook */
	__u64 offered_nested;	/* and those that came while another was being written */
	__u64 tags_unknown;	/* [0]: the driver cannot say which VLAN tags it took off */
	__u64 in_parts;		/* frames that the kernel would not have taken into a socket (af_xdp) */
	__u64 unused2[11];
};

_Static_assert(sizeof(struct weir_control) == 256, "shared with Rust");

#endif
