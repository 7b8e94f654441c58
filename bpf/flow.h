/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The flow key of a frame at TC or XDP, hashes of keys, and their use for shards and samples. crates/weir-frame
 * (headers.rs, flow.rs, shard.rs) does the same in Rust; a test compares the two (crates/weir-capture/tests/flow.rs).
 *
 * Two functions find the key. weir_flow_fast reads the bytes directly. It works for nearly all frames: at most one VLAN
 * tag in the bytes, no IP options, no extension headers, all headers in the linear part. weir_flow_walk is for all
 * other frames: it reads one header after the other through the kernel's helper, and supports everything that
 * FrameView::parse supports, with the same limits.
 */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define WEIR_VLANS_MAX 4	/* headers::VLANS_MAX: a fifth tag ends the walk */
#define WEIR_EXTENSIONS_MAX 8	/* headers::ip::EXTENSIONS_MAX */

struct weir_flow_key {
	__u64 src[2], dst[2];		/* as in the packet; IPv4 as ::ffff:a.b.c.d */
	__u16 src_port, dst_port;	/* in host order; 0 where there are none */
	__u8 protocol;			/* of the header after the extension headers */
	__u8 version;			/* 4 or 6; 0: no IP packet, and all other fields are 0 */
	__u8 fragment;			/* a fragment of a packet, also the first one */
	__u8 unused;			/* 0: keys are compared byte by byte */
};

_Static_assert(sizeof(struct weir_flow_key) == 40, "shared with Rust");

/* The hook, which decides by which helper the bytes of a frame are read. */
enum weir_hook { WEIR_TC, WEIR_XDP };

/* The first bytes of an IPv4 address in a key: 00 00 ff ff. */
#define WEIR_V4_MAPPED 0xffff0000ull

enum weir_protocol {
	WEIR_HOP_BY_HOP = 0,
	WEIR_ICMP = 1,
	WEIR_TCP = 6,
	WEIR_UDP = 17,
	WEIR_DCCP = 33,
	WEIR_ROUTING = 43,
	WEIR_FRAGMENT = 44,
	WEIR_AH = 51,
	WEIR_ICMPV6 = 58,
	WEIR_DESTINATION_OPTIONS = 60,
	WEIR_SCTP = 132,
	WEIR_UDP_LITE = 136,
};

static __always_inline int weir_is_vlan(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD) ||
	       type == bpf_htons(ETH_P_QINQ1);
}

static __always_inline int weir_has_ports(__u8 protocol)
{
	return protocol == WEIR_TCP || protocol == WEIR_UDP || protocol == WEIR_SCTP ||
	       protocol == WEIR_DCCP || protocol == WEIR_UDP_LITE;
}

/* Mobility, HIP and SHIM6 headers have no header after them in practice, so they end the walk. */
static __always_inline int weir_is_v6_extension(__u8 next)
{
	return next == WEIR_HOP_BY_HOP || next == WEIR_ROUTING || next == WEIR_FRAGMENT ||
	       next == WEIR_AH || next == WEIR_DESTINATION_OPTIONS;
}

static __always_inline void weir_put_v4(struct weir_flow_key *key, __u32 src, __u32 dst)
{
	key->src[0] = key->dst[0] = 0;
	key->src[1] = WEIR_V4_MAPPED | (__u64)src << 32;
	key->dst[1] = WEIR_V4_MAPPED | (__u64)dst << 32;
	key->version = 4;
}

static __always_inline void weir_put_ports(struct weir_flow_key *key, __u32 ports)
{
	key->src_port = bpf_ntohs(ports);
	key->dst_port = bpf_ntohs(ports >> 16);
}

