# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# A guest with two virtual CPUs, in which readers of every kind run at the same time, also in C and in Python; readers of
# one queue each of the host's interface; and an application at the guest's own socket.

say '=== cpus: two virtual CPUs, many readers'
cat >"$scratch/read_by_c.c" <<'PROGRAM'
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir.h>
/* Counts the UDP frames of a source until it has so many: read_by_c SOURCE FRAMES */
int main(int argc, char **argv)
{
    struct weir_options options = weir_default_options();
    const struct weir_statistics *statistics;
    const struct weir_frame *frame;
    uint64_t frames = 0, wanted = strtoull(argv[argc - 1], NULL, 10);
    char error[256];
    weir_feed *feed;
    int result = 0, waits = 0;

    options.filter = "udp";
    if (weir_open(&feed, argv[1], &options, error, sizeof(error)) < 0) {
        fprintf(stderr, "%s\n", error);
        return 2;
    }
    fprintf(stderr, " host at tc: open\n");
    while (frames < wanted && waits < 60 && (result = weir_next_frame(feed, &frame, 1000)) >= 0)
        if (result == 0)
            waits++;
        else
            frames++;
    if (result < 0)
        fprintf(stderr, "%s\n", weir_error(feed));
    if (weir_get_statistics(feed, &statistics) < 0)
        return 3;
    printf("{\"frames\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"lapped\": %" PRIu64 "}\n", frames,
        statistics->dropped, statistics->lapped);
    weir_close(feed);
    return 0;
}
PROGRAM
cat >"$scratch/read_by_python" <<'PROGRAM'
#!/usr/bin/python3 -S
"""Counts the UDP frames of a source until it has so many: read_by_python SOURCE FRAMES"""
import json
import sys

sys.path.append("/usr/lib/python3")
import weir

wanted = int(sys.argv[2])
with weir.open(sys.argv[1], filter="udp") as feed:
    print(" host at tc: open", file=sys.stderr, flush=True)
    frames = octets = 0
    for frame in feed.frames(timeout=60):
        frames += 1
        octets += len(bytes(frame.data))
        if frames == wanted:
            break
    statistics = feed.statistics()
    print(json.dumps({"frames": frames, "bytes": octets, "dropped": statistics.dropped, "lapped": statistics.lapped}))
PROGRAM
libweir=$libraries/libweir.so
mkdir -p "$scratch/lib"
cp "$libweir" "$scratch/lib/libweir.so.1"
gcc -I "$root/crates/weir-c/include" "$scratch/read_by_c.c" "$scratch/lib/libweir.so.1" -o "$scratch/read_by_c"
# As the stage `tests` builds it: an example needs the crates of tests, which nothing else builds optimised.
cargo build --locked --workspace -q --example count_for_others
LD_LIBRARY_PATH=$scratch/lib tests/vm/python.sh "$scratch/python.tar"
LD_LIBRARY_PATH=$scratch/lib initramfs_of cpus --add "$scratch/read_by_c" --add "$scratch/lib/libweir.so.1" \
    --add "$scratch/read_by_python" --add "$scratch/python.tar" --add "$target_dir/debug/examples/count_for_others"
initramfs=$scratch/cpus.initramfs

# A TAP device with two queues: the kernel records the queue of each frame, which it does not for a veth.
queued=no
mkfifo "$scratch/queues.in"
ip netns exec "$rx" tests/vm/queues.py queued 300 200 <"$scratch/queues.in" >"$scratch/queues.out" 2>"$scratch/queues.log" &
queues_pid=$!
helpers+=("$queues_pid")
exec {to_queues}>"$scratch/queues.in"
has_queues_or_ended() { grep -q ready "$scratch/queues.out" || ! kill -0 "$queues_pid" 2>/dev/null; }
until_true 'a device with two queues' has_queues_or_ended
if grep -q ready "$scratch/queues.out"; then
    queued=yes
    ip -n "$rx" link set queued up
else
    skip vm_queues "no TAP device with queues: $(tail -n 1 "$scratch/queues.log")"
fi
configure 8 128 one
cat >>"$scratch/weir.toml" <<'CONFIG'

[sources.queued]
users = [0]
guests = ["one"]
ring_mib = 8
CONFIG
serve
# Not the same pair as in the part `feeds`.
if [[ -n $qemu10 ]]; then qemu=$qemu10; fi
cpus=2 start_machine one pc
qemu="qemu-system-x86_64"
booted one
guest one 'tar -C / -xf /bin/python.tar'
guest one broker

