/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The writer of a Weir ring, in BPF. crates/weir-ring/src/geometry.rs has the same layout in Rust; a test compares the
 * two byte by byte.
 *
 * There is one ring for each CPU and feed, and one writer of each ring: the program that runs on that CPU. TC and XDP
 * programs run with softirqs off, so they do not interrupt each other; if one does, the programs drop and count its
 * frame (`busy` in control.h).
 *
 * Ordering. clang 14 has neither BPF fences nor release stores. On x86 stores become visible in program order, so a
 * compiler barrier and a plain store are a release. On arm64 they do not, so a release is an xchg, which orders all
 * accesses around it. On both, a load may still be reordered before an earlier store: the doorbell can miss a threshold
 * that is set at the same moment. So the owner confirms thresholds, and until then the sleeper has a time limit
 * (weir-ring, doorbell.rs).
 */
#ifndef WEIR_RING_H
#define WEIR_RING_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "compiler.h"

#define WEIR_BLOCK_BYTES (1u << 20)
#define WEIR_HEADER_AREA_BYTES 0x10000
#define WEIR_INTERFACES_AT 0x10020	/* the word that counts the interfaces of the header area */
#define WEIR_WRITER_AT 0x10100
#define WEIR_INDEX_AT 0x11000
#define WEIR_DATA_BLOCKS_MAX 8192
#define WEIR_EPB_TYPE 6
#define WEIR_PADDING_TYPE 0x80005745u
#define WEIR_HEADER_BYTES 28

/*
 * Longest frame of each size class. WEIR_ROOM adds the rest of its record: 28 bytes of header, 20 of options, 4 of
 * length, and 12 for the padding block behind the record.
 */
#define WEIR_CAPLEN_SMALL 2048
#define WEIR_CAPLEN_JUMBO 10240
#define WEIR_CAPLEN_SUPER 69632		/* super-frames of 64 KiB */
#define WEIR_CAPLEN_BIG_TCP 200704	/* BIG TCP with usual settings */
#define WEIR_CAPLEN_MAX 528384		/* the longest frame of BIG TCP */
#define WEIR_ROOM(caplen_max) ((caplen_max) + 64)

#define WEIR_OPT_FLAGS 2
#define WEIR_OPT_QUEUE 6

#define WEIR_FLAG_INBOUND 1
#define WEIR_FLAG_OUTBOUND 2
#define WEIR_FLAG_SUPER_FRAME (1 << 11)

struct weir_writer {
	/* published: one 128-byte line */
	__u64 opened, ordinal, kept_bytes, wire_bytes, super_frames, closed;
	__u64 unused[10];
	/* used by the writer only: another line */
	__u64 offset, drops_unreadable;
};

struct weir_entry {
	__u64 seq, committed, frames, first_ordinal, first_ns, last_ns;
	__u64 unused[2];
};

_Static_assert(sizeof(struct weir_entry) == 64, "shared with Rust");
_Static_assert(__builtin_offsetof(struct weir_writer, offset) == 128, "shared with Rust");

/* The fields of a frame's record. */
struct weir_frame {
	__u64 ts_ns;	/* 0: no feed has stamped it yet */
	__u32 caplen;
	__u32 wire_len;
	__u32 flags;	/* epb_flags; written if with_flags */
	__u32 queue;	/* epb_queue; written if has_queue */
	__u32 has_queue;
	__u32 tag;		/* VLAN tag beside the bytes, as on the wire; 0: none */
	__u64 flow_hash;	/* not written; feeds with shards or samples select by it */
};

/* Without padding: before Linux 6.3, memory that is passed to a function must be initialized completely. */
_Static_assert(sizeof(struct weir_frame) == 40, "no padding");

static __always_inline void weir_store_release(__u64 *word, __u64 value)
{
#if defined(__TARGET_ARCH_arm64)
	__sync_lock_test_and_set(word, value);
#else
	weir_barrier();
	*(volatile __u64 *)word = value;
#endif
}

static __always_inline void *weir_block(void *ring, __u32 slot)
{
	return bpf_map_lookup_elem(ring, &slot);
}

struct weir_zero {
	__u8 *block;
	__u64 at;	/* a multiple of 8 */
};

#define WEIR_ZERO_BYTES 256