/* Reads the key, which must be zero before. Returns 1: found; 0: the frame has none; -1: weir_flow_walk must decide. */
static __always_inline int weir_flow_fast(void *data, void *end, struct weir_flow_key *key)
{
	void *ip = data + ETH_HLEN;
	__be16 type;

	if (data + ETH_HLEN + 4 > end)
		return -1;
	type = *(__be16 *)(data + ETH_HLEN - 2);
	if (weir_is_vlan(type)) {
		type = *(__be16 *)(data + ETH_HLEN + 2);
		ip = data + ETH_HLEN + 4;
	}
	if (type == bpf_htons(ETH_P_IP)) {
		__u32 total;
		__u8 protocol;

		if (ip + 24 > end)
			return -1;
		total = bpf_ntohs(*(__be16 *)(ip + 2));
		protocol = *(__u8 *)(ip + 9);
		/* Excluded: options; a fragment; a packet too short for ports, unless its length is unknown (0). */
		if (*(__u8 *)ip != 0x45 || *(__be16 *)(ip + 6) & bpf_htons(0x3fff) ||
		    (total && total < 24) || protocol == WEIR_AH)
			return -1;
		weir_put_v4(key, *(__u32 *)(ip + 12), *(__u32 *)(ip + 16));
		key->protocol = protocol;
		if (weir_has_ports(protocol))
			weir_put_ports(key, *(__u32 *)(ip + 20));
		return 1;
	}
	if (type == bpf_htons(ETH_P_IPV6)) {
		__u32 payload;
		__u8 next;

		if (ip + 44 > end)
			return -1;
		payload = bpf_ntohs(*(__be16 *)(ip + 4));
		next = *(__u8 *)(ip + 6);
		if (*(__u8 *)ip >> 4 != 6 || (payload && payload < 4) || weir_is_v6_extension(next))
			return -1;
		key->src[0] = *(__u64 *)(ip + 8);
		key->src[1] = *(__u64 *)(ip + 16);
		key->dst[0] = *(__u64 *)(ip + 24);
		key->dst[1] = *(__u64 *)(ip + 32);
		key->version = 6;
		key->protocol = next;
		if (weir_has_ports(next))
			weir_put_ports(key, *(__u32 *)(ip + 40));
		return 1;
	}
	return weir_is_vlan(type) ? -1 : 0;
}

/* Copies bytes of the frame to the stack. Returns non-zero if the frame does not have all of them. */
static __always_inline long weir_peek(void *ctx, enum weir_hook hook, __u32 at, void *to, __u32 bytes)
{
	if (hook == WEIR_TC)
		return bpf_skb_load_bytes(ctx, at, to, bytes);
	return bpf_xdp_load_bytes(ctx, at, to, bytes);
}

/* The state of the walk, as Chain in ip.rs. */
struct weir_chain {
	__u32 at;
	__u32 end;	/* end of the packet, or of the frame if that comes first */
	__u32 later;	/* non-zero: a later fragment, which has no headers above IP */
	__u32 identified_at;	/* where a fragment header has the packet's identification; 0: there is none */
};

/*
 * Reads the fixed part of an IP header. Returns 0 if there is no packet; -1 if the key is set, but
 * the headers after the fixed part cannot be reached; else 1.
 */
static __always_inline int weir_flow_ip(void *ctx, enum weir_hook hook, __u32 len, __be16 type,
					struct weir_chain *chain, struct weir_flow_key *key)
{
	__u64 head[5];
	__u8 *bytes = (__u8 *)head;
	__u32 at = chain->at, header, total, word;

	if (type == bpf_htons(ETH_P_IPV6)) {
		if (weir_peek(ctx, hook, at, head, 40) || bytes[0] >> 4 != 6)
			return 0;
		key->src[0] = head[1];
		key->src[1] = head[2];
		key->dst[0] = head[3];
		key->dst[1] = head[4];
		key->version = 6;
		key->protocol = bytes[6];
		total = bytes[4] << 8 | bytes[5];
		chain->at = at + 40;
		chain->end = total && at + 40 + total < len ? at + 40 + total : len;
		chain->later = 0;
		return 1;
	}
	if (type != bpf_htons(ETH_P_IP) || weir_peek(ctx, hook, at, head, 20))
		return 0;
	header = (bytes[0] & 15) * 4;
	if (bytes[0] >> 4 != 4 || header < 20)
		return 0;
	total = bytes[2] << 8 | bytes[3];
	word = bytes[6] << 8 | bytes[7];
	weir_put_v4(key, *(__u32 *)(bytes + 12), *(__u32 *)(bytes + 16));
	key->protocol = bytes[9];
	key->fragment = (word & 0x3fff) != 0;
	chain->at = at + header;
	chain->end = total && at + total < len ? at + total : len;
	chain->later = word & 0x1fff;
	return (total && total < header) || at + header > len ? -1 : 1;
}

