# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# Suricata 7 in a guest raises its alert on traffic that is captured on the host; the flow of the alert is then blocked at
# the host. The guest's disk is the Debian 13 of tests/tools.sh, with weir and libweirpcap.

say '=== suricata: in a guest'
for tool in mkfs.ext4 python3 capinfos debootstrap; do
    command -v "$tool" >/dev/null || {
        skip vm_suricata "$tool is missing"
        return 0
    }
done
rc=0
image=$(tests/tools/suricata-image.sh) || rc=$?
if [[ $rc -eq 3 ]]; then
    skip vm_suricata 'no mirror with Debian 13, or a debootstrap that does not know it (WEIR_DEBIAN_MIRROR=URL names a mirror)'
    return 0
fi
[[ $rc -eq 0 ]] || exit "$rc"

initramfs_of plain
initramfs=$scratch/plain.initramfs
disk_tree=$scratch/disk
mkdir "$disk_tree"
tar -C "$disk_tree" -xf "$image"
mkdir -p "$disk_tree"/{tools,log,usr/lib/weir}
cp tests/tools/suricata.yaml tests/tools/weir.rules "$disk_tree/tools/"
install -m 755 "$weir" "$disk_tree/usr/bin/weir"
strip --strip-debug "$disk_tree/usr/bin/weir"
# The library next to the program, where `weir run` searches for it, and files that the Debian 13 does not have.
install -m 755 "$library" "$disk_tree/usr/bin/libweirpcap.so"
while IFS= read -r path; do
    [[ -n $(find "$disk_tree/usr/lib" -name "$(basename "$path")" -print -quit) ]] ||
        install -m 755 "$(realpath "$path")" "$disk_tree/usr/lib/x86_64-linux-gnu/$(basename "$path")"
done < <(for file in "$weir" "$library"; do ldd "$file"; done | grep -o "/[^ )]*\.so[^ )]*" | sort -u)
python3 tests/tools/trace.py "$scratch/trace.pcap"
frames=$(LC_ALL=C capinfos -TrcM "$scratch/trace.pcap" | cut -f2)
of_flow=$(tcpdump -nr "$scratch/trace.pcap" 'port 40007' 2>/dev/null | wc -l)
[[ $frames -gt 0 && $of_flow -gt 0 ]] || die "the trace has $frames frames, $of_flow of the flow"
truncate -s 1G "$scratch/disk.img"
mkfs.ext4 -q -d "$disk_tree" "$scratch/disk.img"
rm -rf "$disk_tree"

configure 16 64 one
serve
memory=2G cpus=2 start_machine one q35 -drive "file=$scratch/disk.img,format=raw,if=virtio,cache=unsafe"
booted one
guest one broker
guest one 'modprobe virtio_blk; modprobe ext4; mkdir /disk && mount -t ext4 /dev/vda /disk'
guest one 'for one in proc sys dev run; do mount --bind /$one /disk/$one; done'
guest one 'start suricata env WEIR_FEED=ids chroot /disk /usr/bin/weir run -- \
    /usr/bin/suricata -c /tools/suricata.yaml -l /log --pcap=host:lan -S /tools/weir.rules'
guest one 'within 80 sh -c "grep -q \"Engine started\" /tmp/suricata.json /tmp/suricata.err || ! kill -0 $pid_suricata";
    grep -q "Engine started" /tmp/suricata.json /tmp/suricata.err || { cat /tmp/suricata.*; false; }'
until_true 'Suricata to read the feed' feeds_of one 1
guest one 'start block chroot /disk /usr/bin/weir block --from /log/eve.json --follow --feed ids'

send_trace() {
    ip netns exec "$tx" "$weir" gen eth0 --file "$scratch/trace.pcap" --rate 2kpps >"$scratch/gen.log" 2>&1 ||
        die "weir gen: $(cat "$scratch/gen.log")"
}
alerts() { in_guest one "jq -c 'select(.event_type == \"alert\") | [.alert.signature_id, .src_ip, .src_port, .http.url]' /disk/log/eve.json"; }
send_trace
limit_s=90 until_true 'the alert' in_guest one 'grep -q "\"event_type\":\"alert\"" /disk/log/eve.json'
[[ $(alerts) == '[1000001,"10.1.0.7",40007,"/evil"]' ]] || die "not the one alert: $(alerts)"
until_true 'the flow to be blocked' in_guest one 'grep -q 40007 /tmp/block.json /tmp/block.err'
send_trace
until_true 'all to be read' all_read
# The host's own account.
blocked=$(status | jq '[.feeds[].ledger.blocked] | add')
[[ $blocked -eq $of_flow ]] || die "$blocked frames were blocked at the host, and the flow has $of_flow"
guest one 'kill $pid_block $pid_suricata; ended block; ended suricata' ||
    die "Suricata: $(guest one 'tail -n 5 /tmp/suricata.json /tmp/suricata.err')"
[[ $(alerts) == '[1000001,"10.1.0.7",40007,"/evil"]' ]] || die "not the one alert: $(alerts)"
seen=$(guest one "jq -c 'select(.event_type == \"stats\").stats.decoder.pkts' /disk/log/eve.json | tail -n 1")
[[ $seen -eq $((2 * frames - of_flow)) ]] || die "Suricata has seen $seen frames, not $((2 * frames - of_flow))"
say "suricata: $frames frames and the alert; then all but the $of_flow frames of its flow"
kill_machine one
rm -f "$scratch/disk.img"
