#!/usr/bin/env bash
# A virtual machine reads what a daemon on the host captures: QEMU as it is, a stock Debian kernel, a port and a hot-plugged
# device between both, nothing else. What was sent over a veth on the host is read in the guest, frame by frame, by
# several applications at once; filters of the guest act at the host; brokers, daemons and readers come and go.
#
#     tests/vm.sh [PART]...     all of them, unless named: feeds cpus life migrate cycles kernel suricata
#
# WEIR_CYCLES=N: how often the part `cycles` opens and closes a feed, on each of two machines (5).
set -euo pipefail
# shellcheck source=tests/live.sh
source "$(dirname "$0")/live.sh"
# shellcheck source=tests/vm/machine.sh
source "$(dirname "$0")/vm/machine.sh"
cd "$root"
parts=(feeds cpus life migrate cycles kernel suricata)
if [[ $# -gt 0 ]]; then parts=("$@"); fi
for part in "${parts[@]}"; do
    [[ $part == feeds || -f tests/vm/$part.sh ]] || die "no such part: $part"
done

limit_s=120
scratch=
daemon_pid=
guest_pid=
rx=weir-vm-rx-$$
tx=weir-vm-tx-$$

# shellcheck disable=SC2317  # by the trap
tidy() {
    kill_machines
    end "$guest_pid"
    end "$daemon_pid"
    remove_namespaces "$rx" "$tx"
    if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ $EUID -ne 0 ]]; then
    skip vm_feeds 'a daemon that captures needs root'
    exit 0
fi
for tool in qemu-system-x86_64 busybox cpio jq; do
    command -v $tool >/dev/null || {
        skip vm_feeds "$tool is missing"
        exit 0
    }
done
# It says why.
tests/guest/kernel.sh >/dev/null || {
    rc=$?
    [[ $rc -eq 3 ]] || exit "$rc"
    skip vm_feeds 'there is no Debian kernel to boot (tests/guest/kernel.sh)'
    exit 0
}

scratch=$(mktemp -d)
mkdir -m 755 "$scratch/run" "$scratch/out"
weir=${WEIR_BIN:-$target_dir/release/weir}
[[ -n ${WEIR_BIN:-} ]] || cargo build --locked --release -p weir -p weir-pcap -p weir-c
library=$(dirname "$weir")/libweirpcap.so

make_link "$rx" "$tx"
# The daemon's file: a source for the guests named, and one for none of them.
configure() { # RING-MIB REGION-MIB GUEST...
    local ring_mib=$1 region_mib=$2 names name
    shift 2
    names=$(printf '"%s", ' "$@")
    cat >"$scratch/weir.toml" <<CONFIG
[sources.lan]
source = "eth0"
users = [0]
guests = [${names%, }]
ring_mib = $ring_mib

[sources.hidden]
source = "eth0"
users = [0]
CONFIG
    for name; do
        cat >>"$scratch/weir.toml" <<CONFIG

[guests.$name]
port = "$scratch/$name.port"
qmp = "$scratch/$name.monitor"
region_mib = $region_mib
CONFIG
    done
}
serve() {
    ip netns exec "$rx" "$weir" serve --config "$scratch/weir.toml" --socket "$scratch/run/weir.sock" \
        >>"$scratch/serve.log" 2>&1 &
    daemon_pid=$!
    until_true 'the daemon' test -S "$scratch/run/weir.sock"
}
status() { "$weir" status --json --socket "$scratch/run/weir.sock"; }
send() { # FRAMES [gen's options]
    ip netns exec "$tx" "$weir" gen eth0 --frames "$@" >"$scratch/gen.log" 2>&1 || die "weir gen: $(cat "$scratch/gen.log")"
}
# The guest's script and this one speak by lines of its console: it says a word when it waits for frames.
waits_for() { grep -qx "WAITS $1" "$scratch/guest.log" || ! kill -0 "$guest_pid" 2>/dev/null; }
open_feeds() { [[ $(status | jq '[.clients[] | select(.guest == "one")] | length') -eq $1 ]]; }

all_read() { [[ $(status | jq '[.clients[] | select(.guest == "one") | .lag] | add') == 0 ]]; }

run_guest() { # MACHINE [QEMU's arguments]
    local machine=$1
    shift
    : >"$scratch/guest.log"
    WEIR_GUEST_MACHINE=$machine WEIR_GUEST_PROGRAM=$qemu WEIR_GUEST_MODULES='virtio_console' \
        WEIR_GUEST_TIMEOUT=300 WEIR_BIN=$weir \
        WEIR_GUEST_QEMU="-device virtio-serial -chardev socket,id=weir,path=$scratch/one.port,server=on,wait=off \
            -device virtserialport,id=weir,chardev=weir,name=org.weir.0 -qmp unix:$scratch/one.monitor,server=on,wait=off $*" \
        tests/guest/run.sh --add tests/vm/inside.sh --add "$library" --add "$(command -v tcpdump)" --out "$scratch/out" \
        -- inside.sh >"$scratch/guest.log" 2>&1 &
    guest_pid=$!
}

feeds() { # MACHINE
    local machine=$1 ports=() signal=KILL number code=0
    say "=== feeds: a guest of machine $machine, $("$qemu" --version | head -n 1)"
    if [[ $machine == q35 ]]; then
        signal=TERM
        for number in 1 2; do
            ports+=("-device pcie-root-port,id=weir$number,chassis=$number,hotplug=on,pref64-reserve=256M")
        done
    fi
    configure 16 128 one
    serve
    run_guest "$machine" "${ports[@]}"

    until_true 'four readers in the guest' waits_for four
    until_true 'their feeds at the host' open_feeds 4
    send 2000 --rate 2kpps --size 200 --flows 50
    until_true 'a reader after all others' waits_for again
    send 1000 --rate 2kpps
    until_true 'readers whose broker is killed' waits_for broker
    send 500 --rate 2kpps
    until_true 'the next broker' waits_for next
    send 500 --rate 2kpps
    until_true 'a reader whose daemon is killed' waits_for daemon
    send 500 --rate 2kpps
    until_true 'all to be read' all_read
    # Killed on one machine, told to end on the other.
    kill "-$signal" "$daemon_pid"
    wait "$daemon_pid" 2>/dev/null || true
    serve
    # The reader says that it goes on.
    until_true 'the reader at the next daemon' waits_for successor
    send 500 --rate 2kpps

    wait "$guest_pid" || code=$?
    guest_pid=
    cat "$scratch/guest.log" >&2
    [[ $code -eq 0 ]] || {
        tail -n 20 "$scratch/serve.log" >&2
        die "the guest failed ($code)"
    }
    end "$daemon_pid"
    daemon_pid=
}

# QEMU 10 beside this Debian's 7.2, and an older kernel, where they can be had.
qemu10=$(tests/vm/fetch.sh qemu10) || qemu10=
feeds_of() { [[ $(status | jq "[.clients[] | select(.guest == \"$1\")] | length") -eq $2 ]]; }
kernel_folder=$(tests/guest/kernel.sh)

for part in "${parts[@]}"; do
    begin=$SECONDS
    if [[ $part == feeds ]]; then
        feeds pc
        if [[ -n $qemu10 ]]; then qemu=$qemu10; else skip vm_qemu10 'QEMU 10 cannot be had here (tests/vm/fetch.sh)'; fi
        feeds q35
        qemu=qemu-system-x86_64
    else
        # shellcheck source=/dev/null
        source "tests/vm/$part.sh"
        kill_machines
        end "$daemon_pid"
        daemon_pid=
    fi
    say "=== $part: $((SECONDS - begin)) s"
done
WEIR_BIN=$weir tests/vm/vsock.sh
say 'vm: every frame of the host was read in the guest'
