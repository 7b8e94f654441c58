// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counts frames by flow in the kernel, at XDP or TC. No frame is copied to user space, which maps the table and reads
 * it (crates/weir-flow-kernel).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow_table.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 consume;	/* XDP: whether to drop frames after counting them */

#define WEIR_TC_NEXT (-1)	/* TCX_NEXT, TC_ACT_UNSPEC */

static __always_inline struct weir_flow_counts *begin_frame(struct weir_counted *frame)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_flow_counts *counts = bpf_map_lookup_elem(&flow_counts, &cpu);

	if (!counts)
		return NULL;
	counts->frames++;
	frame->cpu = cpu;
	frame->now_ns = weir_coarse_ns(&counts->clock);
	frame->tick = frame->now_ns >> tick_shift;
	return counts;
}

/* Counts the result of a walk: `not_flow` is why the frame has no flow, or below 0. Returns non-zero if it has none. */
static __always_inline int was_walked(struct weir_flow_counts *counts, int not_flow,
				      const struct weir_headers *headers)
{
	if (not_flow >= 0) {
		if (not_flow < WEIR_NOT_FLOWS)
			counts->not_flows[not_flow]++;
		return -1;
	}
	counts->fragments_attributed += headers->fragment == WEIR_ATTRIBUTED;
	counts->fragments_unattributed += headers->fragment == WEIR_UNATTRIBUTED;
	return 0;
}

SEC("xdp.frags")
int weir_flow_at_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct weir_counted frame;
	struct weir_flow_counts *counts = begin_frame(&frame);
	int verdict = consume ? XDP_DROP : XDP_PASS;

	if (!counts)
		return verdict;
	if (weir_headers_fast(data, end, &frame.headers)) {
		/* A separate variable, so that the headers of most frames stay in registers. */
		struct weir_headers walked;

		if (was_walked(counts, weir_headers_walk_xdp(ctx, &walked), &walked))
			return verdict;
		frame.headers = walked;
	}
	frame.bytes = wire_bytes ? bpf_xdp_get_buff_len(ctx) : frame.headers.ip_bytes;
	weir_count(counts, &frame);
	return verdict;
}

SEC("tc")
int weir_flow_at_tc(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct weir_counted frame;
	struct weir_flow_counts *counts = begin_frame(&frame);
	__u32 beside = 0;

	if (!counts)
		return WEIR_TC_NEXT;
	if (skb->vlan_present)
		beside = skb->vlan_proto | skb->vlan_tci << 16;
	if (beside || weir_headers_fast(data, end, &frame.headers)) {
		struct weir_headers walked = {};

		if (was_walked(counts, weir_headers_walk_tc(skb, beside, &walked), &walked))
			return WEIR_TC_NEXT;
		frame.headers = walked;
	}
	frame.bytes = wire_bytes ? skb->len + (beside ? 4 : 0) : frame.headers.ip_bytes;
	weir_count(counts, &frame);
	return WEIR_TC_NEXT;
}
