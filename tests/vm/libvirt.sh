#!/usr/bin/env bash
# A domain of a real libvirtd is prepared and checked, reads the host's frames, is detached, saved to a disk, restored, and
# reads on, by the commands of an operator. libvirtd and virtlogd run in separate mount and PID namespaces, so that they do
# not affect a libvirt of this machine.
#
#     tests/vm/libvirt.sh
set -euo pipefail
if [[ ${1:-} != inside ]]; then
    # shellcheck source=tests/common.sh
    source "$(dirname "$0")/../common.sh"
    if [[ $EUID -ne 0 ]]; then
        skip vm_libvirt 'libvirtd, and a daemon that captures, need root'
        exit 0
    fi
    for tool in libvirtd virtlogd virsh qemu-system-x86_64 busybox cpio jq; do
        command -v $tool >/dev/null || {
            skip vm_libvirt "$tool is missing"
            exit 0
        }
    done
    # It has printed the reason.
    "$root/tests/guest/kernel.sh" >/dev/null || {
        rc=$?
        [[ $rc -eq 3 ]] || exit "$rc"
        skip vm_libvirt 'there is no Debian kernel to boot (tests/guest/kernel.sh)'
        exit 0
    }
    # In a PID namespace whose first process is the script below: libvirtd waits until the process id of a QEMU that it has
    # probed is free, and not every init process reaps orphans at once. All processes end with this script, also after
    # SIGKILL: `unshare` ends with this process, the namespace's first process with `unshare`, the others with that one.
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc "$0" inside $$ &
    unshare_pid=$!
    trap 'pkill -TERM -P "$unshare_pid" || true' INT TERM
    rc=0
    wait "$unshare_pid" || rc=$?
    # A signal interrupts only the wait.
    while kill -0 "$unshare_pid" 2>/dev/null; do wait "$unshare_pid" || rc=$?; done
    exit "$rc"
fi
# shellcheck source=tests/live.sh
source "$(dirname "$0")/../live.sh"
cd "$root"

scratch=
daemon_pid=
# In another PID namespace the same process ids are other processes.
number=$2
rx=weir-lv-rx-$number
tx=weir-lv-tx-$number
domain=weir-lv-$number

# Ends a daemon by the process id in its file.
end_daemon() { # PID FILE
    [[ -s $1 ]] || return 0
    local pid
    pid=$(<"$1")
    kill -TERM "$pid" 2>/dev/null || return 0
    timeout 20 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null || true
}
# shellcheck disable=SC2317  # by the trap
tidy() {
    end "$daemon_pid"
    if [[ -n $scratch ]]; then
        if [[ -s $scratch/libvirtd.pid ]]; then timeout 20 virsh -q destroy "$domain" >/dev/null 2>&1 || true; fi
        end_daemon "$scratch/libvirtd.pid"
        end_daemon "$scratch/virtlogd.pid"
        rm -rf "$scratch"
    fi
    remove_namespaces "$rx" "$tx"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

scratch=$(mktemp -d)
# QEMU's user reads the kernel there.
chmod 711 "$scratch"
mkdir -m 755 "$scratch/run"
weir=${WEIR_BIN:-$target_dir/release/weir}
[[ -n ${WEIR_BIN:-} ]] || cargo build --locked --release -p weir --bin weir
weir=$(realpath "$weir")

# A separate libvirt: configuration, state, logs; QEMU's user as the package libvirt-daemon-system makes it.
for folder in /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt; do
    mkdir -p $folder
    mount -t tmpfs -o mode=755 tmpfs $folder
done
for file in passwd group; do
    cp /etc/$file "$scratch/$file"
    grep -q '^libvirt-qemu:' /etc/$file && continue
    case $file in
    passwd) echo 'libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin' >>"$scratch/passwd" ;;
    group) echo 'libvirt-qemu:x:64055:' >>"$scratch/group" ;;
    esac
    mount --bind "$scratch/$file" /etc/$file
done
# No control groups: they belong to the machine.
echo 'cgroup_controllers = []' >/etc/libvirt/qemu.conf
virtlogd -d -p "$scratch/virtlogd.pid"
libvirtd -d -p "$scratch/libvirtd.pid"
export LIBVIRT_DEFAULT_URI=qemu:///system
until_true libvirtd virsh uri

make_link "$rx" "$tx"
kernel=$(tests/guest/kernel.sh)
cp "$kernel/vmlinuz" "$scratch/vmlinuz"
WEIR_BIN=$weir WEIR_GUEST_MODULES=virtio_console tests/guest/run.sh --add tests/vm/libvirt-inside.sh \
    --initramfs "$scratch/initramfs" -- libvirt-inside.sh
: >"$scratch/console.log"
cat >"$scratch/domain.xml" <<XML
<domain type='qemu'>
  <name>$domain</name>
  <memory unit='MiB'>640</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>$scratch/vmlinuz</kernel>
    <initrd>$scratch/initramfs</initrd>
    <cmdline>console=ttyS0 panic=-1 quiet</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <on_reboot>destroy</on_reboot>
  <devices>
    <emulator>$(command -v qemu-system-x86_64)</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='$scratch/console.log' append='on'/><target port='0'/></serial>
    <serial type='null'><target port='1'/></serial>
  </devices>
