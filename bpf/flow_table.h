/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The flow table in the kernel: its memory, which user space maps and only reads
 * (crates/weir-flow-kernel/src/layout.rs), and the code that counts a frame there.
 *
 * Each CPU has its own table, which only programs on that CPU write. They run with bottom halves off, so only hard
 * interrupts can interrupt such a program, and these run no such program. So atomics are needed only for memory order
 * on arm64.
 *
 * A flow may be in two buckets, one in each half of the table, and begins in the emptier one (Voecking, "How asymmetry
 * helps load balancing", 1999). If both are full, the flow that was seen least recently is recorded and evicted. A flow
 * that ended by a time-out keeps its slot until it is evicted; user space finds and reports such flows.
 *
 * Readers rely on this: `changes` of a bucket is odd while a flow of the bucket begins or ends. WEIR_BUSY of `packets`
 * is set while a frame is counted. A record is complete before `head` includes it, and is written before its slot is
 * used again.
 */
#ifndef WEIR_FLOW_TABLE_H
#define WEIR_FLOW_TABLE_H

#include "compiler.h"
#include "flow_headers.h"

#define WEIR_BUCKET_SLOTS 8

/* Of a bucket, a frame of a known flow reads the first cache line, and reads and writes the cache line of its slot. */
struct weir_flow_slot {
	__u64 key[WEIR_KEY_WORDS];
	__u64 last_ns;		/* CLOCK_MONOTONIC_COARSE, as are all times here */
	__u64 packets;		/* top bit: WEIR_BUSY */
	__u64 bytes;		/* 56 bits; TCP flags in the upper 8 */
};

/* Fields of a flow that are written only when it begins. */
struct weir_flow_origin {
	__u64 first_ns;
	__u64 id;		/* interface (16 bits), ICMP code (8), type (8), whether there are code and type (1) */
	__u64 serial;		/* number of the flow on this CPU, from 1 on */
};

struct weir_flow_bucket {
	__u64 tags[2];		/* for each slot 16 bits: 15 bits of the hash; 0: the slot never had a flow */
	__u16 last[WEIR_BUCKET_SLOTS];	/* tick of each flow's last frame */
	__u16 first[WEIR_BUCKET_SLOTS];
	__u64 changes;
	__u64 unused;
	struct weir_flow_slot slots[WEIR_BUCKET_SLOTS];
	struct weir_flow_origin origins[WEIR_BUCKET_SLOTS];
};

_Static_assert(sizeof(struct weir_flow_slot) == 64, "a cache line");
_Static_assert(sizeof(struct weir_flow_bucket) == 768, "shared with Rust");

#define WEIR_BUSY (1ull << 63)
#define WEIR_FLAGS_SHIFT 56
#define WEIR_HAS_ICMP (1ull << 32)

/* The record of a flow that has ended. */
struct weir_flow_record {
	struct weir_flow_slot slot;
	struct weir_flow_origin origin;
	__u64 place;		/* 56 bits: number of the flow's slot in the table of all CPUs; 8 bits: the reason */
};

_Static_assert(sizeof(struct weir_flow_record) == 96, "shared with Rust");

#define WEIR_REASON_SHIFT 56

/* flowEndReason (IPFIX element 136). */
enum weir_reason { WEIR_GOES_ON = 0, WEIR_IDLE = 1, WEIR_ACTIVE = 2, WEIR_EVICTED = 5 };

/* Counts of one CPU. */
struct weir_flow_counts {
	__u64 frames;
	__u64 not_flows[WEIR_NOT_FLOWS];
	__u64 began;
	__u64 evicted;
	__u64 lost_records;	/* records that were not written, because user space had not read older ones */
	__u64 lost_packets;
	__u64 lost_bytes;
	__u64 fragments_attributed;
	__u64 fragments_unattributed;
	__u64 head;		/* number of records that were written */
	__u64 recent;		/* slot of the last frame's flow, numbered from 1; 0: none */
	struct weir_clock clock;
	__u64 unused[7];
};

_Static_assert(sizeof(struct weir_flow_counts) == 192, "shared with Rust");

/* Set before loading, constant afterwards. */
const volatile __u32 half_buckets;	/* buckets in each half of one CPU's table */
const volatile __u32 ring_records;	/* records in one CPU's ring, a power of two */
const volatile __u64 idle_ns;		/* all ones: no time-out */
const volatile __u64 active_ns;
const volatile __u64 look_ns;		/* after a pause this long, times decide whether a flow has ended, not ticks */
const volatile __u32 tick_shift;
const volatile __u32 idle_ticks;	/* a flow without a frame for so many has ended; above 16 bits: never */
const volatile __u32 active_ticks;	/* a flow that began fewer ticks ago than this goes on */
const volatile __u32 interface;		/* number of this program's interface in the records */
const volatile __u32 by_interface;
const volatile __u32 wire_bytes;	/* whether to count the bytes on the wire instead of those of the IP packet */
const volatile __u64 secret[WEIR_SECRET_WORDS];

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* set before loading: CPUs x 2 x half_buckets */
	__type(key, __u32);
	__type(value, struct weir_flow_bucket);
} flow_table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* set before loading: CPUs x ring_records */
	__type(key, __u32);
	__type(value, struct weir_flow_record);
} flow_records SEC(".maps");

