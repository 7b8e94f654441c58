#!/usr/bin/env bash
# Virtual machines read feeds of a daemon on the host, with unchanged QEMU and stock Debian kernels, only through a
# virtio-serial port and a hot-plugged ivshmem device. Frames are sent over a veth on the host; several applications in
# the guest read every frame at the same time; filters of the guest act at the host; brokers, daemons and readers are
# stopped and started.
#
#     tests/vm.sh [PART]...     the named parts; without names, those of `all_parts`
#
# WEIR_VM_LANES=N: how many parts run at the same time (as many as there are CPUs), each as a process with its own
# daemon, link and machines. The output of a part is printed when it ends.
#
# WEIR_BIN=PROGRAM, WEIR_LIBRARIES=DIR: a weir that was built elsewhere, and the folder of libweir.so and
# libweirpcap.so.
#
# WEIR_GUEST_KILLS=N: how often the part `kills` kills something (3).
# WEIR_CYCLES=N: how often the part `cycles` opens and closes a feed, on each of two machines (5).
set -euo pipefail
# shellcheck source=tests/live.sh
source "$(dirname "$0")/live.sh"
# shellcheck source=tests/vm/machine.sh
source "$(dirname "$0")/vm/machine.sh"
cd "$root"
# The longest first, so that all lanes end at about the same time.
all_parts=(life kills libvirt feeds cycles migrate cpus recorder vsock kernel suricata)
parts=("$@")
if [[ $# -eq 0 ]]; then parts=("${all_parts[@]}"); fi
for part in "${parts[@]}"; do
    [[ " ${all_parts[*]} " == *" $part "* ]] || die "no such part: $part; there are: ${all_parts[*]}"
done
# This part needs its own mount namespace, so it is a separate script.
if [[ ${parts[*]} == libvirt ]]; then exec tests/vm/libvirt.sh; fi

limit_s=120
scratch=
daemon_pid=
guest_pid=
# Running parts, by process id.
part_of=()
rx=weir-vm-rx-$$
tx=weir-vm-tx-$$

# shellcheck disable=SC2317  # by the trap
tidy() {
    # Each part cleans up itself.
    local pid
    for pid in "${!part_of[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${!part_of[@]}"; do wait "$pid" || true; done
    kill_machines
    end "$guest_pid"
    end "$daemon_pid"
    remove_namespaces "$rx" "$tx"
    if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The part `vsock` uses a tool from here to reach the host.
PATH=$PATH:$root/.cache/tools/bin
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
# The libraries in a folder of their own, as packages have them: built together with the program, they would enable more
# features of its dependencies, and everything would be compiled again.
libraries=${WEIR_LIBRARIES:-}
[[ -n ${WEIR_BIN:-} ]] || cargo build --locked --release -p weir --bin weir
[[ -n $libraries ]] || libraries=$(packaging/libraries.sh)
library=$libraries/libweirpcap.so

# The daemon's file: a source for the named guests, and one for no guest.
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
# A command that runs its arguments as another user, for the daemon.
as_daemon=()
serve() {
    ip netns exec "$rx" "${as_daemon[@]}" "$weir" serve --config "$scratch/weir.toml" --socket "$scratch/run/weir.sock" \
        >>"$scratch/serve.log" 2>&1 &
    daemon_pid=$!
    # A daemon that was killed leaves its socket, which nobody answers.
    until_true 'the daemon' status
}
status() { "$weir" status --json --socket "$scratch/run/weir.sock"; }
send() { # FRAMES [gen's options]
    ip netns exec "$tx" "$weir" gen eth0 --frames "$@" >"$scratch/gen.log" 2>&1 || die "weir gen: $(cat "$scratch/gen.log")"
}
open_feeds() { feeds_of one "$1"; }
all_read() { [[ $(status | jq '[.clients[] | select(.guest == "one") | .lag] | add') == 0 ]]; }
# Fails, too, if the daemon does not answer.
feeds_of() { # GUEST NUMBER
    [[ $(status | jq "[.clients[] | select(.guest == \"$1\")] | length") == "$2" ]]
}

if [[ ${#parts[@]} -eq 1 ]]; then
    make_link "$rx" "$tx"
    # QEMU 10 in addition to this Debian's 7.2, if it could be downloaded.
    # shellcheck disable=SC2034  # used by the parts
    qemu10=$(tests/vm/fetch.sh qemu10) || qemu10=
    kernel_folder=$(tests/guest/kernel.sh)
    # shellcheck source=/dev/null
    source "$root/tests/vm/${parts[0]}.sh"
    exit 0
fi

start_part() { # PART
    WEIR_BIN=$weir WEIR_LIBRARIES=$libraries tests/vm.sh "$1" >"$scratch/$1.out" 2>&1 &
    part_of[$!]=$1
    begin_of[$1]=$SECONDS
}
end_part() {
    local pid part code=0
    wait -n -p pid "${!part_of[@]}" || code=$?
    part=${part_of[$pid]}
    unset "part_of[$pid]"
    cat "$scratch/$part.out" >&2
    say "=== $part: $((SECONDS - begin_of[$part])) s"
    [[ $code -eq 0 ]] || failed+=("$part")
}

declare -A begin_of=()
failed=()
at_once=${WEIR_VM_LANES:-$(nproc)}
for part in "${parts[@]}"; do
    if [[ ${#part_of[@]} -ge $at_once ]]; then end_part; fi
    start_part "$part"
done
while [[ ${#part_of[@]} -gt 0 ]]; do end_part; done
[[ ${#failed[@]} -eq 0 ]] || die "these parts failed, see above: ${failed[*]}"
say "vm: ended without failures: ${parts[*]}"
