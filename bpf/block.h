/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Block lists: each excludes frames of one feed by addresses and flows. crates/weir-filter/src/block.rs does the same
 * in Rust, crates/weir-capture/src/engines/bpf/block.rs owns the maps, and a test compares the two implementations
 * (crates/weir-capture/tests/flow.rs).
 *
 * Entries are in three maps: addresses, prefixes, and flows (5-tuples with their ends in order). Each feed also has a
 * *front*, a bitmap that is read before the maps; for nearly every frame it shows that no entry can match. The front
 * has bits for the hashes of addresses and flows, and a cell for each 4,096 IPv4 addresses. False positives are
 * possible (how often: docs/decisions/0010-block-front.md), false negatives are not. A cell is marked as covered if it
 * lies completely within a prefix. Only the owner writes the front.
 *
 * A capture program uses the list of a feed in this way:
 *
 *	struct weir_blocklist_front *front = weir_blocklist_of(feed);
 *
 *	if (front) {
 *		weir_flow(ctx, hook, tag, &key);
 *		if (weir_blocked(front, feed, &key))
 *			... count it, and take it no further
 *	}
 */
#ifndef WEIR_BLOCKLIST_H
#define WEIR_BLOCKLIST_H

#include "compiler.h"
#include "flow.h"

/* Sizes of the front in bits. */
#define WEIR_BLOCKLIST_HASHES (1u << 20)	/* hashes of addresses, flows and IPv6 prefixes */
#define WEIR_BLOCKLIST_CELLS (1u << 20)	/* the cells follow the hashes, with two bits each, for IPv4 prefixes */
#define WEIR_BLOCKLIST_BITS (WEIR_BLOCKLIST_HASHES + 2 * WEIR_BLOCKLIST_CELLS)

struct weir_blocklist_front {
	__u64 entries;			/* number of all entries; if 0, the list is empty and nothing else is read */
	__u64 prefixes_v4, prefixes_v6;
	__u64 wide_v6;			/* IPv6 prefixes that would set too many bits: then every address may match */
	__u64 unused[4];
	__u64 bits[WEIR_BLOCKLIST_BITS / 64];
};

struct weir_blocklist_address {
	__u64 address[2];
	__u32 feed, version;
};

struct weir_blocklist_flow {
	__u64 low[2], high[2];
	__u16 low_port, high_port;
	__u8 protocol, version;
	__u16 feed;
};

struct weir_blocklist_prefix {
	__u32 bits;			/* length of the prefix, which begins with the next field */
	__u16 feed, version;
	__u64 address[2];
};

_Static_assert(sizeof(struct weir_blocklist_front) == 393280, "shared with Rust");
_Static_assert(sizeof(struct weir_blocklist_address) == 24, "shared with Rust");
_Static_assert(sizeof(struct weir_blocklist_flow) == 40, "shared with Rust");
_Static_assert(sizeof(struct weir_blocklist_prefix) == 24, "shared with Rust");

/* Fronts by feed. The owner creates all four maps, and uses them in place of these. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_blocklist_front);
} block_front SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct weir_blocklist_address);
	__type(value, __u8);
} block_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct weir_blocklist_flow);
	__type(value, __u8);
} block_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct weir_blocklist_prefix);
	__type(value, __u8);
} block_prefixes SEC(".maps");

enum {
	WEIR_SUSPECT_SRC = 1,
	WEIR_SUSPECT_DST = 2,
	WEIR_SUSPECT_FLOW = 4,
	WEIR_SUSPECT_SRC_PREFIX = 8,
	WEIR_SUSPECT_DST_PREFIX = 16,
	WEIR_SUSPECT_COVERED = 32,	/* a certain match: a prefix contains the whole cell */
};

/* Maps an address to a number. The multipliers are those of flow.h. The upper bits of a product are mixed best. */
static __always_inline __u64 weir_blocklist_number(const __u64 *address)
{
	return bpf_be64_to_cpu(address[1]) + bpf_be64_to_cpu(address[0]) * WEIR_MIX_1;
}

