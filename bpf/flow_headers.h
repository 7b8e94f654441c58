/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Reads the header fields of a frame that a flow table needs: the flow key as words, the length of the IP packet, TCP
 * flags, ICMP type and code; or the reason why the frame has no flow. Also hashes a key. crates/weir-flow
 * (table/headers.rs, fast.rs, fragments.rs) reads the same fields in Rust; a test compares the two
 * (crates/weir-flow-kernel/src/differential_tests.rs).
 */
#ifndef WEIR_FLOW_HEADERS_H
#define WEIR_FLOW_HEADERS_H

#include "flow.h"

/*
 * [0] to [3]: source and destination address, as in the packet; for IPv4 both are in [0]. [4], from the lowest bit on:
 * ports as in the packet (32 bits), protocol (8), VLAN ID (12), whether there is a VLAN (1), whether the packet is IPv6
 * (1), interface (10).
 */
#define WEIR_KEY_WORDS 5
#define WEIR_KEY_PROTOCOL_SHIFT 32
#define WEIR_KEY_VLAN_SHIFT 40
#define WEIR_KEY_TAGGED (1ull << 52)
#define WEIR_KEY_V6 (1ull << 53)
#define WEIR_KEY_INTERFACE_SHIFT 54

/* Why a frame has no flow: the first fields of weir_flow::NotFlows, in the same order. */
enum weir_not_flow {
	WEIR_ARP,
	WEIR_OTHER_PROTOCOL,
	WEIR_CUT_OFF,
	WEIR_MALFORMED,
	WEIR_TOO_MANY_VLANS,
	WEIR_NOT_FLOWS,
};

/*
 * WEIR_WHOLE: a whole packet or a first fragment, which has the ports. WEIR_ATTRIBUTED: a later fragment, with the
 * ports of the first. WEIR_UNATTRIBUTED: a later fragment; the first one was not seen, or is forgotten.
 */
enum weir_fragment { WEIR_WHOLE, WEIR_ATTRIBUTED, WEIR_UNATTRIBUTED };

struct weir_headers {
	__u64 key[WEIR_KEY_WORDS];
	__u32 ip_bytes;
	__u32 icmp;		/* code (8 bits), type (8), whether there are code and type (1) */
	__u8 tcp_flags;
	__u8 fragment;
};

const volatile __u32 by_vlan;	/* whether the VLAN is part of the key; set before loading */

/* Identifies a fragmented packet. Source: RFC 791, section 3.2, and RFC 8200, section 4.5. */
struct weir_fragment_id {
	__u64 addresses[4];
	__u32 number;
	__u16 vlan;
	__u16 protocol;		/* plus 1; 0: IPv6, whose fragments are identified without the protocol */
};

struct weir_fragment_ports {
	__u64 began_ns;
	__u32 ports;
	__u32 protocol;
};

/*
 * Ports of packets whose first fragment was seen. Shared by all CPUs, because the fragments of one packet may come on
 * several CPUs. When the map is full, the least recently used entry is evicted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);	/* weir_flow::limits::FRAGMENTED_PACKETS_MAX */
	__type(key, struct weir_fragment_id);
	__type(value, struct weir_fragment_ports);
} flow_fragments SEC(".maps");

/* As weir_flow::limits::REASSEMBLY_TIME_MAX. */
#define WEIR_REASSEMBLY_NS 60000000000ull

/*
 * Reads the headers at fixed offsets, which works for most frames: TCP or UDP in a whole packet without IP options,
 * extension headers or VLAN tag. Returns non-zero for any other frame, which needs weir_headers_walk.
 */
