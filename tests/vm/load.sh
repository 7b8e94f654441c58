# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# Functions of the parts that kill something while frames flow: a generator, and the daemon's resources.

# The daemon's resources: descriptors, threads, KiB of memory.
descriptors() { find "/proc/$daemon_pid/fd" -mindepth 1 2>/dev/null | wc -l; }
threads() { find "/proc/$daemon_pid/task" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l; }
resident_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$daemon_pid/status"; }
holds_no_more() { [[ $(descriptors) -le $1 && $(threads) -le $2 ]]; }
# Waits until the daemon has no more than these.
hold_no_more() { # DESCRIPTORS THREADS KIB
    local kib
    until_true "the daemon to have no more than $1 descriptors and $2 threads" holds_no_more "$1" "$2"
    kib=$(resident_kib)
    [[ $kib -le $(($3 + 8192)) ]] || die "the daemon has $kib KiB, and had $3"
}

# Sends until stop_load, which sets $sent to the number of frames.
load_pid=
sent=0
load() { # RATE
    ip netns exec "$tx" "$weir" gen eth0 --rate "$1" --flows 50 --duration 10000s --json >"$scratch/load.json" 2>"$scratch/load.err" &
    load_pid=$!
    helpers+=("$load_pid")
}
stop_load() {
    kill -TERM "$load_pid"
    wait "$load_pid" || die "weir gen: $(cat "$scratch/load.err")"
    sent=$(jq .sent "$scratch/load.json")
}
