/*
 * Plain functions by which Rust calls DPDK. weir_burst, weir_gather and weir_free handle frames; the others start DPDK,
 * control ports, and register threads.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>

/* DPDK's log messages since the last call of weir_said. DPDK reports the reasons of errors only in its log. */
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[2048];
static size_t said_bytes;

static ssize_t said_write(void *cookie, const char *text, size_t bytes)
{
	(void)cookie;
	pthread_mutex_lock(&said_lock);
	/* The first messages contain the cause. Later messages are discarded if there is no space. */
	size_t room = sizeof(said) - said_bytes;
	size_t kept = bytes < room ? bytes : room;
	memcpy(said + said_bytes, text, kept);
	said_bytes += kept;
	pthread_mutex_unlock(&said_lock);
	return (ssize_t)bytes;
}

size_t weir_said(char *text, size_t room)
{
	pthread_mutex_lock(&said_lock);
	size_t bytes = said_bytes < room ? said_bytes : room;
	memcpy(text, said, bytes);
	said_bytes = 0;
	pthread_mutex_unlock(&said_lock);
	return bytes;
}

/*
 * DPDK and its drivers print usage and errors to standard output, to which weir may write frames. So standard output
 * leads to standard error while DPDK starts and while a device is probed. `weir capture` opens all of its sources
 * before it starts one, so it writes no frames then.
 */
static int stdout_away(void)
{
	fflush(stdout);
	int kept = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	if (kept >= 0)
		dup2(STDERR_FILENO, STDOUT_FILENO);
	return kept;
}

static void stdout_back(int kept)
{
	fflush(stdout);
	if (kept >= 0) {
		dup2(kept, STDOUT_FILENO);
		close(kept);
	}
}

int weir_init(int argc, char **argv)
{
	cookie_io_functions_t functions = {.write = said_write};
	FILE *stream = fopencookie(NULL, "w", functions);
	if (stream == NULL)
		return -errno;
	/* Line buffering: a message is in `said` as soon as its line ends, so weir_said has it. */
	setvbuf(stream, NULL, _IOLBF, 512);
	rte_openlog_stream(stream);
	int kept = stdout_away();
	int result = rte_eal_init(argc, argv);
	stdout_back(kept);
	return result < 0 ? -(rte_errno ? rte_errno : EINVAL) : 0;
}

int weir_probe(const char *devargs, uint16_t *id)
{
	int kept = stdout_away();
	int result = rte_dev_probe(devargs);
	stdout_back(kept);
	if (result < 0)
		return result;
	struct rte_dev_iterator iterator;
	uint16_t port;
	/* If a device has several ports, such as a dual-port mlx4, take the first one. */
	RTE_ETH_FOREACH_MATCHING_DEV(port, devargs, &iterator) {
		*id = port;
		rte_eth_iterator_cleanup(&iterator);
		return 0;
	}
	return -ENODEV;
}

int weir_facts(uint16_t id, struct weir_facts *facts)
{
	struct rte_eth_dev_info info;
	int result = rte_eth_dev_info_get(id, &info);
	if (result < 0)
		return result;
	memset(facts, 0, sizeof(*facts));
	snprintf(facts->driver, sizeof(facts->driver), "%s", info.driver_name);
	snprintf(facts->device, sizeof(facts->device), "%s", rte_dev_name(info.device));
	facts->virtual_device = strcmp(rte_bus_name(rte_dev_bus(info.device)), "vdev") == 0;
	facts->max_rx_queues = info.max_rx_queues;
	facts->min_rx_bufsize = info.min_rx_bufsize;
	facts->can_stamp = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_TIMESTAMP) != 0;
	facts->can_scatter = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0;
	return 0;
}

int weir_setup(uint16_t id, struct weir_port_setup *setup, void **pool)
{
	struct rte_eth_dev_info info;
	int result = rte_eth_dev_info_get(id, &info);
	if (result < 0)
		return result;
	char name[RTE_MEMPOOL_NAMESIZE];
	snprintf(name, sizeof(name), "weir-%u", id);
	int socket = rte_eth_dev_socket_id(id);
	struct rte_mempool *mbufs = rte_pktmbuf_pool_create(name, setup->mbufs, 256, 0,
							    setup->room_bytes + RTE_PKTMBUF_HEADROOM, socket);
	if (mbufs == NULL)
		return -(rte_errno ? rte_errno : ENOMEM);
	*pool = mbufs;
	struct rte_eth_conf conf;
	memset(&conf, 0, sizeof(conf));
	if (setup->stamps)
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_TIMESTAMP;
	if (setup->scatter)
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
	if (setup->queues > 1) {
		uint64_t fields = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_SCTP;
		conf.rx_adv_conf.rss_conf.rss_hf = fields & info.flow_type_rss_offloads;
		if (conf.rx_adv_conf.rss_conf.rss_hf != 0)
			conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
	}
	/* Some drivers do not start without TX queues, even if nothing is sent. */
	uint16_t tx_queues = info.max_tx_queues < setup->queues ? info.max_tx_queues : setup->queues;
	result = rte_eth_dev_configure(id, setup->queues, tx_queues, &conf);
	if (result < 0)
		return result;
	uint16_t rx_descriptors = setup->descriptors, tx_descriptors = 512;
	result = rte_eth_dev_adjust_nb_rx_tx_desc(id, &rx_descriptors, &tx_descriptors);
	if (result < 0)
		return result;
	setup->descriptors = rx_descriptors;
	for (uint16_t queue = 0; queue < setup->queues; queue++) {
		result = rte_eth_rx_queue_setup(id, queue, rx_descriptors, socket, NULL, mbufs);
		if (result < 0)
			return result;
	}
	for (uint16_t queue = 0; queue < tx_queues; queue++) {
		result = rte_eth_tx_queue_setup(id, queue, tx_descriptors, socket, NULL);
		if (result < 0)
			return result;
	}
	return 0;
}

