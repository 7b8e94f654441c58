# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# Guests of both machine types and both QEMUs read a source of the host with several applications at once; filters of the
# guest act at the host; brokers, daemons and readers are stopped and started (inside.sh).

# The guest's script prints a line on its console when it waits for frames; this script then sends them.
waits_for() { grep -qx "WAITS $1" "$scratch/guest.log" || ! kill -0 "$guest_pid" 2>/dev/null; }

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

reads_feeds() { # MACHINE
    local machine=$1 ports=() signal=KILL number code=0
    say "--- a guest of machine $machine, $("$qemu" --version | head -n 1)"
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
    # SIGKILL on one machine, SIGTERM on the other.
    kill "-$signal" "$daemon_pid"
    wait "$daemon_pid" 2>/dev/null || true
    serve
    # The reader reports that it goes on.
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

reads_feeds pc
if [[ -n $qemu10 ]]; then qemu=$qemu10; else skip vm_qemu10 'QEMU 10 cannot be had here (tests/vm/fetch.sh)'; fi
reads_feeds q35
qemu="qemu-system-x86_64"
