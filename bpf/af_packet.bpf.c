// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The socket filter of the engine af_packet. It counts every frame of the wanted directions, and accepts the frames
 * that a feed wants. The socket's own statistics would not be enough: they omit frames that a filter rejects, and they
 * are counted by the same code that loses frames. When the engine stops, the owner replaces this filter by one that
 * rejects all frames.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define PACKET_OUTGOING 4	/* linux/if_packet.h */

/* Set before loading: whether each direction is captured, and the most bytes that the socket copies. */
const volatile __u32 take_in;
const volatile __u32 take_out;
const volatile __u32 snaplen;
const volatile __u32 with_filters;	/* whether weir_judge() decides if any feed wants a frame */

/*
 * Separate counters for the directions, because only those of outgoing frames need atomic additions: outgoing frames
 * also come in process context, which a softirq that sends frames may interrupt. Incoming frames come in softirqs,
 * which do not interrupt each other.
 */
enum { INCOMING, OUTGOING, UNWANTED_IN, UNWANTED_OUT, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} offered SEC(".maps");

/* Returns which feeds want the frame, a bit each. The owner replaces this body by the filters, as in bpf.bpf.c. */
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
