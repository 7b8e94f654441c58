# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# A recorder in a guest writes the host's frames to a virtio-blk disk of the guest: it is ended and killed, keeps its
# quota, and what is in its files is extracted in the guest, while it writes and afterwards.

say '=== recorder: the host on a disk of the guest'
initramfs_of plain
initramfs=$scratch/plain.initramfs
configure 8 64 one
serve
truncate -s 192M "$scratch/disk.img"
PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F "$scratch/disk.img"
start_machine one pc -drive "file=$scratch/disk.img,format=raw,if=virtio"
booted one
guest one 'modprobe virtio_blk; mkdir /data && mount -t ext4 /dev/vda /data'
guest one broker
# Frames that are extracted from a directory of the guest.
guest one 'extracted() { weir extract /data/$1/ --json --write /tmp/extracted.pcapng 2>/tmp/extract.err | jq .frames; }'
guest one 'has() { [ "$(extracted $1)" -eq $2 ]; }'
has() { # DIRECTORY FRAMES
    guest one "has $1 $2" || die "of $2 frames in $1 are extracted: $(guest one "extracted $1")"
}

say '--- ended by SIGTERM'
guest one 'reads whole host:lan --write /data/whole/'
send 2000 --rate 5kpps
until_true 'all to be read' all_read
guest one 'kill $pid_whole; ended whole'
[[ $(guest one 'counts whole') == '[2000,0,2000,2000,0,0,0]' ]] || die "whole: $(guest one 'counts whole')"
guest one '! ls /data/whole | grep -q open$' || die "open files: $(guest one 'ls /data/whole')"
has whole 2000
frames=$(guest one 'tcpdump -Z root -nr /tmp/extracted.pcapng 2>/dev/null | wc -l')
[[ $frames -eq 2000 ]] || die "tcpdump reads $frames of 2000 extracted frames"
none=$(guest one 'weir extract /data/whole/ --filter "tcp port 1" --json --write /tmp/none.pcapng 2>/dev/null | jq .frames')
[[ $none -eq 0 ]] || die "a filter that takes none extracts $none frames"

say '--- killed while it writes'
guest one 'reads killed host:lan --write /data/killed/'
send 1000 --rate 5kpps
# While it is recording, a second behind.
guest one 'within 20 has killed 1000' || die "extracted while recording: $(guest one 'extracted killed')"
guest one 'killed killed; ls /data/killed | grep -q open$' || die 'a killed recorder has left no open file'
has killed 1000
guest one 'weir index --check /data/killed/ 2>/tmp/check.err; [ $? -eq 1 ]' || die 'a killed recorder left nothing to repair'
guest one 'weir index /data/killed/ 2>/tmp/index.err && weir index --check /data/killed/ 2>/tmp/check.err'
guest one '! ls /data/killed | grep -q open$' || die "not repaired: $(guest one 'ls /data/killed')"
has killed 1000
# The next one goes on in the same directory.
guest one 'reads next host:lan --write /data/killed/'
send 500 --rate 5kpps
until_true 'all to be read' all_read
guest one 'kill $pid_next; ended next'
has killed 1500

say '--- within its quota'
guest one 'reads quota host:lan --write /data/quota/ --quota 32MiB --rotate-size 4MiB'
# Not at once: the rings hold 5000, and a guest on a busy machine stands still for seconds.
for _ in {1..10}; do
    send 4000 --rate 10kpps --size 1518
    until_true 'all to be read' all_read
done
guest one 'kill $pid_quota; ended quota'
guest one 'jq -e ".unexplained == 0 and .offered == 40000 and .delivered + .lapped == .captured and .drops.store == 0
    and .recorder.volumes[0].deleted_files > 0" /tmp/quota.json' >/dev/null ||
    die "quota: $(guest one 'cat /tmp/quota.json')"
bytes=$(guest one 'cat /data/quota/*.pcapng | wc -c')
[[ $bytes -le $((32 << 20)) && $bytes -gt $((16 << 20)) ]] || die "a quota of 32 MiB has files of $bytes bytes"
guest one 'within 20 devices 0 && umount /data' || die "the disk is in use: $(guest one 'cat /tmp/*.err')"

say "recorder: 2000, 1500 frames extracted, $bytes bytes within a quota of 32 MiB"
end "$daemon_pid"
daemon_pid=
kill_machine one TERM