/*
 * Steps over extension headers, as walk_extensions in ip.rs. Returns non-zero if the headers after them cannot be
 * reached. Then the key has the protocol of the last header that was reached.
 *
 * Loops here are unrolled. The verifier of Linux 6.1 accepts a loop that is closed by a jump, but rejects one that is
 * closed by falling through ("back-edge"), which clang makes if it places the loop's head behind its body.
 */
static __always_inline int weir_flow_extensions(void *ctx, enum weir_hook hook,
						struct weir_chain *chain,
						struct weir_flow_key *key)
{
	__u8 head[8];
	__u32 i, bytes;

#pragma unroll
	for (i = 0; i <= WEIR_EXTENSIONS_MAX; i++) {
		__u8 protocol = key->protocol;

		if (chain->later || (key->version == 6 ? !weir_is_v6_extension(protocol)
						       : protocol != WEIR_AH))
			return 0;
		if (i == WEIR_EXTENSIONS_MAX || chain->at + 8 > chain->end ||
		    weir_peek(ctx, hook, chain->at, head, 8))
			return -1;
		bytes = (head[1] + 1) * 8;
		if (protocol == WEIR_FRAGMENT)
			bytes = 8;
		if (protocol == WEIR_AH) {
			/* The header is too short for its own sequence number (RFC 4302, section 2.2). */
			if (!head[1])
				return -1;
			bytes = (head[1] + 2) * 4;
		}
		if (chain->at + bytes > chain->end)
			return -1;
		if (protocol == WEIR_FRAGMENT) {
			__u32 word = head[2] << 8 | head[3];

			if (!chain->identified_at)
				chain->identified_at = chain->at + 4;
			key->fragment = (word & 0xfff9) != 0;
			chain->later = word & 0xfff8;
		}
		key->protocol = head[0];
		chain->at += bytes;
	}
	return -1;
}

/*
 * Reads the key of any frame. Returns non-zero if there is one. `len` is the frame's length at this hook, `tags` the
 * number of VLAN tags beside the bytes.
 */
static __always_inline int weir_flow_walk(void *ctx, enum weir_hook hook, __u32 len, __u32 tags,
					  struct weir_flow_key *key)
{
	struct weir_chain chain = { .at = ETH_HLEN };
	__be16 type;
	__u32 i, ports;
	int found;

	if (weir_peek(ctx, hook, ETH_HLEN - 2, &type, 2))
		return 0;
#pragma unroll
	for (i = 0; i <= WEIR_VLANS_MAX && weir_is_vlan(type); i++) {
		if (i + tags >= WEIR_VLANS_MAX || weir_peek(ctx, hook, chain.at + 2, &type, 2))
			return 0;
		chain.at += 4;
	}
	found = weir_flow_ip(ctx, hook, len, type, &chain, key);
	if (found != 1)
		return found != 0;
	if (weir_flow_extensions(ctx, hook, &chain, key))
		return 1;
	if (!chain.later && weir_has_ports(key->protocol) && chain.at + 4 <= chain.end &&
	    !weir_peek(ctx, hook, chain.at, &ports, 4))
		weir_put_ports(key, ports);
	return 1;
}

/* Not inline: they are rarely called, and the verifier would follow them at each call. */
static __noinline int weir_flow_walk_tc(struct __sk_buff *skb, __u32 tags, struct weir_flow_key *key)
{
	return weir_flow_walk(skb, WEIR_TC, skb->len, tags, key);
}

static __noinline int weir_flow_walk_xdp(struct xdp_md *ctx, __u32 tags, struct weir_flow_key *key)
{
	return weir_flow_walk(ctx, WEIR_XDP, bpf_xdp_get_buff_len(ctx), tags, key);
}

/*
 * Finds the flow key of the frame at a hook. `tag` is the protocol, in network byte order, of a VLAN tag that was
 * removed from the frame and is kept beside its bytes; 0: there is none. Returns non-zero if there is a key. If not,
 * `key` is all zero.
 */