/* Zeroes the next 256 bytes, or the last 256 of the block. */
static long weir_zero_step(__u32 index, struct weir_zero *zero)
{
	__u64 at = zero->at;
	__u32 i;

	zero->at += WEIR_ZERO_BYTES;
	if (at > WEIR_BLOCK_BYTES - WEIR_ZERO_BYTES)
		at = WEIR_BLOCK_BYTES - WEIR_ZERO_BYTES;
	weir_opaque(at);
	if (at > WEIR_BLOCK_BYTES - WEIR_ZERO_BYTES)
		return 1;
#pragma unroll
	for (i = 0; i < WEIR_ZERO_BYTES; i += 8)
		*(__u64 *)(zero->block + at + i) = 0;
	return 0;
}

/* Zeroes the block's bytes from `at`, a multiple of 8, to the end. */
static __always_inline void weir_zero_tail(__u8 *block, __u64 at)
{
	struct weir_zero zero = { .block = block, .at = at };
	__u32 i;

	if (at <= WEIR_BLOCK_BYTES - WEIR_ZERO_BYTES) {
		bpf_loop((WEIR_BLOCK_BYTES - at + WEIR_ZERO_BYTES - 1) / WEIR_ZERO_BYTES,
			 weir_zero_step, &zero, 0);
		return;
	}
	/* The last 256 bytes cannot be zeroed at once, because a record ends within them. */
	for (i = 0; i < WEIR_ZERO_BYTES / 8; i++) {
		weir_opaque(at);
		if (at > WEIR_BLOCK_BYTES - 8)
			return;
		*(__u64 *)(block + at) = 0;
		at += 8;
	}
}

/* Ends the open block with a padding block, zeroed. `at` is the end of its last record. */
static __always_inline void weir_close_block(struct weir_writer *w, struct weir_entry *entry,
					     __u8 *block, __u64 at)
{
	__u32 bytes;

	/* Records leave at least the 12 bytes of the smallest padding block (WEIR_ROOM). */
	at &= ~3ull;
	weir_opaque(at);
	if (at > WEIR_BLOCK_BYTES - 12)
		return;
	bytes = WEIR_BLOCK_BYTES - at;
	/* Zero the bytes first, in steps of 8 from a multiple of 8, then store the type and the lengths. */
	if (at & 4)
		*(__u32 *)(block + at) = 0;
	weir_zero_tail(block, (at + 7) & ~7ull);
	*(__u32 *)(block + at) = WEIR_PADDING_TYPE;
	*(__u32 *)(block + at + 4) = bytes;
	*(__u32 *)(block + WEIR_BLOCK_BYTES - 4) = bytes;
	weir_store_release(&entry->committed, WEIR_BLOCK_BYTES);
	w->offset = WEIR_BLOCK_BYTES;
}

/* Claims the next block, and announces it. */
static __always_inline void weir_open_block(struct weir_writer *w, struct weir_entry *entry,
					    __u64 number, __u64 first_ns)
{
	__u64 seq = 2 * number + 2;

	*(volatile __u64 *)&entry->seq = seq - 1;
#if defined(__TARGET_ARCH_arm64)
	/* A, pairs with B in Reader: the claim is seen before new bytes. */
	__sync_lock_test_and_set(&entry->committed, 0);
#else
	weir_barrier();	/* A, pairs with B in Reader: the claim is seen before new bytes */
	entry->committed = 0;
#endif
	entry->frames = 0;
	entry->first_ordinal = w->ordinal;
	entry->first_ns = first_ns;
	entry->last_ns = first_ns;
	weir_store_release(&entry->seq, seq);	/* E, pairs with F in Reader */
	weir_store_release(&w->opened, number + 1);
	w->offset = 0;
}

static __always_inline struct weir_entry *weir_entry_of(void *meta, __u64 number, __u32 mask)
{
	__u64 slot = number & mask;

	weir_opaque(slot);
	slot &= WEIR_DATA_BLOCKS_MAX - 1;
	return meta + WEIR_INDEX_AT + slot * sizeof(struct weir_entry);
}

