/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Interfaces by pattern: their numbers in the rings, and their counts. In Rust:
 * crates/weir-capture/src/engines/bpf/members/counts.rs.
 */
#ifndef WEIR_MEMBERS_H
#define WEIR_MEMBERS_H

#define WEIR_INTERFACES_MAX 1024	/* weir-capture/src/limits.rs */
/* Number 0 is the pattern itself, which has no frames. */
#define WEIR_ROWS (WEIR_INTERFACES_MAX + 1)

/* Frames of an interface that came to the hook on one CPU. As `offered_by` and `nested_by` of struct weir_control. */
struct weir_came {
	__u64 judged[WEIR_GENERATIONS];
	__u64 nested[WEIR_GENERATIONS];
};

/* Counts of an interface's frames in a ring. */
enum weir_share_word {
	WEIR_CHOSEN, WEIR_BLOCKED, WEIR_SAMPLED, WEIR_CAPTURED, WEIR_KEPT_BYTES, WEIR_WIRE_BYTES,
	WEIR_SUPER_FRAMES, WEIR_UNREADABLE, WEIR_SHARE_WORDS,
};

struct weir_share { __u64 of[WEIR_SHARE_WORDS]; };

_Static_assert(sizeof(struct weir_came) == 128 && sizeof(struct weir_share) == 64, "shared with Rust");

/* Maps the kernel's index of an interface to its number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_INTERFACES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} members SEC(".maps");

/* All rows of the first CPU, then those of the next. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* set before loading: CPUs x WEIR_ROWS */
	__type(key, __u32);
	__type(value, struct weir_came);
} came SEC(".maps");

/* All rows of the first ring, then those of the next. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* set before loading: rings x WEIR_ROWS */
	__type(key, __u32);
	__type(value, struct weir_share);
} shares SEC(".maps");

static __always_inline struct weir_came *weir_came_of(__u32 cpu, __u32 interface)
{
	__u32 row = cpu * WEIR_ROWS + interface;

	return bpf_map_lookup_elem(&came, &row);
}

static __always_inline struct weir_share *weir_share_of(__u32 ring, __u32 interface)
{
	__u32 row = ring * WEIR_ROWS + interface;

	return bpf_map_lookup_elem(&shares, &row);
}

static __always_inline void weir_count(__u32 ring, __u32 interface, enum weir_share_word word)
{
	struct weir_share *share = weir_share_of(ring, interface);

	if (share)
		share->of[word]++;
}

static __always_inline void weir_count_written(__u32 ring, __u32 interface, const struct weir_frame *frame)
{
	struct weir_share *share = weir_share_of(ring, interface);

	if (!share)
		return;
	share->of[WEIR_CAPTURED]++;
	share->of[WEIR_KEPT_BYTES] += frame->caplen;
	share->of[WEIR_WIRE_BYTES] += frame->wire_len;
	if (frame->flags & WEIR_FLAG_SUPER_FRAME)
		share->of[WEIR_SUPER_FRAMES]++;
}

#endif
