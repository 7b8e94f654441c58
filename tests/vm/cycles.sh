# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# Feeds are opened and closed again and again, and each time devices are plugged in and unplugged: nothing may leak in the
# daemon, in QEMU or in the guest. WEIR_CYCLES (5) cycles on each of two machines; `make soak` has 100.

rounds=${WEIR_CYCLES:-5}
# Cycles before the counts are taken: the first ones load libraries, and allocate memory that is kept.
warm=2

initramfs_of plain
initramfs=$scratch/plain.initramfs
count_of() { find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l; }
# Number of mappings of a process whose file is a memfd, or has weir in its name.
maps_of() { grep -c -e weir -e memfd "/proc/$1/maps" || true; }
kib_of() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }
broker_fds() { guest one 'ls /proc/$pid_broker/fd | wc -l'; }
broker_maps() { guest one 'wc -l </proc/$pid_broker/maps'; }
no_more_than() { # LIMIT COMMAND...
    local limit=$1
    shift
    local count
    count=$("$@")
    [[ -n $count && $count -le $limit ]]
}

cycle() { # NUMBER
    local counts reader
    guest one "reads cycle host:lan --frames 20"
    # A second reader joins while the devices of the first one are there.
    guest one "reads second host:lan --frames 20"
    send 20 --rate 5kpps
    for reader in cycle second; do
        guest one "ended $reader"
        counts=$(guest one "counts $reader")
        # offered, filtered, captured, delivered, lapped, drops.relay, unexplained
        [[ $counts == '[20,0,20,20,0,0,0]' ]] || die "cycle $1, reader $reader: $counts"
    done
    until_true "the devices to be gone (cycle $1)" has_no_objects one
    guest one 'within 20 devices 0'
}

for machine in pc q35; do
    if [[ $machine == pc && -n $qemu10 ]]; then qemu=$qemu10; fi
    say "=== cycles: $rounds on $machine, $("$qemu" --version | head -n 1)"
    configure 8 64 one
    serve
    start_machine one "$machine"
    qemu="qemu-system-x86_64"
    booted one
    guest one broker
    for ((at = 1; at <= warm; at++)); do cycle "$at"; done
    qemu_pid=${machine_pid[one]}
    before=("$(count_of "$qemu_pid")" "$(maps_of "$qemu_pid")" "$(count_of "$daemon_pid")" "$(kib_of "$daemon_pid")"
        "$(broker_fds)" "$(broker_maps)" "$(maps_of "$daemon_pid")")
    for ((at = 1; at <= rounds; at++)); do cycle "$at"; done
    kill -0 "$daemon_pid" || die 'the daemon has ended'
    kill -0 "$qemu_pid" || die 'QEMU has ended'
    until_true "QEMU's descriptors (${before[0]})" no_more_than "${before[0]}" count_of "$qemu_pid"
    until_true "QEMU's mappings (${before[1]})" no_more_than "${before[1]}" maps_of "$qemu_pid"
    until_true "the daemon's descriptors (${before[2]})" no_more_than "${before[2]}" count_of "$daemon_pid"
    until_true "the daemon's mappings (${before[6]})" no_more_than "${before[6]}" maps_of "$daemon_pid"
    # VmRSS counts touched pages only, so mappings are counted apart. 4 MiB are for variation between runs; 40 KiB a cycle
    # are less than a leaked thread or table, which 100 cycles (`make soak`) show.
    no_more_than $((before[3] + 4096 + 40 * rounds)) kib_of "$daemon_pid" ||
        die "the daemon has $(kib_of "$daemon_pid") KiB, and had ${before[3]}"
    until_true "the broker's descriptors (${before[4]})" no_more_than "${before[4]}" broker_fds
    until_true "the broker's mappings (${before[5]} + 4)" no_more_than $((before[5] + 4)) broker_maps
    say "cycles: before ${before[*]}; after $(count_of "$qemu_pid") $(maps_of "$qemu_pid") $(count_of "$daemon_pid") \
$(kib_of "$daemon_pid") $(broker_fds) $(broker_maps) $(maps_of "$daemon_pid") (QEMU's descriptors and mappings, the \
daemon's descriptors and KiB, the broker's descriptors and mappings, the daemon's mappings)"
    kill_machine one
    end "$daemon_pid"
    daemon_pid=
done