/* Counts, by CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* set before loading */
	__type(key, __u32);
	__type(value, struct weir_flow_counts);
} flow_counts SEC(".maps");

struct weir_flow_tail {
	__u64 records;		/* number of records that user space has read */
	__u64 unused[15];	/* pads to two cache lines, because the processor fetches them together */
};

/* How far user space has read the records, by CPU. User space writes no other memory of these. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* set before loading */
	__type(key, __u32);
	__type(value, struct weir_flow_tail);
} flow_tails SEC(".maps");

/* Sets the top bit of each 16-bit lane that is 0, and no other bit. In `lanes`, no top bit may be set. */
static __always_inline __u64 weir_zero_lanes(__u64 lanes)
{
	return ~(lanes + 0x7fff7fff7fff7fffull) & 0x8000800080008000ull;
}

/*
 * Returns the slot, 0 to 7, of one bit. The top bit of a lane is for a slot of the first word, the bit below it for a
 * slot of the second word. BPF has no instruction that counts zeros; a multiplication moves the lane's number to the
 * top.
 */
static __always_inline __u32 weir_lane(__u64 bit)
{
	__u32 second = !!(bit & 0x4000400040004000ull);

	bit >>= 15 - second;
	return ((0x0000000100020003ull * bit >> 48) & 3) + second * 4;
}

/* Returns the number of bits, which are in the form of weir_lane. */
static __always_inline __u32 weir_count_lanes(__u64 bits)
{
	bits = (bits >> 15 & 0x0001000100010001ull) + (bits >> 14 & 0x0001000100010001ull);
	return bits * 0x0001000100010001ull >> 48;
}

/* Stores a word after all earlier stores and before all later ones. */
static __always_inline void weir_store_ordered(__u64 *word, __u64 value)
{
#if defined(__TARGET_ARCH_arm64)
	__sync_lock_test_and_set(word, value);
#else
	weir_barrier();
	*(volatile __u64 *)word = value;
	weir_barrier();
#endif
}

static __always_inline int weir_is_key(const struct weir_flow_slot *slot, const __u64 *key)
{
	/* Words 1 to 3 of an IPv4 key are 0. */
	if (slot->key[4] != key[4] || slot->key[0] != key[0])
		return 0;
	return !(key[4] & WEIR_KEY_V6) ||
	       !((slot->key[1] ^ key[1]) | (slot->key[2] ^ key[2]) | (slot->key[3] ^ key[3]));
}

/* Removes the first slot from `slots`, and returns it if it has the key, else -1. */
static __always_inline int weir_try(const struct weir_flow_bucket *bucket, const __u64 *key, __u64 *slots)
{
	__u64 lowest = *slots & -*slots;
	__u32 slot = weir_lane(lowest) & 7;

	*slots ^= lowest;
	return weir_is_key(&bucket->slots[slot], key) ? (int)slot : -1;
}

/*
 * Returns the slot of the flow, or -1. Compares only the first four slots with the same tag. That five of eight have
 * the same tag happens less than once in 10^18 lookups; a flow that is not found for this reason begins a second time,
 * and is reported in two records.
 */
static __always_inline int weir_find(struct weir_flow_bucket *bucket, __u64 tag, const __u64 *key)
{
	__u64 same = tag * 0x0001000100010001ull, equal;
	int slot;

	/* Both words are combined in one: the bits of the second word are shifted by one. */
	equal = weir_zero_lanes(bucket->tags[0] ^ same) | weir_zero_lanes(bucket->tags[1] ^ same) >> 1;
	if (!equal)
		return -1;
	slot = weir_try(bucket, key, &equal);
	if (slot >= 0 || !equal)
		return slot;
	slot = weir_try(bucket, key, &equal);
	if (slot >= 0 || !equal)
		return slot;
	slot = weir_try(bucket, key, &equal);
	if (slot >= 0 || !equal)
		return slot;
	return weir_try(bucket, key, &equal);
}