int weir_start(uint16_t id, struct weir_port *port)
{
	int result = rte_eth_dev_start(id);
	if (result < 0)
		return result;
	memset(port, 0, sizeof(*port));
	port->id = id;
	/*
	 * The flag and the field of time stamps: a driver that sets them has registered them by now, at the latest at
	 * the start of the port.
	 */
	int bit = rte_mbuf_dynflag_lookup(RTE_MBUF_DYNFLAG_RX_TIMESTAMP_NAME, NULL);
	port->stamp_offset = rte_mbuf_dynfield_lookup(RTE_MBUF_DYNFIELD_TIMESTAMP_NAME, NULL);
	if (bit >= 0 && port->stamp_offset >= 0)
		port->stamp_flag = UINT64_C(1) << bit;
	return 0;
}

int weir_promiscuous(uint16_t id, int on)
{
	return on ? rte_eth_promiscuous_enable(id) : rte_eth_promiscuous_disable(id);
}

int weir_mtu(uint16_t id, uint16_t mtu)
{
	return rte_eth_dev_set_mtu(id, mtu);
}

int weir_counts(uint16_t id, struct weir_counts *counts)
{
	struct rte_eth_stats stats;
	memset(&stats, 0, sizeof(stats));
	int result = rte_eth_stats_get(id, &stats);
	if (result < 0)
		return result;
	counts->packets = stats.ipackets;
	counts->missed = stats.imissed;
	counts->errors = stats.ierrors;
	counts->no_mbuf = stats.rx_nombuf;
	return 0;
}

int weir_is_removed(uint16_t id)
{
	return rte_eth_dev_is_removed(id);
}

int weir_link_down(uint16_t id)
{
	return rte_eth_dev_set_link_down(id);
}

int weir_close(uint16_t id, void *pool)
{
	struct rte_eth_dev_info info;
	int result = rte_eth_dev_info_get(id, &info);
	if (result < 0)
		return result;
	rte_eth_dev_stop(id);
	result = rte_eth_dev_close(id);
	if (info.device != NULL)
		rte_dev_remove(info.device);
	rte_mempool_free(pool);
	return result;
}

/* Registers the thread, so that the pools have a cache for it. If this fails, receiving works, but is slower. */
void weir_enter(void)
{
	(void)rte_thread_register();
}

void weir_leave(void)
{
	rte_thread_unregister();
}

uint16_t weir_burst(const struct weir_port *port, uint16_t queue, void **mbufs, struct weir_frame *frames,
		    uint16_t room)
{
	uint16_t count = rte_eth_rx_burst(port->id, queue, (struct rte_mbuf **)mbufs, room);
	for (uint16_t at = 0; at < count; at++)
		rte_prefetch0(rte_pktmbuf_mtod((struct rte_mbuf *)mbufs[at], void *));
	for (uint16_t at = 0; at < count; at++) {
		struct rte_mbuf *mbuf = mbufs[at];
		struct weir_frame *frame = &frames[at];
		uint64_t ol_flags = mbuf->ol_flags;
		frame->data = rte_pktmbuf_mtod(mbuf, const uint8_t *);
		frame->caplen = rte_pktmbuf_data_len(mbuf);
		frame->wire_len = rte_pktmbuf_pkt_len(mbuf);
		frame->flags = 0;
		if (mbuf->nb_segs > 1)
			frame->flags |= WEIR_PARTS;
		if (ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) {
			frame->flags |= WEIR_VLAN;
			frame->tci = mbuf->vlan_tci;
		}
		if (ol_flags & RTE_MBUF_F_RX_QINQ_STRIPPED) {
			frame->flags |= WEIR_QINQ;
			frame->tci_outer = mbuf->vlan_tci_outer;
		}
		if (ol_flags & port->stamp_flag) {
			frame->flags |= WEIR_STAMPED;
			frame->stamp = *RTE_MBUF_DYNFIELD(mbuf, port->stamp_offset, rte_mbuf_timestamp_t *);
		}
	}
	return count;
}

/* Copies the first bytes, at most `room`, of a frame in several segments. Returns the number of bytes. */
uint32_t weir_gather(const void *mbuf, uint8_t *bytes, uint32_t room)
{
	const struct rte_mbuf *part = mbuf;
	uint32_t filled = 0;
	while (part != NULL && filled < room) {
		uint32_t take = rte_pktmbuf_data_len(part);
		if (take > room - filled)
			take = room - filled;
		memcpy(bytes + filled, rte_pktmbuf_mtod(part, const uint8_t *), take);
		filled += take;
		part = part->next;
	}
	return filled;
}

void weir_free(void **mbufs, uint16_t count)
{
	rte_pktmbuf_free_bulk((struct rte_mbuf **)mbufs, count);
}
