// SPDX-License-Identifier: GPL-2.0 OR MIT
/* For tests and measurements only: which feeds' block lists block a frame, and what the lookup costs. */
#include "block.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define FEEDS 3

/* A bit for each feed that leaves the frame out. */
static __always_inline int verdicts(const struct weir_flow_key *key)
{
	__u32 feed, blocked = 0;

#pragma unroll
	for (feed = 0; feed < FEEDS; feed++) {
		struct weir_blocklist_front *front = weir_blocklist_of(feed);

		if (front && weir_blocked(front, feed, key))
			blocked |= 1 << feed;
	}
	return blocked;
}

SEC("tc")
int block_tc(struct __sk_buff *skb)
{
	struct weir_flow_key key;

	weir_flow(skb, WEIR_TC, 0, &key);
	return verdicts(&key);
}

SEC("xdp.frags")
int block_xdp(struct xdp_md *ctx)
{
	struct weir_flow_key key;

	weir_flow(ctx, WEIR_XDP, 0, &key);
	return verdicts(&key);
}

/*
 * For measurements. Each run gives the frame, UDP in IPv4 or IPv6, new random addresses from base to base + range;
 * in IPv6 they are the first and the last 32 bits. With a frame that stays the same, all data would be in the
 * first-level cache, and every branch would be predicted.
 */
struct weir_ends {
	__u32 src_base, src_range, dst_base, dst_range;
};

struct weir_ends ends;
__u64 state, blocked, sink;

static __always_inline __u32 some(__u32 base, __u32 range)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return base + ((state >> 32) * range >> 32);
}

static __always_inline void vary(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 src = some(ends.src_base, ends.src_range);
	__u32 dst = some(ends.dst_base, ends.dst_range);

	if (data + 54 > end)
		return;
	if (*(__be16 *)(data + 12) == bpf_htons(ETH_P_IP)) {
		*(__u32 *)(data + 26) = bpf_htonl(src);
		*(__u32 *)(data + 30) = bpf_htonl(dst);
	} else {
		*(__u32 *)(data + 22) = *(__u32 *)(data + 34) = bpf_htonl(src);
		*(__u32 *)(data + 38) = *(__u32 *)(data + 50) = bpf_htonl(dst);
	}
}

SEC("xdp.frags")
int cost_nothing(struct xdp_md *ctx)
{
	vary(ctx);
	return 0;
}

SEC("xdp.frags")
int cost_key(struct xdp_md *ctx)
{
	struct weir_flow_key key;

	vary(ctx);
	weir_flow(ctx, WEIR_XDP, 0, &key);
	sink = key.src[0] ^ key.src[1] ^ key.dst[0] ^ key.dst[1] ^ key.src_port ^ key.dst_port ^
	       key.protocol;
	return 0;
}

SEC("xdp.frags")
int cost_hash(struct xdp_md *ctx)
{
	struct weir_flow_key key;

	vary(ctx);
	weir_flow(ctx, WEIR_XDP, 0, &key);
	sink = weir_shard_hash(&key);
	return 0;
}

/* As a capture does it for a feed that has a block list and nothing else to do with keys. */
SEC("xdp.frags")
int cost_block(struct xdp_md *ctx)
{
	struct weir_blocklist_front *front = weir_blocklist_of(0);
	struct weir_flow_key key;

	vary(ctx);
	if (!front)
		return 0;
	weir_flow(ctx, WEIR_XDP, 0, &key);
	if (weir_blocked(front, 0, &key))
		blocked++;
	return 0;
}
