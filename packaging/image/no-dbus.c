/*
 * Debian's libpcap also captures D-Bus messages, with libdbus and libsystemd. libsystemd has no static archive, so in
 * the static program these two functions replace that part of libpcap: no device is a D-Bus device.
 * Signatures: libpcap 1.10, pcap-dbus.h.
 */
#include <pcap/pcap.h>

struct pcap_if_list; /* libpcap's own, not in its headers */

pcap_t *dbus_create(const char *device, char *error, int *is_ours);
int dbus_findalldevs(struct pcap_if_list *devices, char *error);

pcap_t *dbus_create(const char *device, char *error, int *is_ours)
{
	(void)device;
	(void)error;
	*is_ours = 0;
	return NULL;
}

int dbus_findalldevs(struct pcap_if_list *devices, char *error)
{
	(void)devices;
	(void)error;
	return 0;
}
