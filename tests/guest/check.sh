#!/bin/sh
# Runs in the guest. The oldest supported kernel must accept every BPF program, a capture must receive and
# account for every frame that was sent, and the tests of TESTS must pass.
set -eu

fail() {
    echo "error: $*"
    exit 1
}

case $(uname -r) in
6.1.*) ;;
*) fail "this is $(uname -r), not Linux 6.1" ;;
esac
[ -s /sys/kernel/btf/vmlinux ] || fail 'this kernel has no BTF'
command -v weir >/dev/null || fail 'no weir in this guest: build it (cargo build -p weir), or set WEIR_BIN'

# 1. Every BPF program that we ship, against this kernel's verifier.
#    The verifier's log of a refused program has thousands of lines; the last ones name the reason.
weir lab load-bpf >/tmp/loaded 2>/tmp/verifier || {
    grep -B 8 -A 1 '^processed [0-9]* insns' /tmp/verifier || tail -n 40 /tmp/verifier
    cat /tmp/loaded
    fail "this kernel refused a BPF program (or there is no 'weir lab load-bpf')"
}
cat /tmp/loaded
grep -q '^loaded ' /tmp/loaded || fail "'weir lab load-bpf' loaded nothing"

# 2. A live capture into a file: pings without a VLAN tag, with one, and with two (QinQ). The far end is
#    in a namespace, because the kernel would otherwise deliver pings to its own addresses by lo.
ip netns add far
ip link add near0 type veth peer name far0 netns far
set_up() { # HOST IFACE IP...: the last is how `ip` is called at this end
    host=$1 below=$2
    shift 2
    "$@" link set "$below" up
    "$@" link add link "$below" name c100 type vlan proto 802.1Q id 100
    "$@" link add link "$below" name s200 type vlan proto 802.1ad id 200
    "$@" link set s200 up
    "$@" link add link s200 name c300 type vlan proto 802.1Q id 300
    net=1
    for iface in "$below" c100 c300; do
        "$@" link set "$iface" up
        "$@" addr add "198.18.$net.$host/24" dev "$iface"
        net=$((net + 1))
    done
}
set_up 1 near0 ip
set_up 2 far0 ip -n far

: >/tmp/talk
timeout 90 weir capture near0 --engine bpf --json --write /out/pings.pcapng >/out/pings.json 2>/tmp/talk &
capture_pid=$! # busybox: weir itself, not `timeout`
waited=0
until grep -q '^weir: near0: bpf' /tmp/talk; do
    if [ "$waited" -ge 300 ] || ! kill -0 "$capture_pid" 2>/dev/null; then
        cat /tmp/talk
        fail 'weir capture did not begin, or not within 30 s'
    fi
    sleep 0.1
    waited=$((waited + 1))
done
for net in 1 2 3; do
    timeout 30 ping -i 0.2 -c 4 -W 10 "198.18.$net.2" >/tmp/ping || {
        cat /tmp/ping
        fail "no answer from 198.18.$net.2: the VLAN interfaces, or weir is in the way"
    }
done
kill -TERM "$capture_pid"
status=0
wait "$capture_pid" || status=$?
cat /tmp/talk /out/pings.json
[ "$status" -eq 0 ] || fail "weir capture ended with $status"
jq -es '
    last
    | ([.drops[]?] | add // 0) as $drops
    | .engine == "bpf" and .captured >= 24 and .delivered == .captured
        and .offered == .filtered + .captured + $drops
' /out/pings.json >/dev/null ||
    fail 'the ledger above does not close: offered = filtered + captured + drops, delivered = captured >= 24'
echo "captured in the guest, and the ledger closes"

weir capture file:/out/pings.pcapng --json >/tmp/read ||
    fail 'weir cannot read the file that it wrote'
[ "$(jq .delivered /tmp/read)" -eq "$(jq .delivered /out/pings.json)" ] || {
    cat /tmp/read
    fail 'weir reads another number of frames from its file than it wrote'
}

# 3. The tests that also run on the host. Each is shown with its time, and if it fails, with its last output.
export WEIR_TEST_SLOWNESS=3
failed=
while read -r package binary name; do
    case $package in '#'*) continue ;; esac
    begin=$(date +%s)
    status=0
    timeout 300 "$package-$binary" --exact "$name" --nocapture >/tmp/test 2>&1 || status=$?
    took=$(($(date +%s) - begin))
    reason=
    if [ "$status" -ne 0 ]; then
        reason="exit $status" # 124, 143: the time limit
    elif grep '^SKIPPED ' /tmp/test; then
        reason='skipped, where it must run'
    elif ! grep -q '^test result: ok. 1 passed' /tmp/test; then
        reason='there is no such test'
    fi
    if [ -z "$reason" ]; then
        echo "ok      $name, $took s"
        continue
    fi
    echo "FAILED  $name, $took s: $reason"
    tail -n 60 /tmp/test
    failed="$failed $name"
done </bin/TESTS
[ -z "$failed" ] || fail "failed on $(uname -r):$failed"
