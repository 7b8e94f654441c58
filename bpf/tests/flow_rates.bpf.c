// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * For the benchmark of the flow table only: the cost of counting frames without flows, and with flows in a hash map of
 * the kernel. Both programs receive frames as bpf/flow_table.bpf.c does, and drop them.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow_headers.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct weir_rate_counts {
	__u64 frames;
	__u64 not_flows;
	__u64 began;
	__u64 refused;		/* the table took no new flow */
	struct weir_clock clock;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_rate_counts);
} rate_counts SEC(".maps");

struct weir_lru_key {
	__u64 words[WEIR_KEY_WORDS];
};

/* As many bytes as a slot of flow_table.h has in addition to its key. */
struct weir_lru_flow {
	__u64 first_ns;
	__u64 last_ns;
	__u64 packets;
	__u64 bytes;
	__u64 id;
	__u64 tcp_flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 1);		/* set before loading */
	__type(key, struct weir_lru_key);
	__type(value, struct weir_lru_flow);
} rate_flows SEC(".maps");

static __always_inline struct weir_rate_counts *counts_of_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&rate_counts, &zero);
}

SEC("xdp.frags")
int weir_rate_null(struct xdp_md *ctx)
{
	struct weir_rate_counts *counts = counts_of_cpu();

	if (counts)
		counts->frames++;
	return XDP_DROP;
}

/* Finds the key and does nothing with it. */
SEC("xdp.frags")
int weir_rate_headers(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct weir_rate_counts *counts = counts_of_cpu();
	struct weir_headers headers;

	if (!counts)
		return XDP_DROP;
	counts->frames++;
	if (weir_headers_fast(data, end, &headers) && weir_headers_walk_xdp(ctx, &headers) >= 0)
		counts->not_flows++;
	else
		counts->refused += headers.key[0] == headers.key[4] + headers.ip_bytes;
	return XDP_DROP;
}

SEC("xdp.frags")
int weir_rate_lru(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct weir_rate_counts *counts = counts_of_cpu();
	struct weir_headers headers;
	struct weir_lru_flow *flow;
	struct weir_lru_key key;
	__u64 now_ns;

	if (!counts)
		return XDP_DROP;
	counts->frames++;
	now_ns = weir_coarse_ns(&counts->clock);
	if (weir_headers_fast(data, end, &headers) && weir_headers_walk_xdp(ctx, &headers) >= 0) {
		counts->not_flows++;
		return XDP_DROP;
	}
	__builtin_memcpy(&key, headers.key, sizeof(key));
	flow = bpf_map_lookup_elem(&rate_flows, &key);
	if (flow) {
		flow->packets++;
		flow->bytes += headers.ip_bytes;
		flow->last_ns = now_ns;
		flow->tcp_flags |= headers.tcp_flags;
	} else {
		struct weir_lru_flow fresh = {
			.first_ns = now_ns,
			.last_ns = now_ns,
			.packets = 1,
			.bytes = headers.ip_bytes,
			.id = ctx->ingress_ifindex | (__u64)headers.icmp << 32,
			.tcp_flags = headers.tcp_flags,
		};

		if (bpf_map_update_elem(&rate_flows, &key, &fresh, BPF_ANY))
			counts->refused++;
		else
			counts->began++;
	}
	return XDP_DROP;
}