/* As address_bit in front.rs. The next bit, end_bit, is set if the address is an end of a flow: one load reads both. */
static __always_inline __u64 weir_blocklist_address_bit(const __u64 *address)
{
	return (weir_blocklist_number(address) * WEIR_MIX_0) >> 44 & ~1ull;
}

enum {
	WEIR_IS_ADDRESS = 1,
	WEIR_IS_END = 2,
};

static __always_inline __u64 weir_blocklist_end(const __u64 *address, __u64 port)
{
	__u64 end = (weir_blocklist_number(address) ^ port * WEIR_MIX_2) * WEIR_MIX_0;

	return end ^ end >> 32;
}

/* As flow_bit in front.rs: the same bit for both directions. Takes a fifth of the time of weir_flow_hash. */
static __always_inline __u64 weir_blocklist_flow_bit(const struct weir_flow_key *key)
{
	__u64 ends = weir_blocklist_end(key->src, key->src_port) + weir_blocklist_end(key->dst, key->dst_port);

	return ((ends + key->protocol) * WEIR_MIX_1) >> 44;
}

/* As cell_bit in front.rs: set if a prefix contains a part of the cell. The next bit: if it contains the whole cell. */
static __always_inline __u64 weir_blocklist_cell_bit(const __u64 *address)
{
	return WEIR_BLOCKLIST_HASHES + (bpf_ntohl(address[1] >> 32) >> 11 & ~1u);
}

enum {
	WEIR_IS_PREFIX = 1,
	WEIR_IS_COVERED = 2,
};

/* As v6_bit in front.rs: a hash of the upper 32 bits. */
static __always_inline __u64 weir_blocklist_v6_bit(const __u64 *address)
{
	return (bpf_ntohl((__u32)address[0]) * WEIR_MIX_2) >> 44;
}

/* Returns the bit, followed by the next ones of its word. */
static __always_inline __u64 weir_blocklist_bits(const struct weir_blocklist_front *front, __u64 bit)
{
	__u64 word = bit >> 6;

	/* Keeps clang from computing `bit >> 3 & ~7`, for which the verifier finds no upper bound. */
	weir_opaque(word);
	return front->bits[word] >> (bit & 63);
}

static __always_inline int weir_blocklist_bit(const struct weir_blocklist_front *front, __u64 bit)
{
	return weir_blocklist_bits(front, bit) & 1;
}

/* Returns the feed's front if its list has entries, else 0; then the frame's key is not needed. */
static __always_inline struct weir_blocklist_front *weir_blocklist_of(__u32 feed)
{
	struct weir_blocklist_front *front = bpf_map_lookup_elem(&block_front, &feed);

	return front && front->entries ? front : 0;
}

/* Returns the parts of the key that may be in the list, a bit each. */
static __always_inline __u32 weir_blocklist_suspects(const struct weir_blocklist_front *front,
						 const struct weir_flow_key *key)
{
	__u64 src = weir_blocklist_bits(front, weir_blocklist_address_bit(key->src));
	__u64 dst = weir_blocklist_bits(front, weir_blocklist_address_bit(key->dst));
	__u32 suspects = 0;

	if (src & WEIR_IS_ADDRESS)
		suspects |= WEIR_SUSPECT_SRC;
	if (dst & WEIR_IS_ADDRESS)
		suspects |= WEIR_SUSPECT_DST;
	if (src & dst & WEIR_IS_END && weir_blocklist_bit(front, weir_blocklist_flow_bit(key)))
		suspects |= WEIR_SUSPECT_FLOW;
	if (key->version == 4 && front->prefixes_v4) {
		src = weir_blocklist_bits(front, weir_blocklist_cell_bit(key->src));
		dst = weir_blocklist_bits(front, weir_blocklist_cell_bit(key->dst));
		if (src & WEIR_IS_PREFIX)
			suspects |= WEIR_SUSPECT_SRC_PREFIX;
		if (dst & WEIR_IS_PREFIX)
			suspects |= WEIR_SUSPECT_DST_PREFIX;
		if ((src | dst) & WEIR_IS_COVERED)
			suspects |= WEIR_SUSPECT_COVERED;
	}
	if (key->version == 6 && front->prefixes_v6) {
		if (front->wide_v6 || weir_blocklist_bit(front, weir_blocklist_v6_bit(key->src)))
			suspects |= WEIR_SUSPECT_SRC_PREFIX;
		if (front->wide_v6 || weir_blocklist_bit(front, weir_blocklist_v6_bit(key->dst)))
			suspects |= WEIR_SUSPECT_DST_PREFIX;
	}
	return suspects;
}

