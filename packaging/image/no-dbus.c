/*
 * Debian's libpcap captures D-Bus messages, too, and asks libdbus and libsystemd for them. libsystemd has no static
 * archive, so the static program has these two functions in place of that part of libpcap: no device is D-Bus.
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
