#!/usr/bin/env bash
# Boots a stock Debian 6.1 kernel in QEMU with the weir binary, runs a command there as root, prints
# the guest's console, and exits with the command's status. Nothing is installed, no root needed.
#
#     tests/guest/run.sh [--add FILE]... [--out DIR | --initramfs FILE] [--] COMMAND [ARGUMENT]...
#
# --add FILE puts FILE on the guest's PATH, with its shared libraries. busybox, ip, tc, jq and weir are
# always there. --out DIR: files that the command writes to the guest's /out, at most 64 MiB, are copied to DIR.
# --initramfs FILE writes the initramfs to FILE, and boots nothing.
# Environment:
#     WEIR_BIN            the weir binary (target/debug/weir, else target/release/weir)
#     WEIR_GUEST_ACCEL    accelerators, best first (tcg); kvm:tcg on a host whose KVM works. KVM is not the
#                         default, because in VMs /dev/kvm can often be opened but boots nothing
#     WEIR_GUEST_CPU      QEMU's -cpu (max); QEMU 7.2 needs max,-cx16 for Linux 6.12
#     WEIR_GUEST_CPUS     how many (2)
#     WEIR_GUEST_TIMEOUT  seconds until the guest is ended (180)
#     WEIR_GUEST_MODULES  further kernel modules for the guest
#     WEIR_GUEST_QEMU     further arguments for QEMU, a list of words
#     WEIR_GUEST_MACHINE  QEMU's -machine (pc)
#     WEIR_GUEST_PROGRAM  another qemu-system-x86_64
#     WEIR_GUEST_VERBOSE  1: print the kernel's messages, too
# Exit 124: time-out. 125: the guest could not be started, or ended without a status.
set -euo pipefail
# shellcheck source=tests/guest/common.sh
source "$(dirname "$0")/common.sh"

timeout_s=${WEIR_GUEST_TIMEOUT:-180}
cpu=${WEIR_GUEST_CPU:-max}
cpus=${WEIR_GUEST_CPUS:-2}
modules="veth sch_ingress cls_bpf act_mirred dummy bonding 8021q tun virtio_pci virtio_blk ${WEIR_GUEST_MODULES:-}"
add=()
out=
initramfs=
while [[ $# -gt 0 ]]; do
    case $1 in
    --add)
        add+=("${2:?--add needs a FILE}")
        shift 2
        ;;
    --out)
        out=${2:?--out needs a DIR}
        shift 2
        ;;
    --initramfs)
        initramfs=${2:?--initramfs needs a FILE}
        shift 2
        ;;
    --)
        shift
        break
        ;;
    -*) die "unknown option $1; see the head of $0" ;;
    *) break ;;
    esac