static __always_inline int weir_headers_fast(void *data, void *end, struct weir_headers *headers)
{
	void *ip = data + ETH_HLEN;
	__u64 bytes;
	__u8 protocol;
	__be16 type;

	if (data + 48 > end)
		return -1;
	type = *(__be16 *)(data + ETH_HLEN - 2);
	if (type == bpf_htons(ETH_P_IP)) {
		bytes = bpf_ntohs(*(__be16 *)(ip + 2));
		protocol = *(__u8 *)(ip + 9);
		if (*(__u8 *)ip != 0x45 || *(__be16 *)(ip + 6) & bpf_htons(0x3fff))
			return -1;
		headers->tcp_flags = 0;
		if (protocol == WEIR_TCP && bytes >= 34)
			headers->tcp_flags = *(__u8 *)(ip + 33);
		else if (protocol != WEIR_UDP || bytes < 24)
			return -1;
		headers->key[0] = *(__u64 *)(ip + 12);
		headers->key[1] = headers->key[2] = headers->key[3] = 0;
		headers->key[4] = *(__u32 *)(ip + 20) | (__u64)protocol << WEIR_KEY_PROTOCOL_SHIFT;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		if (ip + 54 > end)
			return -1;
		bytes = bpf_ntohs(*(__be16 *)(ip + 4)) + 40;
		protocol = *(__u8 *)(ip + 6);
		if (*(__u8 *)ip >> 4 != 6)
			return -1;
		headers->tcp_flags = 0;
		if (protocol == WEIR_TCP && bytes >= 54)
			headers->tcp_flags = *(__u8 *)(ip + 53);
		else if (protocol != WEIR_UDP || bytes < 44)
			return -1;
		headers->key[0] = *(__u64 *)(ip + 8);
		headers->key[1] = *(__u64 *)(ip + 16);
		headers->key[2] = *(__u64 *)(ip + 24);
		headers->key[3] = *(__u64 *)(ip + 32);
		headers->key[4] = *(__u32 *)(ip + 40) | (__u64)protocol << WEIR_KEY_PROTOCOL_SHIFT | WEIR_KEY_V6;
	} else {
		return -1;
	}
	/* The packet is longer than the linear part: it is cut off, or continues in further buffers. */
	if (bytes > (__u64)(end - ip))
		return -1;
	headers->ip_bytes = bytes;
	headers->icmp = 0;
	headers->fragment = WEIR_WHOLE;
	return 0;
}

/* Returns the reason why an IP header could not be read. */
static __always_inline int weir_no_ip(void *ctx, enum weir_hook hook, __u32 len, __u32 at, __u32 version)
{
	__u8 first;

	if (weir_peek(ctx, hook, at, &first, 1))
		return WEIR_CUT_OFF;
	if (first >> 4 != version)
		return WEIR_MALFORMED;
	return at + (version == 4 ? 20 : 40) > len ? WEIR_CUT_OFF : WEIR_MALFORMED;
}

/* Gives a later fragment the ports and protocol of its packet; remembers those of a first fragment. */
static __always_inline void weir_fragment_of(void *ctx, enum weir_hook hook, __u32 packet_at,
					     const struct weir_chain *chain, struct weir_headers *headers)
{
	struct weir_fragment_ports ports, *found;
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	struct weir_fragment_id id = {};
	__u32 v6 = !!(headers->key[4] & WEIR_KEY_V6);

	headers->fragment = chain->later ? WEIR_UNATTRIBUTED : WEIR_WHOLE;
	if (v6) {
		if (!chain->identified_at || weir_peek(ctx, hook, chain->identified_at, &id.number, 4))
			return;
	} else {
		if (weir_peek(ctx, hook, packet_at + 4, &id.number, 2))
			return;
		id.protocol = (__u8)(headers->key[4] >> WEIR_KEY_PROTOCOL_SHIFT) + 1;
	}
	id.addresses[0] = headers->key[0];
	id.addresses[1] = headers->key[1];
	id.addresses[2] = headers->key[2];
	id.addresses[3] = headers->key[3];
	id.vlan = headers->key[4] >> WEIR_KEY_VLAN_SHIFT & 0x1fff;
	if (!chain->later) {
		ports.began_ns = now_ns;
		ports.ports = headers->key[4];
		ports.protocol = (__u8)(headers->key[4] >> WEIR_KEY_PROTOCOL_SHIFT);
		bpf_map_update_elem(&flow_fragments, &id, &ports, BPF_ANY);
		return;
	}
	found = bpf_map_lookup_elem(&flow_fragments, &id);
	if (!found || now_ns - found->began_ns > WEIR_REASSEMBLY_NS)
		return;
	headers->fragment = WEIR_ATTRIBUTED;
	headers->key[4] &= ~(0xffull << WEIR_KEY_PROTOCOL_SHIFT | 0xffffffffull);
	headers->key[4] |= found->ports | (__u64)(__u8)found->protocol << WEIR_KEY_PROTOCOL_SHIFT;
}