/* Returns the slots that never had a flow, as bits for weir_lane. */
static __always_inline __u64 weir_free(const struct weir_flow_bucket *bucket)
{
	return weir_zero_lanes(bucket->tags[0]) | weir_zero_lanes(bucket->tags[1]) >> 1;
}

/*
 * Returns all ones if `a` < `b`, else 0; both are below 2^63. Without a jump: the verifier would follow both branches.
 */
static __always_inline __u64 weir_below(__u64 a, __u64 b)
{
	__s64 difference = a - b;

	weir_opaque(difference);
	return difference >> 63;
}

/*
 * Returns the slot that was seen least recently (low 3 bits) and its age in ticks (from bit 6 on). Counts ended flows.
 */
static __always_inline __u64 weir_oldest(const struct weir_flow_bucket *bucket, __u64 tick, __u64 turn, __u64 *ended)
{
	__u64 oldest = 0, count = 0, i;

#pragma unroll
	for (i = 0; i < WEIR_BUCKET_SLOTS; i++) {
		/* Volatile: else clang reads all values first, and keeps them on the stack, which is small. */
		__u64 age = (tick - ((const volatile __u16 *)bucket->last)[i]) & 0xffff;
		/* If several are equally old, the frame's hash selects one. Opaque: else clang keeps all eight values. */
		weir_opaque(turn);
		__u64 rank = age << 6 | ((i + turn) & 7) << 3 | i;

		count -= weir_below(idle_ticks - 1, age);
		oldest += (rank - oldest) & weir_below(oldest, rank);
	}
	*ended = count;
	return oldest;
}

/* A frame whose headers were read, before it is counted in the table. */
struct weir_counted {
	struct weir_headers headers;
	__u64 now_ns;
	__u64 bytes;
	__u32 cpu;
	__u32 tick;
};

/* Writes the record of the flow in a slot, or counts its loss. */
static __always_inline void weir_emit(__u32 cpu, struct weir_flow_counts *counts, const struct weir_flow_slot *slot,
				      const struct weir_flow_origin *origin, __u64 place)
{
	__u64 head = counts->head;
	struct weir_flow_record *record;
	struct weir_flow_tail *tail;
	__u32 at;

	tail = bpf_map_lookup_elem(&flow_tails, &cpu);
	at = cpu * ring_records + (head & (ring_records - 1));
	record = bpf_map_lookup_elem(&flow_records, &at);
	if (!tail || !record || head - *(volatile __u64 *)&tail->records >= ring_records) {
		counts->lost_records++;
		counts->lost_packets += slot->packets;
		counts->lost_bytes += slot->bytes & ((1ull << WEIR_FLAGS_SHIFT) - 1);
		return;
	}
	record->slot = *slot;
	record->origin = *origin;
	record->place = place;
	weir_store_ordered(&counts->head, head + 1);
}

/* Begins the flow of a frame in a slot. If `reason` is not 0, the flow in the slot ends for that reason. */
static __always_inline void weir_begin(struct weir_flow_counts *counts, struct weir_flow_bucket *bucket, __u32 number,
				       __u32 at, __u64 reason, __u64 tag, const struct weir_counted *frame)
{
	struct weir_flow_slot *slot = &bucket->slots[at & 7];
	struct weir_flow_origin *origin = &bucket->origins[at & 7];
	__u64 changes = bucket->changes;
	const struct weir_headers *headers = &frame->headers;

	weir_store_ordered(&bucket->changes, changes + 1);
	if (reason) {
		__u64 place = (__u64)number * WEIR_BUCKET_SLOTS + (at & 7);

		weir_emit(frame->cpu, counts, slot, origin, reason << WEIR_REASON_SHIFT | place);
	}
	slot->key[0] = headers->key[0];
	slot->key[1] = headers->key[1];
	slot->key[2] = headers->key[2];
	slot->key[3] = headers->key[3];
	slot->key[4] = headers->key[4];
	slot->last_ns = frame->now_ns;
	slot->packets = 1;
	slot->bytes = frame->bytes | (__u64)headers->tcp_flags << WEIR_FLAGS_SHIFT;
	origin->first_ns = frame->now_ns;
	origin->id = interface | (__u64)headers->icmp << 16;
	origin->serial = ++counts->began;
	((__u16 *)bucket->tags)[at & 7] = tag;
	bucket->last[at & 7] = frame->tick;
	bucket->first[at & 7] = frame->tick;
	weir_store_ordered(&bucket->changes, changes + 2);
}

/*
 * Counts a frame of the flow in a slot. If that flow has ended, counts nothing and returns the reason; the caller then
 * begins a new flow.
 */
