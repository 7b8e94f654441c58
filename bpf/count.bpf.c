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

/* Apart, because only outgoing frames interrupt each other: they are seen in process context too, where
 * a softirq may send in between. Incoming ones are seen in softirqs, which wait for each other. */
enum { INCOMING, OUTGOING, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} offered SEC(".maps");

SEC("socket")
int weir_count(struct __sk_buff *skb)
{
	__u32 which = skb->pkt_type == PACKET_OUTGOING ? OUTGOING : INCOMING;
	__u64 *count;

	if (which == OUTGOING ? !take_out : !take_in)
		return 0;
	count = bpf_map_lookup_elem(&offered, &which);
	if (!count)
		return 0;
	if (which == OUTGOING)
		__sync_fetch_and_add(count, 1);
	else
		*count += 1;
	return snaplen;
}
