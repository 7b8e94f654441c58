# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# A machine without a serial port for Weir: its broker reaches the daemon by vsock, which the daemon vhost-device-vsock
# carries. It finds no device, then no host, then one; broker and daemon are killed under its readers.

command -v vhost-device-vsock >/dev/null || {
    skip vm_vsock 'vhost-device-vsock is missing (tests/setup.sh test)'
    return 0
}
image_modules='vmw_vsock_virtio_transport'
initramfs_of plain
initramfs=$scratch/plain.initramfs
configure 16 64 one
sed -i "s|^port = .*|vsock = \"$scratch/vsock\"|" "$scratch/weir.toml"

vhost-device-vsock --vm "guest-cid=3,socket=$scratch/vhost,uds-path=$scratch/vsock" >"$scratch/vhost.log" 2>&1 &
helpers+=($!)
until_true 'vhost-device-vsock' test -S "$scratch/vhost"
# vhost-user needs the guest's memory to be shared.
port=no start_machine one pc,memory-backend=ram -object "memory-backend-memfd,id=ram,size=$memory,share=on" \
    -chardev "socket,id=vhost,path=$scratch/vhost" -device vhost-user-vsock-pci,chardev=vhost
booted one

guest one 'start early weir guest --vsock; within 10 grep -q "no vsock" /tmp/early.err && kill $pid_early && ended early'
guest one 'modprobe vmw_vsock_virtio_transport && start_broker --vsock && within 10 test -S /run/weir/weir.sock'
guest one 'within 10 grep -q "vsock:5745: the host does not answer" /tmp/guest.err'
# Until the host is there it is not said again.
serve
guest one 'within 60 grep -q "serving lan of the host" /tmp/guest.err'
[[ $(guest one 'grep -c "does not answer" /tmp/guest.err') -eq 1 ]] || die 'it says again and again that nobody answers'

guest one 'reads all host:lan --frames 2000'
send 2000 --rate 2kpps --size 200
guest one 'ended all'
[[ $(guest one 'counts all') == '[2000,0,2000,2000,0,0,0]' ]] || die "all: $(guest one 'counts all')"

# Read on from with its second life: 500 frames of each.
has_both() { # NAME
    guest one "ended $1"
    [[ $(guest one "jq -c '[.delivered, .sources[0].lives, .unexplained]' /tmp/$1.json") == '[1000,2,0]' ]] ||
        die "$1: $(guest one "cat /tmp/$1.json")"
}
guest one 'reads resumed host:lan --follow --frames 1000'
send 500 --rate 2kpps
# It says how many it has.
guest one 'within 20 grep -q "captured 500 " /tmp/resumed.err'
guest one 'kill -KILL $pid_broker; wait $pid_broker; start_broker --vsock; within 20 grep -q "captured from here on" /tmp/resumed.err'
send 500 --rate 2kpps
has_both resumed

guest one 'reads daemon host:lan --follow --frames 1000'
send 500 --rate 2kpps
until_true 'all to be read' all_read
kill -KILL "$daemon_pid"
wait "$daemon_pid" 2>/dev/null || true
serve
guest one 'within 60 grep -q "captured from here on" /tmp/daemon.err'
send 500 --rate 2kpps
has_both daemon
guest one 'kill $pid_broker; wait $pid_broker'
end "$daemon_pid"
daemon_pid=
[[ ! -e $scratch/vsock_5745 ]] || die 'the daemon has left its socket'
say 'vsock: every frame of the host was read in the guest'