static __always_inline int weir_blocklist_has_address(__u32 feed, const struct weir_flow_key *key,
						  const __u64 *address)
{
	struct weir_blocklist_address entry = {
		.address = { address[0], address[1] },
		.feed = feed,
		.version = key->version,
	};

	return bpf_map_lookup_elem(&block_addresses, &entry) != 0;
}

static __always_inline int weir_blocklist_has_prefix(__u32 feed, const struct weir_flow_key *key,
						 const __u64 *address)
{
	struct weir_blocklist_prefix entry = {
		.bits = 8 * (sizeof(entry) - sizeof(entry.bits)),
		.feed = feed,
		.version = key->version,
		.address = { address[0], address[1] },
	};

	return bpf_map_lookup_elem(&block_prefixes, &entry) != 0;
}

/* Whether source and destination must be exchanged to be in order: by address, then by port. */
static __always_inline int weir_blocklist_swaps(const struct weir_flow_key *key)
{
	int i;

#pragma unroll
	for (i = 0; i < 2; i++) {
		__u64 src = bpf_be64_to_cpu(key->src[i]), dst = bpf_be64_to_cpu(key->dst[i]);

		if (src != dst)
			return src > dst;
	}
	return key->src_port > key->dst_port;
}

static __always_inline int weir_blocklist_has_flow(__u32 feed, const struct weir_flow_key *key)
{
	int swaps = weir_blocklist_swaps(key);
	struct weir_blocklist_flow entry = {
		.low = { swaps ? key->dst[0] : key->src[0], swaps ? key->dst[1] : key->src[1] },
		.high = { swaps ? key->src[0] : key->dst[0], swaps ? key->src[1] : key->dst[1] },
		.low_port = swaps ? key->dst_port : key->src_port,
		.high_port = swaps ? key->src_port : key->dst_port,
		.protocol = key->protocol,
		.version = key->version,
		.feed = feed,
	};

	return bpf_map_lookup_elem(&block_flows, &entry) != 0;
}

static __noinline int weir_blocklist_asks_maps(__u32 feed, const struct weir_flow_key *key, __u32 suspects)
{
	if (suspects & WEIR_SUSPECT_SRC && weir_blocklist_has_address(feed, key, key->src))
		return 1;
	if (suspects & WEIR_SUSPECT_DST && weir_blocklist_has_address(feed, key, key->dst))
		return 1;
	if (suspects & WEIR_SUSPECT_FLOW && weir_blocklist_has_flow(feed, key))
		return 1;
	if (suspects & WEIR_SUSPECT_SRC_PREFIX && weir_blocklist_has_prefix(feed, key, key->src))
		return 1;
	return suspects & WEIR_SUSPECT_DST_PREFIX && weir_blocklist_has_prefix(feed, key, key->dst);
}

/* Whether the list, which is not empty, blocks the key. In Rust: BlockList::contains. */
static __always_inline int weir_blocked(const struct weir_blocklist_front *front, __u32 feed,
					const struct weir_flow_key *key)
{
	__u32 suspects;

	if (!key->version)
		return 0;
	suspects = weir_blocklist_suspects(front, key);
	if (suspects & WEIR_SUSPECT_COVERED)
		return 1;
	return suspects && weir_blocklist_asks_maps(feed, key, suspects);
}

#endif
