# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# A guest with the oldest supported kernel, Linux 5.10 of Debian 11, on a q35 machine of this Debian's QEMU, reads feeds.

package=$(tests/vm/fetch.sh linux510) || package=
if [[ -z $package ]]; then
    skip vm_kernel 'Linux 5.10 cannot be had here (tests/vm/fetch.sh)'
    return 0
fi
say '=== kernel: Linux 5.10'
export WEIR_GUEST_KERNEL_DEB=$package
initramfs_of old
kernel_folder=$(tests/guest/kernel.sh)
unset WEIR_GUEST_KERNEL_DEB
initramfs=$scratch/old.initramfs
configure 8 64 one
serve
start_machine one q35
kernel_folder=$(tests/guest/kernel.sh)
booted one
[[ $(guest one 'uname -r') == 5.10.* ]] || die "the guest has $(guest one 'uname -r')"
guest one broker
guest one 'reads all host:lan --frames 2000'
guest one 'reads some host:lan --filter "udp dst port 1" --frames 1000000'
guest one 'start dump env LD_PRELOAD=/bin/libweirpcap.so tcpdump -Z root -ni host:lan -c 2000 -w /tmp/dump.pcap udp'
guest one 'within 20 grep -q "listening on" /tmp/dump.err'
# tcpdump says so before its first call that reads, which opens the feed.
until_true 'their feeds' feeds_of one 3
send 2000 --rate 2kpps
guest one 'ended all; ended dump'
[[ $(guest one 'counts all') == '[2000,0,2000,2000,0,0,0]' ]] || die "Linux 5.10: $(guest one 'counts all')"
[[ $(guest one 'tcpdump -Z root -nr /tmp/dump.pcap 2>/dev/null | wc -l') -eq 2000 ]] || die 'tcpdump has not all frames'
guest one 'kill $pid_some; ended some'
# The filter acts at the host: frames that it excludes are not copied to the guest.
[[ $(guest one 'counts some') == '[2000,2000,0,0,0,0,0]' ]] || die "the filter: $(guest one 'counts some')"
until_true 'the devices to be gone' has_no_objects one
guest one 'devices 0'
# Another feed after the devices were unplugged; and a broker that ends while a reader is there.
guest one 'reads again host:lan --frames 500'
send 500 --rate 2kpps
guest one 'ended again'
[[ $(guest one 'counts again') == '[500,0,500,500,0,0,0]' ]] || die "again: $(guest one 'counts again')"
read=$(read_after_unplug one)
[[ $read == 'SIGBUS SIGBUS' ]] || die "after an unplugging a mapping reads '$read'"
guest one 'kill $pid_broker; wait $pid_broker'
say 'kernel: every frame of the host was read with Linux 5.10'
