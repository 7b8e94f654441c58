#!/usr/bin/env bash
# A virtual machine without a serial port for Weir reads the host's feeds: its broker reaches the daemon by vsock, which
# the daemon vhost-device-vsock carries. tests/vm.sh calls it.
set -euo pipefail
# shellcheck source=tests/live.sh
source "$(dirname "$0")/../live.sh"
cd "$root"

limit_s=120
scratch=
daemon_pid=
guest_pid=
vsock_pid=
rx=weir-vsock-rx-$$
tx=weir-vsock-tx-$$
PATH=$PATH:$root/.cache/tools/bin

# shellcheck disable=SC2317  # by the trap
tidy() {
    end "$guest_pid"
    end "$daemon_pid"
    end "$vsock_pid"
    remove_namespaces "$rx" "$tx"
    if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ $EUID -ne 0 ]]; then
    skip vm_vsock 'a daemon that captures needs root'
    exit 0
fi
for tool in qemu-system-x86_64 busybox cpio jq vhost-device-vsock; do
    command -v $tool >/dev/null || {
        skip vm_vsock "$tool is missing (tests/setup.sh test)"
        exit 0
    }
done
# It says why.
tests/guest/kernel.sh >/dev/null || {
    rc=$?
    [[ $rc -eq 3 ]] || exit "$rc"
    skip vm_vsock 'there is no Debian kernel to boot (tests/guest/kernel.sh)'
    exit 0
}

scratch=$(mktemp -d)
mkdir -m 755 "$scratch/run"
weir=${WEIR_BIN:-$target_dir/release/weir}
[[ -n ${WEIR_BIN:-} ]] || cargo build --locked --release -p weir

make_link "$rx" "$tx"
cat >"$scratch/weir.toml" <<CONFIG
[sources.lan]
source = "eth0"
users = [0]
guests = ["one"]
ring_mib = 16

[guests.one]
vsock = "$scratch/vsock"
qmp = "$scratch/qmp"
region_mib = 64
CONFIG
serve() {
    ip netns exec "$rx" "$weir" serve --config "$scratch/weir.toml" --socket "$scratch/run/weir.sock" \
        >>"$scratch/serve.log" 2>&1 &
    daemon_pid=$!
    until_true 'the daemon' test -S "$scratch/run/weir.sock"
}
status() { "$weir" status --json --socket "$scratch/run/weir.sock"; }
send() { # FRAMES
    ip netns exec "$tx" "$weir" gen eth0 --frames "$1" --rate 2kpps --size 200 >"$scratch/gen.log" 2>&1 ||
        die "weir gen: $(cat "$scratch/gen.log")"
}
# The guest's script and this one speak by lines of its console: it says a word when it waits for frames.
waits_for() { grep -qx "WAITS $1" "$scratch/guest.log" || ! kill -0 "$guest_pid" 2>/dev/null; }
all_read() { [[ $(status | jq '[.clients[] | select(.guest == "one") | .lag] | add') == 0 ]]; }

vhost-device-vsock --vm "guest-cid=3,socket=$scratch/vhost,uds-path=$scratch/vsock" >"$scratch/vhost.log" 2>&1 &
vsock_pid=$!
until_true 'vhost-device-vsock' test -S "$scratch/vhost"
: >"$scratch/guest.log"
# vhost-user needs the guest's memory to be shared.
WEIR_GUEST_MACHINE=pc,memory-backend=ram WEIR_GUEST_MODULES=vmw_vsock_virtio_transport WEIR_GUEST_TIMEOUT=240 \
    WEIR_BIN=$weir WEIR_GUEST_QEMU="-object memory-backend-memfd,id=ram,size=1G,share=on \
        -chardev socket,id=vhost,path=$scratch/vhost -device vhost-user-vsock-pci,chardev=vhost \
        -qmp unix:$scratch/qmp,server=on,wait=off" \
    tests/guest/run.sh --add tests/vm/vsock-inside.sh -- vsock-inside.sh >"$scratch/guest.log" 2>&1 &
guest_pid=$!

until_true 'a broker without a host' waits_for host
serve
until_true 'a reader in the guest' waits_for frames
send 2000
until_true 'a reader whose broker is killed' waits_for broker
send 500
until_true 'the next broker' waits_for next
send 500
until_true 'a reader whose daemon is killed' waits_for daemon
send 500
until_true 'all to be read' all_read
kill -KILL "$daemon_pid"
wait "$daemon_pid" 2>/dev/null || true
serve
until_true 'the reader at the next daemon' waits_for successor
send 500

code=0
wait "$guest_pid" || code=$?
guest_pid=
cat "$scratch/guest.log" >&2
[[ $code -eq 0 ]] || {
    tail -n 20 "$scratch/serve.log" "$scratch/vhost.log" >&2
    die "the guest failed ($code)"
}
end "$daemon_pid"
daemon_pid=
[[ ! -e $scratch/vsock_5745 ]] || die 'the daemon has left its socket'
say 'vsock: every frame of the host was read in the guest'
