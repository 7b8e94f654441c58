# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# A machine is paused, reset and rebooted, and its QEMU is killed; its broker, its readers and the host's daemon are killed
# while frames flow. Each time other readers go on, ledgers close, feeds come back, and at the end nothing remains.

say '=== life: pauses, resets, kills'
initramfs_of plain
initramfs=$scratch/plain.initramfs
# shellcheck source=tests/vm/load.sh
source "$root/tests/vm/load.sh"
configure 8 64 one
serve

# A reader on the host, in addition to those of the guest. Events in the guest must not affect it.
host_reader_pid=
host_reads() {
    "$weir" capture host:lan --follow --json --socket "$scratch/run/weir.sock" >"$scratch/host.json" 2>"$scratch/host.err" &
    host_reader_pid=$!
    helpers+=("$host_reader_pid")
    until_true 'the reader on the host' grep -q ' host at tc: ' "$scratch/host.err"
}
host_has_read() { # FRAMES
    kill -TERM "$host_reader_pid"
    wait "$host_reader_pid" || die "the reader on the host: $(cat "$scratch/host.err")"
    [[ $(jq -c '[.offered, .delivered, .lapped, .unexplained]' "$scratch/host.json") == "[$1,$1,0,0]" ]] ||
        die "the reader on the host, of $1 frames: $(cat "$scratch/host.json")"
}
# Waits until a reader in the guest has begun a further life that many times.
reads_again() { # NAME LIVES
    guest one "within 60 sh -c '[ \$(grep -c \"captured from here on\" /tmp/$1.err) -ge $2 ]'"
}
# Ends a reader by a signal; its account must balance. It was open before anything was sent, so it must have been offered
# exactly the sent frames; if it has lost its broker or daemon meanwhile, the frames of the gap are not counted: at most that
# many.
closes() { # NAME '=='|'<=' FRAMES
    guest one "kill \$pid_$1; ended $1"
    guest one "jq -e '.offered $2 $3' /tmp/$1.json" >/dev/null ||
        die "$1: it was not offered $2 $3 frames: $(guest one "cat /tmp/$1.json")"
    guest one "jq -e '.unexplained == 0 and (.drops.relay // 0) == 0 and .delivered + .lapped == .captured and .delivered > 0
        and .offered == .filtered + .captured + ([.drops[]?] | add // 0)' /tmp/$1.json" >/dev/null ||
        die "$1: its account is not whole: $(guest one "cat /tmp/$1.json")"
}

start_machine one pc
booted one
guest one broker
# Once before, so that memory is there that is allocated only once.
guest one 'reads warm host:lan --frames 200'
send 100 --rate 2kpps
until_true 'all to be read' all_read
with_reader=("$(descriptors)" "$(threads)" "$(resident_kib)")
send 100 --rate 2kpps
guest one 'ended warm'
until_true 'the devices to be gone' has_no_objects one

say '--- a mapping that outlives its device'
read=$(read_after_unplug one)
[[ $read == 'zeros zeros' ]] || die "after an unplugging a mapping reads '$read'"

say '--- paused while frames flow'
guest one 'reads paused host:lan --frames 3000'
host_reads
send 1000 --rate 5kpps
done_by_qmp one stop
send 1000 --rate 5kpps
host_has_read 2000
done_by_qmp one cont
send 1000 --rate 5kpps
guest one 'ended paused'
[[ $(guest one 'counts paused') == '[3000,0,3000,3000,0,0,0]' ]] || die "paused: $(guest one 'counts paused')"

say '--- paused while its devices are to be unplugged'
# On a busy machine it may have released them before it was paused: then try again.
for _ in 1 2 3; do
    until_true 'the feed to be closed' feeds_of one 0
    done_by_qmp one stop
    # From outside it can only be seen that nothing happens: by then the daemon has asked, and gets no answer.
    sleep 8
    [[ -z $(qemu_objects one) ]] || break
    done_by_qmp one cont
    guest one 'reads brief host:lan; kill $pid_brief; ended brief'
done
[[ -n $(qemu_objects one) ]] || die 'a guest that is paused has released its devices'
begin_ms=${EPOCHREALTIME//[^0-9]/}
status >/dev/null
[[ $((${EPOCHREALTIME//[^0-9]/} - begin_ms)) -lt 2000000 ]] || die 'a guest that is paused holds up the status'
done_by_qmp one cont
guest one 'reads unpaused host:lan --frames 500'
send 500 --rate 2kpps
guest one 'ended unpaused'
[[ $(guest one 'counts unpaused') == '[500,0,500,500,0,0,0]' ]] || die "unpaused: $(guest one 'counts unpaused')"

say '--- reader, broker and daemon are killed while frames flow'
guest one 'reads victim host:lan'
guest one 'reads whole host:lan; reads some host:lan@1/2'
host_reads
load 3kpps
guest one 'killed victim'
until_true 'the feeds of those who are left' feeds_of one 2
stop_load
until_true 'all to be read' all_read
closes whole == "$sent"
closes some == "$sent"
host_has_read "$sent"
guest one 'reads other host:lan --follow'
guest one 'reads half host:lan@1/2 --follow'
host_reads
load 3kpps
guest one 'kill -KILL $pid_broker; wait $pid_broker; broker'
reads_again other 1
reads_again half 1
stop_load
until_true 'all to be read' all_read
closes half '<=' "$sent"
# All that has not affected the reader on the host.
host_has_read "$sent"
# Nothing remains but one reader.
hold_no_more "${with_reader[@]}"
sent_before=$sent
load 3kpps
kill -KILL "$daemon_pid"
wait "$daemon_pid" 2>/dev/null || true
rm -f "$scratch/run/weir.sock"
serve
reads_again other 2
host_reads
stop_load
until_true 'all to be read' all_read
closes other '<=' "$((sent_before + sent))"
kill -TERM "$host_reader_pid"
wait "$host_reader_pid"
until_true 'the devices to be gone' has_no_objects one
before=("$(descriptors)" "$(threads)" "$(resident_kib)")

say '--- reset, rebooted, its QEMU killed, while it reads'
for how in reset reboot kill; do
    guest one "reads $how host:lan --follow"
    send 300 --rate 2kpps
    case $how in
    reset)
        : >"$scratch/one.agent.log"
        done_by_qmp one system_reset
        ;;
    reboot)
        : >"$scratch/one.agent.log"
        tell one agent '0 reboot -f'
        ;;
    kill)
        kill_machine one
        until_true 'the feeds of a QEMU that is gone to be closed' feeds_of one 0
        start_machine one pc
        ;;
    esac
    booted one
    guest one broker
    until_true 'the feeds of the life before to be closed' feeds_of one 0
    guest one "reads $how host:lan --frames 300"
    send 300 --rate 2kpps
    guest one "ended $how"
    [[ $(guest one "counts $how") == '[300,0,300,300,0,0,0]' ]] || die "$how: $(guest one "counts $how")"
done

until_true 'the devices to be gone' has_no_objects one
hold_no_more "${before[@]}"
say "life: $(descriptors) descriptors, $(threads) threads, $(resident_kib) KiB; before: ${before[*]}"
end "$daemon_pid"
daemon_pid=
kill_machine one TERM
