# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# The broker, the daemon and QEMU are killed at random moments, while frames flow and feeds are read, opened and closed,
# WEIR_GUEST_KILLS times (3; more in `make soak`). After each, accounts must balance, nothing may remain, and the next feed
# must open. WEIR_SEED=N repeats the moments of an earlier run.

kills=${WEIR_GUEST_KILLS:-3}
seed=${WEIR_SEED:-$RANDOM}
RANDOM=$seed
say "=== kills: $kills, WEIR_SEED=$seed"
initramfs_of plain
initramfs=$scratch/plain.initramfs
# shellcheck source=tests/vm/load.sh
source "$root/tests/vm/load.sh"
configure 8 64 one

# Our memfds in QEMU: the memory of our devices.
regions_of() { find "/proc/$1/fd" -mindepth 1 -lname '*memfd:*weir*' 2>/dev/null | wc -l; }
mapped_of() { grep -c 'memfd:.*weir' "/proc/$1/maps" || true; }
has_no_regions() { [[ $(regions_of "${machine_pid[one]}") -eq 0 && $(mapped_of "${machine_pid[one]}") -eq 0 ]]; }
# Whether the account of a capture that has ended balances.
is_whole() { # ACCOUNT
    jq -e '.unexplained == 0 and (.drops.relay // 0) == 0 and .delivered + .lapped + .after_limit == .captured
        and .offered == .filtered + .captured + ([.drops[]?] | add // 0)' <<<"$1" >/dev/null
}
# Compares the frames that were offered to a capture with those that were sent while it ran. A capture that ran all the time
# must have exactly these. A reader that has lost its daemon or broker cannot count the frames until it was connected again,
# so it may have fewer.
was_offered() { # exactly|at-most ACCOUNT
    local test='.offered == $sent'
    [[ $1 == exactly ]] || test='.offered > 0 and .offered <= $sent'
    jq -e --argjson sent "$sent" "$test" <<<"$2" >/dev/null
}
begin_machine() {
    start_machine one pc
    booted one
    guest one broker
}
# Opens one feed, and reads to its last frame.
next_feed() { # NAME
    guest one "reads $1 host:lan --frames 50 && ended $1"
    is_whole "$(guest one "cat /tmp/$1.json")" || die "$1: $(guest one "cat /tmp/$1.json")"
    until_true 'the devices to be gone' has_no_objects one
    until_true "QEMU to have none of our memory" has_no_regions
    guest one 'within 20 devices 0'
}

serve
begin_machine
load 3kpps
# The first feeds load what stays loaded.
next_feed first
next_feed second
stop_load
before=("$(descriptors)" "$(threads)" "$(resident_kib)")
victims=(broker daemon qemu)
for ((number = 1; number <= kills; number++)); do
    victim=${victims[(number - 1) % 3]}
    delay_ms=$((RANDOM % 700))
    "$weir" capture host:lan --follow --json --socket "$scratch/run/weir.sock" >"$scratch/host.json" 2>"$scratch/host.err" &
    host_pid=$!
    helpers+=("$host_pid")
    until_true 'the reader on the host' grep -q ' host at tc: ' "$scratch/host.err"
    guest one 'reads all host:lan --follow; reads half host:lan@1/2 --follow'
    # No frame was sent before the readers were open, so they are offered every frame.
    load 3kpps
    # A random delay, so that the kill hits any step of opening or closing a feed.
    guest one 'start brief weir capture host:lan --filter udp --frames 200 --json'
    sleep "0.$(printf '%03d' "$delay_ms")"
    case $victim in
    broker) guest one 'killed broker; broker' ;;
    daemon)
        kill -KILL "$daemon_pid"
        wait "$daemon_pid" 2>/dev/null || true
        rm -f "$scratch/run/weir.sock"
        serve
        ;;
    qemu)
        kill_machine one
        until_true 'the feeds of a QEMU that is gone to be closed' feeds_of one 0
        begin_machine
        ;;
    esac
    if [[ $victim != qemu ]]; then
        for name in all half; do
            guest one "within 60 grep -q 'captured from here on' /tmp/$name.err || { cat /tmp/$name.err; false; }"
        done
        # It has read its frames, or was refused and has no account.
        account=$(guest one 'ended brief; cat /tmp/brief.json')
        [[ -z $account ]] || is_whole "$account" || die "$victim: $account"
        stop_load
        until_true 'all to be read' all_read
        for name in all half; do
            guest one "kill \$pid_$name; ended $name"
            account=$(guest one "cat /tmp/$name.json")
            is_whole "$account" || die "$victim, $name: $account"
            was_offered at-most "$account" || die "$victim, $name, of $sent frames: $account"
        done
    else
        stop_load
    fi
    kill -TERM "$host_pid"
    wait "$host_pid" || die "$victim: the reader on the host: $(cat "$scratch/host.err")"
    account=$(cat "$scratch/host.json")
    is_whole "$account" || die "$victim: the reader on the host: $account"
    # Events in the guest must not affect it.
    how=exactly
    [[ $victim != daemon ]] || how=at-most
    was_offered "$how" "$account" || die "$victim: the reader on the host, of $sent frames: $account"
    load 3kpps
    next_feed next
    stop_load
    hold_no_more "${before[@]}"
    say "ok      $number: $victim, after $delay_ms ms"
done
say "kills: $kills; then $(descriptors) descriptors, $(threads) threads, $(resident_kib) KiB; before: ${before[*]}"
