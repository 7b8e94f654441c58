# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# The broker, the daemon and QEMU are killed at random moments, while frames flow and feeds are read, opened and closed:
# WEIR_GUEST_KILLS of them (3; more in `make soak`). After each, accounts are whole, nothing is left of what was there,
# and the next feed opens. WEIR_SEED=N has the moments of another run.

kills=${WEIR_GUEST_KILLS:-3}
seed=${WEIR_SEED:-$RANDOM}
RANDOM=$seed
say "=== kills: $kills, WEIR_SEED=$seed"
initramfs_of plain
initramfs=$scratch/plain.initramfs
# shellcheck source=tests/vm/load.sh
source "$root/tests/vm/load.sh"
configure 8 64 one

# Memory without a name, of ours: what QEMU was given as a device's.
regions_of() { find "/proc/$1/fd" -mindepth 1 -lname '*memfd:*weir*' 2>/dev/null | wc -l; }
mapped_of() { grep -c 'memfd:.*weir' "/proc/$1/maps" || true; }
has_no_regions() { [[ $(regions_of "${machine_pid[one]}") -eq 0 && $(mapped_of "${machine_pid[one]}") -eq 0 ]]; }
# What a capture says when it has ended: every frame has one fate.
is_whole() { # ACCOUNT
    jq -e '.unexplained == 0 and (.drops.relay // 0) == 0 and .delivered + .lapped + .after_limit == .captured
        and .offered == .filtered + .captured + ([.drops[]?] | add // 0)' <<<"$1" >/dev/null
}
# The frames that were offered to a capture, against those that were sent from before it could lose one until after the
# last could come: exactly those, where it was there all the time. A reader that has lost its daemon or broker, and
# --follow's gap with it, has no number of the frames of the gap: it has as many at most.
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
# One feed, from its opening to its last frame.
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
# The first ones load what stays.
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
    # Nothing was sent before, and nothing is behind the readers' last looks.
    load 3kpps
    # A feed that is being opened, or closed: the moment hits any step of it.
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
        # It had its frames, or was refused and has no account.
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
    # Nothing that becomes of the guest concerns it.
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
