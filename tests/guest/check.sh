#!/bin/sh
# Runs in the guest: the oldest supported kernel must take every BPF program, and a
# capture there must see what was sent and account for it.
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

# 1. The verifier of this kernel and every object we ship.
#    A refused program brings thousands of lines of verifier log; its last ones name the reason.
weir lab load-bpf >/tmp/loaded 2>/tmp/verifier || {
    grep -B 8 -A 1 '^processed [0-9]* insns' /tmp/verifier || tail -n 40 /tmp/verifier
    cat /tmp/loaded
    fail "this kernel refused a BPF program (or there is no 'weir lab load-bpf')"
}
cat /tmp/loaded
grep -q '^loaded ' /tmp/loaded || fail "'weir lab load-bpf' loaded nothing"

# 2. A live capture. The far end of the pair is in a namespace: the kernel would otherwise deliver
#    pings to its own addresses over lo.
if ! weir capture --help >/dev/null 2>&1; then
    echo "SKIPPED guest-capture: this weir has no 'capture' yet"
    exit 0
fi
ip netns add far
ip link add near0 type veth peer name far0 netns far
ip addr add 192.0.2.1/24 dev near0
ip link set near0 up
ip -n far addr add 192.0.2.2/24 dev far0
ip -n far link set far0 up

wanted=10
# Pings until the capture has its frames: emulated, it may take seconds to start. Each is two
# frames at near0, request and reply.
ip netns exec far ping -i 0.2 -c 300 192.0.2.1 >/dev/null 2>&1 &
ping_pid=$!
status=0
timeout 60 weir capture near0 --engine bpf --frames "$wanted" --json >/tmp/ledger || status=$?
kill "$ping_pid" 2>/dev/null || true
cat /tmp/ledger
[ "$status" -eq 0 ] || fail "weir capture ended with $status (143 or 124: it did not see $wanted frames in 60 s)"

jq -es --argjson wanted "$wanted" '
    last
    | ([.drops[]?] | add // 0) as $drops
    | .engine == "bpf" and .captured >= $wanted and .offered == .filtered + .captured + $drops
' /tmp/ledger >/dev/null ||
    fail "the ledger above does not close: offered = filtered + captured + drops, captured >= $wanted"
echo "captured in the guest, and the ledger closes"