</domain>
XML
virsh -q define "$scratch/domain.xml"

serve() {
    cat >"$scratch/weir.toml"
    if [[ -n $daemon_pid ]]; then
        kill -HUP "$daemon_pid"
        return
    fi
    ip netns exec "$rx" "$weir" serve --config "$scratch/weir.toml" --socket "$scratch/run/weir.sock" \
        >>"$scratch/serve.log" 2>&1 &
    daemon_pid=$!
    until_true 'the daemon' test -S "$scratch/run/weir.sock"
}
check() { "$weir" vm check "$domain" --config "$scratch/weir.toml" --socket "$scratch/run/weir.sock" "$@"; }
# Waits until `weir vm check` reports this fault and no other; without arguments, none.
finds() { [[ $(check --json | jq -r '[.findings[] | select(.grade == "no") | .about] | join(" ")') == "$1" ]]; }
found() { # ABOUT REMEDY
    until_true "the finding '$1'" finds "$1"
    check >"$scratch/check.log" && die 'weir vm check ends with 0 although something is wrong'
    grep -qF "$2" "$scratch/check.log" || die "no remedy '$2' in: $(cat "$scratch/check.log")"
    say "ok      $1: $2"
}
vm() { "$weir" vm "$1" "$domain" --socket "$scratch/run/weir.sock" "${@:2}"; }
listed() { "$weir" vm list --json --socket "$scratch/run/weir.sock" | jq -e ".guests[0] | $1"; }
send() {
    ip netns exec "$tx" "$weir" gen eth0 "$@" >"$scratch/gen.log" 2>&1 || die "weir gen: $(cat "$scratch/gen.log")"
}
says() { grep -qF "$1" "$scratch/console.log"; }

# Nothing is prepared yet: each fault is reported with its remedy, in the order in which an operator meets them.
"$weir" vm prepare "$domain" --libvirt --region-mib 64 >"$scratch/prepare.log"
grep -q "org.weir.0" "$scratch/prepare.log" || die "prepare prints no channel: $(cat "$scratch/prepare.log")"
section=$(sed -n '/^\[guests/,/^region_mib/p' "$scratch/prepare.log")
serve <<<$'[sources.lan]\nsource = "eth0"\nusers = [0]'
found 'daemon file' "weir vm prepare $domain"
serve <<<$'[sources.lan]\nsource = "eth0"\nusers = [0]\n'"$section"
found 'sources machine channel slots' "virsh start $domain"
serve <<<$'[sources.lan]\nsource = "eth0"\nring_mib = 8\nusers = [0]\nguests = ["'"$domain"$'"]\n'"$section"
found 'machine channel slots' "weir vm prepare $domain --libvirt --apply"
virsh dumpxml --inactive "$domain" >"$scratch/before.xml"
"$weir" vm prepare "$domain" --libvirt --region-mib 16 --apply >"$scratch/prepare.log"
# A larger region needs further root ports, with which the domain must be started again.
"$weir" vm prepare "$domain" --libvirt --region-mib 64 --apply >"$scratch/prepare.log"
virsh dumpxml --inactive "$domain" >"$scratch/after.xml"
for id in weir0 weir1 weir2 weir3; do
    grep -q "id=$id," "$scratch/after.xml" || die "a second prepare, for a larger region, has not added $id"
done
# The earlier devices stay.
if diff "$scratch/before.xml" "$scratch/after.xml" | grep '^<' | grep -v '^< <domain'; then
    die 'prepare has changed other lines of the domain'
fi
"$weir" vm prepare "$domain" --libvirt --region-mib 64 --apply | grep -q 'nothing is changed' ||
    die 'a second prepare changes the domain again'
found machine "virsh start $domain"

virsh -q start "$domain" || die "$(cat /var/log/libvirt/qemu/*.log)"
found broker 'weir guest'
limit_s=90 until_true 'a broker in the guest' finds ''
check || die 'all should be well'
until_true 'a reader in the guest' listed '.feeds == 1 and .state == "plugged"'
send --frames 500 --rate 2kpps
until_true 'its frames' says 'READ 500'

say '=== detached, saved, restored'
vm detach --within 20s
listed '.state == "detached" and .feeds == 0' >/dev/null || die "it is not detached: $(listed .)"
found monitor "weir vm attach $domain"
send --frames 100 --rate 2kpps
virsh -q managedsave "$domain"
found 'machine' "virsh start $domain"
virsh -q start "$domain" || die "$(tail -n 5 /var/log/libvirt/qemu/*.log)"
# A machine that has ended is attached again automatically.
if listed '.state == "detached"' >/dev/null; then vm attach; fi
until_true 'the feed again' listed '.feeds == 1 and .state == "plugged"'
send --frames 500 --rate 2kpps
until_true 'the end of the reader' says 'DONE'
says 'DONE [1000,0]' || die "the reader: $(grep DONE "$scratch/console.log")"
say 'libvirt: prepared, checked, read, detached, saved, restored, and read on'