/*
 * Reads the headers of any frame, one after the other. `len` is the frame's length at this hook. `beside` is a VLAN tag
 * that the kernel keeps beside the frame's bytes: its protocol, in network byte order, in the lower half, and its TCI
 * in the upper half; 0: none. Returns -1 if the frame has a flow, else the reason why it has none (enum weir_not_flow).
 */
static __always_inline int weir_headers_walk(void *ctx, enum weir_hook hook, __u32 len, __u32 beside,
					     struct weir_headers *headers)
{
	struct weir_chain chain = { .at = ETH_HLEN };
	struct weir_flow_key key = {};
	__u32 i, packet_at, word = 0, vlan = 0;
	__be16 type;
	__u8 head[4];
	int found;

	__builtin_memset(headers, 0, sizeof(*headers));
	if (weir_peek(ctx, hook, ETH_HLEN - 2, &type, 2))
		return WEIR_CUT_OFF;
	if (beside) {
		if (!weir_is_vlan(beside & 0xffff))
			return WEIR_OTHER_PROTOCOL;
		vlan = 0x1000 | (beside >> 16 & 0xfff);
	}
#pragma unroll
	for (i = 0; i <= WEIR_VLANS_MAX && weir_is_vlan(type); i++) {
		if (i + !!beside >= WEIR_VLANS_MAX)
			return WEIR_TOO_MANY_VLANS;
		if (weir_peek(ctx, hook, chain.at, &word, 4))
			return WEIR_CUT_OFF;
		if (!vlan)
			vlan = 0x1000 | (bpf_ntohs(word & 0xffff) & 0xfff);
		type = word >> 16;
		chain.at += 4;
	}
	packet_at = chain.at;
	if (type == bpf_htons(ETH_P_ARP))
		return WEIR_ARP;
	if (type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6))
		return WEIR_OTHER_PROTOCOL;
	found = weir_flow_ip(ctx, hook, len, type, &chain, &key);
	if (!found)
		return weir_no_ip(ctx, hook, len, packet_at, type == bpf_htons(ETH_P_IP) ? 4 : 6);
	headers->ip_bytes = chain.end - packet_at;
	if (found == 1 && !weir_flow_extensions(ctx, hook, &chain, &key) && !chain.later &&
	    chain.at + 4 <= chain.end) {
		if (weir_has_ports(key.protocol) && !weir_peek(ctx, hook, chain.at, &word, 4)) {
			headers->key[4] = word;
			if (key.protocol == WEIR_TCP && chain.at + 14 <= chain.end &&
			    !weir_peek(ctx, hook, chain.at + 13, head, 1))
				headers->tcp_flags = head[0];
		}
		if ((key.protocol == WEIR_ICMP || key.protocol == WEIR_ICMPV6) &&
		    !weir_peek(ctx, hook, chain.at, head, 4))
			headers->icmp = 1 << 16 | head[0] << 8 | head[1];
	}
	if (key.version == 4) {
		headers->key[0] = key.src[1] >> 32 | (key.dst[1] >> 32) << 32;
	} else {
		headers->key[0] = key.src[0];
		headers->key[1] = key.src[1];
		headers->key[2] = key.dst[0];
		headers->key[3] = key.dst[1];
		headers->key[4] |= WEIR_KEY_V6;
	}
	headers->key[4] |= (__u64)key.protocol << WEIR_KEY_PROTOCOL_SHIFT;
	if (by_vlan)
		headers->key[4] |= (__u64)vlan << WEIR_KEY_VLAN_SHIFT;
	if (key.fragment)
		weir_fragment_of(ctx, hook, packet_at, &chain, headers);
	return -1;
}

