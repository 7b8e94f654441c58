// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A program that runs for some tens of ms, so that a test can see whether it was waited for. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Runs that have begun, and those that have ended. */
__u64 begun;
__u64 ended;
__u64 spins;

static long spin(__u32 index, void *context)
{
	__sync_fetch_and_add(&spins, 1);
	return 0;
}

SEC("xdp")
int weir_rcu_test(struct xdp_md *ctx)
{
	__sync_fetch_and_add(&begun, 1);
	bpf_loop(1 << 20, spin, 0, 0);
	__sync_fetch_and_add(&ended, 1);
	return XDP_PASS;
}
