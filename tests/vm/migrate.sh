# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# A guest with feeds is migrated to another QEMU, and is saved and loaded. QEMU refuses both while devices are plugged in,
# and accepts them once the guest is detached. The readers go on there, and no frame comes twice.

say '=== migrate: to another QEMU; saved, and loaded'
for tool in qemu-img python3; do
    command -v "$tool" >/dev/null || {
        skip vm_migrate "$tool is missing"
        return 0
    }
done
initramfs_of plain
initramfs=$scratch/plain.initramfs
configure 8 64 one two
serve
ask() { # METHOD PARAMS
    tests/vm/ask.py "$scratch/run/weir.sock" "$@"
}
state() { ask capture.guests | jq -r ".guests[] | select(.name == \"$1\").state"; }
is_in_state() { [[ $(state "$1") == "$2" ]]; }
detach() { # GUEST
    ask capture.guest_detach "{\"name\": \"$1\"}" >"$scratch/detach.log" || die "detach $1: $(cat "$scratch/detach.log")"
    has_no_objects "$1" || die "there are objects in QEMU after it has been detached: $(qemu_objects "$1")"
    is_in_state "$1" detached || die "$1 is $(state "$1")"
}
attach() { ask capture.guest_attach "{\"name\": \"$1\"}" >/dev/null || die "attach $1"; }
# Waits until a reader has that many lives.
lives() { # NAME GUEST HOW-MANY
    guest "$2" "within 60 sh -c '[ \$(grep -c \"captured from here on\" /tmp/$1.err) -ge $(($3 - 1)) ]'"
}

for name in one two; do qemu-img create -q -f qcow2 "$scratch/$name.qcow2" 1G; done
start_machine one q35 -drive "file=$scratch/one.qcow2,if=virtio"
start_machine two q35 -drive "file=$scratch/two.qcow2,if=virtio" -incoming defer
booted one
guest one broker

guest one 'reads moved host:lan --follow'
send 500 --rate 2kpps
until_true 'all to be read' all_read
refusal=$(qmp one migrate "{\"uri\": \"unix:$scratch/migration\"}" | jq -r .error.desc)
[[ $refusal == *'igration is disabled'*ivshmem* ]] || die "QEMU does not refuse to migrate: '$refusal'"
say "QEMU: $refusal"
refusal=$(hmp one 'savevm early')
[[ $refusal == *'igration is disabled'*ivshmem* ]] || die "QEMU does not refuse to save: '$refusal'"

detach one
# These frames are captured for no reader in the guest.
send 400 --rate 2kpps
done_by_qmp two migrate-incoming "{\"uri\": \"unix:$scratch/migration\"}"
until_true 'the other QEMU to listen' test -S "$scratch/migration"
done_by_qmp one migrate "{\"uri\": \"unix:$scratch/migration\"}"
has_migrated() { [[ $(qmp one query-migrate | jq -r .return.status) == completed ]]; }
until_true 'the migration' has_migrated
kill_machine one
lives moved two 2
until_true "its feed at the other guest's name" feeds_of two 1
send 500 --rate 2kpps
two_has_read() { [[ $(status | jq '[.clients[] | select(.guest == "two") | .lag] | add') == 0 ]]; }
until_true 'all to be read there' two_has_read
guest two 'kill $pid_moved; ended moved'
[[ $(guest two 'jq -c "[.delivered, .lapped, .sources[0].lives, .unexplained]" /tmp/moved.json') == '[1000,0,2,0]' ]] ||
    die "moved: $(guest two 'cat /tmp/moved.json')"
say 'moved: what was sent before and behind, and not what was sent between'
attach one

guest two 'reads saved host:lan --follow'
send 300 --rate 2kpps
until_true 'all to be read' two_has_read
detach two
said=$(hmp two 'savevm kept')
[[ -z $said ]] || die "savevm: $said"
attach two
lives saved two 2
send 300 --rate 2kpps
until_true 'all to be read' two_has_read
detach two
said=$(hmp two 'loadvm kept')
[[ -z $said ]] || die "loadvm: $said"
attach two
# The saved state does not have the second life, so the reader begins it again.
lives saved two 2
send 200 --rate 2kpps
until_true 'all to be read' two_has_read
guest two 'kill $pid_saved; ended saved'
[[ $(guest two 'jq -c "[.delivered, .lapped, .unexplained]" /tmp/saved.json') == '[500,0,0]' ]] ||
    die "saved: $(guest two 'cat /tmp/saved.json')"
until_true 'the devices to be gone' has_no_objects two
say 'saved: loaded again it has what it had then, and reads on'