/*
 * A global function, not a static one, so that the verifier checks it once and on its own. For a static function it
 * would check the rest of the caller again for each path through the function: Linux 6.1 gave up after a million
 * instructions.
 */
__noinline int weir_headers_walk_tc(struct __sk_buff *skb, __u32 beside, struct weir_headers *headers)
{
	if (!headers)
		return WEIR_MALFORMED;
	return weir_headers_walk(skb, WEIR_TC, skb->len, beside, headers);
}

static __noinline int weir_headers_walk_xdp(struct xdp_md *ctx, struct weir_headers *headers)
{
	return weir_headers_walk(ctx, WEIR_XDP, bpf_xdp_get_buff_len(ctx), 0, headers);
}

/* A CPU's last reading of the coarse clock. */
struct weir_clock {
	__u64 jiffies;
	__u64 ns;
};

/*
 * The time of CLOCK_MONOTONIC_COARSE. This clock advances when jiffies do, and reading jiffies is a plain load. So the
 * clock is read only when jiffies have changed, which saves 20 ns a frame. The timer interrupt updates jiffies before
 * the clock: a CPU that handles a frame between the two updates is one tick behind until the next tick.
 */
static __always_inline __u64 weir_coarse_ns(struct weir_clock *clock)
{
	__u64 jiffies = bpf_jiffies64();

	if (clock->jiffies != jiffies) {
		clock->jiffies = jiffies;
		clock->ns = bpf_ktime_get_coarse_ns();
	}
	return clock->ns;
}

#define WEIR_SECRET_WORDS 22

/*
 * One of the two sums of weir_keyed_hash: 32 bits, which are equal for two different keys only by chance. The secret is
 * volatile: it is set before loading, and otherwise clang would compile in its value in this source, 0.
 */
static __always_inline __u64 weir_pair_sum(const __u64 *key, const volatile __u64 *secret)
{
	__u64 sum = (secret[0] + (key[0] >> 32)) * (secret[1] + (__u32)key[0]) +
		    (secret[2] + (key[4] >> 32)) * (secret[3] + (__u32)key[4]);

	if (key[4] & WEIR_KEY_V6) {
		sum += (secret[4] + (key[1] >> 32)) * (secret[5] + (__u32)key[1]);
		sum += (secret[6] + (key[2] >> 32)) * (secret[7] + (__u32)key[2]);
		sum += (secret[8] + (key[3] >> 32)) * (secret[9] + (__u32)key[3]);
	}
	return sum >> 32;
}

/*
 * The hash of a key: two sums of Thorup's pair-multiply-shift. Without knowledge of the secret, nobody can choose keys
 * that collide more often than by chance. The sums of consecutive keys are consecutive, too, so a bijection with a
 * secret of its own mixes them. The sums take a few independent multiplications; SipHash-1-3 would be a chain of some
 * 190 instructions, because BPF has no rotation (docs/decisions/0042-the-table-in-the-kernel.md).
 *
 * Source: Thorup, "High speed hashing for integers and strings", 2015, section 3.3.
 */
static __always_inline __u64 weir_keyed_hash(const __u64 *key, const volatile __u64 *secret)
{
	__u64 hash = weir_pair_sum(key, secret) << 32 | weir_pair_sum(key, secret + 10);

	hash = (hash ^ secret[20]) * (secret[21] | 1);
	hash ^= hash >> 32;
	hash *= 0x9fb21c651e98df25ull;
	return hash ^ hash >> 28;
}

#endif