/* Closes the open block, if there is one, and opens the next. Returns non-zero only if the maps are not as expected. */
static __always_inline int weir_advance(void *ring, void *meta, struct weir_writer *w, __u32 mask,
					__u64 first_ns)
{
	__u64 opened = w->opened;
	__u64 at = w->offset;

	if (opened && at < WEIR_BLOCK_BYTES) {
		__u8 *block = weir_block(ring, 1 + ((opened - 1) & mask));

		if (!block)
			return -1;
		weir_close_block(w, weir_entry_of(meta, opened - 1, mask), block, at);
	}
	weir_open_block(w, weir_entry_of(meta, opened, mask), opened, first_ns);
	return 0;
}

/* Whether there is no open block, or it has no space for a record of the class. */
static __always_inline int weir_is_full(const struct weir_writer *w, __u32 room)
{
	return !w->opened || w->offset > WEIR_BLOCK_BYTES - room;
}

/*
 * Returns the address of the next record of the class in the open block, which has space for it, and the block's entry
 * in *entry_out. Returns 0 only if the maps are not as expected.
 */
static __always_inline __u8 *weir_reserve(void *ring, void *meta, struct weir_writer *w, __u32 mask,
					  __u32 room, struct weir_entry **entry_out)
{
	__u64 number = w->opened - 1;
	__u64 at = w->offset;
	__u8 *block = weir_block(ring, 1 + (number & mask));

	if (!block)
		return 0;
	weir_opaque(at);
	at &= ~3ull;
	if (at > WEIR_BLOCK_BYTES - room)
		return 0;
	*entry_out = weir_entry_of(meta, number, mask);
	return block + at;
}

/* Writes the words before the frame. */
static __always_inline void weir_put_header(__u8 *record, const struct weir_frame *frame,
					    __u32 interface_id, __u32 bytes)
{
	__u32 *words = (__u32 *)record;

	words[0] = WEIR_EPB_TYPE;
	words[1] = bytes;
	words[2] = interface_id;
	words[3] = frame->ts_ns >> 32;
	words[4] = frame->ts_ns;
	words[5] = frame->caplen;
	words[6] = frame->wire_len;
}

/* Returns the length that weir_put_header wrote. The verifier does not know bounds for it yet. */
static __always_inline __u64 weir_caplen_of(const __u8 *record)
{
	return *(const volatile __u32 *)(record + 20);
}

/* Writes padding, options and the closing length. `caplen` must be bounded by the class. */
static __always_inline void weir_put_tail(__u8 *record, const struct weir_frame *frame,
					  __u64 caplen, __u32 bytes, int with_flags, int with_queue)
{
	__u8 *end = record + WEIR_HEADER_BYTES + (caplen & ~3ull);
	__u32 *words;

	/*
	 * Zero the rest of the frame's last word. If the frame ends with a word, this is the next one, which is
	 * overwritten below.
	 */
	*(__u32 *)end &= (1u << ((caplen & 3) * 8)) - 1;
	words = (__u32 *)(record + WEIR_HEADER_BYTES + ((caplen + 3) & ~3ull));
	if (with_flags) {
		*words++ = 4 << 16 | WEIR_OPT_FLAGS;
		*words++ = frame->flags;
	}
	if (with_queue) {
		*words++ = 4 << 16 | WEIR_OPT_QUEUE;
		*words++ = frame->queue;
	}
	if (with_flags || with_queue)
		*words++ = 0;
	*words = bytes;
}

static __always_inline __u32 weir_record_bytes(__u32 caplen, int with_flags, int with_queue)
{
	__u32 options = 8 * (!!with_flags + !!with_queue);

	return WEIR_HEADER_BYTES + ((caplen + 3) & ~3u) + options + (options ? 4 : 0) + 4;
}

/* Makes the record visible. */
static __always_inline void weir_commit(struct weir_writer *w, struct weir_entry *entry,
					const struct weir_frame *frame, __u32 bytes)
{
	__u64 at = w->offset + bytes;

	w->offset = at;
	entry->frames++;
	entry->last_ns = frame->ts_ns;
	weir_store_release(&entry->committed, at);	/* C, pairs with D in Reader */
	w->kept_bytes += frame->caplen;
	w->wire_bytes += frame->wire_len;
	if (frame->flags & WEIR_FLAG_SUPER_FRAME)
		w->super_frames++;
	weir_store_release(&w->ordinal, w->ordinal + 1);
}

#endif
