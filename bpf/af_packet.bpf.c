// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The af_packet engine's socket filter: counts every frame of the wanted directions, because the socket's
 * own statistics leave out what a filter rejects, and count what it lost by the same code that loses it;
 * and takes those that some feed wants. At stop the owner replaces this filter by one that takes nothing.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define PACKET_OUTGOING 4	/* linux/if_packet.h */

/* Set before loading: which directions are offered at all, and most bytes that the socket copies. */
const volatile __u32 take_in;
const volatile __u32 take_out;
const volatile __u32 snaplen;
const volatile __u32 with_filters;	/* ask weir_judge() whether any feed wants a frame */

/* Apart, because only outgoing frames interrupt each other: they are seen in process context too, where
 * a softirq may send in between. Incoming ones are seen in softirqs, which wait for each other. */
enum { INCOMING, OUTGOING, UNWANTED_IN, UNWANTED_OUT, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} offered SEC(".maps");

/* Which feeds want the frame, as in bpf.bpf.c: the filters come in place of this body. */
__noinline __weak int weir_judge(struct __sk_buff *skb)
{
	return -1;
}

static __always_inline void add(__u64 *count, __u32 which)
{
	if (which == OUTGOING)
		__sync_fetch_and_add(count, 1);
	else
		*count += 1;
}

SEC("socket")
int weir_count(struct __sk_buff *skb)
{
	__u32 which = skb->pkt_type == PACKET_OUTGOING ? OUTGOING : INCOMING;
	__u32 unwanted = which == OUTGOING ? UNWANTED_OUT : UNWANTED_IN;
	__u64 *count;

	if (which == OUTGOING ? !take_out : !take_in)
		return 0;
	count = bpf_map_lookup_elem(&offered, &which);
	if (!count)
		return 0;
	add(count, which);
	if (!with_filters || weir_judge(skb))
		return snaplen;
	count = bpf_map_lookup_elem(&offered, &unwanted);
	if (count)
		add(count, which);
	return 0;
}
