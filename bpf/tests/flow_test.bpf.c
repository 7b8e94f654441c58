// SPDX-License-Identifier: GPL-2.0 OR MIT
/* For tests only: reports to user space what flow.h finds in a frame. */
#include "flow.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct weir_found {
	struct weir_flow_key key;
	__u64 hash, shard_hash;
};

/* [0] by weir_flow; [1] by the walk alone, which must find the same. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct weir_found);
} found SEC(".maps");

static __always_inline void tell(__u32 index, const struct weir_flow_key *key)
{
	struct weir_found *to = bpf_map_lookup_elem(&found, &index);

	if (!to)
		return;
	to->key = *key;
	to->hash = key->version ? weir_flow_hash(key) : 0;
	to->shard_hash = weir_shard_hash(key);
}

static __noinline int tell_tc(struct __sk_buff *skb)
{
	__be16 tag = skb->vlan_present ? skb->vlan_proto : 0;
	struct weir_flow_key key;

	weir_flow(skb, WEIR_TC, tag, &key);
	tell(0, &key);
	__builtin_memset(&key, 0, sizeof(key));
	weir_flow_walk_tc(skb, !!tag, &key);
	tell(1, &key);
	return 0;
}

SEC("tc")
int flow_tc(struct __sk_buff *skb)
{
	return tell_tc(skb);
}

/* The tag that lies beside the bytes is not in what the test hands over. */
SEC("tc")
int flow_tc_tagged(struct __sk_buff *skb)
{
	bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021AD), 7);
	return tell_tc(skb);
}

SEC("xdp.frags")
int flow_xdp(struct xdp_md *ctx)
{
	struct weir_flow_key key;

	weir_flow(ctx, WEIR_XDP, 0, &key);
	tell(0, &key);
	__builtin_memset(&key, 0, sizeof(key));
	weir_flow_walk_xdp(ctx, 0, &key);
	tell(1, &key);
	return 0;
}

/* As where a driver tells of a tag that it took off. */
SEC("xdp.frags")
int flow_xdp_tagged(struct xdp_md *ctx)
{
	struct weir_flow_key key;

	weir_flow(ctx, WEIR_XDP, bpf_htons(ETH_P_8021AD), &key);
	tell(0, &key);
	__builtin_memset(&key, 0, sizeof(key));
	weir_flow_walk_xdp(ctx, 1, &key);
	tell(1, &key);
	return 0;
}
