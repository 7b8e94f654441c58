/*
 * For tests: makes frames that the drivers available in tests do not produce: in segments, with removed tags, with time
 * stamps.
 */
#include "shim.h"

#include <errno.h>
#include <string.h>

#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_ring.h>

static int fill(struct rte_mempool *pool, struct rte_mbuf *head, const struct weir_made *made)
{
	uint32_t part = made->part == 0 ? made->len : made->part;
	struct rte_mbuf *mbuf = head;
	for (uint32_t at = 0; at < made->len; at += part) {
		uint32_t take = made->len - at < part ? made->len - at : part;
		if (at > 0) {
			mbuf->next = rte_pktmbuf_alloc(pool);
			if (mbuf->next == NULL)
				return -ENOMEM;
			mbuf = mbuf->next;
			head->nb_segs++;
		}
		if (take > rte_pktmbuf_tailroom(mbuf))
			return -EMSGSIZE;
		memcpy(rte_pktmbuf_mtod(mbuf, uint8_t *), made->data + at, take);
		mbuf->data_len = take;
		head->pkt_len += take;
	}
	return 0;
}

int weir_make(const char *ring, void *pool, const struct weir_made *made)
{
	struct rte_ring *into = rte_ring_lookup(ring);
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
	if (into == NULL || mbuf == NULL) {
		rte_pktmbuf_free(mbuf);
		return into == NULL ? -ENOENT : -ENOMEM;
	}
	int result = fill(pool, mbuf, made);
	if (made->flags & WEIR_VLAN)
		mbuf->ol_flags |= RTE_MBUF_F_RX_VLAN | RTE_MBUF_F_RX_VLAN_STRIPPED;
	if (made->flags & WEIR_QINQ)
		mbuf->ol_flags |= RTE_MBUF_F_RX_QINQ | RTE_MBUF_F_RX_QINQ_STRIPPED;
	mbuf->vlan_tci = made->tci;
	mbuf->vlan_tci_outer = made->tci_outer;
	if (result == 0 && (made->flags & WEIR_STAMPED)) {
		int offset;
		uint64_t flag;
		result = rte_mbuf_dyn_rx_timestamp_register(&offset, &flag);
		if (result == 0) {
			*RTE_MBUF_DYNFIELD(mbuf, offset, rte_mbuf_timestamp_t *) = made->stamp;
			mbuf->ol_flags |= flag;
		}
	}
	if (result == 0)
		result = rte_ring_enqueue(into, mbuf);
	if (result < 0)
		rte_pktmbuf_free(mbuf);
	return result;
}
