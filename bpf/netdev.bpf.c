// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Programs for the interface of `weir attach` (crates/weir-netdev). One makes the interface receive frames. Three drop
 * all frames: received frames after the packet sockets have seen them, and frames that somebody sends, before.
 *
 * weir_netdev_feed is run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, once for each frame: it takes the next
 * frame from `staged`, and the kernel then receives this frame on the interface. The program is also attached to the
 * interface at XDP, which saves two RCU grace periods in each run (programs.rs). There it passes frames that are
 * written into the tap.
 *
 * weir_netdev_in and weir_netdev_out are at TC. Packet sockets see a frame before the programs at ingress do, and after
 * those at egress. weir_netdev_bypass is the filter of the tap (TUNSETFILTEREBPF): it gets the sent frames that bypass
 * TC.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "compiler.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* crates/weir-netdev/src/staged.rs has the same constants. */
#define FRAMES 1024
#define BYTES (256 * 1024)
#define LONGEST 3296
#define SHORTEST 14		/* an Ethernet header */

struct staged {
	__u64 next;		/* number of the next frame in this run */
	__u64 is_running;	/* non-zero during a run */
	__u64 received;		/* frames that have reached TC ingress since the programs were loaded */
	__u64 sent_into;	/* frames that were sent into the interface since the programs were loaded */
	__u64 largest;		/* length of the buffer that the program gets: the run's longest frame, at least 64 */
	__u64 places[FRAMES];	/* of each frame: its offset in `bytes` (upper half) and its length (lower half) */
	__u8 bytes[BYTES + LONGEST];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct staged);
} staged SEC(".maps");

static __always_inline struct staged *the_staged(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&staged, &zero);
}

SEC("xdp.frags")
int weir_netdev_feed(struct xdp_md *ctx)
{
	struct staged *staged = the_staged();
	__u64 place, at, bytes;

	if (!staged)
		return XDP_DROP;
	/* Outside of a run: the frame was written into the tap. */
	if (!staged->is_running)
		return XDP_PASS;
	/* During a run only one thread runs the program, so this needs no atomics. */
	place = staged->places[staged->next++ & (FRAMES - 1)];
	at = place >> 32;
	bytes = place & 0xffffffff;
	weir_opaque(at);
	weir_opaque(bytes);
	/* The kernel refuses shorter frames. Not `!bytes`: Linux 6.1's verifier derives no bound from a test for 0. */
	if (at >= BYTES || bytes < SHORTEST || bytes > LONGEST)
		return XDP_DROP;
	if (bpf_xdp_adjust_tail(ctx, (int)bytes - (int)staged->largest))
		return XDP_DROP;
	if (bpf_xdp_store_bytes(ctx, 0, staged->bytes + at, bytes))
		return XDP_DROP;
	return XDP_PASS;
}

SEC("tc")
int weir_netdev_in(struct __sk_buff *skb)
{
	struct staged *staged = the_staged();

	if (staged)
		__sync_fetch_and_add(&staged->received, 1);
	return TC_ACT_SHOT;
}

static __always_inline void count_sent_into(void)
{
	struct staged *staged = the_staged();

	if (staged)
		__sync_fetch_and_add(&staged->sent_into, 1);
}

SEC("tc")
int weir_netdev_out(struct __sk_buff *skb)
{
	count_sent_into();
	return TC_ACT_SHOT;
}

/* Frames from packet sockets with PACKET_QDISC_BYPASS, from AF_XDP, and from the kernel's pktgen. */
SEC("socket")
int weir_netdev_bypass(struct __sk_buff *skb)
{
	count_sent_into();
	/* The number of bytes that a reader of the tap gets. With 0, the kernel drops the frame. */
	return 0;
}