flows=64 frames=2000
guest one "reads all host:lan --frames $frames"
guest one 'reads filtered host:lan --filter "udp src port 9"'
guest one 'reads first host:lan@1/2 --write /tmp/first.pcapng'
guest one 'reads second host:lan@2/2 --write /tmp/second.pcapng'
guest one "export LD_LIBRARY_PATH=/bin; start c read_by_c host:lan $frames; is_open c"
guest one "start python read_by_python host:lan $frames; is_open python"
guest one "start dump env LD_PRELOAD=/bin/libweirpcap.so tcpdump -Z root -ni host:lan -c $frames -w /tmp/dump.pcap udp"
guest one 'within 20 grep -q "listening on" /tmp/dump.err'
# An interface of `weir attach`, which needs tun, and a tcpdump that reads a packet socket on it.
attached=no readers=7
if in_guest one 'modprobe tun && echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6' >/dev/null; then
    attached=yes readers=8
    guest one 'start attach weir attach host:lan --netdev weir0; within 20 ip link show weir0'
    guest one 'within 20 grep -q " host at tc: " /tmp/attach.err'
    guest one "start tap tcpdump -Z root -ni weir0 -c $frames -w /tmp/tap.pcap udp; within 20 grep -q 'listening on' /tmp/tap.err"
else
    skip vm_attach 'this kernel has no tun'
fi
# Readers with the same settings share a feed at the host.
guest one "within 20 sh -c '[ \$(weir status --json | jq \".clients | length\") -eq $readers ]'"
send "$frames" --rate 1kpps --size 100 --flows "$flows"

for name in all c python dump; do guest one "ended $name"; done
until_true 'the others to read all' all_read
for name in filtered first second; do guest one "kill \$pid_$name; ended $name"; done
[[ $(guest one 'counts all') == "[$frames,0,$frames,$frames,0,0,0]" ]] || die "all: $(guest one 'counts all')"
[[ $(guest one 'cat /tmp/c.json') == "{\"frames\": $frames, \"dropped\": 0, \"lapped\": 0}" ]] ||
    die "libweir: $(guest one 'cat /tmp/c.json')"
[[ $(guest one 'cat /tmp/python.json') == "{\"frames\": $frames, \"bytes\": $((96 * frames)), \"dropped\": 0, \"lapped\": 0}" ]] ||
    die "Python: $(guest one 'cat /tmp/python.json')"
count_in() { # FILE
    guest one "tcpdump -Z root -nr $1 2>/dev/null | wc -l"
}
[[ $(count_in /tmp/dump.pcap) -eq $frames ]] || die "tcpdump has $(count_in /tmp/dump.pcap)"
# Both halves together have every frame, and none twice.
halves=$(guest one 'jq -sc "[map(.offered)[], (map(.captured) | add), (map(.lapped) | add), (map(.drops.relay) | add)]" /tmp/first.json /tmp/second.json')
[[ $halves == "[$frames,$frames,$frames,0,0]" ]] || die "the halves: $halves: $(guest one 'cat /tmp/first.json /tmp/second.json')"
distinct=$(guest one 'for one in first second; do tcpdump -Z root -nr /tmp/$one.pcapng -txx 2>/dev/null |
    sed -n "/0x0/H; /^[^[:space:]]/{x; s/\n//g; p; s/.*//; x}; \${x; s/\n//g; p}" | grep 0x; done | sort | uniq -d | wc -l')
[[ $distinct -eq 0 ]] || die "$distinct frames are in both halves"
for half in first second; do
    [[ $(count_in /tmp/$half.pcapng) -gt $((frames / 5)) ]] || die "the half $half has $(count_in /tmp/$half.pcapng) frames"
done
guest one 'jq -e ".filtered > 0 or .captured == .offered" /tmp/filtered.json' >/dev/null
guest one 'jq -e ".offered == .filtered + .captured and .unexplained == 0" /tmp/filtered.json' >/dev/null ||
    die "filtered: $(guest one 'counts filtered')"
if [[ $attached == yes ]]; then
    guest one 'ended tap'
    [[ $(count_in /tmp/tap.pcap) -eq $frames ]] || die "weir attach: $(count_in /tmp/tap.pcap)"
    guest one 'kill $pid_attach; ended attach'
fi
# Each reader of a queue has exactly the frames of its queue: their source address shows the queue.
if [[ $queued == yes ]]; then
    until_true 'the feeds to be closed' feeds_of one 0
    for number in 0 1; do guest one "reads queue$number host:queued@q$number --write /tmp/queue$number.pcapng"; done
    echo go >&"$to_queues"
    until_true 'frames by both queues' grep -q sent "$scratch/queues.out"
    until_true 'the readers to read them' all_read
    for number in 0 1; do
        guest one "kill \$pid_queue$number; ended queue$number"
        wanted=$((300 - 100 * number))
        [[ $(guest one "counts queue$number") == "[500,$((500 - wanted)),$wanted,$wanted,0,0,0]" ]] ||
            die "queue $number: $(guest one "counts queue$number")"
        [[ $(guest one "tcpdump -Z root -nr /tmp/queue$number.pcapng ether src 02:00:00:00:00:0$number 2>/dev/null | grep -c '^[0-9]'") -eq $wanted ]] ||
            die "the reader of queue $number has frames of another"
    done
fi
exec {to_queues}>&-
# An application without captures: a server and three clients, each with descriptors.
counted=$(guest one 'count_for_others')
[[ $counted == '{"number":1} 1
{"number":2} 2
{"number":3} 3' ]] || die "count_for_others: $counted"
until_true 'the feeds to be closed' feeds_of one 0
until_true 'the devices to be gone' has_no_objects one
say "cpus: $frames frames, all of them in each reader of all; the halves are a whole; each queue has its reader"