static __always_inline __u64 weir_add(struct weir_flow_bucket *bucket, __u32 at, const struct weir_counted *frame)
{
	struct weir_flow_slot *slot = &bucket->slots[at & 7];
	__u64 since = frame->now_ns - slot->last_ns, packets;

	if (since >= look_ns || ((frame->tick - bucket->first[at & 7]) & 0xffff) >= active_ticks) {
		if (since >= idle_ns)
			return WEIR_IDLE;
		if (frame->now_ns - bucket->origins[at & 7].first_ns >= active_ns)
			return WEIR_ACTIVE;
	}
	packets = slot->packets + 1;
	weir_store_ordered(&slot->packets, packets | WEIR_BUSY);
	slot->bytes = (slot->bytes + frame->bytes) | (__u64)frame->headers.tcp_flags << WEIR_FLAGS_SHIFT;
	slot->last_ns = frame->now_ns;
	weir_store_ordered(&slot->packets, packets);
	/* Readers read this cache line for all slots of the bucket, so it is written only if the value changes. */
	if (bucket->last[at & 7] != (__u16)frame->tick)
		bucket->last[at & 7] = frame->tick;
	return WEIR_GOES_ON;
}

/* Begins a flow in the emptier bucket, or in place of the flow that was seen least recently. */
static __always_inline void weir_place(struct weir_flow_counts *counts, struct weir_flow_bucket *left,
				       struct weir_flow_bucket *right, __u32 left_number, __u32 right_number,
				       __u64 tag, const struct weir_counted *frame)
{
	__u64 free = weir_free(left), others_free = weir_free(right), reason = 0;

	if (free | others_free) {
		if (weir_count_lanes(others_free) > weir_count_lanes(free)) {
			left = right;
			left_number = right_number;
			free = others_free;
		}
		free = weir_lane(free & -free);
	} else {
		__u64 ended, others_ended, since;
		__u64 oldest = weir_oldest(left, frame->tick, tag, &ended);
		__u64 other = weir_oldest(right, frame->tick, tag, &others_ended);

		/* Evict from the bucket in which more flows have ended; if equal, evict the older flow. */
		if ((others_ended << 32 | other) > (ended << 32 | oldest)) {
			left = right;
			left_number = right_number;
			oldest = other;
		}
		free = oldest & 7;
		since = frame->now_ns - left->slots[free & 7].last_ns;
		reason = since >= idle_ns ? WEIR_IDLE : WEIR_EVICTED;
		counts->evicted += reason == WEIR_EVICTED;
	}
	counts->recent = left_number * WEIR_BUCKET_SLOTS + free + 1;
	weir_begin(counts, left, left_number, free, reason, tag, frame);
}

/* Counts a frame that has a flow. */
static __always_inline void weir_count(struct weir_flow_counts *counts, struct weir_counted *frame)
{
	__u32 number, right_number, base = frame->cpu * 2 * half_buckets;
	struct weir_flow_bucket *bucket = NULL, *right;
	__u64 hash, tag, reason, recent = counts->recent;
	int at = 0;

	if (by_interface)
		frame->headers.key[4] |= (__u64)interface << WEIR_KEY_INTERFACE_SHIFT;
	/* Often the frame belongs to the same flow as the frame before it. */
	number = (recent - 1) / WEIR_BUCKET_SLOTS;
	if (recent) {
		at = (recent - 1) & 7;
		bucket = bpf_map_lookup_elem(&flow_table, &number);
		if (bucket && !weir_is_key(&bucket->slots[at & 7], frame->headers.key))
			bucket = NULL;
	}
	if (!bucket) {
		hash = weir_keyed_hash(frame->headers.key, secret);
		number = base + (__u32)((hash & 0xffffffff) * half_buckets >> 32);
		/* The tag takes the bits on which the bucket depends least, of both halves of the hash. */
		tag = (hash & 0xff) | (hash >> 24 & 0x7f00);
		tag += !tag;
		bucket = bpf_map_lookup_elem(&flow_table, &number);
		if (!bucket)
			return;
		at = weir_find(bucket, tag, frame->headers.key);
		if (at < 0) {
			right_number = base + half_buckets + (__u32)((hash >> 32) * half_buckets >> 32);
			right = bpf_map_lookup_elem(&flow_table, &right_number);
			if (!right)
				return;
			at = weir_find(right, tag, frame->headers.key);
			if (at < 0)
				return weir_place(counts, bucket, right, number, right_number, tag, frame);
			bucket = right;
			number = right_number;
		}
		counts->recent = number * WEIR_BUCKET_SLOTS + at + 1;
	}
	reason = weir_add(bucket, at, frame);
	if (reason)
		weir_begin(counts, bucket, number, at, reason, ((__u16 *)bucket->tags)[at & 7], frame);
}

#endif
