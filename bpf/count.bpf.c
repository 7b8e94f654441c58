// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The af_packet engine's socket filter: takes every frame of the wanted directions and counts it,
 * because the socket's own statistics leave out what a filter rejects, and count what it lost by the
 * same code that loses it. At stop the owner replaces this filter by one that takes nothing.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define PACKET_OUTGOING 4	/* linux/if_packet.h */

/* Set before loading: which directions are offered at all, and most bytes that the socket copies. */
const volatile __u32 take_in;
const volatile __u32 take_out;
const volatile __u32 snaplen;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} offered SEC(".maps");

SEC("socket")
int weir_count(struct __sk_buff *skb)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&offered, &zero);

	if (!count)
		return 0;
	if (skb->pkt_type == PACKET_OUTGOING ? !take_out : !take_in)
		return 0;
	/* Outgoing frames are seen in process context, incoming ones in softirq: they interrupt
	 * each other on one CPU. */
	__sync_fetch_and_add(count, 1);
	return snaplen;
}