done
[[ $# -gt 0 ]] || die "no command; usage: $0 [--add FILE]... [--out DIR] [--] COMMAND..."

refuse() {
    say "guest: $*"
    exit 125
}
for tool in qemu-system-x86_64 busybox cpio ip tc jq; do
    command -v $tool >/dev/null || refuse "$tool is missing; run: make setup"
done

weir=${WEIR_BIN:-}
if [[ -z $weir ]]; then
    for profile in debug release; do
        if [[ -x $target_dir/$profile/weir ]]; then
            weir=$target_dir/$profile/weir
            break
        fi
    done
elif [[ ! -x $weir ]]; then
    refuse "WEIR_BIN: no such program: $weir"
fi
[[ -n $weir ]] || say 'guest: no weir binary is built yet, the guest is without one'

kernel=$("$(dirname "$0")/kernel.sh") || refuse "no Debian 6.1 kernel to boot (see tests/guest/kernel.sh)"
version=$(basename "$kernel"/lib/modules/*)

make_scratch
tree=$scratch/tree
mkdir -p "$tree"/{bin,dev,proc,sys,tmp,run,root,etc,lib/modules/"$version"}
ln -s bin "$tree/sbin"

# Copies programs to /bin, and their libraries to the paths that they have here.
add_program() { # FILE [NAME]
    local file=$1 name=${2:-$(basename "$1")} library
    install -m 755 "$(realpath "$file")" "$tree/bin/$name"
    # Nine tenths of our programs are debug information, and the guest unpacks everything into memory.
    strip --strip-debug "$tree/bin/$name" 2>/dev/null || true
    # ldd fails for scripts and static programs, which need no libraries.
    while IFS= read -r library; do
        install -D -m 755 "$(realpath "$library")" "$tree$library"
    done < <(ldd "$file" 2>/dev/null | grep -o '/[^ )]*')
}

add_program "$(command -v busybox)"
# All applets but two. busybox's `ip` knows neither veth nor namespaces, and its `sh` prefers its own
# applets to what is on the PATH, `ip` among them.
while IFS= read -r applet; do
    ln -s busybox "$tree/bin/$applet"
done < <(busybox --list | grep -vx -e busybox -e ip -e sh)
add_program /bin/sh sh
add_program "$(command -v ip)"
add_program "$(command -v tc)"
add_program "$(command -v jq)"
for file in "${add[@]}"; do
    [[ -f $file ]] || refuse "--add: no such file: $file"
    add_program "$file"
done
if [[ -n $weir ]]; then
    add_program "$weir" weir
    # Tests that were built here contain this path.
    mkdir -p "$tree$(dirname "$(realpath "$weir")")"
    ln -s /bin/weir "$tree$(realpath "$weir")"
fi
if [[ -n $out ]]; then
    [[ -d $out ]] || refuse "--out: no such folder: $out"
    mkdir "$tree/out"
fi
# shellcheck disable=SC2086  # a list of words
add_modules "$kernel" "$tree" $modules

# Every shell understands single quotes; bash's %q may write $'...', which not every ash knows.
quoted=
for word in "$@"; do quoted+="'${word//\'/\'\\\'\'}' "; done
printf '%s\n' "$quoted" >"$tree/etc/command"

cat >"$tree/init" <<'INIT'
#!/bin/sh
# The guest's first process: mounts file systems, runs the command, reports its status to the host, ends the guest.
export PATH=/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /run/netns
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t bpf bpf /sys/fs/bpf
exec </dev/null >/dev/console 2>&1
ip link set lo up
cd /root
sh /etc/command
status=$?
if [ -d /out ]; then
    { modprobe virtio_pci && modprobe virtio_blk && tar -cf /dev/vda -C /out .; } || {
        echo 'error: /out did not go out of the guest'
        status=125
    }
fi
# The second serial port carries nothing else, so kernel messages cannot cut into the line.
echo "WEIR-GUEST-EXIT:$status" >/dev/ttyS1
sync
poweroff -f
INIT
chmod 755 "$tree/init"
(cd "$tree" && find . -print0 | cpio --quiet --null -o -H newc -R 0:0) | gzip -1 >"$scratch/initramfs"
if [[ -n $initramfs ]]; then
    mv "$scratch/initramfs" "$initramfs"
    exit 0
fi

accel=()
IFS=: read -ra names <<<"${WEIR_GUEST_ACCEL:-tcg}"
for name in "${names[@]}"; do accel+=(-accel "$name"); done

kernel_args='console=ttyS0 panic=-1'
if [[ ${WEIR_GUEST_VERBOSE:-0} != 1 ]]; then kernel_args+=' quiet'; fi

disk=()
if [[ -n $out ]]; then
    truncate -s 64M "$scratch/out.tar"
    disk=(-drive "file=$scratch/out.tar,format=raw,if=virtio")
fi

read -ra more <<<"${WEIR_GUEST_QEMU:-}"

mkfifo "$scratch/console"
sed -u 's/\r$//' <"$scratch/console" &
console_pid=$!
# By `timeout`, which passes on the signals that it gets, so its pid is the one to kill.
timeout --kill-after=5 "$timeout_s" "${WEIR_GUEST_PROGRAM:-qemu-system-x86_64}" -nodefaults -no-user-config -no-reboot \
    -display none -machine "${WEIR_GUEST_MACHINE:-pc}" "${accel[@]}" -cpu "$cpu" -smp "$cpus" -m 1G "${disk[@]}" \
    "${more[@]}" \
    -kernel "$kernel/vmlinuz" -initrd "$scratch/initramfs" -append "$kernel_args" \
    -serial stdio -serial "file:$scratch/status" </dev/null >"$scratch/console" &
qemu_pid=$!
rc=0
wait "$qemu_pid" || rc=$?
qemu_pid=
wait "$console_pid" || true

if [[ $rc -eq 124 || $rc -eq 137 ]]; then
    say "guest: not done after $timeout_s s (WEIR_GUEST_TIMEOUT), ended; WEIR_GUEST_VERBOSE=1 shows how far it came"
    exit 124
fi
status=$(tr -d '\r' <"$scratch/status" 2>/dev/null | sed -n 's/^WEIR-GUEST-EXIT:\([0-9]*\)$/\1/p' | tail -n 1)
[[ -n $status ]] || refuse "no exit status came back (QEMU: $rc); WEIR_GUEST_VERBOSE=1 shows the kernel's messages"
if [[ -n $out ]]; then
    tar -xf "$scratch/out.tar" --no-same-owner -C "$out" || refuse "what the guest left in /out does not unpack"
fi
say "guest: $version, exit $status"
exit "$status"
