// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Frames counted by flow where they are: at XDP in the driver, or at TC on their way. No frame leaves the kernel; user
 * space maps the table and reads it (crates/weir-flow-kernel).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow_table.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 consume;	/* XDP: the frame ends here */

#define WEIR_TC_NEXT (-1)	/* TCX_NEXT, TC_ACT_UNSPEC */

static __always_inline struct weir_flow_counts *begin_frame(struct weir_counted *frame)
{
	frame->cpu = bpf_get_smp_processor_id();
	frame->now_ns = bpf_ktime_get_coarse_ns();
	frame->tick = frame->now_ns >> tick_shift;
	return bpf_map_lookup_elem(&flow_counts, &frame->cpu);
}

static __always_inline void count(struct weir_flow_counts *counts, struct weir_counted *frame, int not_flow)
{
	if (not_flow >= 0) {
		if (not_flow < WEIR_NOT_FLOWS)
			counts->not_flows[not_flow]++;
		return;
	}
	if (frame->headers.fragment) {
		counts->fragments_attributed += frame->headers.fragment == WEIR_ATTRIBUTED;
		counts->fragments_unattributed += frame->headers.fragment == WEIR_UNATTRIBUTED;
	}
	weir_count(counts, frame);
}

SEC("xdp.frags")
int weir_flow_at_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct weir_counted frame;
	struct weir_flow_counts *counts = begin_frame(&frame);
	int not_flow = -1;

	if (!counts)
		return XDP_PASS;
	counts->frames++;
	if (weir_headers_fast(data, end, &frame.headers))
		not_flow = weir_headers_walk_xdp(ctx, &frame.headers);
	frame.bytes = wire_bytes ? bpf_xdp_get_buff_len(ctx) : frame.headers.ip_bytes;
	count(counts, &frame, not_flow);
	return consume ? XDP_DROP : XDP_PASS;
}

SEC("tc")
int weir_flow_at_tc(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct weir_counted frame;
	struct weir_flow_counts *counts = begin_frame(&frame);
	__u32 beside = 0;
	int not_flow = -1;

	if (!counts)
		return WEIR_TC_NEXT;
	counts->frames++;
	if (skb->vlan_present)
		beside = skb->vlan_proto | skb->vlan_tci << 16;
	if (beside || weir_headers_fast(data, end, &frame.headers))
		not_flow = weir_headers_walk_tc(skb, beside, &frame.headers);
	frame.bytes = wire_bytes ? skb->len + (beside ? 4 : 0) : frame.headers.ip_bytes;
	count(counts, &frame, not_flow);
	return WEIR_TC_NEXT;
}