static __always_inline int weir_flow(void *ctx, enum weir_hook hook, __be16 tag,
				     struct weir_flow_key *key)
{
	int found;

	__builtin_memset(key, 0, sizeof(*key));
	if (tag && !weir_is_vlan(tag))
		return 0;
	if (hook == WEIR_TC) {
		struct __sk_buff *skb = ctx;

		found = weir_flow_fast((void *)(long)skb->data, (void *)(long)skb->data_end, key);
		return found >= 0 ? found : weir_flow_walk_tc(skb, !!tag, key);
	} else {
		struct xdp_md *xdp = ctx;

		found = weir_flow_fast((void *)(long)xdp->data, (void *)(long)xdp->data_end, key);
		return found >= 0 ? found : weir_flow_walk_xdp(xdp, !!tag, key);
	}
}

/* Returns the XOR of the two halves of a 128-bit product, as multiply_fold in flow.rs. BPF multiplies only 64 bits. */
static __always_inline __u64 weir_multiply_fold(__u64 a, __u64 b)
{
	__u64 a_low = (__u32)a, a_high = a >> 32, b_low = (__u32)b, b_high = b >> 32;
	__u64 first = a_high * b_low, second = a_low * b_high;
	__u64 carry = (a_low * b_low >> 32) + (__u32)first + (__u32)second;

	return (a_high * b_high + (first >> 32) + (second >> 32) + (carry >> 32)) ^ (a * b);
}

/* Constants of wyhash, as MIX in flow.rs. */
#define WEIR_MIX_0 0x2d358dccaa6c78a5ull
#define WEIR_MIX_1 0x8bb84b93962eacc9ull
#define WEIR_MIX_2 0x4b33a62ed433d4a3ull
#define WEIR_MIX_3 0x4d5a2da51de1aa47ull

static __always_inline __u64 weir_flow_end(const struct weir_flow_key *key, const __u64 *address,
					   __u16 port)
{
	__u64 number;

	if (key->version == 4)
		number = bpf_ntohl(address[1] >> 32);
	else
		number = weir_multiply_fold(bpf_be64_to_cpu(address[0]) ^ WEIR_MIX_2,
					    bpf_be64_to_cpu(address[1]) ^ WEIR_MIX_3);
	return weir_multiply_fold(number ^ WEIR_MIX_0, port ^ WEIR_MIX_1);
}

static __always_inline __u64 weir_flow_hash_of(const struct weir_flow_key *key, __u16 src_port,
					       __u16 dst_port, __u8 protocol)
{
	__u64 src = weir_flow_end(key, key->src, src_port);
	__u64 dst = weir_flow_end(key, key->dst, dst_port);
	__u64 low = src < dst ? src : dst, high = src < dst ? dst : src;

	return weir_multiply_fold(weir_multiply_fold(low ^ WEIR_MIX_2, high ^ WEIR_MIX_3) ^ protocol,
				  WEIR_MIX_1);
}

/* As FlowKey::symmetric_hash. The frame must have a key. */
static __always_inline __u64 weir_flow_hash(const struct weir_flow_key *key)
{
	return weir_flow_hash_of(key, key->src_port, key->dst_port, key->protocol);
}

/* As shard_hash in flow.rs: the same for all fragments of a packet. 0 if there is no key. */
static __always_inline __u64 weir_shard_hash(const struct weir_flow_key *key)
{
	__u8 whole = !key->fragment;

	if (!key->version)
		return 0;
	return weir_flow_hash_of(key, whole ? key->src_port : 0, whole ? key->dst_port : 0,
				 whole ? key->protocol : 0);
}

/* Returns the frame's shard, of `of` shards. */
static __always_inline __u32 weir_shard_index(__u64 shard_hash, __u32 of)
{
	return ((shard_hash >> 32) * of) >> 32;
}

/* As Shard::takes. */
static __always_inline int weir_shard_takes(__u64 shard_hash, __u32 index, __u32 of)
{
	return weir_shard_index(shard_hash, of) == index;
}

/* As Sample::takes. */
static __always_inline int weir_sample_takes(__u64 shard_hash, __u32 one_in)
{
	return ((shard_hash & 0xffffffff) * one_in) >> 32 == 0;
}

#endif
