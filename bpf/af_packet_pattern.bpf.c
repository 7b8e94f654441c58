// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The socket filter of the engine af_packet for interfaces by pattern. Its socket gets the frames of all interfaces of
 * the network namespace. The filter rejects frames of interfaces that are not members, counts the others for each
 * member, and accepts those that a feed wants. See af_packet.bpf.c for the reason why a filter counts.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define PACKET_OUTGOING 4	/* linux/if_packet.h */
#define INTERFACES_MAX 1024	/* weir-capture/src/limits.rs */

/* Set before loading: whether each direction is captured, and the most bytes that the socket copies. */
const volatile __u32 take_in;
const volatile __u32 take_out;
const volatile __u32 snaplen;
const volatile __u32 with_filters;	/* whether weir_judge() decides if any feed wants a frame */

/* Separate counters, because only outgoing frames need atomic ones; see af_packet.bpf.c. */
enum { INCOMING, OUTGOING, UNWANTED_IN, UNWANTED_OUT, COUNTERS };

struct weir_counts { __u64 of[COUNTERS]; };
_Static_assert(sizeof(struct weir_counts) == 32, "shared with Rust");

/* Maps the kernel's index of an interface to its number in the rings, from 1. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INTERFACES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} members SEC(".maps");

/* Counts of each interface, by its number in the rings; number 0 has the sums. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, INTERFACES_MAX + 1);
	__type(key, __u32);
	__type(value, struct weir_counts);
} by_member SEC(".maps");

/* Returns which feeds want the frame, a bit each. The owner replaces this body by the filters, as in bpf.bpf.c. */
__noinline __weak int weir_judge(struct __sk_buff *skb)
{
	return -1;
}

static __always_inline void add(struct weir_counts *own, struct weir_counts *sum, int incoming, int outgoing,
				int is_outgoing)
{
	if (is_outgoing) {
		__sync_fetch_and_add(&own->of[outgoing], 1);
		__sync_fetch_and_add(&sum->of[outgoing], 1);
	} else {
		own->of[incoming] += 1;
		sum->of[incoming] += 1;
	}
}

SEC("socket")
int weir_count(struct __sk_buff *skb)
{
	int is_outgoing = skb->pkt_type == PACKET_OUTGOING;
	__u32 ifindex = skb->ifindex, zero = 0;
	struct weir_counts *own, *sum;
	__u32 *number;

	number = bpf_map_lookup_elem(&members, &ifindex);
	if (!number)
		return 0;
	if (is_outgoing ? !take_out : !take_in)
		return 0;
	own = bpf_map_lookup_elem(&by_member, number);
	sum = bpf_map_lookup_elem(&by_member, &zero);
	if (!own || !sum)
		return 0;
	add(own, sum, INCOMING, OUTGOING, is_outgoing);
	if (!with_filters || weir_judge(skb))
		return snaplen;
	add(own, sum, UNWANTED_IN, UNWANTED_OUT, is_outgoing);
	return 0;
}
