// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The interface of `weir attach` (crates/weir-netdev): one program by which frames are received, and three that let no
 * frame get further than the packet sockets.
 *
 * `weir_netdev_feed` is run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, once a frame: it takes the next frame
 * from `staged`, and the kernel then receives it on the interface. It is also attached there, which saves each run two
 * RCU grace periods (programs.rs); frames that are written into the tap pass. Two others are at TC. Packet sockets
 * see a frame before the programs at ingress do, and after those at egress. The last one is the filter of the tap
 * (TUNSETFILTEREBPF), to which frames come that are sent around TC.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "compiler.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* crates/weir-netdev/src/staged.rs has the same. */
#define FRAMES 1024
#define BYTES (256 * 1024)
#define LONGEST 3296
#define SHORTEST 14		/* an Ethernet header */

struct staged {
	__u64 next;		/* number of the next frame in this run */
	__u64 is_running;	/* whether there is a run */
	__u64 received;		/* frames that have come as far as TC ingress, since the start */
	__u64 sent_into;	/* frames that somebody sent into the interface, since the start */
	__u64 largest;		/* bytes of the longest frame of the run: the length of what the kernel passes in */
	__u64 places[FRAMES];	/* of each frame: upper half: its offset in `bytes`; lower half: its length */
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
	/* A frame that was written into the tap by itself. */
	if (!staged->is_running)
		return XDP_PASS;
	/* One thread runs the program, so this needs no atomics. */
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
	/* The number of bytes that the tap's reader may see. With 0, the kernel drops the frame. */
	return 0;
}
