# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# A machine without a serial port for Weir, prepared as `weir vm prepare --vsock` prints: its broker reaches the daemon by
# vsock, for which vhost-device-vsock runs on the host. QEMU, vhost-device-vsock and Weir's daemon do not run as root, and
# their sockets refuse other users. The broker finds no device, then no host, then a host; broker and daemon are killed while
# readers are open.

command -v vhost-device-vsock >/dev/null || {
    skip vm_vsock 'vhost-device-vsock is missing (tests/setup.sh test)'
    return 0
}
image_modules='vmw_vsock_virtio_transport'
initramfs_of plain

# Numbers instead of names, which this system may not have. The daemon's group is that of its clients; the group of guests
# has no members.
qemu_user=65534 daemon_user=64901 daemon_group=64901 guests_group=64902
sockets=$scratch/guests/one
mkdir -m 755 "$scratch/bin"
install -m 755 "$(command -v vhost-device-vsock)" "$weir" "$scratch/bin"
install -m 644 "$kernel_folder/vmlinuz" "$scratch/bin"
weir=$scratch/bin/weir kernel_folder=$scratch/bin initramfs=$scratch/plain.initramfs
chmod 711 "$scratch"
chmod 644 "$initramfs"
chown "$daemon_user:$daemon_group" "$scratch/run"
as_qemu=(setpriv --reuid "$qemu_user" --regid "$qemu_user" --clear-groups sh -c 'umask 007; exec "$@"' sh)
rights=+net_raw,+net_admin,+bpf,+perfmon
as_daemon=(setpriv --reuid "$daemon_user" --regid "$daemon_group" --groups "$guests_group"
    --inh-caps="-all,$rights" --ambient-caps="$rights" --bounding-set="-all,$rights" --no-new-privs)

prepared=$("$weir" vm prepare one --vsock --machine pc --region-mib 64 |
    sed "s|/run/weir-guests|$scratch/guests|g; s/QEMU-USER/$qemu_user/; s/-g weir-guests/-g $guests_group/; s/4G/$memory/g")
folders=$(sed -n 's/^# *install /install /p' <<<"$prepared")
[[ $(wc -l <<<"$folders") -eq 2 ]] || die "the lines that make the folder: $prepared"
eval "$folders"
configure 16 64 one
sed -i '/^\[guests/,$d' "$scratch/weir.toml"
sed -n '/^\[guests/,$p' <<<"$prepared" >>"$scratch/weir.toml"

read -ra vhost <<<"$(sed -n 's/^\(vhost-device-vsock .*\) &$/\1/p' <<<"$prepared")"
"${as_qemu[@]}" "$scratch/bin/${vhost[0]}" "${vhost[@]:1}" >"$scratch/vhost.log" 2>&1 &
helpers+=($!)
until_true 'vhost-device-vsock' test -S "$sockets/vhost"
read -rd '' -a options < <(sed -n '/^-/s/ [\\]$\|$//p' <<<"$prepared") || true
port=no start_machine one pc "${options[@]}"
booted one

guest one 'start early weir guest --vsock; within 10 grep -q "no vsock" /tmp/early.err && kill $pid_early && ended early'
guest one 'modprobe vmw_vsock_virtio_transport && start_broker --vsock && within 10 test -S /run/weir/weir.sock'
guest one 'within 10 grep -q "vsock:5745: the host does not answer" /tmp/guest.err'
# The message is not repeated until the host is there.
serve
guest one 'within 60 grep -q "serving lan of the host" /tmp/guest.err'
check() { "$weir" vm check one --socket "$scratch/run/weir.sock" --config "$scratch/weir.toml" >"$scratch/check.log"; }
until_true 'weir vm check to find nothing wrong' check
[[ $(guest one 'grep -c "does not answer" /tmp/guest.err') -eq 1 ]] || die 'it says again and again that nobody answers'

# A client of the daemon can connect to the daemon, and to no socket of the machine.
connects() { # SOCKET
    python3 -c 'import os, socket, sys
path, group = sys.argv[1:]
os.setgroups([int(group)])
os.setgid(64903)
os.setuid(64903)
socket.socket(socket.AF_UNIX).connect(path)' "$1" "$daemon_group" 2>&1
}
said=$(connects "$scratch/run/weir.sock") || die "a client: $said"
for socket in qmp vsock vsock_5745; do
    [[ -S $sockets/$socket ]] || die "there is no $socket: $(ls -l "$sockets")"
    said=$(connects "$sockets/$socket") && die "a client of the daemon's may connect to $socket"
    [[ $said == *'Permission denied'* ]] || die "$socket: $said"
done

guest one 'reads all host:lan --frames 2000'
send 2000 --rate 2kpps --size 200
guest one 'ended all'
[[ $(guest one 'counts all') == '[2000,0,2000,2000,0,0,0]' ]] || die "all: $(guest one 'counts all')"

# The readers go on with the second life: 500 frames of each.
has_both() { # NAME
    guest one "ended $1"
    [[ $(guest one "jq -c '[.delivered, .sources[0].lives, .unexplained]' /tmp/$1.json") == '[1000,2,0]' ]] ||
        die "$1: $(guest one "cat /tmp/$1.json")"
}
guest one 'reads resumed host:lan --follow --frames 1000'
send 500 --rate 2kpps
# It prints how many frames it has.
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
[[ ! -e $sockets/vsock_5745 ]] || die 'the daemon has left its socket'
say 'vsock: every frame of the host was read in the guest'
