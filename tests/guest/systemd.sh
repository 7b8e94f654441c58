#!/usr/bin/env bash
# The stage `systemd` of `make test`: boots a Debian 12 whose first process is systemd, on the stock Debian 6.1 kernel
# in QEMU, and runs systemd-inside.sh there: the daemon as the package installs it.
#
# The system is that of systemd-image.sh; QEMU writes to a copy of it that is gone when it ends. The package and the
# script come on a second disk. Environment: WEIR_DEBIAN_MIRROR, and WEIR_GUEST_ACCEL, WEIR_GUEST_CPU, WEIR_GUEST_CPUS,
# WEIR_GUEST_TIMEOUT, WEIR_GUEST_VERBOSE as in run.sh.
set -euo pipefail
# shellcheck source=tests/guest/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

timeout_s=${WEIR_GUEST_TIMEOUT:-600}
# shellcheck source=/dev/null
codename=$(source /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
if [[ $(uname -m) != x86_64 || $codename != bookworm ]]; then
    skip systemd "the package for Debian 12 on x86-64 is built on that, and this is '$codename' on $(uname -m)"
    exit 0
fi
for tool in qemu-system-x86_64 busybox cpio; do
    command -v $tool >/dev/null || die "$tool is missing; run: make setup"
done
rc=0
image=$(tests/guest/systemd-image.sh) || rc=$?
if [[ $rc -eq 3 ]]; then
    skip systemd 'there is no system to boot, see above'
    exit 0
fi
[[ $rc -eq 0 ]] || exit "$rc"
kernel=$(tests/guest/kernel.sh)
version=$(basename "$kernel"/lib/modules/*)

make_scratch

cargo build --locked --release -p weir --bin weir
WEIR_DIST=$scratch/dist packaging/dist.sh >/dev/null
mkdir "$scratch/check"
cp "$scratch"/dist/weir_*.deb "$scratch/check/weir.deb"
cp "$scratch"/dist/libweir1_*.deb "$scratch/check/libweir1.deb"
cp docs/tools.md "$scratch/check/"
cp tests/guest/systemd-inside.sh tests/guest/systemd-guest.sh "$scratch/check/"
tar -C "$scratch/check" -cf "$scratch/check.tar" .
truncate -s %1M "$scratch/check.tar"

# The disk drivers are modules of this kernel, so an initramfs loads them.
first=$scratch/first
mkdir -p "$first"/{bin,dev,proc,sys,root}
cp "$(command -v busybox)" "$first/bin/busybox"
add_modules "$kernel" "$first" virtio_pci virtio_blk
cat >"$first/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox modprobe virtio_pci
/bin/busybox modprobe virtio_blk
tries=0
until /bin/busybox mount -t ext4 /dev/vda /root 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || exit 1
    /bin/busybox sleep 0.1
done
/bin/busybox mount -o move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
INIT
chmod 755 "$first/init"
(cd "$first" && find . -print0 | cpio --quiet --null -o -H newc -R 0:0) | gzip -1 >"$scratch/initramfs"

accel=()
IFS=: read -ra names <<<"${WEIR_GUEST_ACCEL:-tcg}"
for name in "${names[@]}"; do accel+=(-accel "$name"); done
kernel_args='console=ttyS0 panic=-1 systemd.show_status=false'
if [[ ${WEIR_GUEST_VERBOSE:-0} != 1 ]]; then kernel_args+=' quiet loglevel=1'; fi

# A daemon on the host, for weir-guest.service. Its source is `gen:`, so it needs no capabilities.
start_host() { # WEIR
    mkdir -m 755 "$scratch/host"
    cat >"$scratch/host/weir.toml" <<CONFIG
[sources.made]
source = "gen:size=100,rate=1kpps"
guests = ["systemd"]
ring_mib = 16

[guests.systemd]
port = "$scratch/host/port"
qmp = "$scratch/host/qmp"
region_mib = 64
CONFIG
    "$1" serve --config "$scratch/host/weir.toml" --socket "$scratch/host/weir.sock" >"$scratch/host/log" 2>&1 &
    host_pid=$!
}
start_host "$target_dir/release/weir"

begin=$SECONDS
mkfifo "$scratch/console"
sed -u 's/\r$//' <"$scratch/console" &
console_pid=$!
timeout --kill-after=5 "$timeout_s" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot \
    -display none -machine pc "${accel[@]}" -cpu "${WEIR_GUEST_CPU:-max}" -smp "${WEIR_GUEST_CPUS:-2}" -m 1G \
    -drive "file=$image,format=raw,if=virtio,snapshot=on" \
    -drive "file=$scratch/check.tar,format=raw,if=virtio,readonly=on" \
    -device virtio-serial -chardev "socket,id=weir,path=$scratch/host/port,server=on,wait=off" \
    -device virtserialport,id=weir,chardev=weir,name=org.weir.0 -qmp "unix:$scratch/host/qmp,server=on,wait=off" \
    -kernel "$kernel/vmlinuz" -initrd "$scratch/initramfs" -append "$kernel_args" \
    -serial stdio -serial "file:$scratch/status" </dev/null >"$scratch/console" &
qemu_pid=$!
rc=0
wait "$qemu_pid" || rc=$?
qemu_pid=
wait "$console_pid" || true
if [[ $rc -eq 124 || $rc -eq 137 ]]; then
    die "systemd: not done after $timeout_s s (WEIR_GUEST_TIMEOUT); WEIR_GUEST_VERBOSE=1 shows the kernel's messages"
fi
status=$(tr -d '\r' <"$scratch/status" 2>/dev/null | sed -n 's/^WEIR-GUEST-EXIT:\([0-9a-z]*\)$/\1/p' | tail -n 1)
[[ -n $status ]] ||
    die "systemd: no exit status came back (QEMU: $rc); WEIR_GUEST_VERBOSE=1 shows the kernel's messages"
[[ $status == 0 ]] || die "systemd: the check in the guest ended with $status, see above; its host says: $(tail -n 20 "$scratch/host/log")"
say "systemd: the daemon as the package installs it, on $version, in $((SECONDS - begin)) s"
